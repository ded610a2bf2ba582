// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a VM consists of, and the one way it is taken apart.

use std::sync::Arc;

use kvm_ioctls::{Kvm, VmFd};

use crate::arch::Chips;
use crate::config::VmConfig;
use crate::devices::Devices;
use crate::memory::GuestRam;
use crate::restore::link::Held;
use crate::teardown::{Guest, WithoutVcpus};
use crate::vcpu::{ExitSlot, Vcpu};

/// What is left of a VM after the part that a reply waits for.
pub(super) type Remains = WithoutVcpus<Vcpu, Machine, GuestRam>;

/// Everything that must be closed for the kernel to let the VM go, once the
/// vCPUs are gone: a controller's handle keeps it alive as well as its own.
pub(super) struct Machine {
    pub(super) fd: VmFd,
    pub(super) chips: Option<Chips>,
}

impl Machine {
    pub(super) fn chips(&self) -> &Chips {
        self.chips.as_ref().expect("made before the first use")
    }
}

/// All parts of a VM. Pause, delete and an early exit take it apart in
/// [`Core::dismantle`] alike.
pub(super) struct Core {
    pub(super) config: VmConfig,
    pub(super) kvm: Kvm,
    pub(super) exit: Arc<ExitSlot>,
    /// What keeps a clone's memory file by a name of its own.
    pub(super) held: Option<Held>,
    parts: Option<Parts>,
}

pub(super) struct Parts {
    pub(super) devices: Devices,
    pub(super) guest: Guest<Vcpu, Machine, GuestRam>,
}

impl Core {
    pub(super) fn new(
        config: VmConfig,
        kvm: Kvm,
        exit: Arc<ExitSlot>,
        devices: Devices,
        guest: Guest<Vcpu, Machine, GuestRam>,
    ) -> Self {
        Self {
            config,
            kvm,
            exit,
            held: None,
            parts: Some(Parts { devices, guest }),
        }
    }

    pub(super) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only dismantle() takes them")
    }

    pub(super) fn parts_mut(&mut self) -> &mut Parts {
        self.parts.as_mut().expect("only dismantle() takes them")
    }

    /// Closes the devices (their fds, sockets and taps go here) and the vCPUs.
    /// Threads must have ended. What is left can wait.
    pub(super) fn dismantle(&mut self) -> Option<Remains> {
        let Parts { devices, guest } = self.parts.take()?;
        // They share guest memory and must let go of it first.
        drop(devices);
        // The next VM may want the same name; the mapping keeps the file itself.
        self.held = None;
        Some(guest.close_vcpus())
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        drop(self.dismantle());
    }
}
