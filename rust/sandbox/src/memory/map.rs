// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One mapping of guest memory: private or shared, in base or huge pages, of
//! zeroes or of a snapshot's file.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::FromRawFd;

use vm_memory::mmap::{MmapRegion, MmapRegionBuilder, MmapRegionError};
use vm_memory::{FileOffset, GuestAddress, GuestRegionCollectionError, GuestRegionMmap};

use super::{Backing, MemoryError};
use crate::config::MemoryConfig;
use crate::hugepages;

pub(super) fn map_region(
    range: &Range<u64>,
    offset: u64,
    config: &MemoryConfig,
    backing: &Backing,
) -> Result<GuestRegionMmap, MemoryError> {
    let bytes = range.end - range.start;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let builder = MmapRegionBuilder::new(size).with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE);
    let (flags, builder) = match backing {
        Backing::File(file) => {
            let place = FileOffset::from_arc(file.clone(), offset);
            (libc::MAP_PRIVATE, builder.with_file_offset(place))
        }
        Backing::Fresh if config.shared => {
            let file =
                shared_file(bytes, config).map_err(|source| refuse(bytes, config, source))?;
            let place = FileOffset::new(file, 0);
            (libc::MAP_SHARED, builder.with_file_offset(place))
        }
        Backing::Fresh => {
            let huge = config
                .hugepages()
                .map_or(0, |page| libc::MAP_HUGETLB | size_flag(page));
            (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge, builder)
        }
    };
    // Huge pages are reserved here and now, so that the guest cannot run out of
    // them later.
    let flags = match config.hugepages() {
        Some(_) => flags,
        None => flags | libc::MAP_NORESERVE,
    };
    let map = builder
        .with_mmap_flags(flags)
        .build()
        .map_err(|error| match error {
            MmapRegionError::Mmap(source) => refuse(bytes, config, source),
            source => MemoryError::Map { bytes, source },
        })?;
    match config.hugepages() {
        Some(page) => bind(&map, page, config)?,
        None => advise(&map, config.thp),
    }
    GuestRegionMmap::new(map, GuestAddress(range.start)).ok_or(MemoryError::Layout(
        GuestRegionCollectionError::NoMemoryRegion,
    ))
}

/// The error that says what to do, where it is the pool that has run out.
fn refuse(bytes: u64, config: &MemoryConfig, source: io::Error) -> MemoryError {
    match (config.hugepages(), source.raw_os_error()) {
        (Some(page), Some(libc::ENOMEM | libc::ENODEV | libc::EINVAL)) => {
            hugepages::refused(page, config.host_numa_node, bytes).into()
        }
        _ => MemoryError::Map {
            bytes,
            source: MmapRegionError::Mmap(source),
        },
    }
}

/// The size of a huge page, as mmap and memfd_create want it.
fn size_flag(page: u64) -> libc::c_int {
    let shift = page.trailing_zeros() << libc::MAP_HUGE_SHIFT;
    // The top bits belong to large sizes: the sign is of no meaning here.
    shift as libc::c_int
}

fn shared_file(bytes: u64, config: &MemoryConfig) -> io::Result<File> {
    let huge = config.hugepages().map_or(0, |page| {
        libc::MFD_HUGETLB | size_flag(page) as libc::c_uint
    });
    // SAFETY: a C string that outlives the call.
    let fd = unsafe { libc::memfd_create(c"guest".as_ptr(), libc::MFD_CLOEXEC | huge) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new fd that nobody else has.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(bytes)?;
    Ok(file)
}

fn advise(map: &MmapRegion, thp: bool) {
    let advice = match thp {
        true => libc::MADV_HUGEPAGE,
        false => libc::MADV_NOHUGEPAGE,
    };
    // SAFETY: the range is exactly the mapping just made. The advice changes no
    // content, and a kernel without huge pages may refuse it.
    unsafe { libc::madvise(map.as_ptr().cast(), map.size(), advice) };
}

/// Takes huge pages from one node. The reservation does not know of nodes, so the
/// pages themselves are taken now.
fn bind(map: &MmapRegion, page: u64, config: &MemoryConfig) -> Result<(), MemoryError> {
    let Some(node) = config.host_numa_node else {
        return Ok(());
    };
    let bytes = map.size() as u64;
    let mut mask = [0u64; 16];
    let word = mask.get_mut(node as usize / 64);
    *word.ok_or_else(|| hugepages::refused(page, Some(node), bytes))? |= 1 << (node % 64);
    const MPOL_BIND: libc::c_int = 2;
    // SAFETY: the range is exactly the mapping just made, and the mask has as many
    // bits as it says, and one that the kernel does not look at.
    let bound = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            map.as_ptr(),
            map.size(),
            MPOL_BIND,
            mask.as_ptr(),
            mask.len() * 64 + 1,
            0,
        )
    };
    // SAFETY: as above; new memory is filled with the zeroes it has anyway.
    let populate =
        || unsafe { libc::madvise(map.as_ptr().cast(), map.size(), libc::MADV_POPULATE_WRITE) };
    if bound != 0 || populate() != 0 {
        return Err(hugepages::refused(page, Some(node), bytes).into());
    }
    Ok(())
}
