// SPDX-License-Identifier: GPL-2.0

//! Many VMs that end at once.

use crate::small;
use kvm_ioctls::Kvm;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::sync::Barrier;
use std::thread;

const THREADS: usize = 4;
/// EL2 has room for 255 VMs (KVM_MAX_PVMS in arch/arm64/kvm/hyp/include/nvhe/pkvm.h).
pub(crate) const MOST_AT_EL2: u32 = 200;

/// Builds `count` guests, then closes them all from four threads that start together.
pub(crate) fn end(kvm: &Kvm, count: u32) -> Result<()> {
    allow_files(u64::from(count) + 64)?;
    let mut shares: Vec<Vec<_>> = (0..THREADS).map(|_| Vec::new()).collect();
    for index in 0..count as usize {
        shares[index % THREADS].push(small(kvm)?.close_vcpus());
    }
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for share in shares {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                share.into_iter().for_each(|vm| drop(vm.close()));
            });
        }
    });
    Ok(())
}

/// Raises this process's limit of open files.
fn allow_files(count: u64) -> Result<()> {
    let limit = libc::rlimit {
        rlim_cur: count,
        rlim_max: count,
    };
    // SAFETY: `limit` is valid during the call.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(()),
        _ => Err(Stop::Skip(format!("{count} open files are not allowed"))),
    }
}
