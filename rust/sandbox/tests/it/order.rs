// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The teardown order on a real VM: guest memory goes when KVM has let go of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::common::{kvm, need, MIB};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use sandbox::config::MemoryConfig;
use sandbox::memory::{Backing, GuestRam, UnmapError};
use sandbox::teardown::{Guest, Ram};

/// Where KVM shows the VMs of this process.
fn debugfs() -> Result<PathBuf, String> {
    kvm()?;
    let path = PathBuf::from("/sys/kernel/debug/kvm");
    if !path.is_dir() {
        let _ = std::process::Command::new("mount")
            .args(["-t", "debugfs", "none", "/sys/kernel/debug"])
            .stderr(std::process::Stdio::null())
            .status();
    }
    if path.is_dir() {
        return Ok(path);
    }
    Err("no /sys/kernel/debug/kvm to see VMs in".to_owned())
}

/// VMs made by this thread that the kernel still has, with this file number.
fn alive(debugfs: &std::path::Path, fd: i32) -> usize {
    // SAFETY: a system call without arguments.
    let thread = unsafe { libc::gettid() };
    let name = format!("{thread}-{fd}");
    std::fs::read_dir(debugfs)
        .unwrap()
        .filter(|entry| *entry.as_ref().unwrap().file_name() == *name)
        .count()
}

/// Guest memory that looks, when it goes, whether the VM is still there.
struct Witness {
    ram: GuestRam,
    fd: i32,
    seen: Arc<Mutex<Option<usize>>>,
}

impl Ram for Witness {
    type Error = UnmapError;

    fn bytes(&self) -> u64 {
        self.ram.bytes()
    }

    fn unmap(self) -> Result<(), UnmapError> {
        *self.seen.lock().unwrap() = Some(alive(&debugfs().unwrap(), self.fd));
        self.ram.unmap()
    }
}

type Parts = (VcpuFd, VmFd, Witness, Arc<Mutex<Option<usize>>>);

fn parts() -> Parts {
    use std::os::fd::AsRawFd;
    let vm = Kvm::new().unwrap().create_vm().unwrap();
    let ram = GuestRam::new(
        &MemoryConfig {
            size: 4 * MIB,
            ..Default::default()
        },
        &Backing::Fresh,
    )
    .unwrap();
    ram.register(&vm).unwrap();
    let vcpu = vm.create_vcpu(0).unwrap();
    let seen = Arc::default();
    let witness = Witness {
        ram,
        fd: vm.as_raw_fd(),
        seen: Arc::clone(&seen),
    };
    (vcpu, vm, witness, seen)
}

#[test]
fn memory_goes_after_the_vm_and_a_swap_would_be_seen() {
    need!(debugfs().map(drop));
    let (vcpu, vm, ram, seen) = parts();
    assert_eq!(alive(&debugfs().unwrap(), ram.fd), 1);
    let guest = Guest::new(vec![vcpu], vm, ram);
    guest.close_vcpus().close_vm().unmap_ram().unwrap();
    assert_eq!(*seen.lock().unwrap(), Some(0));

    // The same by hand, in the wrong order: the witness sees the VM, so it would
    // have seen it above.
    let (vcpu, vm, ram, seen) = parts();
    drop(vcpu);
    ram.unmap().unwrap();
    drop(vm);
    assert_eq!(*seen.lock().unwrap(), Some(1));

    // A vCPU that is left open keeps the VM as well.
    let (vcpu, vm, ram, seen) = parts();
    drop(vm);
    ram.unmap().unwrap();
    drop(vcpu);
    assert_eq!(*seen.lock().unwrap(), Some(1));
}
