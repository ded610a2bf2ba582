// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Saving and restoring the state of an x86-64 VM and its vCPUs.

use kvm_bindings::{
    kvm_clock_data, kvm_debugregs, kvm_irqchip, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_pit_state2, kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave, Msrs,
    KVM_IRQCHIP_IOAPIC, KVM_IRQCHIP_PIC_MASTER, KVM_IRQCHIP_PIC_SLAVE,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};

use super::Chips;

/// State of interrupt controllers, timer and clock.
#[derive(Debug, Serialize, Deserialize)]
pub struct VmState {
    chips: [kvm_irqchip; 3],
    pit: kvm_pit_state2,
    clock: kvm_clock_data,
}

/// State of one vCPU.
#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    regs: kvm_regs,
    sregs: kvm_sregs,
    xsave: kvm_xsave,
    xcrs: kvm_xcrs,
    msrs: Vec<kvm_msr_entry>,
    lapic: kvm_lapic_state,
    mp_state: kvm_mp_state,
    events: kvm_vcpu_events,
    debug: kvm_debugregs,
}

/// Reads the state of a VM whose vCPUs stand still.
pub fn save_vm(vm: &VmFd, _chips: &Chips) -> Result<VmState, kvm_ioctls::Error> {
    let chip = |chip_id| {
        let mut chip = kvm_irqchip {
            chip_id,
            ..Default::default()
        };
        vm.get_irqchip(&mut chip).map(|()| chip)
    };
    let mut clock = vm.get_clock()?;
    // These flags tell how the value was read; setting it does not accept them.
    clock.flags = 0;
    Ok(VmState {
        chips: [
            chip(KVM_IRQCHIP_PIC_MASTER)?,
            chip(KVM_IRQCHIP_PIC_SLAVE)?,
            chip(KVM_IRQCHIP_IOAPIC)?,
        ],
        pit: vm.get_pit2()?,
        clock,
    })
}

/// Writes what [`save_vm`] read.
pub fn restore_vm(vm: &VmFd, _chips: &Chips, state: &VmState) -> Result<(), kvm_ioctls::Error> {
    for chip in &state.chips {
        vm.set_irqchip(chip)?;
    }
    vm.set_pit2(&state.pit)?;
    vm.set_clock(&state.clock)
}

/// Reads the state of a vCPU that stands still with no exit half done.
pub fn save_vcpu(kvm: &Kvm, vcpu: &VcpuFd) -> Result<VcpuState, kvm_ioctls::Error> {
    // KVM settles pending events when asked for this, so it goes first.
    let mp_state = vcpu.get_mp_state()?;
    Ok(VcpuState {
        mp_state,
        regs: vcpu.get_regs()?,
        sregs: vcpu.get_sregs()?,
        xsave: vcpu.get_xsave()?,
        xcrs: vcpu.get_xcrs()?,
        debug: vcpu.get_debug_regs()?,
        lapic: vcpu.get_lapic()?,
        msrs: save_msrs(kvm, vcpu)?,
        events: vcpu.get_vcpu_events()?,
    })
}

/// Reads every MSR that KVM lists for migration and this vCPU has.
fn save_msrs(kvm: &Kvm, vcpu: &VcpuFd) -> Result<Vec<kvm_msr_entry>, kvm_ioctls::Error> {
    let list = kvm.get_msr_index_list()?;
    let mut left = list.as_slice();
    let mut saved = Vec::new();
    while !left.is_empty() {
        let entries: Vec<_> = left
            .iter()
            .map(|&index| kvm_msr_entry {
                index,
                ..Default::default()
            })
            .collect();
        let mut msrs =
            Msrs::from_entries(&entries).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))?;
        // The call stops at the first MSR this vCPU does not have: skip that one.
        let read = vcpu.get_msrs(&mut msrs)?;
        saved.extend_from_slice(&msrs.as_slice()[..read]);
        left = left.get(read + 1..).unwrap_or_default();
    }
    Ok(saved)
}

/// Writes what [`save_vcpu`] read; the vCPU has been identified already.
pub fn restore_vcpu(vcpu: &VcpuFd, state: &VcpuState) -> Result<(), kvm_ioctls::Error> {
    vcpu.set_mp_state(state.mp_state)?;
    vcpu.set_regs(&state.regs)?;
    vcpu.set_sregs(&state.sregs)?;
    // SAFETY: features with a larger area need a permission that this process
    // never asks for, so 4 KiB is all that KVM reads.
    unsafe { vcpu.set_xsave(&state.xsave) }?;
    vcpu.set_xcrs(&state.xcrs)?;
    vcpu.set_debug_regs(&state.debug)?;
    vcpu.set_lapic(&state.lapic)?;
    restore_msrs(vcpu, &state.msrs)?;
    vcpu.set_vcpu_events(&state.events)
}

fn restore_msrs(vcpu: &VcpuFd, entries: &[kvm_msr_entry]) -> Result<(), kvm_ioctls::Error> {
    let mut left = entries;
    while !left.is_empty() {
        let msrs = Msrs::from_entries(left).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))?;
        // Some MSRs can be read but only written with their old value, or not at
        // all on a host without the feature: those are skipped, as on migration.
        let written = vcpu.set_msrs(&msrs)?;
        left = left.get(written + 1..).unwrap_or_default();
    }
    Ok(())
}
