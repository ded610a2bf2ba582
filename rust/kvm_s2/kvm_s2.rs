// SPDX-License-Identifier: GPL-2.0

//! Destroys the stage-2 of an arm64 KVM guest at the cost of what it mapped.
//!
//! The stage-2 is *unlinked*: no vCPU runs on it and KVM has forgotten its root. What is left is
//! to give everything back, which costs as much as there are table pages (not entries, and not
//! addresses), in steps of bounded size. [`stage2_destroy`] is the policy; a [`Backend`] is
//! one kind of stage-2; [`TableOps`] is the memory beneath it. No part of this crate knows the
//! kernel or allocates.

#![cfg_attr(not(any(test, CONFIG_RUST)), no_std)]

mod addr;
#[cfg(any(test, feature = "arena", CONFIG_KVM_S2_RUST_KUNIT))]
pub mod arena;
#[cfg(any(test, CONFIG_KVM_S2_RUST_KUNIT))]
mod cases;
mod destroy;
mod geometry;
mod ops;
mod pkvm;
mod pte;
mod stats;
mod table;
mod walk;

pub use addr::{
    Ipa,
    IpaRange,
    PhysAddr, //
};
pub use destroy::{
    stage2_destroy,
    Backend, //
};
pub use geometry::{
    Geometry,
    GeometryError,
    Granule,
    Level,
    OutputAddress, //
};
pub use ops::{
    Table,
    TableOps, //
};
pub use pkvm::{
    Fate,
    Mapping,
    MappingOps,
    PkvmBackend, //
};
pub use pte::{
    Pte,
    PteKind, //
};
pub use stats::Destroyed;
pub use table::Count;
pub use walk::TableBackend;
