// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! arm64: memory layout, payload, VM and vCPU set-up.

mod gic;
mod linux;
mod state;

use std::ops::Range;

use kvm_bindings::{
    kvm_vcpu_init, KVM_ARM_VCPU_POWER_OFF, KVM_ARM_VCPU_PSCI_0_2, KVM_REG_ARM64, KVM_REG_ARM_CORE,
    KVM_REG_SIZE_U64,
};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vm_memory::GuestMemoryMmap;

use super::{DeviceSlot, Start};

pub use gic::Chips;
pub use linux::load_linux;
pub use state::{restore_vcpu, restore_vm, save_vcpu, save_vm, VcpuState, VmState};

/// First byte of RAM.
pub const RAM_START: u64 = 0x8000_0000;
const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;
const REDISTRIBUTOR_BYTES: u64 = 0x2_0000;
const SERIAL: u64 = 0x0e00_0000;
/// Registers of the first virtio device; the next ones follow page by page.
const DEVICES: u64 = 0x0e10_0000;
/// First shared interrupt of a virtio device.
const DEVICE_GSI: u32 = 16;

/// I/O port of the serial console: there are no ports.
pub const SERIAL_PORT: Option<u64> = None;
/// Serial console in memory space.
pub const SERIAL_MMIO: Option<u64> = Some(SERIAL);
/// Interrupt of the serial console.
pub const SERIAL_GSI: u32 = 1;
/// The guest resets through its firmware interface instead.
pub const RESET_PORT: Option<u64> = None;
/// More virtio devices have no interrupt of their own.
pub const MAX_DEVICES: usize = 16;

/// `touch: str x0, [x0]; add x0, x0, 4096; subs x1, x1, 1; b.ne touch;
/// mov w4, 'T'; strb w4, [x3]; halt: wfi; b halt`
pub const TOUCH_THEN_HALT: &[u8] = &[
    0x00, 0x00, 0x00, 0xf9, 0x00, 0x04, 0x40, 0x91, 0x21, 0x04, 0x00, 0xf1, 0xa1, 0xff, 0xff, 0x54,
    0x84, 0x0a, 0x80, 0x52, 0x64, 0x00, 0x00, 0x39, 0x7f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17,
];

/// The same, and then `count: ldr x4, [x2]; add x4, x4, 1; str x4, [x2]; yield;
/// b count`
pub const TOUCH_THEN_COUNT: &[u8] = &[
    0x00, 0x00, 0x00, 0xf9, 0x00, 0x04, 0x40, 0x91, 0x21, 0x04, 0x00, 0xf1, 0xa1, 0xff, 0xff, 0x54,
    0x84, 0x0a, 0x80, 0x52, 0x64, 0x00, 0x00, 0x39, 0x44, 0x00, 0x40, 0xf9, 0x84, 0x04, 0x00, 0x91,
    0x44, 0x00, 0x00, 0xf9, 0x3f, 0x20, 0x03, 0xd5, 0xfc, 0xff, 0xff, 0x17,
];

/// The same, and then `beat: mov x0, x5; mov x1, x6; walk: ldr x4, [x0]; cmp x4, x0;
/// b.ne bad; ldr x4, [x0, 8]; add x4, x4, 1; str x4, [x0, 8]; add x0, x0, 4096;
/// subs x1, x1, 1; b.ne walk; mov w4, 'B'; strb w4, [x3]; b beat; bad: mov w4, '!';
/// strb w4, [x3]; halt: wfi; b halt`
pub const TOUCH_THEN_BEAT: &[u8] = &[
    0x00, 0x00, 0x00, 0xf9, 0x00, 0x04, 0x40, 0x91, 0x21, 0x04, 0x00, 0xf1, 0xa1, 0xff, 0xff, 0x54,
    0x84, 0x0a, 0x80, 0x52, 0x64, 0x00, 0x00, 0x39, 0xe0, 0x03, 0x05, 0xaa, 0xe1, 0x03, 0x06, 0xaa,
    0x04, 0x00, 0x40, 0xf9, 0x9f, 0x00, 0x00, 0xeb, 0x41, 0x01, 0x00, 0x54, 0x04, 0x04, 0x40, 0xf9,
    0x84, 0x04, 0x00, 0x91, 0x04, 0x04, 0x00, 0xf9, 0x00, 0x04, 0x40, 0x91, 0x21, 0x04, 0x00, 0xf1,
    0x01, 0xff, 0xff, 0x54, 0x44, 0x08, 0x80, 0x52, 0x64, 0x00, 0x00, 0x39, 0xf3, 0xff, 0xff, 0x17,
    0x24, 0x04, 0x80, 0x52, 0x64, 0x00, 0x00, 0x39, 0x7f, 0x20, 0x03, 0xd5, 0xff, 0xff, 0xff, 0x17,
];

