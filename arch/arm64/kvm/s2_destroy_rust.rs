// SPDX-License-Identifier: GPL-2.0

//! The kernel's side of the `kvm_s2` crate: its memory, its mappings, its clock.
//!
//! C header: [`arch/arm64/kvm/s2_destroy.h`](srctree/arch/arm64/kvm/s2_destroy.h)

use core::{
    ffi::c_void,
    mem::MaybeUninit,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    prelude::*, //
};
use kvm_s2::{
    stage2_destroy,
    Backend,
    Destroyed,
    Geometry,
    Granule,
    Level,
    OutputAddress,
    PhysAddr,
    Pte,
    Table,
    TableBackend,
    TableOps, //
};

#[cfg(CONFIG_KVM_S2_PKVM)]
mod s2_destroy_mappings;
#[cfg(CONFIG_KVM_S2_BENCH)]
mod s2_destroy_policy;

/// `pr_*!` takes its prefix from the crate; there is no `module!` in built-in code to set it.
const __LOG_PREFIX: &[u8] = b"kvm_s2\0";

const BATCH: usize = bindings::KVM_S2_BATCH as usize;

/// Tables given up between two chances to schedule: at 1,400 instructions for a full one of pages,
/// 2,500 for one of blocks, and now and then a burst of the page allocator, of up to 25,000.
const TABLE_BUDGET: u32 = 10;

/// Up to [`BATCH`] pointers and a number with each.
struct Batch<T> {
    // Only what was pushed is ever looked at, and clearing the rest takes longer than a destroy of
    // nothing.
    items: [MaybeUninit<*mut T>; BATCH],
    counts: [MaybeUninit<u32>; BATCH],
    len: usize,
}

impl<T> Batch<T> {
    const fn new() -> Self {
        Self {
            items: [const { MaybeUninit::uninit() }; BATCH],
            counts: [const { MaybeUninit::uninit() }; BATCH],
            len: 0,
        }
    }

    /// Adds an item. Returns whether the batch is full now.
    #[inline]
    fn push(&mut self, item: *mut T, count: u32) -> bool {
        if let (Some(slot), Some(nr)) =
            (self.items.get_mut(self.len), self.counts.get_mut(self.len))
        {
            slot.write(item);
            nr.write(count);
            self.len += 1;
        }
        self.len == BATCH
    }

    /// Empties the batch. Returns how many items it had; they stay readable until the next push.
    #[inline]
    fn take(&mut self) -> u32 {
        // At most `BATCH`.
        core::mem::take(&mut self.len) as u32
    }
}

/// Stage-2 tables in the kernel's linear map.
struct KernelTables {
    batch: Batch<c_void>,
    page_size: usize,
    found: bindings::kvm_s2_found,
    leaked: u64,
    atomics: u64,
    /// Calls, but for those that find a table.
    helper_calls: u64,
    /// Whether the last batch calmed the page allocator. The first one does not: a destroy of a few
    /// tables would only wake what others have put off.
    calm: bool,
}

impl KernelTables {
    #[inline(never)]
    fn put_batch(&mut self) {
        let nr = self.batch.take();
        if nr == 0 {
            return;
        }
        self.atomics += u64::from(nr);
        self.helper_calls += 1;
        self.calm = !self.calm;
        // SAFETY: The first `nr` items are tables that `free_table` was given, with the number of
        // their entries that hold references.
        let leaked = unsafe {
            bindings::kvm_s2_put_tables(
                self.batch.items.as_ptr().cast(),
                self.batch.counts.as_ptr().cast(),
                nr,
                self.calm,
            )
        };
        self.leaked += u64::from(leaked);
    }
}

// SAFETY: `kvm_s2_find_table` returns pages of RAM in the linear map, which stay there until
// `kvm_s2_put_tables` has dropped the reference that the unlinked tree holds on them. Nobody
// writes to an unlinked tree.
unsafe impl TableOps for KernelTables {
    #[inline]
    fn table(&mut self, pa: PhysAddr) -> Option<Table> {
        // SAFETY: The function takes any address.
        let va = unsafe { bindings::kvm_s2_find_table(pa.0, &mut self.found) };
        NonNull::new(va.cast::<Pte>()).map(Table::new)
    }

    #[inline]
    fn expected(&self) -> u32 {
        self.found.counted
    }

    #[inline]
    unsafe fn free_table(&mut self, table: Table, counted: u32) {
        if self.batch.push(table.as_ptr().cast(), counted) {
            self.put_batch();
        }
    }

    unsafe fn put_root_entries(&mut self, table: Table, counted: u32) {
        self.atomics += 1;
        self.helper_calls += 1;
        // SAFETY: `table` is a page of the root, and its entries have been visited.
        if !unsafe { bindings::kvm_s2_put_root_entries(table.as_ptr().cast(), counted) } {
            self.leaked += 1;
        }
    }

