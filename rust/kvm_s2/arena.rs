// SPDX-License-Identifier: GPL-2.0

//! Memory for stage-2 tables that counts every reference: what tests and benches destroy.
//!
//! Tables are built with KVM's rule: each counted entry holds one reference on the page its slot
//! is in, pages of the root included, and one more keeps the page itself. What goes wrong is
//! recorded, never panicked about, so that the same tests run in a kernel.

use core::ptr::NonNull;

use crate::{
    addr::{
        Ipa,
        PhysAddr, //
    },
    destroy::stage2_destroy,
    geometry::{
        Geometry,
        Level, //
    },
    ops::Table,
    pte::{
        Pte,
        PteKind, //
    },
    stats::Destroyed,
    walk::TableBackend,
};

mod buffer;
mod entry;
pub mod mappings;
mod release;

pub use entry::Entry;

use buffer::Buffer;

/// What a freed table is filled with; looks like entries that lead to tables out of memory.
const POISON: u8 = 0x6b;

/// A table of an [`Arena`], by number; the root's tables are the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableId(pub usize);

/// Where a table stands in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// Part of the tree.
    Live,
    /// Given up by the destroy, kept by somebody's reference.
    Held,
    /// Nobody holds it; poisoned.
    Freed,
    /// Left behind because its reference count could not be right.
    Leaked,
}

/// What no destroy may do, each counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Faults {
    /// Tables given up twice, or that are none.
    pub double_free: u64,
    /// Tables given up with another number of entries than they hold.
    pub miscounted: u64,
    /// Tables asked for twice, or after they were given up.
    pub revisited: u64,
}

/// The book-keeping of one table.
#[derive(Clone, Copy)]
struct Slot {
    refs: u32,
    life: Life,
    visited: bool,
}

/// The tables of one stage-2 and their reference counts.
pub struct Arena {
    geometry: Geometry,
    /// All tables in a row, used or not.
    memory: Buffer<Pte>,
    slots: Buffer<Slot>,
    /// Tables in use: the slots from here on are free.
    used: usize,
    unlinked: bool,
    /// Whether [`TableOps::expected`](crate::TableOps::expected) goes by the counts.
    trusted: bool,
    /// The table that was found last.
    found: Option<TableId>,
    faults: Faults,
    lost: u64,
    leaked: u64,
}

impl Arena {
    /// An empty stage-2 with memory for the root and `max_tables` more.
    ///
    /// `None` when there is not as much memory.
    pub fn new(geometry: Geometry, max_tables: usize) -> Option<Self> {
        let roots = geometry.nr_root_tables();
        let nr = roots.checked_add(max_tables)?;
        let slot = Slot {
            refs: 1,
            life: Life::Live,
            visited: false,
        };
        let entries = nr.checked_mul(geometry.granule().ptrs_per_table())?;
        Some(Self {
            geometry,
            memory: buffer::filled(Pte::EMPTY, entries)?,
            slots: buffer::filled(slot, nr)?,
            used: roots,
            unlinked: false,
            trusted: false,
            found: None,
            faults: Faults::default(),
            lost: 0,
            leaked: 0,
        })
    }

    /// The shape of the stage-2.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Puts `entry` into the slot for `ipa` in a table of `level`, and builds the tables above it.
    ///
    /// `false` when something is there already or above it, when there is no such slot, when
    /// memory is used up, or after [`Arena::unlink`].
    #[must_use]
    pub fn map(&mut self, ipa: Ipa, level: Level, entry: Entry) -> bool {
        if self.unlinked || self.root_at(ipa, level).is_none() {
            return false;
        }
        if entry == Entry::Table {
            let child = level.child();
            return child.is_some_and(|child| self.descend(ipa, child).is_some());
        }
        let Some(pte) = entry.encode(level, &self.geometry) else {
            return false;
        };
        self.descend(ipa, level)
            .is_some_and(|id| self.set(id, self.index(ipa, level), pte))
    }

    /// The table of `level` that translates `ipa`.
    pub fn table_at(&self, ipa: Ipa, level: Level) -> Option<TableId> {
        let mut at = self.root_at(ipa, level)?;
        let mut above = self.geometry.start_level();
        while above < level {
            at = self.child(at, self.index(ipa, above), above)?;
            above = above.child()?;
        }
        Some(at)
    }

