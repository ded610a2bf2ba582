// SPDX-License-Identifier: GPL-2.0

//! The policy: which addresses, in which steps, and when the scheduler may run.

use crate::{
    addr::{
        Ipa,
        IpaRange, //
    },
    geometry::Geometry,
    stats::Destroyed, //
};

/// One kind of unlinked stage-2: tables that the host walks, or mappings that EL2 holds.
pub trait Backend {
    /// The first address not yet destroyed where something is mapped, or may be.
    ///
    /// Never goes into an empty subtree. At least the end of the address space if nothing is left.
    fn next_mapped(&mut self) -> Ipa;

    /// Destroys what is mapped in `range`, until its end or until about `budget` tables (or as
    /// much other work) are gone, and takes that off `budget`. Returns the number of leaves and
    /// tables given up since the last call.
    ///
    /// `range.start` is what [`Backend::next_mapped`] said, and `budget` is not 0.
    fn destroy_range(&mut self, range: IpaRange, budget: &mut u32) -> u64;

    /// Destroys the root, after everything below it, and returns the figures.
    fn destroy_root(&mut self) -> Destroyed;
}

/// Destroys an unlinked stage-2 from `range.start` to `range.end`, and then its root.
///
/// Goes by chunks (`Geometry::stage2_range_addr_end`), and calls `resched` when a `budget` of work
/// is spent: in the middle of a chunk, or after as many light chunks as come to it. A chunk that
/// unmapped something costs one at least. An empty chunk costs nothing and never reschedules: it
/// takes no time that anybody would have to wait for.
#[inline]
pub fn stage2_destroy<B: Backend>(
    backend: &mut B,
    geometry: &Geometry,
    range: IpaRange,
    budget: u32,
    mut resched: impl FnMut(&mut B),
) -> Destroyed {
    let mut chunks = 0;
    let mut rescheds = 0;
    let mut chunk_end = range.start;
    let budget = budget.max(1);
    let mut left = budget;

    let mut addr = backend.next_mapped();
    while addr < range.end {
        let end = geometry.stage2_range_addr_end(addr, range.end);
        let before = left;
        let unmapped = backend.destroy_range(IpaRange { start: addr, end }, &mut left);
        if unmapped > 0 {
            left = left.min(before - 1);
        }
        if unmapped > 0 && end != chunk_end {
            chunks += 1;
            chunk_end = end;
        }

        addr = backend.next_mapped();
        if left == 0 && addr < range.end {
            rescheds += 1;
            resched(backend);
            left = budget;
        }
    }

    Destroyed {
        chunks,
        rescheds,
        ..backend.destroy_root()
    }
}
