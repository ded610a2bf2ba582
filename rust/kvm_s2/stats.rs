// SPDX-License-Identifier: GPL-2.0

//! What a destroy did, in numbers.

/// The figures of one destroy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Destroyed {
    /// Counted entries that were no tables: pages, blocks, annotations; with pKVM, mappings.
    pub leaves: u64,
    /// Pages those leaves mapped, in granules. Annotations map none.
    pub pages: u64,
    /// Tables given up, the root not included.
    pub tables: u64,
    /// Bytes of the tables that were visited, the root included.
    pub table_bytes: u64,
    /// Chunks in which something was given up.
    pub chunks: u64,
    /// Times the scheduler was let in.
    pub rescheds: u64,
    /// Things left behind for safety: tables, or with pKVM pages.
    pub leaked: u64,
    /// Requests to the hypervisor.
    pub requests: u64,
}
