// SPDX-License-Identifier: GPL-2.0

//! A VM whose end is a chain of types.
//!
//! ```text
//! Guest --run--> Halted --close_vcpus--> Quiet --close--> GuestRam --drop
//!                  \-----unmap_ram-----> Bare  --close
//! ```
//! Each arrow consumes what is left of it, so the order in which the kernel
//! sees things go is written where the arrow is taken and nowhere else.

use crate::clock;
use crate::payload;
use crate::payload::Touch;
use crate::payload::RAM_BASE;
use crate::ram::GuestRam;
use crate::spec::page;
use crate::spec::Case;
use crate::spec::Guest as Kind;
use crate::spec::Spec;
use crate::vcpu;
use crate::Result;
use crate::Stop;
use kvm_bindings::kvm_userspace_memory_region;
use kvm_bindings::KVM_MEM_LOG_DIRTY_PAGES;
use kvm_ioctls::Kvm;
use kvm_ioctls::VcpuFd;
use kvm_ioctls::VmFd;
use std::thread;

/// `KVM_VM_TYPE_ARM_PROTECTED`.
const VM_TYPE_PROTECTED: u64 = 1 << 31;

/// A guest that has not run yet.
#[derive(Debug)]
pub struct Guest {
    parts: Halted,
    shares: Vec<u64>,
}

/// A guest whose vCPU threads are joined; all its descriptors are open.
#[derive(Debug)]
pub struct Halted {
    vcpus: Vec<VcpuFd>,
    vm: VmFd,
    ram: GuestRam,
}

/// Nothing but the VM's own descriptor keeps it alive.
#[derive(Debug)]
pub struct Quiet {
    vm: VmFd,
    ram: Option<GuestRam>,
}

/// A VM that lost its memory before its descriptors.
#[derive(Debug)]
pub struct Bare {
    vcpus: Vec<VcpuFd>,
    vm: VmFd,
}

/// Creates a VM with an address space of `ipa_bits`.
///
/// # Errors
///
/// [`Stop::Fail`] when the kernel refuses what it said it supports.
pub fn create(kvm: &Kvm, kind: Kind, ipa_bits: u32) -> Result<VmFd> {
    let protected = match kind {
        Kind::Protected => VM_TYPE_PROTECTED,
        Kind::Normal | Kind::None => 0,
    };
    kvm.create_vm_with_type(u64::from(ipa_bits) | protected)
        .map_err(Stop::failed("KVM_CREATE_VM"))
}

impl Guest {
    /// Builds VM, memory and vCPUs; all vCPUs exist before any of them runs,
    /// which a protected host requires.
    ///
    /// # Errors
    ///
    /// As of each of the steps.
    pub fn build(kvm: &Kvm, spec: &Spec, touch: Touch, ipa_bits: u32) -> Result<Self> {
        let (slots, slot) = slots(spec, touch);
        let ram = GuestRam::new(slots * slot, spec.backing)?;
        Guest::build_on(ram, kvm, spec, touch, ipa_bits)
    }

    /// The same on memory that is there already.
    ///
    /// # Errors
    ///
    /// As of each of the steps.
    pub fn build_on(
        mut ram: GuestRam,
        kvm: &Kvm,
        spec: &Spec,
        touch: Touch,
        ipa_bits: u32,
    ) -> Result<Self> {
        let vm = create(kvm, spec.guest, ipa_bits)?;
        let (slots, slot) = slots(spec, touch);
        ram.fill_start(&payload::first_page());
        for index in 0..slots {
            set_slot(&vm, &ram, index, slot, touch.stride, 0)?;
        }
        let (mut vcpus, mut shares) = (Vec::new(), Vec::new());
        for index in 0..spec.vcpus {
            let (registers, share) = touch.share(index, spec.vcpus);
            vcpus.push(vcpu::create(&vm, index, &registers)?);
            shares.push(share);
        }
        let parts = Halted { vcpus, vm, ram };
        Ok(Guest { parts, shares })
    }

