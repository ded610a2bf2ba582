// SPDX-License-Identifier: GPL-2.0

//! Allocations that fail, one after the other, while a VM is made.

use kvm_ioctls::Kvm;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::vm;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Fails the nth allocation of this thread that may fail (CONFIG_FAULT_INJECTION).
const FAIL_NTH: &str = "/proc/thread-self/fail-nth";
/// Which allocations those are (without these, hardly any), and no stack of each on the console.
const SWITCHES: [(&str, &str); 6] = [
    ("failslab/ignore-gfp-wait", "N"),
    ("failslab/cache-filter", "N"),
    ("failslab/verbose", "0"),
    ("fail_page_alloc/ignore-gfp-wait", "N"),
    ("fail_page_alloc/ignore-gfp-highmem", "N"),
    ("fail_page_alloc/verbose", "0"),
];
/// A VM and a vCPU take less.
const MOST: u32 = 2000;

/// Makes a VM with a vCPU with the first allocation failing, then with the second, and so on
/// until none is left to fail; what could be made ends each time.
pub(crate) fn every_allocation(kvm: &Kvm) -> Result<()> {
    // Opened once: opening it takes allocations that would fail as well.
    let fault = OpenOptions::new().read(true).write(true).open(FAIL_NTH);
    let fault = fault.map_err(|error| {
        Stop::Skip(format!(
            "{FAIL_NTH}: {error}; a kernel with fault injection has it (--config debug)"
        ))
    })?;
    for (switch, value) in SWITCHES {
        let path = format!("/sys/kernel/debug/{switch}");
        fs::write(&path, value).map_err(Stop::missing(&path))?;
    }
    let mut failed = 0;
    for nth in 1..=MOST {
        arm(&fault, nth)?;
        let made = vm::create(kvm, Kind::Normal, 40).and_then(|vm| {
            let vcpu = vm.create_vcpu(0).map_err(Stop::failed("KVM_CREATE_VCPU"))?;
            Ok((vcpu, vm))
        });
        let left = disarm(&fault)?;
        failed += u32::from(made.is_err());
        drop(made);
        if left > 0 {
            return match failed {
                0 => Err(Stop::Fail("no allocation could be made to fail".into())),
                _ => Ok(()),
            };
        }
    }
    Err(Stop::Fail(format!("more than {MOST} allocations for a VM")))
}

fn arm(fault: &File, nth: u32) -> Result<()> {
    let written = fault.write_at(nth.to_string().as_bytes(), 0);
    written.map(|_| ()).map_err(Stop::failed(FAIL_NTH))
}

/// Returns how many more allocations it would have taken to fail one; 0 if one failed.
fn disarm(fault: &File) -> Result<u32> {
    let mut text = [0; 16];
    let read = fault.read_at(&mut text, 0);
    let len = read.map_err(Stop::failed(FAIL_NTH))?;
    arm(fault, 0)?;
    let left = String::from_utf8_lossy(&text[..len]);
    left.trim().parse().map_err(Stop::failed(FAIL_NTH))
}