    unsafe fn free_root(&mut self, root: Table, nr_tables: usize) {
        self.helper_calls += 1;
        // SAFETY: The root was allocated with this size, and nobody uses it any more.
        unsafe { bindings::kvm_s2_free_root(root.as_ptr().cast(), nr_tables * self.page_size) };
    }

    fn flush(&mut self) -> u64 {
        self.put_batch();
        core::mem::take(&mut self.leaked)
    }
}

/// Time between two chances to schedule.
struct Stretch {
    since: u64,
    longest: u64,
}

impl Stretch {
    fn since(start: u64) -> Self {
        Self {
            since: start,
            longest: 0,
        }
    }

    /// Ends a stretch here and starts the next one.
    #[inline]
    fn lap(&mut self) {
        let now = clock();
        self.longest = self.longest.max(now.wrapping_sub(self.since));
        self.since = now;
    }

    /// A chance to schedule. What others do meanwhile is not ours.
    #[inline]
    fn resched(&mut self) {
        self.lap();
        // SAFETY: A destroy runs where it may sleep, with no lock held.
        if unsafe { bindings::kvm_s2_resched() } {
            self.since = clock();
        }
    }
}

#[inline]
fn clock() -> u64 {
    // SAFETY: May be called anywhere.
    unsafe { bindings::kvm_s2_clock() }
}

/// Runs the policy on `backend` and returns its figures and the longest stretch since `start`.
#[inline]
fn run<B: Backend>(
    backend: &mut B,
    geometry: &Geometry,
    budget: u32,
    start: u64,
) -> (Destroyed, u64) {
    let mut stretch = Stretch::since(start);
    let done = stage2_destroy(backend, geometry, geometry.range(), budget, |_| {
        stretch.resched();
    });
    stretch.lap();
    (done, stretch.longest)
}

fn report(figures: &mut bindings::kvm_s2_figures, done: &Destroyed, stretch: u64) {
    figures.leaves = done.leaves;
    figures.pages = done.pages;
    figures.chunks = done.chunks;
    figures.rescheds = done.rescheds;
    figures.leaked = done.leaked;
    figures.max_stretch_ns = stretch;
}

/// Hands an unlinked stage-2 that the host walks to `destroy`, and fills in what came of it.
///
/// # Safety
///
/// - The requirements of [`kvm_s2_destroy_tables`].
#[inline]
unsafe fn with_tables(
    tables: *const bindings::kvm_s2_tables,
    figures: *mut bindings::kvm_s2_figures,
    destroy: impl FnOnce(&mut TableBackend<'_, KernelTables>, &Geometry, u64) -> (Destroyed, u64),
) {
    // SAFETY: Both are valid, and nobody else uses them during the call.
    let (tables, figures) = unsafe { (&*tables, &mut *figures) };
    let (Some(geometry), Some(root)) = (table_geometry(tables), NonNull::new(tables.pgd)) else {
        pr_err!("not a stage-2 table, left alone\n");
        figures.leaked = 1;
        return;
    };

    let ops = KernelTables {
        batch: Batch::new(),
        page_size: 1 << tables.page_shift,
        found: bindings::kvm_s2_found {
            piece: u64::MAX,
            ..Default::default()
        },
        leaked: 0,
        atomics: 0,
        helper_calls: 0,
        calm: true,
    };
    // SAFETY: By the requirements of this function.
    let mut backend = unsafe { TableBackend::new(ops, geometry, Table::new(root.cast())) };
    let (done, stretch) = destroy(&mut backend, &geometry, tables.start);

    report(figures, &done, stretch);
    figures.tables = done.tables;
    figures.table_bytes = done.table_bytes;
    figures.atomics = backend.ops().atomics;
    // Each table was found by a call of its own.
    figures.helper_calls = done.tables + backend.ops().helper_calls;
    // No hardware walker can reach an unlinked tree, so nothing is invalidated.
    figures.tlbis = 0;
}

/// Destroys an unlinked stage-2 that the host walks, and frees its root.
///
/// # Safety
///
/// - `tables` describes such a stage-2, which nobody else can reach, and `figures` is valid.
/// - The caller may sleep.
#[no_mangle]
pub unsafe extern "C" fn kvm_s2_destroy_tables(
    tables: *const bindings::kvm_s2_tables,
    figures: *mut bindings::kvm_s2_figures,
) {
    // SAFETY: By the requirements of this function.
    unsafe {
        with_tables(tables, figures, |backend, geometry, start| {
            run(backend, geometry, TABLE_BUDGET, start)
        });
    }
}

// C declares the same type.
const _: () = {
    let _ = if true {
        bindings::kvm_s2_destroy_tables
    } else {
        kvm_s2_destroy_tables
    };
};

fn table_geometry(tables: &bindings::kvm_s2_tables) -> Option<Geometry> {
    let output = if tables.lpa2 {
        OutputAddress::Lpa2
    } else {
        OutputAddress::Standard
    };
    Geometry::new(
        Granule::from_page_shift(tables.page_shift)?,
        tables.ia_bits,
        Level::new(tables.start_level)?,
        output,
    )
    .ok()
}
