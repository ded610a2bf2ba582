// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Places a Linux kernel and what it wants to know in x86-64 guest memory.

use std::path::Path;

use linux_loader::cmdline::Cmdline;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::{load_cmdline, BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use super::super::load::{self, LoadError};
use super::{mptable, DeviceSlot, Start};
use crate::config::{PayloadConfig, PAGE};

const ZERO_PAGE: u64 = 0x7000;
const CMDLINE: u64 = 0x2_0000;
const CMDLINE_ROOM: usize = 0x1000;
const HIGH_RAM: u64 = 0x10_0000;
/// The MP table lies in the last kilobyte of base memory.
const LOW_RAM_END: u64 = 0x9_fc00;
/// Offset of the 64-bit entry in a bzImage's protected-mode part.
const ENTRY_64: u64 = 0x200;
const E820_RAM: u32 = 1;

/// Places kernel, initial RAM disk, command line and boot parameters.
pub fn load_linux(
    memory: &GuestMemoryMmap,
    payload: &PayloadConfig,
    vcpus: u8,
    devices: &[DeviceSlot],
) -> Result<Start, LoadError> {
    let path = payload.kernel.clone().unwrap_or_default();
    let (kernel, entry) = load_kernel(memory, &path)?;
    let mut params = boot_params {
        hdr: kernel.setup_header.unwrap_or_default(),
        ..Default::default()
    };
    params.hdr.type_of_loader = 0xff;
    params.hdr.boot_flag = 0xaa55;
    params.hdr.header = 0x5372_6448;
    params.hdr.cmd_line_ptr = CMDLINE as u32;
    params.hdr.cmdline_size = write_cmdline(memory, payload, devices)?;
    params.hdr.kernel_alignment = params.hdr.kernel_alignment.max(0x20_0000);
    if let Some(path) = &payload.initramfs {
        let low_end = memory.iter().next().map_or(0, |region| region.len());
        let disk = load::initrd(memory, path, HIGH_RAM..low_end)?;
        // Low memory ends below 4 GiB, so both fit.
        params.hdr.ramdisk_image = disk.start as u32;
        params.hdr.ramdisk_size = (disk.end - disk.start) as u32;
    }
    add_memory_map(&mut params, memory);
    mptable::write(memory, vcpus)?;
    let params = BootParams::new(&params, GuestAddress(ZERO_PAGE));
    LinuxBootConfigurator::write_bootparams(&params, memory)?;
    Ok(Start::Linux {
        entry,
        parameters: ZERO_PAGE,
    })
}

fn load_kernel(
    memory: &GuestMemoryMmap,
    path: &Path,
) -> Result<(KernelLoaderResult, u64), LoadError> {
    let high = Some(GuestAddress(HIGH_RAM));
    let mut file = load::open(path)?;
    if let Ok(kernel) = Elf::load(memory, None, &mut file, high) {
        let entry = kernel.kernel_load.0;
        return Ok((kernel, entry));
    }
    let kernel =
        BzImage::load(memory, None, &mut file, high).map_err(|reason| LoadError::NotBootable {
            path: path.to_owned(),
            reason,
        })?;
    let entry = kernel.kernel_load.0 + ENTRY_64;
    Ok((kernel, entry))
}

/// The user's words, and after them what the guest cannot find out by itself.
fn write_cmdline(
    memory: &GuestMemoryMmap,
    payload: &PayloadConfig,
    devices: &[DeviceSlot],
) -> Result<u32, LoadError> {
    let mut cmdline = Cmdline::new(CMDLINE_ROOM)?;
    let user = payload.cmdline.as_deref().unwrap_or("console=ttyS0");
    cmdline.insert_str(user)?;
    for device in devices {
        cmdline.add_virtio_mmio_device(PAGE, GuestAddress(device.address), device.gsi, None)?;
    }
    load_cmdline(memory, GuestAddress(CMDLINE), &cmdline)?;
    Ok(CMDLINE_ROOM as u32)
}

fn add_memory_map(params: &mut boot_params, memory: &GuestMemoryMmap) {
    let mut ranges = vec![(0, LOW_RAM_END)];
    for region in memory.iter() {
        let start = region.start_addr().0;
        let end = start + region.len();
        ranges.push((start.max(HIGH_RAM), end));
    }
    params.e820_entries = ranges.len() as u8;
    for (entry, (start, end)) in params.e820_table.iter_mut().zip(ranges) {
        *entry = boot_e820_entry {
            addr: start,
            size: end - start,
            r#type: E820_RAM,
        };
    }
}
