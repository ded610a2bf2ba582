// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The Intel MultiProcessor table (specification 1.4): how a kernel without ACPI
//! learns of its CPUs and of the I/O interrupt controller.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

/// Kernels look for the table in the last kilobyte of base memory.
const ADDRESS: u64 = 0x9_fc00;
const LOCAL_APIC: u32 = 0xfee0_0000;
const IO_APIC: u32 = 0xfec0_0000;
const SPECIFICATION: u8 = 4;
/// Inputs of KVM's I/O interrupt controller.
const INPUTS: u8 = 24;

const CPU: u8 = 0;
const BUS: u8 = 1;
const CONTROLLER: u8 = 2;
const INTERRUPT: u8 = 3;
const LOCAL_INTERRUPT: u8 = 4;

/// Writes the table for `vcpus` CPUs whose local controllers have ids from 0 up.
pub(super) fn write(memory: &GuestMemoryMmap, vcpus: u8) -> Result<(), GuestMemoryError> {
    let table = configuration(vcpus);
    let pointer = pointer(ADDRESS as u32 + 16);
    memory.write_slice(&pointer, GuestAddress(ADDRESS))?;
    memory.write_slice(&table, GuestAddress(ADDRESS + 16))
}

/// The structure that is searched for, and says where the table is.
fn pointer(table: u32) -> Vec<u8> {
    let mut bytes = b"_MP_".to_vec();
    bytes.extend(table.to_le_bytes());
    bytes.extend([1, SPECIFICATION, 0, 0, 0, 0, 0, 0]);
    bytes[10] = checksum(&bytes);
    bytes
}

fn configuration(vcpus: u8) -> Vec<u8> {
    let io_apic_id = vcpus;
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for id in 0..vcpus {
        let boot = if id == 0 { 2 } else { 0 };
        let mut cpu = vec![CPU, id, 0x14, 1 | boot];
        // Family 6, with a local controller and an FPU.
        cpu.extend(0x600u32.to_le_bytes());
        cpu.extend(0x201u32.to_le_bytes());
        cpu.extend([0; 8]);
        entries.push(cpu);
    }
    entries.push([&[BUS, 0], b"ISA   ".as_slice()].concat());
    let mut controller = vec![CONTROLLER, io_apic_id, 0x11, 1];
    controller.extend(IO_APIC.to_le_bytes());
    entries.push(controller);
    for irq in 0..INPUTS {
        entries.push(vec![INTERRUPT, 0, 0, 0, 0, irq, io_apic_id, irq]);
    }
    entries.push(vec![LOCAL_INTERRUPT, 3, 0, 0, 0, 0, 0, 0]);
    entries.push(vec![LOCAL_INTERRUPT, 1, 0, 0, 0, 0, 0xff, 1]);

    let body = entries.concat();
    let mut table = b"PCMP".to_vec();
    table.extend((44 + body.len() as u16).to_le_bytes());
    table.extend([SPECIFICATION, 0]);
    table.extend(b"KVM_S2  SANDBOX     ");
    table.extend([0; 6]);
    table.extend((entries.len() as u16).to_le_bytes());
    table.extend(LOCAL_APIC.to_le_bytes());
    table.extend([0; 4]);
    table.extend(body);
    table[7] = checksum(&table);
    table
}

/// What makes the sum of all bytes zero.
fn checksum(bytes: &[u8]) -> u8 {
    bytes
        .iter()
        .fold(0u8, |sum, byte| sum.wrapping_add(*byte))
        .wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent_and_fits() {
        for vcpus in [1, 2, 32] {
            let table = configuration(vcpus);
            assert_eq!(checksum(&table), 0);
            assert_eq!(
                usize::from(u16::from_le_bytes([table[4], table[5]])),
                table.len()
            );
            assert!(table.len() + 16 <= 1024, "{} bytes", table.len());
            assert_eq!(checksum(&pointer(ADDRESS as u32 + 16)), 0);
        }
    }
}
