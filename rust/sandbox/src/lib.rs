// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A microVM whose pause replies before its memory is torn down, without lying
//! about what the reply means.
//!
//! Two modules stand alone and are what another VMM would take (build with
//! `default-features = false`): [`reaper`] releases memory off the reply's path
//! within bounds, and [`teardown`] makes the one cheap order of taking a KVM
//! guest apart the only order that compiles.

#[cfg(not(target_os = "linux"))]
compile_error!("sandbox drives /dev/kvm and runs on Linux only");

pub mod reaper;
pub mod teardown;
