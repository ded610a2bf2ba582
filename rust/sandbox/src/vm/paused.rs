// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A VM without threads: made, restored, saved and torn down here.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_ioctls::{Kvm, VmFd};
use serde::Serialize;

use super::core::{Core, Machine, Parts, Remains};
use super::running::{ResumeError, RunningVm};
use crate::arch::{self, Start};
use crate::config::{ConfigError, VmConfig};
use crate::devices::{DeviceError, Devices};
use crate::memory::{Backing, GuestRam, MemoryError};
use crate::payload;
use crate::reaper::{Placement, Reaper};
use crate::restore::link::Held;
use crate::restore::on_demand::Progress;
use crate::snapshot::{SaveError, Standing, State};
use crate::teardown::Guest;
use crate::vcpu::{ExitSlot, GuestExit, Vcpu};

/// A VM could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// No usable /dev/kvm.
    #[error("cannot open /dev/kvm: {0}{hint}", hint = kvm_hint(.0))]
    OpenKvm(kvm_ioctls::Error),
    /// KVM refused a step.
    #[error("KVM refuses to {step}: {source}")]
    Kvm {
        /// What was tried.
        step: &'static str,
        /// KVM's answer.
        source: kvm_ioctls::Error,
    },
    /// The configuration makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The kernel could not be placed.
    #[error(transparent)]
    Kernel(#[from] arch::LoadError),
    /// The built-in payload could not be placed.
    #[error("cannot place the payload: {0}")]
    Payload(#[from] vm_memory::GuestMemoryError),
    /// The first state of a vCPU.
    #[error(transparent)]
    Start(#[from] arch::StartError),
    /// A snapshot with another number of vCPUs than its own configuration.
    #[error("the snapshot holds {found} vCPUs, its configuration {expected}")]
    VcpuCount {
        /// In the snapshot.
        found: usize,
        /// By the configuration.
        expected: usize,
    },
}

fn kvm_hint(error: &kvm_ioctls::Error) -> &'static str {
    match error.errno() {
        libc::ENOENT | libc::ENODEV | libc::ENXIO => {
            " (is the kvm module loaded, and virtualization enabled?)"
        }
        libc::EACCES | libc::EPERM => " (this user may not use it; try the group `kvm`)",
        _ => "",
    }
}

fn step(step: &'static str) -> impl Fn(kvm_ioctls::Error) -> CreateError {
    move |source| CreateError::Kvm { step, source }
}

/// When memory is given back, relative to the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Release {
    /// After it, as far as the reaper's bounds allow.
    #[default]
    Deferred,
    /// Before it: the reply is a barrier.
    BeforeReply,
}

/// How a teardown went.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TeardownReport {
    /// Closing devices and vCPUs, in nanoseconds.
    pub close_ns: u64,
    /// From then to the return: handing the rest over, or releasing it.
    pub release_ns: u64,
    /// Where VM fd and guest memory went.
    pub release: Placement,
    /// Bytes of guest memory.
    pub bytes: u64,
}

/// A VM whose vCPUs stand still and whose device workers have ended.
#[must_use = "dropping it tears the VM down before the drop returns"]
pub struct PausedVm {
    core: Core,
}

impl PausedVm {
    /// Makes a VM that is about to execute its first instruction.
    pub fn create(config: VmConfig) -> Result<Self, CreateError> {
        config.validate()?;
        let ram = GuestRam::new(&config.memory, &Backing::Fresh)?;
        let count = config.disks.len() + config.net.len() + usize::from(config.vsock.is_some());
        let slots: Vec<_> = (0..count).map(arch::device_slot).collect();
        let start = match &config.payload.builtin {
            Some(builtin) => Start::Payload(payload::load(ram.map(), builtin)?),
            None => {
                let vcpus = config.cpus.boot_vcpus;
                arch::load_linux(ram.map(), &config.payload, vcpus, &slots)?
            }
        };
        let vm = Self::assemble(config, ram, Arc::default(), None)?;
        let Parts { guest, .. } = vm.core.parts();
        for vcpu in guest.vcpus() {
            arch::start_vcpu(vcpu.fd(), vcpu.id(), guest.ram().map(), &start)?;
        }
        Ok(vm)
    }

    /// Makes a VM from a saved state and the memory that belongs to it. `exit` is
    /// where the memory says that it is lost.
    pub(super) fn from_state(
        config: VmConfig,
        state: &State,
        ram: GuestRam,
        exit: Arc<ExitSlot>,
        held: Option<Held>,
    ) -> Result<Self, CreateError> {
        let mut vm = Self::assemble(config, ram, exit, Some(state))?;
        vm.core.held = held;
        let Parts { guest, .. } = vm.core.parts();
        if guest.vcpus().len() != state.vcpus.len() {
            return Err(CreateError::VcpuCount {
                found: state.vcpus.len(),
                expected: guest.vcpus().len(),
            });
        }
        for (vcpu, saved) in guest.vcpus().iter().zip(&state.vcpus) {
            arch::restore_vcpu(vcpu.fd(), saved).map_err(step("restore a vCPU"))?;
        }
        arch::restore_vm(&guest.vm().fd, guest.vm().chips(), &state.vm)
            .map_err(step("restore the VM"))?;
        Ok(vm)
    }

