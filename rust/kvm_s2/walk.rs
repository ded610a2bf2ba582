// SPDX-License-Identifier: GPL-2.0

//! Tables that the host walks itself: ordinary guests under VHE and nVHE.
//!
//! The tree is unlinked: no hardware walker starts from its root any more, and no other software
//! walker either. So nothing is written to it, no TLB is invalidated, and the references of a
//! table's entries are dropped all at once when the last entry has been seen.

use crate::{
    addr::{
        Ipa,
        IpaRange,
        PhysAddr, //
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
    level: Level,
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
    fn addr(&self, geometry: &Geometry) -> Ipa {
        let shift = geometry.granule().level_shift(self.level);
        self.base.saturating_add((self.next as u64) << shift)
    }

    /// The number of entries below `end`.
    #[inline]
    fn limit(&self, geometry: &Geometry, end: Ipa) -> usize {
        let granule = geometry.granule();
        let below = end.0.saturating_sub(self.base.0) + granule.level_size(self.level) - 1;
        let below = below >> granule.level_shift(self.level);
        usize::try_from(below).map_or(self.entries.len(), |n| n.min(self.entries.len()))
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.next >= self.entries.len()
    }

    /// Goes to the end if all entries that hold a reference have been seen.
    #[inline]
    fn skip_rest(&mut self) {
        if self.counted >= self.expected {
            self.next = self.entries.len();
        }
    }

    /// Moves to the next entry that is not empty.
    #[inline]
    fn skip_empty(&mut self) {
        self.skip_rest();
        self.next += empty_prefix(self.entries.get(self.next..).unwrap_or(&[]));
    }

    /// Takes leaves up to entry `limit` or to a table, which is taken and returned.
    #[inline]
    fn take(&mut self, limit: usize, leaves: &mut Count) -> Option<Pte> {
        let rest = self.entries.get(self.next..limit).unwrap_or(&[]);
        let taken = leaves.add_leaves(rest);
        self.next += taken;
        self.counted += leaves.counted;
        let table = rest.get(taken).copied();
        if table.is_some() {
            self.next += 1;
            self.counted += 1;
        }
        table
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
        self.frames.get_mut(self.depth)?.take()
    }
}

/// An unlinked stage-2 table that is being destroyed in IPA order.
#[must_use = "a tree that is not destroyed leaks"]
pub struct TableBackend<'a, O> {
    ops: O,
    geometry: Geometry,
    root: Table,
    /// The next table of the root to enter.
    next_root: usize,
    path: Path<'a>,
    done: Destroyed,
    /// What `destroy_range` has said so far.
    reported: u64,
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
            next_root: 0,
            path: Path {
                frames: [None; MAX_DEPTH],
                depth: 0,
            },
            done: Destroyed::default(),
            reported: 0,
        }
    }

    /// The memory operations.
    pub fn ops(&mut self) -> &mut O {
        &mut self.ops
    }

    /// Where the walk stands: everything below has been given up.
    #[inline]
    fn position(&mut self) -> Ipa {
        match self.path.top() {
            Some(frame) => frame.addr(&self.geometry),
            None => self.root_base(),
        }
    }

    /// The address of the next root table.
    #[inline]
    fn root_base(&self) -> Ipa {
        let end = self.geometry.range().end;
        let size = self.geometry.root_table_size();
        if self.next_root < self.geometry.nr_root_tables() {
            Ipa(size.saturating_mul(self.next_root as u64))
        } else {
            end
        }
    }

    /// Enters the next root table, if there is one.
    fn enter_root(&mut self) -> bool {
        if self.next_root >= self.geometry.nr_root_tables() {
            return false;
        }
        let nr = self.geometry.granule().ptrs_per_table();
        // SAFETY: The root has `nr_root_tables()` tables of `nr` entries in a row.
        let first = unsafe { self.root.as_ptr().add(self.next_root * nr) };
        let Some(first) = core::ptr::NonNull::new(first) else {
            return false;
        };
        let base = self.root_base();
        self.next_root += 1;
        self.push(
            Table::new(first),
            self.geometry.start_level(),
            base,
            u32::MAX,
        );
        true
    }

    #[inline]
    fn push(&mut self, table: Table, level: Level, base: Ipa, expected: u32) {
        let mut frame = Frame {
            table,
            entries: &[],
            level,
            base,
            next: 0,
            counted: 0,
            expected,
        };
        // SAFETY: A table of the unlinked tree has this many entries, is readable until it is
        // passed to `free_table`, which pops the frame first, and nobody writes to it.
        frame.entries = unsafe { table.entries(self.geometry.granule().ptrs_per_table()) };
        // A root may reach past the address space; what lies there cannot be mapped.
        let used = frame.limit(&self.geometry, self.geometry.range().end);
        frame.entries = frame.entries.get(..used).unwrap_or(&[]);
        self.done.table_bytes += core::mem::size_of_val(frame.entries) as u64;
        self.path.push(frame);
    }

    /// Goes into the table that an entry at `level` leads to. `base` is its first address.
    #[inline]
    fn enter(&mut self, pa: PhysAddr, level: Level, base: Ipa) {
        let Some(table) = self.ops.table(pa) else {
            // Whatever hangs there is out of reach: leave it.
            self.done.leaked += 1;
            return;
        };
        let expected = self.ops.expected();
        if !level.is_last() {
            return self.push(table, level, base, expected);
        }

        // SAFETY: As in `push`.
        let entries = unsafe { table.entries(self.geometry.granule().ptrs_per_table()) };
        let count = Count::of(entries, expected);
        self.done.table_bytes += core::mem::size_of_val(entries) as u64;
        self.add_leaves(count, level);
        self.done.tables += 1;
        // SAFETY: All entries were counted, and the entry that led here is behind us.
        unsafe { self.ops.free_table(table, count.counted) };
    }

    /// Gives up the table on top of the path, all of whose entries have been visited.
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

    #[inline]
    fn add_leaves(&mut self, count: Count, level: Level) {
        let granule = self.geometry.granule();
        let shift = granule.level_shift(level) - granule.page_shift();
        self.done.leaves += u64::from(count.counted);
        self.done.pages += u64::from(count.valid) << shift;
    }

    /// Looks at what comes next, below `end`: some leaves, one table, or the end of a table.
    #[inline]
    fn step(&mut self, end: Ipa) {
        let geometry = self.geometry;
        let Some(frame) = self.path.top() else {
            self.enter_root();
            return;
        };
        frame.skip_rest();
        if frame.is_done() {
            return self.leave();
        }

        let level = frame.level;
        let limit = frame.limit(&geometry, end);
        let mut leaves = Count::default();
        let table = match level.child() {
            Some(child) => frame.take(limit, &mut leaves).map(|pte| (pte, child)),
            None => {
                // A root of last-level tables.
                leaves = Count::of(frame.entries, frame.expected);
                frame.counted = leaves.counted;
                frame.next = frame.entries.len();
                None
            }
        };
        let after = frame.addr(&geometry);
        self.add_leaves(leaves, level);
        if let Some((pte, child)) = table {
            let base = Ipa(after.0 - geometry.granule().level_size(level));
            self.enter(pte.phys(&geometry), child, base);
        }
    }
}

impl<O: TableOps> Backend for TableBackend<'_, O> {
    fn next_mapped(&mut self) -> Ipa {
        loop {
            match self.path.top() {
                Some(frame) => {
                    frame.skip_empty();
                    if !frame.is_done() {
                        return frame.addr(&self.geometry);
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

    fn destroy_range(&mut self, range: IpaRange, budget: u32) -> u64 {
        let last_table = self.done.tables.saturating_add(u64::from(budget.max(1)));
        while self.done.tables < last_table && self.position() < range.end {
            self.step(range.end);
        }
        // Counts the tables that `next_mapped` gave up on its way here as well.
        let unmapped = self.done.leaves + self.done.tables;
        unmapped - core::mem::replace(&mut self.reported, unmapped)
    }

    fn destroy_root(&mut self) -> Destroyed {
        // SAFETY: `next_mapped` came to the end, so that every table has been left.
        unsafe {
            self.ops
                .free_root(self.root, self.geometry.nr_root_tables());
        }
        self.done.leaked += self.ops.flush();
        self.done
    }
}
