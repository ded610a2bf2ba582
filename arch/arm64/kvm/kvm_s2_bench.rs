// SPDX-License-Identifier: GPL-2.0

//! Measures the destroy of a stage-2 table that is built in the kernel.
//!
//! Loading the module runs it once and then fails with `EAGAIN`, so that it can be loaded again
//! with other parameters. The implementation is the one that `kvm_s2.impl` names. With `vm_fd` the
//! table is built in a VM of the process that loads the module, which then ends it as it likes.

use kernel::{
    bindings,
    prelude::*, //
};

module! {
    type: Bench,
    name: "kvm_s2_bench",
    authors: ["The kvm_s2 developers"],
    description: "Benchmark of the stage-2 destroy",
    license: "GPL",
    params: {
        size_mib: u64 {
            default: 1024,
            description: "MiB of guest address space to map, from 0 (0: an empty table)",
        },
        stride_mib: u64 {
            default: 0,
            description: "map once in so many MiB (0: everywhere)",
        },
        map_kib: u64 {
            default: 4,
            description: "KiB mapped by one entry: a page (4), or a block (2048)",
        },
        ipa_bits: u32 {
            default: 48,
            description: "size of the guest's address space in bits",
        },
        vm_fd: i32 {
            default: -1,
            description: "build the table in this VM of ours, and leave it (-1: destroy it)",
        },
    },
}

struct Bench;

/// Prints one figure, or a dash for one that the implementation does not count.
fn print(name: &str, value: u64, unit: &str) {
    if value == u64::MAX {
        pr_info!("{:<16} {:>16}\n", name, "-");
    } else {
        pr_info!("{:<16} {:>16} {}\n", name, value, unit);
    }
}

fn show(result: &bindings::kvm_s2_bench_result) {
    pr_info!(
        "{:<16} {:>16}\n",
        "implementation",
        if result.rust { "rust" } else { "c" }
    );
    print("leaves", result.leaves, "");
    print("tables", result.tables, "and the root");
    print("build", result.build_ns, "ns");
    print("destroy", result.destroy_ns, "ns");
    if let Some(per_leaf) = (result.destroy_ns * 1000).checked_div(result.leaves) {
        print("destroy per leaf", per_leaf, "ps");
    }
    print("chunks", result.figures.chunks, "");
    print("rescheds", result.figures.rescheds, "");
    print("longest stretch", result.figures.max_stretch_ns, "ns");
    print("leaked", result.figures.leaked, "");
}

impl kernel::Module for Bench {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        let mib = |n: u64| n.checked_mul(1 << 20).ok_or(ERANGE);
        let what = bindings::kvm_s2_bench {
            size: mib(module_parameters::size_mib.value())?,
            stride: mib(module_parameters::stride_mib.value())?,
            map_size: module_parameters::map_kib
                .value()
                .checked_mul(1 << 10)
                .ok_or(ERANGE)?,
            ia_bits: module_parameters::ipa_bits.value(),
        };
        let vm_fd = module_parameters::vm_fd.value();
        if vm_fd >= 0 {
            // SAFETY: `what` is valid during the call, and any number may be passed.
            let ret = unsafe { bindings::kvm_s2_bench_fill_vm(vm_fd, &what) };
            kernel::error::to_result(ret)?;
            return Err(EAGAIN);
        }
        let mut result = bindings::kvm_s2_bench_result::default();

        // SAFETY: Both are valid during the call.
        kernel::error::to_result(unsafe { bindings::kvm_s2_bench(&what, &mut result) })?;
        show(&result);
        Err(EAGAIN)
    }
}