/// The first state could not be set.
#[derive(Debug, thiserror::Error)]
#[error("KVM refuses the first state of a vCPU: {0}")]
pub struct StartError(#[from] kvm_ioctls::Error);

/// Guest-physical ranges that hold `bytes` of RAM.
pub fn ram_ranges(bytes: u64) -> Vec<Range<u64>> {
    std::iter::once(RAM_START..RAM_START + bytes).collect()
}

/// Place and interrupt of the virtio device with this number, below [`MAX_DEVICES`].
pub fn device_slot(index: usize) -> DeviceSlot {
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    DeviceSlot {
        address: DEVICES + u64::from(number) * 0x1000,
        gsi: DEVICE_GSI + number,
    }
}

/// What comes before the vCPUs: nothing here.
pub fn prepare_vm(_vm: &VmFd) -> Result<(), kvm_ioctls::Error> {
    Ok(())
}

/// Gives the VM its interrupt controller, which must know all vCPUs.
pub fn finish_vm(vm: &VmFd, vcpus: u8) -> Result<Chips, kvm_ioctls::Error> {
    Chips::new(vm, vcpus)
}

/// Tells the vCPU which processor it is. Restored vCPUs need this too.
pub fn identify_vcpu(
    _kvm: &Kvm,
    vm: &VmFd,
    vcpu: &VcpuFd,
    id: u8,
) -> Result<(), kvm_ioctls::Error> {
    let mut init = kvm_vcpu_init::default();
    vm.get_preferred_target(&mut init)?;
    init.features[0] |= 1 << KVM_ARM_VCPU_PSCI_0_2;
    if id > 0 {
        init.features[0] |= 1 << KVM_ARM_VCPU_POWER_OFF;
    }
    vcpu.vcpu_init(&init)
}

/// Sets the first state of a vCPU. All but the first wait for their firmware call.
pub fn start_vcpu(
    vcpu: &VcpuFd,
    id: u8,
    _memory: &GuestMemoryMmap,
    start: &Start,
) -> Result<(), StartError> {
    if id > 0 {
        return Ok(());
    }
    let (entry, arguments) = match *start {
        Start::Payload(program) => {
            let (first, set) = (program.first, program.working_set);
            let arguments = [first, program.pages, program.counter, SERIAL, 0, first, set];
            (program.entry, arguments)
        }
        Start::Linux { entry, parameters } => (entry, [parameters, 0, 0, 0, 0, 0, 0]),
    };
    for (number, value) in (0..).zip(arguments) {
        set_core(vcpu, number, value)?;
    }
    set_core(vcpu, PROGRAM_COUNTER, entry)?;
    Ok(())
}

/// Number of the program counter among the core registers.
const PROGRAM_COUNTER: u64 = 32;

fn set_core(vcpu: &VcpuFd, number: u64, value: u64) -> Result<(), kvm_ioctls::Error> {
    // KVM counts the words of its register structure.
    let id = KVM_REG_ARM64 | KVM_REG_SIZE_U64 | u64::from(KVM_REG_ARM_CORE) | (number * 2);
    vcpu.set_one_reg(id, &value.to_le_bytes()).map(drop)
}
