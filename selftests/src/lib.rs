// SPDX-License-Identifier: GPL-2.0

//! What the stage-2 destroy selftests are made of.
//!
//! Each module is one concept: a guest with an explicit order of release
//! ([`vm`], [`ram`], [`vcpu`], [`payload`], [`holder`]), what the kernel says about it
//! ([`meminfo`], [`stats`], [`host`], [`kmod`]), and how it is told
//! ([`ktap`], [`row`], [`spec`]).

pub mod clock;
pub mod holder;
pub mod host;
pub mod keep;
pub mod kmod;
pub mod ktap;
pub mod meminfo;
pub mod payload;
pub mod ram;
pub mod row;
pub mod size;
pub mod spec;
pub mod stats;
pub mod stop;
pub mod vcpu;
pub mod vm;

pub use stop::Result;
pub use stop::Stop;
