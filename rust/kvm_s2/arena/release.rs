// SPDX-License-Identifier: GPL-2.0

//! The arena as the memory beneath a destroy: checks what is given up, and then frees it.

use super::{
    Arena,
    Life,
    TableId, //
};
use crate::{
    addr::PhysAddr,
    ops::{
        Table,
        TableOps, //
    },
    pte::Pte,
};

impl Arena {
    /// The live table at `table`.
    fn live(&mut self, table: Table) -> Option<TableId> {
        let bytes = (table.as_ptr() as usize).checked_sub(self.memory.as_ptr() as usize);
        let id = bytes.map(|bytes| TableId(bytes >> self.geometry.granule().page_shift()));
        let live = id.filter(|id| self.life(*id) == Some(Life::Live));
        self.faults.double_free += u64::from(live.is_none());
        live
    }

    /// Whether a table has this number of entries and the references to go with them; leaks it
    /// otherwise.
    fn check(&mut self, id: TableId, counted: u32) -> bool {
        let first = self.table_ptr(id).as_ptr();
        let real = (0..self.ptrs_per_table())
            // SAFETY: The table has this many entries.
            .filter(|i| unsafe { *first.add(*i) } != Pte::EMPTY)
            .count();
        self.faults.miscounted += u64::from(real != counted as usize);

        match self.slots.get_mut(id.0) {
            Some(slot) if slot.refs <= counted => {
                slot.life = Life::Leaked;
                self.leaked += 1;
                false
            }
            slot => slot.is_some(),
        }
    }

    /// Gives up a table: drops what its entries hold and the reference that keeps it.
    fn drop_own(&mut self, id: TableId, counted: u32) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.life = Life::Held;
        }
        self.drop_refs(id, counted + 1);
    }
}

// SAFETY: Tables stay in the arena's memory, freed or not, and nothing maps after `unlink`.
unsafe impl TableOps for &mut Arena {
    fn table(&mut self, pa: PhysAddr) -> Option<Table> {
        let Some(id) = self.id_of(pa) else {
            self.lost += 1;
            return None;
        };
        let root = id.0 < self.nr_root_tables();
        match self.slots.get_mut(id.0) {
            Some(slot) if slot.life == Life::Live && !slot.visited && !root => {
                slot.visited = true;
                self.found = Some(id);
                Some(self.table_ptr(id))
            }
            _ => {
                self.faults.revisited += 1;
                None
            }
        }
    }

    fn expected(&self) -> u32 {
        let refs = self.found.and_then(|id| self.refs(id));
        match refs {
            Some(refs) if self.trusted => refs.saturating_sub(1),
            _ => u32::MAX,
        }
    }

    unsafe fn free_table(&mut self, table: Table, counted: u32) {
        match self.live(table) {
            Some(id) if self.check(id, counted) => self.drop_own(id, counted),
            _ => {}
        }
    }

    unsafe fn put_root_entries(&mut self, table: Table, counted: u32) {
        match self.live(table) {
            Some(id) if self.check(id, counted) => self.drop_refs(id, counted),
            _ => {}
        }
    }

    unsafe fn free_root(&mut self, root: Table, nr_tables: usize) {
        let whole = root == self.table_ptr(TableId(0)) && nr_tables == self.nr_root_tables();
        self.faults.double_free += u64::from(!whole);
        for id in (0..self.nr_root_tables()).map(TableId) {
            match self.life(id) {
                Some(Life::Live) => self.drop_own(id, 0),
                Some(Life::Leaked) => {}
                _ => self.faults.double_free += 1,
            }
        }
    }

    fn flush(&mut self) -> u64 {
        core::mem::take(&mut self.leaked)
    }
}
