// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What differs between architectures, behind one set of names.
//!
//! Each module brings: where RAM and devices lie, the built-in payload's
//! instructions, the interrupt controller, how a vCPU starts, how a kernel is
//! placed, and how the state of vCPUs and VM is saved and restored.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod load;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::*;
pub use load::LoadError;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("sandbox knows x86-64 and arm64");

/// Where a vCPU begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The built-in payload.
    Payload(crate::payload::Program),
    /// A Linux kernel.
    Linux {
        /// First instruction.
        entry: u64,
        /// Boot parameters (x86-64: zero page, arm64: device tree).
        parameters: u64,
    },
}

/// A virtio-mmio device as the guest must be told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSlot {
    /// Guest-physical address of its registers.
    pub address: u64,
    /// Global system interrupt.
    pub gsi: u32,
}
