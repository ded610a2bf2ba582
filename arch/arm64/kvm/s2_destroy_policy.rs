// SPDX-License-Identifier: GPL-2.0

//! Other answers to when the scheduler is let in, to measure against the one that is used.
//! Built with the bench only.

use kernel::bindings;
use kvm_s2::{
    Backend,
    Destroyed,
    Geometry,
    IpaRange, //
};

use crate::{
    run,
    with_tables,
    Stretch,
    TABLE_BUDGET, //
};

/// A chance to schedule without a look at the clock.
fn resched() {
    // SAFETY: A destroy runs where it may sleep, with no lock held.
    unsafe { bindings::kvm_s2_resched() };
}

/// One chance after each chunk of the address space: of all of it, or of what is mapped only.
fn by_chunk<B: Backend>(
    backend: &mut B,
    geometry: &Geometry,
    mut stretch: Stretch,
    empty_too: bool,
) -> (Destroyed, u64) {
    let mut rescheds = 0;
    let range = geometry.range();
    let mut addr = range.start;
    while addr < range.end {
        let start = backend.next_mapped();
        if !empty_too {
            addr = start;
        }
        let end = geometry.stage2_range_addr_end(addr, range.end);
        if start < end {
            backend.destroy_range(IpaRange { start, end }, &mut { u32::MAX });
            stretch.resched();
            rescheds += 1;
        } else if empty_too {
            resched();
            rescheds += 1;
        }
        addr = end;
    }
    finish(backend, stretch, rescheds)
}

/// One chance for each page or block that was unmapped. Tables are taken whole all the same, so
/// the chances come in bursts.
fn by_page<B: Backend>(
    backend: &mut B,
    geometry: &Geometry,
    mut stretch: Stretch,
) -> (Destroyed, u64) {
    let mut rescheds = 0;
    let end = geometry.range().end;
    let mut start = backend.next_mapped();
    while start < end {
        let unmapped = backend.destroy_range(IpaRange { start, end }, &mut 1);
        for _ in 1..unmapped {
            resched();
        }
        stretch.resched();
        rescheds += unmapped;
        start = backend.next_mapped();
    }
    finish(backend, stretch, rescheds)
}

fn finish<B: Backend>(backend: &mut B, mut stretch: Stretch, rescheds: u64) -> (Destroyed, u64) {
    backend.next_mapped();
    let done = backend.destroy_root();
    stretch.lap();
    (Destroyed { rescheds, ..done }, stretch.longest)
}

/// As `kvm_s2_destroy_tables`, with another policy.
///
/// # Safety
///
/// - The requirements of `kvm_s2_destroy_tables`.
#[no_mangle]
pub(crate) unsafe extern "C" fn kvm_s2_destroy_by_policy(
    tables: *const bindings::kvm_s2_tables,
    policy: bindings::kvm_s2_policy,
    figures: *mut bindings::kvm_s2_figures,
) {
    // SAFETY: By the requirements of this function.
    unsafe {
        with_tables(tables, figures, |backend, geometry, start| {
            let stretch = Stretch::since(start);
            match policy {
                bindings::kvm_s2_policy_KVM_S2_POLICY_CHUNK => {
                    by_chunk(backend, geometry, stretch, true)
                }
                bindings::kvm_s2_policy_KVM_S2_POLICY_MAPPED_CHUNK => {
                    by_chunk(backend, geometry, stretch, false)
                }
                bindings::kvm_s2_policy_KVM_S2_POLICY_PAGE => by_page(backend, geometry, stretch),
                _ => run(backend, geometry, TABLE_BUDGET, start),
            }
        });
    }
}

// C declares the same type.
const _: () = {
    let _ = if true {
        bindings::kvm_s2_destroy_by_policy
    } else {
        kvm_s2_destroy_by_policy
    };
};
