// SPDX-License-Identifier: GPL-2.0

//! Tables that the host walks itself: ordinary guests under VHE and nVHE.
//!
//! The tree is unlinked: no hardware walker starts from its root any more, and no other software
//! walker either. So nothing is written to it, no TLB is invalidated, and the references of a
//! table's entries are dropped all at once when the last entry has been seen.

use crate::{
    addr::{
        Ipa,
        IpaRange, //
    },
    destroy::Backend,
    geometry::{
        Geometry,
        Level, //
    },
    ops::{
        Table,
        TableOps, //
    },
    pte::Pte,
    stats::Destroyed,
    table::{
        empty_prefix,
        Count, //
    },
};

/// Levels above the last one, at most.
const MAX_DEPTH: usize = (Level::LAST.get() - Level::FIRST.get() + 1) as usize;

/// A table that is being visited, and how far.
///
/// It outlives the chunk it was entered in: a table that spans several chunks is given up only
/// when the last of them has been visited, and each of its entries is looked at once.
#[derive(Clone, Copy)]
struct Frame<'a> {
    table: Table,
    entries: &'a [Pte],
    /// Bits of the address below an entry, which is how the walk knows the level.
    shift: u32,
    /// Address of the first entry.
    base: Ipa,
    /// The next entry to look at.
    next: usize,
    counted: u32,
    /// No entry holds a reference once so many are counted.
    expected: u32,
}

impl Frame<'_> {
    /// The address of the next entry.
    #[inline]
    fn addr(&self) -> Ipa {
        self.base.saturating_add((self.next as u64) << self.shift)
    }

    /// The number of entries below `end`.
    #[inline]
    fn limit(&self, end: Ipa) -> usize {
        let size = 1 << self.shift;
        let below = (end.0.saturating_sub(self.base.0) + size - 1) >> self.shift;
        usize::try_from(below).map_or(self.entries.len(), |n| n.min(self.entries.len()))
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.next >= self.entries.len()
    }

    /// The next entry, unless all that hold a reference have been seen.
    #[inline]
    fn peek(&mut self) -> Option<Pte> {
        if self.counted >= self.expected {
            self.next = self.entries.len();
        }
        self.entries.get(self.next).copied()
    }

    /// Moves to the next entry that is not empty.
    #[inline]
    fn skip_empty(&mut self) {
        if self.peek().is_some_and(|pte| !pte.is_counted()) {
            self.next += empty_prefix(self.entries.get(self.next..).unwrap_or(&[]));
        }
    }

    /// Takes leaves up to entry `limit` or to a table.
    #[inline]
    fn take_leaves(&mut self, limit: usize) -> Count {
        let mut leaves = Count::default();
        let rest = self.entries.get(self.next..limit).unwrap_or(&[]);
        self.take(leaves.add_leaves(rest), leaves.counted);
        leaves
    }

    /// Goes past `nr` entries, `counted` of which hold a reference.
    #[inline]
    fn take(&mut self, nr: usize, counted: u32) {
        self.next += nr;
        self.counted += counted;
    }
}

/// The tables from a root to where the walk stands.
struct Path<'a> {
    frames: [Option<Frame<'a>>; MAX_DEPTH],
    depth: usize,
}

impl<'a> Path<'a> {
    #[inline]
    fn top(&mut self) -> Option<&mut Frame<'a>> {
        let top = self.depth.checked_sub(1)?;
        self.frames.get_mut(top)?.as_mut()
    }

    #[inline]
    fn push(&mut self, frame: Frame<'a>) {
        // A level is entered from the one above, so there is always room.
        if let Some(slot) = self.frames.get_mut(self.depth) {
            *slot = Some(frame);
            self.depth += 1;
        }
    }

    #[inline]
    fn pop(&mut self) -> Option<Frame<'a>> {
        self.depth = self.depth.checked_sub(1)?;
        *self.frames.get(self.depth)?
    }
}

/// An unlinked stage-2 table that is being destroyed in IPA order.
#[must_use = "a tree that is not destroyed leaks"]
pub struct TableBackend<'a, O> {
    ops: O,
    geometry: Geometry,
    root: Table,
    /// Tables in a row that are the root, and the next of them to enter.
    nr_roots: usize,
    next_root: usize,
    path: Path<'a>,
    done: Destroyed,
    /// Leaves and tables that `destroy_range` has spoken of so far.
    reported: u64,
    /// Tables that were taken off a budget so far.
    charged: u64,
}

