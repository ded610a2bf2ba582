// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Saving and restoring the state of an arm64 VM and its vCPUs.

use kvm_bindings::{kvm_mp_state, RegList, KVM_REG_SIZE_MASK, KVM_REG_SIZE_SHIFT};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use serde::{Deserialize, Serialize};

use super::gic::GicState;
use super::Chips;

/// Registers a list has room for; kvm-bindings allows no more.
const MAX_REGISTERS: usize = 500;

/// State of the interrupt controller.
#[derive(Debug, Serialize, Deserialize)]
pub struct VmState {
    gic: GicState,
}

/// State of one vCPU: every register KVM lists, by its number.
#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    registers: Vec<(u64, Vec<u8>)>,
    mp_state: kvm_mp_state,
}

/// Reads the state of a VM whose vCPUs stand still.
pub fn save_vm(_vm: &VmFd, chips: &Chips) -> Result<VmState, kvm_ioctls::Error> {
    Ok(VmState { gic: chips.save()? })
}

/// Writes what [`save_vm`] read.
pub fn restore_vm(_vm: &VmFd, chips: &Chips, state: &VmState) -> Result<(), kvm_ioctls::Error> {
    chips.restore(&state.gic)
}

/// Reads the state of a vCPU that stands still with no exit half done.
pub fn save_vcpu(_kvm: &Kvm, vcpu: &VcpuFd) -> Result<VcpuState, kvm_ioctls::Error> {
    let mut list = RegList::new(MAX_REGISTERS).map_err(|_| kvm_ioctls::Error::new(libc::ENOMEM))?;
    vcpu.get_reg_list(&mut list)?;
    let mut registers = Vec::new();
    for &id in list.as_slice() {
        let mut bytes = vec![0; 1 << ((id & KVM_REG_SIZE_MASK) >> KVM_REG_SIZE_SHIFT)];
        vcpu.get_one_reg(id, &mut bytes)?;
        registers.push((id, bytes));
    }
    Ok(VcpuState {
        registers,
        mp_state: vcpu.get_mp_state()?,
    })
}

/// Writes what [`save_vcpu`] read; the vCPU has been identified already.
pub fn restore_vcpu(vcpu: &VcpuFd, state: &VcpuState) -> Result<(), kvm_ioctls::Error> {
    for (id, bytes) in &state.registers {
        vcpu.set_one_reg(*id, bytes)?;
    }
    vcpu.set_mp_state(state.mp_state)
}
