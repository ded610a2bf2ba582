// SPDX-License-Identifier: GPL-2.0

//! The order of `kvm_pgtable_stage2_destroy_range()`, to compare with: every chunk of the address
//! space from the root down, one reference at a time, a table freed when only its own is left.

use kvm_s2::{
    Ipa,
    Level,
    Pte,
    PteKind,
    Table,
    TableOps, //
};

use crate::memory::Memory;

/// Destroys everything; returns the number of leaves.
pub(crate) fn destroy(mut memory: &mut Memory<'_>) -> u64 {
    let geometry = memory.geometry();
    let end = geometry.range().end;
    let root = memory.root();
    let mut leaves = 0;
    let mut addr = Ipa(0);
    while addr < end {
        let next = geometry.stage2_range_addr_end(addr, end);
        leaves += destroy_chunk(memory, root, addr.0, next.0);
        addr = next;
    }
    // SAFETY: All entries were dropped, and the root is not used again.
    unsafe { memory.free_root(root, geometry.nr_root_tables()) };
    leaves
}

fn destroy_chunk(memory: &mut Memory<'_>, root: Table, start: u64, end: u64) -> u64 {
    let geometry = memory.geometry();
    let per_table = geometry.granule().ptrs_per_table();
    let table_size = geometry.root_table_size();
    let mut leaves = 0;
    let mut addr = start;
    while addr < end {
        let nr = (addr / table_size) as usize;
        let table = root.as_ptr().wrapping_add(nr * per_table);
        let next = end.min((addr / table_size + 1) * table_size);
        leaves += visit(memory, table, geometry.start_level(), addr, next);
        addr = next;
    }
    leaves
}

/// Visits what translates `addr` to `end` in one table.
fn visit(memory: &mut Memory<'_>, table: *mut Pte, level: Level, mut addr: u64, end: u64) -> u64 {
    let geometry = memory.geometry();
    let size = geometry.granule().level_size(level);
    let mask = geometry.granule().ptrs_per_table() as u64 - 1;
    let mut leaves = 0;
    while addr < end {
        let slot = table.wrapping_add(((addr / size) & mask) as usize);
        let next = end.min((addr / size + 1) * size);
        // SAFETY: The table has this slot, and it was not freed as its entries hold references.
        let pte = unsafe { *slot };
        match (pte.decode(level, &geometry), level.child()) {
            (PteKind::Empty, _) => {}
            (PteKind::Table(pa), Some(child_level)) => {
                let mut ops = &mut *memory;
                let child = ops.table(pa).expect("a table").as_ptr();
                leaves += visit(memory, child, child_level, addr, next);
                if memory.refs(child) == 1 {
                    memory.put(slot);
                    memory.put(child);
                    // SAFETY: As above; nobody reads the slot meanwhile.
                    unsafe { *slot = Pte::EMPTY };
                }
            }
            _ => {
                memory.put(slot);
                leaves += 1;
            }
        }
        addr = next;
    }
    leaves
}