impl<'a, O: TableOps> TableBackend<'a, O> {
    /// Takes over the stage-2 table with this root.
    ///
    /// # Safety
    ///
    /// - `root` is the root of a stage-2 table of this geometry, with memory that `ops` describes.
    /// - No hardware or software walker can reach it, and nobody else destroys it.
    pub unsafe fn new(ops: O, geometry: Geometry, root: Table) -> Self {
        Self {
            ops,
            geometry,
            root,
            nr_roots: geometry.nr_root_tables(),
            next_root: 0,
            path: Path {
                frames: [None; MAX_DEPTH],
                depth: 0,
            },
            done: Destroyed::default(),
            reported: 0,
            charged: 0,
        }
    }

    /// The memory operations.
    pub fn ops(&mut self) -> &mut O {
        &mut self.ops
    }

    /// The address of the next root table.
    #[inline]
    fn root_base(&self) -> Ipa {
        let end = self.geometry.range().end;
        let size = self.geometry.root_table_size();
        if self.next_root < self.nr_roots {
            Ipa(size.saturating_mul(self.next_root as u64))
        } else {
            end
        }
    }

    /// Enters the next root table, if there is one.
    #[inline]
    fn enter_root(&mut self) -> bool {
        self.next_root < self.nr_roots && self.enter_next_root()
    }

    fn enter_next_root(&mut self) -> bool {
        let nr = self.geometry.granule().ptrs_per_table();
        // SAFETY: The root has `nr_roots` tables of `nr` entries in a row.
        let first = unsafe { self.root.as_ptr().add(self.next_root * nr) };
        let Some(first) = core::ptr::NonNull::new(first) else {
            return false;
        };
        let granule = self.geometry.granule();
        self.push(Frame {
            table: Table::new(first),
            entries: self.entries(Table::new(first)),
            shift: granule.level_shift(self.geometry.start_level()),
            base: self.root_base(),
            next: 0,
            counted: 0,
            expected: u32::MAX,
        });
        self.next_root += 1;
        true
    }

