// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Places a Linux kernel and what it wants to know in x86-64 guest memory.

use std::fs::File;
use std::path::PathBuf;

use linux_loader::cmdline::Cmdline;
use linux_loader::configurator::linux::LinuxBootConfigurator;
use linux_loader::configurator::{BootConfigurator, BootParams};
use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};
use linux_loader::loader::{load_cmdline, BzImage, Elf, KernelLoader, KernelLoaderResult};
use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

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

/// A kernel could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be opened or read.
    #[error("cannot read {path:?}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: std::io::Error,
    },
    /// No loader knows the image.
    #[error("{path:?} is neither a bzImage nor an ELF kernel that fits in guest memory: {reason}")]
    NotBootable {
        /// The image.
        path: PathBuf,
        /// The loader's answer.
        reason: linux_loader::loader::Error,
    },
    /// The command line is too long or holds characters it may not.
    #[error("kernel command line: {0}")]
    Cmdline(#[from] linux_loader::cmdline::Error),
    /// The command line could not be written.
    #[error("kernel command line: {0}")]
    WriteCmdline(#[from] linux_loader::loader::Error),
    /// Guest memory has no room for the initial RAM disk.
    #[error("initial RAM disk of {0} bytes does not fit in guest memory")]
    InitrdSize(u64),
    /// Guest memory could not be written.
    #[error("guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
    /// Boot parameters could not be written.
    #[error("boot parameters: {0}")]
    Parameters(#[from] linux_loader::configurator::Error),
}

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
        let (address, size) = load_initrd(memory, path)?;
        params.hdr.ramdisk_image = address;
        params.hdr.ramdisk_size = size;
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

fn open(path: &PathBuf) -> Result<File, LoadError> {
    File::open(path).map_err(|source| LoadError::File {
        path: path.clone(),
        source,
    })
}

fn load_kernel(
    memory: &GuestMemoryMmap,
    path: &PathBuf,
) -> Result<(KernelLoaderResult, u64), LoadError> {
    let high = Some(GuestAddress(HIGH_RAM));
    let mut file = open(path)?;
    if let Ok(kernel) = Elf::load(memory, None, &mut file, high) {
        let entry = kernel.kernel_load.0;
        return Ok((kernel, entry));
    }
    let kernel =
        BzImage::load(memory, None, &mut file, high).map_err(|reason| LoadError::NotBootable {
            path: path.clone(),
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

/// Places the RAM disk as high as low memory allows, away from the kernel.
fn load_initrd(memory: &GuestMemoryMmap, path: &PathBuf) -> Result<(u32, u32), LoadError> {
    let bytes = std::fs::read(path).map_err(|source| LoadError::File {
        path: path.clone(),
        source,
    })?;
    let size = bytes.len() as u64;
    let low_end = memory.iter().next().map_or(0, |region| region.len());
    let address = low_end
        .checked_sub(size.next_multiple_of(PAGE))
        .filter(|&address| address > HIGH_RAM)
        .ok_or(LoadError::InitrdSize(size))?;
    memory.write_slice(&bytes, GuestAddress(address))?;
    // Low memory ends below 4 GiB, so both fit.
    Ok((address as u32, size as u32))
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
