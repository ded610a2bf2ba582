// SPDX-License-Identifier: GPL-2.0

//! Reading the entries of a table: the loops that a destroy spends its time in.
//!
//! Entries are taken in groups. A group full of pages or blocks, or empty, is recognised by its AND
//! and its OR, at one load for two entries and one operation for each; others are looked at one
//! by one. Where few entries are left to find, the search ends at the last of them.

use core::hint::black_box;

use crate::pte::Pte;

/// Entries taken together.
const GROUP: usize = 32;

/// Entries that are first asked together whether they are a full stretch of leaves.
const STRETCH: usize = 4 * GROUP;

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
        if count.missing(expected) < GROUP {
            count.add_few(entries, expected);
        } else {
            count.add_many(entries, expected);
        }
        count
    }

    /// Adds entries until `expected` of them are found, at least a group.
    fn add_many(&mut self, entries: &[Pte], expected: u32) {
        let mut stretches = entries.chunks_exact(STRETCH);
        for stretch in &mut stretches {
            let missing = self.missing(expected);
            if missing == 0 {
                return;
            }
            if missing >= STRETCH && all(stretch).is_valid() {
                self.add_full(STRETCH);
            } else {
                self.add_groups(stretch, expected);
            }
        }
        if !stretches.remainder().is_empty() {
            self.add_groups(stretches.remainder(), expected);
        }
    }

    /// How many of `expected` entries are not found yet.
    #[inline]
    fn missing(&self, expected: u32) -> usize {
        expected.saturating_sub(self.counted) as usize
    }

    /// Adds entries at the last level, group by group, until `expected` of them are found.
    #[inline]
    fn add_groups(&mut self, entries: &[Pte], expected: u32) {
        let mut groups = entries.chunks_exact(GROUP);
        for group in &mut groups {
            match self.missing(expected) {
                0 => return,
                missing if missing < GROUP => {
                    self.add_up_to(group, expected);
                }
                _ if all(group).is_valid() => self.add_full(GROUP),
                _ => self.add_each(group),
            }
        }
        self.add_each(groups.remainder());
    }

    /// Adds entries until `expected` of them are found, less than a group.
    #[inline]
    fn add_few(&mut self, entries: &[Pte], expected: u32) {
        let mut groups = entries.chunks_exact(GROUP);
        if expected == 0 || groups.any(|group| self.add_up_to(group, expected)) {
            return;
        }
        self.add_each(groups.remainder());
    }

    /// Adds entries of one group until `expected` of them are found. Returns whether they are.
    #[inline]
    fn add_up_to(&mut self, group: &[Pte], expected: u32) -> bool {
        let first = group.first().is_some_and(|pte| pte.is_counted());
        if !first && !any(group).is_counted() {
            return false;
        }
        group.iter().any(|pte| {
            self.add(*pte);
            self.counted >= expected
        })
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
                    self.add_full(GROUP);
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
    fn add_full(&mut self, nr: usize) {
        self.counted += nr as u32;
        self.valid += nr as u32;
    }

    #[inline]
    fn add_each(&mut self, entries: &[Pte]) {
        for pte in entries {
            self.add(*pte);
        }
    }

    #[inline]
    fn add(&mut self, pte: Pte) {
        self.counted += u32::from(pte.is_counted());
        self.valid += u32::from(pte.is_valid());
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

/// The bits that all entries have, at least one group of them.
///
/// Seen through a black box, or the compiler notices which bit is asked for, loads half of each
/// entry and cannot pair the loads any more.
#[inline(always)]
fn all(entries: &[Pte]) -> Pte {
    let groups = entries.chunks_exact(GROUP);
    Pte(black_box(groups.fold(!0, |all, group| {
        group.iter().fold(all, |all, pte| all & pte.0)
    })))
}

/// The bits that any entry has.
#[inline]
fn any(group: &[Pte]) -> Pte {
    Pte(black_box(group.iter().fold(0, |any, pte| any | pte.0)))
}
