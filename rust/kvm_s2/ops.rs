// SPDX-License-Identifier: GPL-2.0

//! The seam between the algorithm and the memory that tables live in.
//!
//! It is the Rust twin of `struct kvm_pgtable_mm_ops`, with one difference: references are
//! dropped in one go for a whole table, not one for each entry.

use core::ptr::NonNull;

use crate::{
    addr::PhysAddr,
    pte::Pte, //
};

/// A table that nobody else walks, as the algorithm reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Table(NonNull<Pte>);

impl Table {
    /// The table at `entries`.
    #[inline]
    pub const fn new(entries: NonNull<Pte>) -> Self {
        Self(entries)
    }

    /// Where its entries start.
    #[inline]
    pub const fn as_ptr(self) -> *mut Pte {
        self.0.as_ptr()
    }

    /// The entries.
    ///
    /// # Safety
    ///
    /// - The table has `nr` entries, is not freed during `'a`, and is not written to.
    #[inline]
    pub(crate) unsafe fn entries<'a>(self, nr: usize) -> &'a [Pte] {
        // SAFETY: By the requirements of this function; `Pte` is a plain 64-bit number.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr(), nr) }
    }
}

/// Memory that stage-2 tables are made of.
///
/// # Safety
///
/// - A [`Table`] that [`TableOps::table`] returns stays readable, one granule of it, until it is
///   passed to [`TableOps::free_table`].
/// - Nothing else writes to tables of the unlinked tree meanwhile.
pub unsafe trait TableOps {
    /// The table at `pa`, or `None` when no memory is there that could hold one.
    fn table(&mut self, pa: PhysAddr) -> Option<Table>;

    /// How many entries of the table that was found last hold a reference, going by its reference
    /// count: the search for entries ends there. A reference that somebody else holds makes the
    /// number larger, which is harmless. [`u32::MAX`] looks at all entries, and so finds out when
    /// the count is too small.
    #[inline]
    fn expected(&self) -> u32 {
        u32::MAX
    }

    /// Gives up a table: drops the references of its `counted` entries and the one that keeps it,
    /// and frees it if nobody holds another. May be put off until [`TableOps::flush`].
    ///
    /// # Safety
    ///
    /// - The caller has visited the whole table, and does not touch it again.
    unsafe fn free_table(&mut self, table: Table, counted: u32);

    /// Drops the references of `counted` entries of one root table, which stays.
    ///
    /// # Safety
    ///
    /// - The caller has visited the whole table.
    unsafe fn put_root_entries(&mut self, table: Table, counted: u32);

    /// Frees the root, `nr_tables` of them in a row.
    ///
    /// # Safety
    ///
    /// - The references of all entries are dropped, and the caller does not touch it again.
    unsafe fn free_root(&mut self, root: Table, nr_tables: usize);

    /// Does what was put off. Returns the tables that were left behind since the last call because
    /// their reference count could not be right.
    fn flush(&mut self) -> u64;
}