    fn assemble(
        config: VmConfig,
        ram: GuestRam,
        exit: Arc<ExitSlot>,
        state: Option<&State>,
    ) -> Result<Self, CreateError> {
        let kvm = Kvm::new().map_err(CreateError::OpenKvm)?;
        let fd = kvm.create_vm().map_err(step("create a VM"))?;
        // From here on an early return goes the way every teardown goes.
        let mut guest = Guest::new(Vec::new(), Machine { fd, chips: None }, ram);
        guest.ram().register(&guest.vm().fd)?;
        arch::prepare_vm(&guest.vm().fd).map_err(step("create interrupt controllers"))?;
        let count = config.cpus.boot_vcpus;
        for id in 0..count {
            let vcpu = create_vcpu(&kvm, &guest.vm().fd, id)?;
            guest.vcpus_mut().push(vcpu);
        }
        let chips =
            arch::finish_vm(&guest.vm().fd, count).map_err(step("set up interrupt controllers"))?;
        guest.vm_mut().chips = Some(chips);
        let devices = Devices::new(
            &guest.vm().fd,
            &guest.ram().share(),
            &config,
            state.map(|state| &state.devices),
        )?;
        Ok(Self {
            core: Core::new(config, kvm, exit, devices, guest),
        })
    }

    pub(super) fn from_core(core: Core) -> Self {
        Self { core }
    }

    /// What it was made from.
    pub fn config(&self) -> &VmConfig {
        &self.core.config
    }

    /// Why the guest stopped by itself, if it has.
    pub fn exit(&self) -> Option<GuestExit> {
        self.core.exit.get()
    }

    /// Guest memory, which nobody writes now.
    pub fn memory(&self) -> &vm_memory::GuestMemoryMmap {
        self.core.parts().guest.ram().map()
    }

    /// How far its memory is, if that is loaded on demand.
    pub fn progress(&self) -> Option<Progress> {
        self.core.parts().guest.ram().progress()
    }

    /// Gives memory back from this many threads when the time comes.
    pub fn release_threads(&mut self, threads: usize) {
        self.core
            .parts_mut()
            .guest
            .ram_mut()
            .release_threads(threads);
    }

    /// Sets it in motion; it comes back paused if that fails.
    pub fn resume(self) -> Result<RunningVm, ResumeError> {
        RunningVm::start(self.core)
    }

    /// Writes a durable snapshot to `directory`; the VM stays as it is.
    pub fn snapshot(&self, directory: &Path) -> Result<(), SaveError> {
        let Parts { devices, guest } = self.core.parts();
        guest.ram().load_all().map_err(SaveError::Memory)?;
        let vcpus = guest
            .vcpus()
            .iter()
            .map(|vcpu| arch::save_vcpu(&self.core.kvm, vcpu.fd()))
            .collect::<Result<_, _>>()
            .map_err(SaveError::Vcpu)?;
        let standing = Standing {
            config: self.core.config.clone(),
            vcpus,
            vm: arch::save_vm(&guest.vm().fd, guest.vm().chips()).map_err(SaveError::Vm)?,
            devices: devices.save(),
        };
        crate::snapshot::save(directory, standing, guest.ram().map())
    }

    /// Takes the VM apart. When this returns, sockets are removed, taps and disks
    /// closed and vCPUs gone, so that another VM can have the same id. VM fd and
    /// guest memory follow through `reaper`, before or after the return.
    pub fn teardown(mut self, reaper: &Reaper, label: &str, release: Release) -> TeardownReport {
        let start = Instant::now();
        let remains = self.core.dismantle().expect("only teardown() takes it");
        let bytes = remains.bytes();
        let closed = start.elapsed();
        let work = move || release_rest(remains);
        let placement = match release {
            Release::Deferred => reaper.release(label, bytes, work),
            Release::BeforeReply => reaper.release_now(label, bytes, work),
        };
        TeardownReport {
            close_ns: nanoseconds(closed),
            release_ns: nanoseconds(start.elapsed() - closed),
            release: placement,
            bytes,
        }
    }
}

/// The expensive part, in the only order that compiles.
fn release_rest(remains: Remains) -> crate::reaper::ReleaseResult {
    remains.close_vm().unmap_ram()?;
    Ok(())
}

fn create_vcpu(kvm: &Kvm, vm: &VmFd, id: u8) -> Result<Vcpu, CreateError> {
    let fd = vm
        .create_vcpu(u64::from(id))
        .map_err(step("create a vCPU"))?;
    arch::identify_vcpu(kvm, vm, &fd, id).map_err(step("set up a vCPU"))?;
    Ok(Vcpu::new(id, fd))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