    /// The entries of a table of the tree.
    #[inline]
    fn entries(&self, table: Table) -> &'a [Pte] {
        // SAFETY: A table of the unlinked tree has this many entries, is readable until it is
        // passed to `free_table`, which comes after the last look at them, and nobody writes to it.
        unsafe { table.entries(self.geometry.granule().ptrs_per_table()) }
    }

    #[inline]
    fn push(&mut self, mut frame: Frame<'a>) {
        // A table may reach past the address space; what lies there cannot be mapped.
        let used = frame.limit(self.geometry.range().end);
        frame.entries = frame.entries.get(..used).unwrap_or(&[]);
        self.done.table_bytes += core::mem::size_of_val(frame.entries) as u64;
        self.path.push(frame);
    }

    /// Goes into the table that `pte` leads to, with `shift` bits below an entry. `base` is its
    /// first address.
    #[inline]
    fn enter(&mut self, pte: Pte, shift: u32, base: Ipa) {
        match self.ops.table(pte.phys(&self.geometry)) {
            Some(table) => self.push(Frame {
                table,
                entries: self.entries(table),
                shift,
                base,
                next: 0,
                counted: 0,
                expected: self.ops.expected(),
            }),
            // Whatever hangs there is out of reach: leave it.
            None => self.done.leaked += 1,
        }
    }

    /// Gives up the last-level tables that `entries` lead to, one after the other, up to the first
    /// entry that is no table or until `last_table` tables are gone. Returns how many entries that
    /// took.
    #[inline]
    fn take_last_tables(&mut self, entries: &[Pte], last_table: u64) -> usize {
        let mut taken = 0;
        for pte in entries {
            if !pte.is_table_bits() || self.done.tables >= last_table {
                break;
            }
            self.take_last_table(*pte);
            taken += 1;
        }
        taken
    }

    /// Gives up the last-level table that `pte` leads to.
    #[inline]
    fn take_last_table(&mut self, pte: Pte) {
        let Some(table) = self.ops.table(pte.phys(&self.geometry)) else {
            self.done.leaked += 1;
            return;
        };
        let entries = self.entries(table);
        let count = Count::of(entries, self.ops.expected());
        self.done.table_bytes += core::mem::size_of_val(entries) as u64;
        self.done.leaves += u64::from(count.counted);
        self.done.pages += u64::from(count.valid);
        self.done.tables += 1;
        // SAFETY: All entries were counted, and the entry that led here is behind us.
        unsafe { self.ops.free_table(table, count.counted) };
    }

    /// Gives up the table on top of the path, all of whose entries have been visited.
    #[inline(always)]
    fn leave(&mut self) {
        let Some(frame) = self.path.pop() else { return };
        if self.path.depth == 0 {
            // SAFETY: All entries of this root table were visited.
            unsafe { self.ops.put_root_entries(frame.table, frame.counted) };
        } else {
            self.done.tables += 1;
            // SAFETY: All entries were visited and the frame is gone; the parent is past it.
            unsafe { self.ops.free_table(frame.table, frame.counted) };
        }
    }

    /// Looks at what comes next, below `end`: some leaves, tables until `last_table` of them are
    /// gone, or the end of a table. Returns whether there was any of it.
    #[inline]
    fn step(&mut self, end: Ipa, last_table: u64) -> bool {
        let Some(frame) = self.path.top() else {
            return self.root_base() < end && self.enter_root();
        };
        let addr = frame.addr();
        if addr >= end {
            return false;
        }
        let granule = self.geometry.granule();
        let page_shift = granule.page_shift();
        match frame.peek() {
            None => self.leave(),
            Some(pte) if pte.is_table_bits() && frame.shift > page_shift => {
                let child = frame.shift - granule.table_shift();
                if child > page_shift {
                    frame.take(1, 1);
                    self.enter(pte, child, addr);
                } else {
                    let limit = frame.limit(end);
                    let tables = frame.entries.get(frame.next..limit).unwrap_or(&[]);
                    let taken = self.take_last_tables(tables, last_table);
                    if let Some(frame) = self.path.top() {
                        frame.take(taken, taken as u32);
                    }
                }
            }
            Some(_) => self.step_leaves(end),
        }
        true
    }

    /// Takes the leaves that come next, below `end`.
    fn step_leaves(&mut self, end: Ipa) {
        let page_shift = self.geometry.granule().page_shift();
        let Some(frame) = self.path.top() else { return };
        let leaves = if frame.shift > page_shift {
            frame.take_leaves(frame.limit(end))
        } else {
            // A root of last-level tables.
            let leaves = Count::of(frame.entries, frame.expected);
            frame.take(frame.entries.len(), leaves.counted);
            leaves
        };
        let shift = frame.shift - page_shift;
        self.done.leaves += u64::from(leaves.counted);
        self.done.pages += u64::from(leaves.valid) << shift;
    }
}

impl<O: TableOps> Backend for TableBackend<'_, O> {
    fn next_mapped(&mut self) -> Ipa {
        loop {
            match self.path.top() {
                Some(frame) => {
                    frame.skip_empty();
                    if !frame.is_done() {
                        return frame.addr();
                    }
                    self.leave();
                }
                None => {
                    if !self.enter_root() {
                        return self.geometry.range().end;
                    }
                }
            }
        }
    }

    fn destroy_range(&mut self, range: IpaRange, budget: &mut u32) -> u64 {
        // The tables that `next_mapped` gave up on its way here count as well, but one more always
        // fits in.
        let last_table = (self.charged + u64::from(*budget)).max(self.done.tables + 1);
        while self.done.tables < last_table && self.step(range.end, last_table) {}

        let spent = self.done.tables - core::mem::replace(&mut self.charged, self.done.tables);
        *budget = u64::from(*budget).saturating_sub(spent) as u32;
        let unmapped = self.done.leaves + self.done.tables;
        unmapped - core::mem::replace(&mut self.reported, unmapped)
    }

    fn destroy_root(&mut self) -> Destroyed {
        // SAFETY: `next_mapped` came to the end, so that every table has been left.
        unsafe {
            self.ops.free_root(self.root, self.nr_roots);
        }
        self.done.leaked += self.ops.flush();
        self.done
    }
}
