// SPDX-License-Identifier: GPL-2.0

//! Mappings of a guest that EL2 holds the tables of.

use core::{
    ffi::c_void,
    ptr::NonNull, //
};

use kernel::{
    bindings,
    prelude::*, //
};
use kvm_s2::{
    Fate,
    Geometry,
    Granule,
    Mapping,
    MappingOps,
    PkvmBackend, //
};

use crate::{
    report,
    run,
    Batch, //
};

/// A node of `struct pkvm_mapping`'s tree.
type Node = NonNull<bindings::kvm_s2_mapping>;

/// The mapping tree of a VM, and EL2 behind it.
struct KernelMappings {
    kvm: *mut c_void,
    max_run: u64,
    /// Most mappings between two chances to schedule: a batch must not be larger.
    budget: usize,
    batch: Batch<bindings::kvm_s2_mapping>,
    reported: bool,
}

#[inline]
fn to_node(node: *mut bindings::rb_node) -> Option<Node> {
    // `node` is the first field.
    NonNull::new(node.cast::<bindings::kvm_s2_mapping>())
}

#[inline]
fn to_rb(node: Option<Node>) -> *mut bindings::rb_node {
    node.map_or(core::ptr::null_mut(), |node| node.as_ptr().cast())
}

impl KernelMappings {
    #[inline]
    fn settle_batch(&mut self) {
        let nr = self.batch.take();
        if nr > 0 {
            // SAFETY: EL2 gave the pages of these mappings back, and nothing points to the nodes.
            unsafe { bindings::kvm_s2_pkvm_settle(self.kvm, self.batch.items.as_ptr().cast(), nr) };
        }
    }
}

// SAFETY: The nodes are those of a VM that nobody can reach any more, and stay allocated until
// `settle`. The accessors read and write the two links of `struct rb_node`.
unsafe impl MappingOps for KernelMappings {
    type Node = Node;

    #[inline]
    fn left(&self, node: Node) -> Option<Node> {
        // SAFETY: `node` is in the tree.
        to_node(unsafe { (*node.as_ptr()).node.rb_left })
    }

    #[inline]
    fn right(&self, node: Node) -> Option<Node> {
        // SAFETY: `node` is in the tree or in the run.
        to_node(unsafe { (*node.as_ptr()).node.rb_right })
    }

    #[inline]
    fn set_left(&mut self, node: Node, left: Option<Node>) {
        // SAFETY: `node` is in the tree.
        unsafe { (*node.as_ptr()).node.rb_left = to_rb(left) };
    }

    #[inline]
    fn set_right(&mut self, node: Node, right: Option<Node>) {
        // SAFETY: `node` is in the tree or in the run.
        unsafe { (*node.as_ptr()).node.rb_right = to_rb(right) };
    }

    #[inline]
    fn mapping(&self, node: Node) -> Mapping {
        // SAFETY: `node` is in the tree or in the run.
        let mapping = unsafe { node.as_ref() };
        Mapping {
            gfn: mapping.gfn,
            nr_pages: mapping.nr_pages_nc & ((1 << 48) - 1),
        }
    }

    #[inline]
    fn max_run(&self) -> u64 {
        self.max_run
    }

    fn release(&mut self, first: Node, gfn: u64, nr_pages: u64) -> u64 {
        // SAFETY: `first` starts a list of mappings in a row.
        unsafe { bindings::kvm_s2_pkvm_release(self.kvm, first.as_ptr(), gfn, nr_pages) }
    }

    #[inline]
    unsafe fn settle(&mut self, node: Node, fate: Fate) {
        match fate {
            Fate::Released => {
                if self.batch.push(node.as_ptr(), 0) || self.batch.len >= self.budget {
                    self.settle_batch();
                }
            }
            Fate::Stuck => {
                let report = !core::mem::replace(&mut self.reported, true);
                // SAFETY: EL2 kept the mapping's pages, and nothing points to the node.
                unsafe { bindings::kvm_s2_pkvm_keep(self.kvm, node.as_ptr(), report) }
            }
        }
    }

    fn flush(&mut self) {
        self.settle_batch();
    }
}

/// Destroys the unlinked mappings of a guest of a protected host.
///
/// # Safety
///
/// - `mappings` describes the mapping tree of a VM that EL2 knows to be dying, which nobody else
///   can reach, and `figures` is valid.
/// - The caller may sleep.
#[no_mangle]
pub(crate) unsafe extern "C" fn kvm_s2_destroy_mappings(
    mappings: *const bindings::kvm_s2_mappings,
    figures: *mut bindings::kvm_s2_figures,
) {
    // SAFETY: Both are valid, and nobody else uses them during the call.
    let (mappings, figures) = unsafe { (&*mappings, &mut *figures) };
    let Some(geometry) = mapping_geometry(mappings) else {
        pr_err!("not a stage-2, left alone\n");
        figures.leaked = 1;
        return;
    };

    let ops = KernelMappings {
        kvm: mappings.kvm,
        max_run: u64::from(mappings.max_run),
        budget: mappings.budget as usize,
        batch: Batch::new(),
        reported: false,
    };
    // SAFETY: By the requirements of this function.
    let mut backend = unsafe { PkvmBackend::new(ops, geometry, to_node(mappings.root)) };
    let (done, stretch) = run(&mut backend, &geometry, mappings.budget, mappings.start);
    report(figures, &done, stretch);
}

// C declares the same type.
const _: () = {
    let _ = if true {
        bindings::kvm_s2_destroy_mappings
    } else {
        kvm_s2_destroy_mappings
    };
};

/// EL2 walks the tables of a protected host's guests; of their shape only the size matters here.
fn mapping_geometry(mappings: &bindings::kvm_s2_mappings) -> Option<Geometry> {
    Geometry::of_size(
        Granule::from_page_shift(mappings.page_shift)?,
        mappings.ia_bits,
    )
}