    /// Runs every vCPU in a thread of its own and joins them all.
    ///
    /// # Errors
    ///
    /// [`Stop::Fail`] when a vCPU touched more or less than its share.
    pub fn run(mut self) -> Result<Halted> {
        let counts: Vec<Result<u64>> = thread::scope(|scope| {
            let vcpus = self.parts.vcpus.iter_mut();
            // Collected first, so that all threads run before one is joined.
            let threads: Vec<_> = vcpus.map(|v| scope.spawn(|| vcpu::run(v))).collect();
            threads
                .into_iter()
                .map(|t| {
                    t.join()
                        .unwrap_or(Err(Stop::Fail("vCPU thread panicked".into())))
                })
                .collect()
        });
        for (count, share) in counts.into_iter().zip(self.shares) {
            let count = count?;
            if count != share {
                let text = format!("a vCPU touched {count} pages instead of {share}");
                return Err(Stop::Fail(text));
            }
        }
        Ok(self.parts)
    }
}

impl Halted {
    /// Guest memory, to look at what it is made of.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// The vCPUs' descriptors, to hold on to one of them.
    pub fn vcpus(&self) -> &[VcpuFd] {
        &self.vcpus
    }

    /// Switches dirty logging on, for guests whose memory is one slot.
    ///
    /// # Errors
    ///
    /// [`Stop::Fail`] when the kernel refuses.
    pub fn log_dirty(&self) -> Result<()> {
        set_slot(
            &self.vm,
            &self.ram,
            0,
            self.ram.len(),
            0,
            KVM_MEM_LOG_DIRTY_PAGES,
        )
    }

    /// Closes each vCPU's descriptor and unmaps its `kvm_run`.
    pub fn close_vcpus(self) -> Quiet {
        drop(self.vcpus);
        Quiet {
            vm: self.vm,
            ram: Some(self.ram),
        }
    }

    /// Unmaps guest memory under the living VM. Returns how long it took, in ns.
    pub fn unmap_ram(self) -> (Bare, u64) {
        let ((), ns) = clock::timed(|| drop(self.ram));
        let bare = Bare {
            vcpus: self.vcpus,
            vm: self.vm,
        };
        (bare, ns)
    }
}

impl Quiet {
    /// A VM that never had memory or vCPUs.
    pub fn empty(vm: VmFd) -> Self {
        Quiet { vm, ram: None }
    }

    /// Closes the VM's descriptor, which destroys it. Returns its memory, still
    /// mapped, and how long the close took, in ns.
    pub fn close(self) -> (Option<GuestRam>, u64) {
        let ((), ns) = clock::timed(|| drop(self.vm));
        (self.ram, ns)
    }
}

impl Bare {
    /// Closes the vCPUs' descriptors, then the VM's, and returns how long that
    /// last close took, in ns.
    pub fn close(self) -> u64 {
        drop(self.vcpus);
        clock::timed(|| drop(self.vm)).1
    }
}

/// Number of memory slots, and bytes of each.
fn slots(spec: &Spec, touch: Touch) -> (u64, u64) {
    match spec.case {
        Case::Sparse => (touch.pages, page()),
        _ => (1, touch.pages * touch.stride),
    }
}

fn set_slot(
    vm: &VmFd,
    ram: &GuestRam,
    index: u64,
    len: u64,
    stride: u64,
    flags: u32,
) -> Result<()> {
    let region = kvm_userspace_memory_region {
        slot: index as u32,
        flags,
        guest_phys_addr: RAM_BASE + index * stride,
        memory_size: len,
        userspace_addr: ram.host_addr() + index * len,
    };
    // SAFETY: the range lies inside `ram`. It may be unmapped while the VM lives
    // (that is one of the orders under test): the guest then has no memory there,
    // and nothing in this process refers to it.
    unsafe { vm.set_user_memory_region(region) }.map_err(Stop::failed("KVM_SET_USER_MEMORY_REGION"))
}
