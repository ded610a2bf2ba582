// SPDX-License-Identifier: GPL-2.0

//! Counting the entries of one last-level table: the loop that a destroy spends its time in.

use crate::pte::Pte;

/// Entries taken together. A dense table costs one AND for each entry and one branch for each
/// group; the compiler turns the loads into pairs.
const GROUP: usize = 32;

/// What a last-level table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Entries that hold a reference on the table.
    pub counted: u32,
    /// Those of them that map a page.
    pub valid: u32,
}

impl Count {
    /// Counts the entries of a table at the last level, each read once and in order.
    #[inline]
    pub fn of(entries: &[Pte]) -> Self {
        let mut count = Self::default();
        let mut groups = entries.chunks_exact(GROUP);
        for group in &mut groups {
            // Valid is bit 0, so a group whose AND is odd is full.
            let all = group.iter().fold(!0, |all, pte| all & pte.0);
            if Pte(all).is_valid() {
                count.counted += GROUP as u32;
                count.valid += GROUP as u32;
            } else {
                count.add_each(group);
            }
        }
        count.add_each(groups.remainder());
        count
    }

    #[inline]
    fn add_each(&mut self, entries: &[Pte]) {
        for pte in entries {
            self.counted += u32::from(pte.is_counted());
            self.valid += u32::from(pte.is_valid());
        }
    }
}
