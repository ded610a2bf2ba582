// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Places a Linux kernel and its device tree in arm64 guest memory.

use linux_loader::loader::pe::PE;
use linux_loader::loader::KernelLoader;
use vm_fdt::FdtWriter;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use super::super::load::{self, LoadError};
use super::{
    DeviceSlot, Start, DISTRIBUTOR, RAM_START, REDISTRIBUTORS, REDISTRIBUTOR_BYTES, SERIAL,
    SERIAL_GSI,
};
use crate::config::{PayloadConfig, PAGE};

/// Room for the device tree, at the end of memory.
const TREE: u64 = 2 << 20;
const GIC: u32 = 1;
const CLOCK: u32 = 2;
const SHARED: u32 = 0;
const PRIVATE: u32 = 1;
const EDGE: u32 = 1;
const LEVEL: u32 = 4;

/// Places kernel, initial RAM disk and device tree.
pub fn load_linux(
    memory: &GuestMemoryMmap,
    payload: &PayloadConfig,
    vcpus: u8,
    devices: &[DeviceSlot],
) -> Result<Start, LoadError> {
    let path = payload.kernel.clone().unwrap_or_default();
    let mut file = load::open(&path)?;
    let kernel = PE::load(memory, Some(GuestAddress(RAM_START)), &mut file, None)
        .map_err(|reason| LoadError::NotBootable { path, reason })?;
    let end = ram_end(memory);
    let tree = (end - TREE) & !(TREE - 1);
    let disk = match &payload.initramfs {
        Some(path) => Some(load::initrd(memory, path, kernel.kernel_end..tree)?),
        None => None,
    };
    let cmdline = payload.cmdline.as_deref().unwrap_or("console=ttyS0");
    let blob = Tree {
        memory: end - RAM_START,
        vcpus,
        devices,
        cmdline,
        disk,
    }
    .write()
    .map_err(|error| LoadError::DeviceTree(error.to_string()))?;
    memory.write_slice(&blob, GuestAddress(tree))?;
    Ok(Start::Linux {
        entry: kernel.kernel_load.0,
        parameters: tree,
    })
}

fn ram_end(memory: &GuestMemoryMmap) -> u64 {
    use vm_memory::{Address, GuestMemoryBackend};
    memory.last_addr().raw_value() + 1
}

/// What the guest is told of its machine.
struct Tree<'a> {
    memory: u64,
    vcpus: u8,
    devices: &'a [DeviceSlot],
    cmdline: &'a str,
    disk: Option<std::ops::Range<u64>>,
}

impl Tree<'_> {
    fn write(&self) -> Result<Vec<u8>, vm_fdt::Error> {
        let mut fdt = FdtWriter::new()?;
        let root = fdt.begin_node("")?;
        fdt.property_string("compatible", "linux,dummy-virt")?;
        fdt.property_u32("#address-cells", 2)?;
        fdt.property_u32("#size-cells", 2)?;
        fdt.property_u32("interrupt-parent", GIC)?;
        self.chosen(&mut fdt)?;
        self.processors(&mut fdt)?;
        interrupts(&mut fdt, self.vcpus)?;
        self.serial(&mut fdt)?;
        for device in self.devices {
            let node = fdt.begin_node(&format!("virtio_mmio@{:x}", device.address))?;
            fdt.property_string("compatible", "virtio,mmio")?;
            fdt.property_array_u64("reg", &[device.address, PAGE])?;
            fdt.property_array_u32("interrupts", &[SHARED, device.gsi, EDGE])?;
            fdt.end_node(node)?;
        }
        fdt.end_node(root)?;
        fdt.finish()
    }

    fn chosen(&self, fdt: &mut FdtWriter) -> Result<(), vm_fdt::Error> {
        let node = fdt.begin_node("chosen")?;
        fdt.property_string("bootargs", self.cmdline)?;
        fdt.property_string("stdout-path", &format!("/serial@{SERIAL:x}"))?;
        if let Some(disk) = &self.disk {
            fdt.property_u64("linux,initrd-start", disk.start)?;
            fdt.property_u64("linux,initrd-end", disk.end)?;
        }
        fdt.end_node(node)
    }

    fn processors(&self, fdt: &mut FdtWriter) -> Result<(), vm_fdt::Error> {
        let node = fdt.begin_node(&format!("memory@{RAM_START:x}"))?;
        fdt.property_string("device_type", "memory")?;
        fdt.property_array_u64("reg", &[RAM_START, self.memory])?;
        fdt.end_node(node)?;
        let cpus = fdt.begin_node("cpus")?;
        fdt.property_u32("#address-cells", 1)?;
        fdt.property_u32("#size-cells", 0)?;
        for id in 0..u32::from(self.vcpus) {
            let affinity = (id & 0xf) | (id >> 4 << 8);
            let node = fdt.begin_node(&format!("cpu@{affinity:x}"))?;
            fdt.property_string("device_type", "cpu")?;
            fdt.property_string("compatible", "arm,arm-v8")?;
            fdt.property_string("enable-method", "psci")?;
            fdt.property_u32("reg", affinity)?;
            fdt.end_node(node)?;
        }
        fdt.end_node(cpus)?;
        let node = fdt.begin_node("psci")?;
        fdt.property_string("compatible", "arm,psci-0.2")?;
        fdt.property_string("method", "hvc")?;
        fdt.end_node(node)
    }

    fn serial(&self, fdt: &mut FdtWriter) -> Result<(), vm_fdt::Error> {
        let node = fdt.begin_node("clock")?;
        fdt.property_string("compatible", "fixed-clock")?;
        fdt.property_u32("#clock-cells", 0)?;
        fdt.property_u32("clock-frequency", 1_843_200)?;
        fdt.property_phandle(CLOCK)?;
        fdt.end_node(node)?;
        let node = fdt.begin_node(&format!("serial@{SERIAL:x}"))?;
        fdt.property_string("compatible", "ns16550a")?;
        fdt.property_array_u64("reg", &[SERIAL, PAGE])?;
        fdt.property_u32("clocks", CLOCK)?;
        fdt.property_array_u32("interrupts", &[SHARED, SERIAL_GSI, EDGE])?;
        fdt.end_node(node)
    }
}

fn interrupts(fdt: &mut FdtWriter, vcpus: u8) -> Result<(), vm_fdt::Error> {
    let node = fdt.begin_node(&format!("interrupt-controller@{DISTRIBUTOR:x}"))?;
    fdt.property_string("compatible", "arm,gic-v3")?;
    fdt.property_null("interrupt-controller")?;
    fdt.property_u32("#interrupt-cells", 3)?;
    let redistributors = u64::from(vcpus) * REDISTRIBUTOR_BYTES;
    fdt.property_array_u64(
        "reg",
        &[DISTRIBUTOR, 0x1_0000, REDISTRIBUTORS, redistributors],
    )?;
    fdt.property_phandle(GIC)?;
    fdt.end_node(node)?;
    let node = fdt.begin_node("timer")?;
    fdt.property_string("compatible", "arm,armv8-timer")?;
    fdt.property_null("always-on")?;
    // Secure, physical, virtual and hypervisor timer.
    let lines = [13, 14, 11, 10].map(|line| [PRIVATE, line, LEVEL]);
    fdt.property_array_u32("interrupts", lines.as_flattened())?;
    fdt.end_node(node)
}
