// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A microVM whose pause replies before its memory is torn down, without lying
//! about what the reply means.
//!
//! Four modules stand alone and are what another VMM would take (build with
//! `default-features = false`): [`reaper`] releases memory off the reply's path
//! within bounds, [`teardown`] makes the one cheap order of taking a KVM guest
//! apart the only order that compiles, [`restore`] brings memory back from a
//! file in one of three ways, and [`hugepages`] knows the host's pools.

#[cfg(not(target_os = "linux"))]
compile_error!("sandbox drives /dev/kvm and runs on Linux only");

pub mod hugepages;
pub mod reaper;
pub mod restore;
pub mod teardown;

#[cfg(feature = "vmm")]
pub mod admission;
#[cfg(feature = "vmm")]
pub mod api;
#[cfg(feature = "vmm")]
pub mod arch;
#[cfg(feature = "vmm")]
pub mod config;
#[cfg(feature = "vmm")]
pub mod devices;
#[cfg(feature = "vmm")]
pub mod events;
#[cfg(feature = "vmm")]
pub mod memory;
#[cfg(feature = "vmm")]
pub mod payload;
#[cfg(feature = "vmm")]
pub mod snapshot;
#[cfg(feature = "vmm")]
pub mod socket;
#[cfg(feature = "vmm")]
pub mod vcpu;
#[cfg(feature = "vmm")]
pub mod vm;
