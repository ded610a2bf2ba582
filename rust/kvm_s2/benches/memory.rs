// SPDX-License-Identifier: GPL-2.0

//! Tables without checks, with counts that cost what page references cost: an atomic each time.

use std::{
    ptr::NonNull,
    sync::atomic::{
        AtomicU32,
        Ordering::{
            AcqRel,
            Relaxed, //
        },
    },
};

use kvm_s2::{
    arena::{
        Arena,
        TableId, //
    },
    Geometry, PhysAddr, Pte, Table, TableOps,
};

/// A copy of an arena's tables, to be destroyed.
pub(crate) struct Memory<'a> {
    arena: &'a Arena,
    entries: Vec<Pte>,
    refs: Vec<AtomicU32>,
    /// Tables that nobody holds any more, the root included.
    pub(crate) freed: usize,
}

impl<'a> Memory<'a> {
    pub(crate) fn new(arena: &'a Arena) -> Self {
        let refs = (0..arena.nr_tables()).map(|id| arena.refs(TableId(id)).unwrap_or(0));
        Self {
            arena,
            entries: arena.entries().to_vec(),
            refs: refs.map(AtomicU32::new).collect(),
            freed: 0,
        }
    }

    pub(crate) fn geometry(&self) -> Geometry {
        *self.arena.geometry()
    }

    pub(crate) fn root(&mut self) -> Table {
        self.nth(0)
    }

    /// Drops one reference on the table that a slot is in: `put_page(ptep)`.
    pub(crate) fn put(&mut self, slot: *const Pte) {
        self.put_many(slot, 1);
    }

    /// `page_count()` of the table that a slot is in.
    pub(crate) fn refs(&self, slot: *const Pte) -> u32 {
        self.refs[self.number(slot)].load(Relaxed)
    }

    fn put_many(&mut self, slot: *const Pte, nr: u32) {
        let before = self.refs[self.number(slot)].fetch_sub(nr, AcqRel);
        self.freed += usize::from(before == nr);
    }

    fn number(&self, slot: *const Pte) -> usize {
        let bytes = slot as usize - self.entries.as_ptr() as usize;
        bytes >> self.arena.geometry().granule().page_shift()
    }

    fn nth(&mut self, number: usize) -> Table {
        let first = number * self.arena.geometry().granule().ptrs_per_table();
        let entries = self.entries.as_mut_ptr().wrapping_add(first);
        Table::new(NonNull::new(entries).expect("tables are never at address 0"))
    }
}

// SAFETY: The copy of the tables stays where it is, and nobody but the destroy writes to it.
unsafe impl TableOps for &mut Memory<'_> {
    fn table(&mut self, pa: PhysAddr) -> Option<Table> {
        let id = self.arena.id_of(pa)?;
        Some(self.nth(id.0))
    }

    unsafe fn free_table(&mut self, table: Table, counted: u32) {
        self.put_many(table.as_ptr(), counted + 1);
    }

    unsafe fn put_root_entries(&mut self, table: Table, counted: u32) {
        self.put_many(table.as_ptr(), counted);
    }

    unsafe fn free_root(&mut self, root: Table, nr_tables: usize) {
        let per_table = self.geometry().granule().ptrs_per_table();
        for nr in 0..nr_tables {
            self.put(root.as_ptr().wrapping_add(nr * per_table));
        }
    }

    fn flush(&mut self) -> u64 {
        0
    }
}
