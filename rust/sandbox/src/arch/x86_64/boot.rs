// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The first state of an x86-64 vCPU: 64-bit mode with memory mapped one to one.

use kvm_bindings::{kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment, Msrs};
use kvm_ioctls::VcpuFd;
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryMmap};

use super::Start;

const GDT: u64 = 0x500;
const IDT: u64 = 0x520;
const PML4: u64 = 0x9000;
const PDPT: u64 = 0xa000;
/// Four tables that map the first 4 GiB in 2 MiB pages.
const PD: u64 = 0xb000;
const STACK: u64 = 0x8ff0;

const PRESENT_WRITABLE: u64 = 0x3;
const LARGE: u64 = 0x80;

const CR0_PE: u64 = 1;
const CR0_PG: u64 = 1 << 31;
/// Caches disabled, as after a reset: the guest would crawl.
const CR0_NO_CACHE: u64 = 3 << 29;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_FAST_STRING: u64 = 1;
const MSR_MTRR_DEFAULT: u32 = 0x2ff;
/// Memory types are in use, and memory is cached where no range says otherwise.
const MTRR_WRITE_BACK: u64 = (1 << 11) | 6;
const APIC_LVT0: usize = 0x350;
const APIC_LVT1: usize = 0x360;
const MODE_EXTINT: u32 = 7;
const MODE_NMI: u32 = 4;

/// The first state could not be set.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// KVM refused it.
    #[error("KVM refuses the first state of a vCPU: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// Guest memory is too small for it.
    #[error("no room for the first page tables: {0}")]
    Memory(#[from] GuestMemoryError),
    /// The MSR list could not be built.
    #[error("MSR list: {0}")]
    Msrs(vmm_sys_util::fam::Error),
}

pub(super) fn start_vcpu(
    vcpu: &VcpuFd,
    id: u8,
    memory: &GuestMemoryMmap,
    start: &Start,
) -> Result<(), StartError> {
    let entry = |index, data| kvm_msr_entry {
        index,
        data,
        ..Default::default()
    };
    let msrs = Msrs::from_entries(&[
        entry(MSR_MISC_ENABLE, MISC_FAST_STRING),
        entry(MSR_MTRR_DEFAULT, MTRR_WRITE_BACK),
    ])
    .map_err(StartError::Msrs)?;
    vcpu.set_msrs(&msrs)?;
    vcpu.set_fpu(&kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    })?;
    route_legacy_interrupts(vcpu)?;
    if id == 0 {
        write_tables(memory)?;
        set_system_registers(vcpu)?;
        vcpu.set_regs(&registers(start))?;
    }
    Ok(())
}

fn registers(start: &Start) -> kvm_regs {
    let registers = kvm_regs {
        rflags: 2,
        rsp: STACK,
        ..Default::default()
    };
    match *start {
        Start::Payload(program) => kvm_regs {
            rip: program.entry,
            rdi: program.first,
            rcx: program.pages,
            rbx: program.counter,
            rsi: program.first,
            r8: program.working_set,
            ..registers
        },
        Start::Linux { entry, parameters } => kvm_regs {
            rip: entry,
            rsi: parameters,
            ..registers
        },
    }
}

fn set_system_registers(vcpu: &VcpuFd) -> Result<(), StartError> {
    let mut sregs = vcpu.get_sregs()?;
    let code = segment(1, 0xb, |s| s.l = 1);
    let data = segment(2, 0x3, |s| s.db = 1);
    sregs.cs = code;
    for register in [
        &mut sregs.ds,
        &mut sregs.es,
        &mut sregs.fs,
        &mut sregs.gs,
        &mut sregs.ss,
    ] {
        *register = data;
    }
    sregs.tr = segment(3, 0xb, |s| s.s = 0);
    sregs.gdt.base = GDT;
    sregs.gdt.limit = 4 * 8 - 1;
    sregs.idt.base = IDT;
    sregs.idt.limit = 7;
    sregs.cr0 = (sregs.cr0 & !CR0_NO_CACHE) | CR0_PE | CR0_PG;
    sregs.cr3 = PML4;
    sregs.cr4 |= CR4_PAE;
    sregs.efer |= EFER_LME | EFER_LMA;
    vcpu.set_sregs(&sregs)?;
    Ok(())
}

/// A flat segment, entry `index` of the descriptor table.
fn segment(index: u16, kind: u8, adjust: impl FnOnce(&mut kvm_segment)) -> kvm_segment {
    let mut segment = kvm_segment {
        limit: 0xffff_ffff,
        selector: index * 8,
        type_: kind,
        present: 1,
        s: 1,
        g: 1,
        ..Default::default()
    };
    adjust(&mut segment);
    segment
}

/// The same segments as the guest finds them in memory.
const DESCRIPTORS: [u64; 4] = [
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x008f_8b00_0000_ffff,
];

fn write_tables(memory: &GuestMemoryMmap) -> Result<(), StartError> {
    for (offset, descriptor) in (0..).step_by(8).zip(DESCRIPTORS) {
        memory.write_obj(descriptor, GuestAddress(GDT + offset))?;
    }
    memory.write_obj(0u64, GuestAddress(IDT))?;
    memory.write_obj(PDPT | PRESENT_WRITABLE, GuestAddress(PML4))?;
    for table in 0..4 {
        let address = PD + table * 0x1000;
        memory.write_obj(address | PRESENT_WRITABLE, GuestAddress(PDPT + table * 8))?;
        for entry in 0..512 {
            let page = (table << 30) | (entry << 21) | LARGE | PRESENT_WRITABLE;
            memory.write_obj(page, GuestAddress(address + entry * 8))?;
        }
    }
    debug_assert!(memory.last_addr().0 > PD + 0x4000);
    Ok(())
}

/// The timer comes through the old controller until the kernel says otherwise.
fn route_legacy_interrupts(vcpu: &VcpuFd) -> Result<(), StartError> {
    let mut lapic = vcpu.get_lapic()?;
    for (offset, mode) in [(APIC_LVT0, MODE_EXTINT), (APIC_LVT1, MODE_NMI)] {
        for (register, byte) in lapic.regs[offset..offset + 4]
            .iter_mut()
            .zip((mode << 8).to_le_bytes())
        {
            *register = i8::from_le_bytes([byte]);
        }
    }
    vcpu.set_lapic(&lapic)?;
    Ok(())
}
