// SPDX-License-Identifier: GPL-2.0

//! Reading the entries of a table: the loops that a destroy spends its time in.
//!
//! Entries are taken in groups. A group full of pages or blocks, or empty, is recognised by its AND
//! and its OR, at one load for two entries and one operation for each; others are looked at one
//! by one.

use core::hint::black_box;

use crate::pte::Pte;

/// Entries taken together.
const GROUP: usize = 32;

/// What part of a table holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Entries that hold a reference on the table.
    pub counted: u32,
    /// Those of them that map something themselves: no tables, no annotations.
    pub valid: u32,
}

impl Count {
    /// Counts the entries of a table at the last level, each read once and in order, until
    /// `expected` of them are found.
    #[inline]
    pub fn of(entries: &[Pte], expected: u32) -> Self {
        let mut count = Self::default();
        let mut groups = entries.chunks_exact(GROUP);
        for group in &mut groups {
            if count.counted >= expected {
                return count;
            }
            if all(group).is_valid() {
                count.add_full();
            } else {
                count.add_each(group);
            }
        }
        count.add_each(groups.remainder());
        count
    }

    /// Adds leaves above the last level, up to the first table. Returns how many entries that took.
    #[inline]
    pub(crate) fn add_leaves(&mut self, entries: &[Pte]) -> usize {
        if entries.first().is_some_and(|pte| pte.is_table_bits()) {
            return 0;
        }
        let mut taken = 0;
        for group in entries.chunks_exact(GROUP) {
            let any = any(group);
            if any.has_table_type() {
                break;
            }
            if any.is_counted() {
                if all(group).is_valid() {
                    self.add_full();
                } else {
                    self.add_each(group);
                }
            }
            taken += GROUP;
        }
        let rest = entries.get(taken..).unwrap_or(&[]);
        let leaves = rest.iter().take_while(|pte| !pte.is_table_bits()).count();
        self.add_each(rest.get(..leaves).unwrap_or(&[]));
        taken + leaves
    }

    #[inline]
    fn add_full(&mut self) {
        self.counted += GROUP as u32;
        self.valid += GROUP as u32;
    }

    #[inline]
    fn add_each(&mut self, entries: &[Pte]) {
        for pte in entries {
            self.counted += u32::from(pte.is_counted());
            self.valid += u32::from(pte.is_valid());
        }
    }
}

/// How many entries are empty before the first that is not.
#[inline]
pub(crate) fn empty_prefix(entries: &[Pte]) -> usize {
    if entries.first().is_some_and(|pte| pte.is_counted()) {
        return 0;
    }
    let groups = entries.chunks_exact(GROUP);
    let empty = GROUP * groups.take_while(|group| !any(group).is_counted()).count();
    let rest = entries.get(empty..).unwrap_or(&[]);
    empty + rest.iter().take_while(|pte| !pte.is_counted()).count()
}

/// The bits that all entries have.
///
/// Seen through a black box, or the compiler notices which bit is asked for, loads half of each
/// entry and cannot pair the loads any more.
#[inline]
fn all(group: &[Pte]) -> Pte {
    Pte(black_box(group.iter().fold(!0, |all, pte| all & pte.0)))
}

/// The bits that any entry has.
#[inline]
fn any(group: &[Pte]) -> Pte {
    Pte(black_box(group.iter().fold(0, |any, pte| any | pte.0)))
}