    /// Takes a reference on a table, as memory hot-remove does with any page.
    pub fn hold(&mut self, id: TableId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.refs += 1;
        }
    }

    /// Drops a reference that [`Arena::hold`] took.
    pub fn release(&mut self, id: TableId) {
        self.drop_refs(id, 1);
    }

    /// Loses a reference of a live table, so that its count is too small.
    pub fn steal(&mut self, id: TableId) {
        if let Some(slot) = self.slots.get_mut(id.0) {
            slot.refs = slot.refs.saturating_sub(1);
        }
    }

    /// Lets the destroy know the reference counts, so that it can stop where they say.
    pub fn trust_counts(&mut self) {
        self.trusted = true;
    }

    /// The tables in use or used up, the root included.
    pub fn nr_tables(&self) -> usize {
        self.used
    }

    /// How many of them stand there in their life.
    pub fn count(&self, life: Life) -> usize {
        let slots = self.slots.iter().take(self.used);
        slots.filter(|slot| slot.life == life).count()
    }

    /// Where one table stands in its life.
    pub fn life(&self, id: TableId) -> Option<Life> {
        let slot = self.slots.get(id.0).filter(|_| id.0 < self.used)?;
        Some(slot.life)
    }

    /// References on one table.
    pub fn refs(&self, id: TableId) -> Option<u32> {
        self.slots.get(id.0).map(|slot| slot.refs)
    }

    /// The entries of all tables in a row, by [`TableId`].
    pub fn entries(&self) -> &[Pte] {
        &self.memory
    }

    /// What went wrong so far.
    pub fn faults(&self) -> Faults {
        self.faults
    }

    /// Addresses without memory that were looked up.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Whether every table was given back, and nothing went wrong.
    pub fn is_clean(&self) -> bool {
        self.faults == Faults::default() && self.count(Life::Freed) == self.used
    }

    /// Takes the tables out of use. From here on nothing can be mapped.
    pub fn unlink(&mut self) -> Table {
        self.unlinked = true;
        self.table_ptr(TableId(0))
    }

    /// Destroys the stage-2 in steps of `budget` and calls `resched` between them.
    pub fn destroy(&mut self, budget: u32, mut resched: impl FnMut(&mut Self)) -> Destroyed {
        let geometry = self.geometry;
        let root = self.unlink();
        // SAFETY: The arena is the memory of its own root, has unlinked it, and lets nobody map
        // any more; a root that was destroyed before is freed and poisoned, but still readable.
        let mut backend = unsafe { TableBackend::new(self, geometry, root) };
        stage2_destroy(&mut backend, &geometry, geometry.range(), budget, |b| {
            resched(b.ops());
        })
    }

    /// The table behind an address, if the arena has one there.
    pub fn id_of(&self, pa: PhysAddr) -> Option<TableId> {
        let id = entry::table_number(pa, &self.geometry)?;
        (id < self.used).then_some(TableId(id))
    }

    /// Where the entries of a table are.
    pub fn table_ptr(&mut self, id: TableId) -> Table {
        let first = id.0.min(self.slots.len().saturating_sub(1)) * self.ptrs_per_table();
        // No reference to the memory itself is made, as others may be reading from it.
        let entries = self.memory.as_mut_ptr().wrapping_add(first);
        Table::new(NonNull::new(entries).unwrap_or(NonNull::dangling()))
    }

    fn nr_root_tables(&self) -> usize {
        self.geometry.nr_root_tables()
    }

    fn ptrs_per_table(&self) -> usize {
        self.geometry.granule().ptrs_per_table()
    }

    /// The slot for `ipa` in a table of `level`.
    fn index(&self, ipa: Ipa, level: Level) -> usize {
        let slot = ipa.0 >> self.geometry.granule().level_shift(level);
        slot as usize & (self.ptrs_per_table() - 1)
    }

    fn root_at(&self, ipa: Ipa, level: Level) -> Option<TableId> {
        let inside = ipa < self.geometry.range().end && level >= self.geometry.start_level();
        inside.then_some(TableId((ipa.0 / self.geometry.root_table_size()) as usize))
    }

    /// The table of `level` for `ipa`, built if it is not there.
    fn descend(&mut self, ipa: Ipa, level: Level) -> Option<TableId> {
        let mut at = self.root_at(ipa, level)?;
        let mut above = self.geometry.start_level();
        while above < level {
            let index = self.index(ipa, above);
            at = match self.child(at, index, above) {
                Some(child) => child,
                None => self.grow(at, index)?,
            };
            above = above.child()?;
        }
        Some(at)
    }

    /// The table that an entry leads to.
    fn child(&self, id: TableId, index: usize, level: Level) -> Option<TableId> {
        let pte = self.memory.get(id.0 * self.ptrs_per_table() + index)?;
        match pte.decode(level, &self.geometry) {
            PteKind::Table(pa) => self.id_of(pa),
            _ => None,
        }
    }

    /// Builds a table below an empty slot.
    fn grow(&mut self, parent: TableId, index: usize) -> Option<TableId> {
        let child = TableId(self.used);
        if child.0 >= self.slots.len() {
            return None;
        }
        let pte = entry::table_entry(child.0, &self.geometry);
        self.set(parent, index, pte).then(|| self.used += 1)?;
        Some(child)
    }

    /// Fills an empty slot and takes the reference of its entry.
    fn set(&mut self, id: TableId, index: usize, pte: Pte) -> bool {
        let at = id.0 * self.ptrs_per_table() + index;
        let (Some(old), Some(slot)) = (self.memory.get_mut(at), self.slots.get_mut(id.0)) else {
            return false;
        };
        if *old != Pte::EMPTY {
            return false;
        }
        *old = pte;
        slot.refs += u32::from(pte != Pte::EMPTY);
        true
    }

    /// Drops references, and frees a table that nobody holds.
    fn drop_refs(&mut self, id: TableId, nr: u32) {
        let Some(slot) = self.slots.get_mut(id.0) else {
            return;
        };
        slot.refs = slot.refs.saturating_sub(nr);
        if slot.refs == 0 {
            slot.life = Life::Freed;
            let first = self.table_ptr(id).as_ptr();
            // SAFETY: The table has this many entries, and nobody reads a freed one.
            unsafe { first.write_bytes(POISON, self.ptrs_per_table()) };
        }
    }
}
