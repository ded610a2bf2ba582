// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! x86-64: memory layout, payload, VM and vCPU set-up.

mod boot;
mod linux;
mod mptable;
mod state;

use std::ops::Range;

use kvm_bindings::{kvm_pit_config, KVM_MAX_CPUID_ENTRIES, KVM_PIT_SPEAKER_DUMMY};
use kvm_ioctls::{Kvm, VcpuFd, VmFd};
use vm_memory::GuestMemoryMmap;

use super::{DeviceSlot, Start};

pub use linux::load_linux;
pub use state::{restore_vcpu, restore_vm, save_vcpu, save_vm, VcpuState, VmState};

/// First byte of RAM.
pub const RAM_START: u64 = 0;
/// RAM makes room here for devices below 4 GiB.
const HOLE: Range<u64> = 0xc000_0000..0x1_0000_0000;
/// Registers of the first virtio device; the next ones follow page by page.
const DEVICES: u64 = 0xd000_0000;
/// Three pages for KVM's real-mode task state, in the hole.
const TSS: usize = 0xfffb_d000;
/// I/O port of the serial console.
pub const SERIAL_PORT: Option<u64> = Some(0x3f8);
/// Serial console in memory space: there is none.
pub const SERIAL_MMIO: Option<u64> = None;
/// Interrupt of the serial console.
pub const SERIAL_GSI: u32 = 4;
/// The guest's last write before a reset goes to this port.
pub const RESET_PORT: Option<u64> = Some(0x64);
/// More virtio devices have no interrupt of their own.
pub const MAX_DEVICES: usize = 11;

/// `touch: mov [rdi], rdi; add rdi, 4096; dec rcx; jnz touch; mov dx, 0x3f8;
/// mov al, 'T'; out dx, al; halt: hlt; jmp halt`
pub const TOUCH_THEN_HALT: &[u8] = &[
    0x48, 0x89, 0x3f, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf1, 0x66,
    0xba, 0xf8, 0x03, 0xb0, b'T', 0xee, 0xf4, 0xeb, 0xfd,
];

/// The same, and then `count: inc qword [rbx]; pause; jmp count`.
pub const TOUCH_THEN_COUNT: &[u8] = &[
    0x48, 0x89, 0x3f, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf1, 0x66,
    0xba, 0xf8, 0x03, 0xb0, b'T', 0xee, 0x48, 0xff, 0x03, 0xf3, 0x90, 0xeb, 0xf9,
];

/// The same, and then `beat: mov rdi, rsi; mov rcx, r8; walk: cmp [rdi], rdi; jne bad;
/// inc qword [rdi + 8]; add rdi, 4096; dec rcx; jnz walk; mov al, 'B'; out dx, al;
/// jmp beat; bad: mov al, '!'; out dx, al; halt: hlt; jmp halt`
pub const TOUCH_THEN_BEAT: &[u8] = &[
    0x48, 0x89, 0x3f, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x48, 0xff, 0xc9, 0x75, 0xf1, 0x66,
    0xba, 0xf8, 0x03, 0xb0, 0x54, 0xee, 0x48, 0x89, 0xf7, 0x4c, 0x89, 0xc1, 0x48, 0x39, 0x3f, 0x75,
    0x15, 0x48, 0xff, 0x47, 0x08, 0x48, 0x81, 0xc7, 0x00, 0x10, 0x00, 0x00, 0x48, 0xff, 0xc9, 0x75,
    0xeb, 0xb0, 0x42, 0xee, 0xeb, 0xe0, 0xb0, 0x21, 0xee, 0xf4, 0xeb, 0xfd,
];

/// Guest-physical ranges that hold `bytes` of RAM.
pub fn ram_ranges(bytes: u64) -> Vec<Range<u64>> {
    let low = bytes.min(HOLE.start);
    let high = bytes - low;
    [0..low, HOLE.end..HOLE.end + high]
        .into_iter()
        .filter(|range| !range.is_empty())
        .collect()
}

/// Place and interrupt of the virtio device with this number, below [`MAX_DEVICES`].
pub fn device_slot(index: usize) -> DeviceSlot {
    let number = u32::try_from(index).unwrap_or(u32::MAX);
    DeviceSlot {
        address: DEVICES + u64::from(number) * 0x1000,
        // 0-4 belong to the timer, the keyboard and the serial ports, and 8 and
        // 13 to the clock and the coprocessor; PCI would have had the rest.
        gsi: [5, 6, 7, 9, 10, 11, 12, 14, 15, 16, 17][index.min(MAX_DEVICES - 1)],
    }
}

/// Gives the VM its interrupt controllers and timer, before any vCPU exists.
pub fn prepare_vm(vm: &VmFd) -> Result<(), kvm_ioctls::Error> {
    vm.set_tss_address(TSS)?;
    vm.create_irq_chip()?;
    vm.create_pit2(kvm_pit_config {
        // Without it the guest's speaker port would exit to this process.
        flags: KVM_PIT_SPEAKER_DUMMY,
        ..Default::default()
    })
}

/// Interrupt controllers with a handle of their own: none here.
#[derive(Debug)]
pub struct Chips;

/// What follows the creation of the vCPUs: nothing here, all chips exist.
pub fn finish_vm(_vm: &VmFd, _vcpus: u8) -> Result<Chips, kvm_ioctls::Error> {
    Ok(Chips)
}

/// Tells the vCPU which processor it is. Restored vCPUs need this too.
pub fn identify_vcpu(
    kvm: &Kvm,
    _vm: &VmFd,
    vcpu: &VcpuFd,
    id: u8,
) -> Result<(), kvm_ioctls::Error> {
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    for entry in cpuid.as_mut_slice() {
        match entry.function {
            1 => entry.ebx = (entry.ebx & 0x00ff_ffff) | (u32::from(id) << 24),
            0xb | 0x1f => entry.edx = u32::from(id),
            _ => (),
        }
    }
    vcpu.set_cpuid2(&cpuid)
}

/// Sets the first state of a vCPU. All but the first wait for its start-up call.
pub fn start_vcpu(
    vcpu: &VcpuFd,
    id: u8,
    memory: &GuestMemoryMmap,
    start: &Start,
) -> Result<(), boot::StartError> {
    boot::start_vcpu(vcpu, id, memory, start)
}

pub use boot::StartError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ram_leaves_the_hole_alone_and_loses_no_byte() {
        let gib = 1u64 << 30;
        for size in [16 << 20, 3 * gib, 3 * gib + 4096, 8 * gib] {
            let ranges = ram_ranges(size);
            let sum: u64 = ranges.iter().map(|range| range.end - range.start).sum();
            assert_eq!(sum, size);
            for range in ranges {
                assert!(range.end <= HOLE.start || range.start >= HOLE.end);
            }
        }
    }
}
