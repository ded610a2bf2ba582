// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Guest memory: where it lies in the guest, how it is mapped here, how it goes.

use std::ops::Range;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::mmap::{MmapRegionBuilder, MmapRegionError};
use vm_memory::{
    FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion,
    GuestRegionCollectionError, GuestRegionMmap,
};

use crate::arch;
use crate::teardown::Ram;

/// Memory is handed to the kernel in pieces of this many bytes when it goes, so
/// that no other mapping call of this process waits for all of it.
const PIECE: usize = 64 << 20;

/// Where the bytes of new guest memory come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroes.
    Anonymous,
    /// A private copy-on-write map of a file that holds all regions one after another.
    File(Arc<std::fs::File>),
}

/// Guest memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The host refused the mapping.
    #[error("cannot map {bytes} bytes of guest memory: {source}")]
    Map {
        /// Size of the region.
        bytes: u64,
        /// The host's answer.
        source: MmapRegionError,
    },
    /// The regions do not form one address space.
    #[error("guest memory layout is not valid: {0}")]
    Layout(#[from] GuestRegionCollectionError),
    /// KVM refused the region.
    #[error("KVM refuses guest memory at {address:#x}: {source}")]
    Register {
        /// Guest-physical address.
        address: u64,
        /// KVM's answer.
        source: kvm_ioctls::Error,
    },
}

/// Guest memory did not go.
#[derive(Debug, thiserror::Error)]
pub enum UnmapError {
    /// A device or thread still uses it; the mapping stays until it lets go.
    #[error("guest memory is still referenced in {0} places")]
    Shared(usize),
    /// The kernel refused to drop the pages.
    #[error("cannot drop {bytes} bytes of guest memory: {source}")]
    Drop {
        /// Size of the piece.
        bytes: usize,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// The memory of one guest.
///
/// There are two holders of it besides the page tables: this value, and the
/// references that [`GuestRam::share`] gave to devices. It goes with the first,
/// and only when the others are gone.
#[derive(Debug)]
pub struct GuestRam {
    map: Arc<GuestMemoryMmap>,
    bytes: u64,
    threads: usize,
}

impl GuestRam {
    /// Maps `bytes` of guest memory, laid out as this architecture wants it.
    pub fn new(bytes: u64, thp: bool, backing: &Backing) -> Result<Self, MemoryError> {
        let mut offset = 0;
        let mut regions = Vec::new();
        for range in arch::ram_ranges(bytes) {
            let size = range.end - range.start;
            let region = map_region(&range, offset, thp, backing)?;
            regions.push(region);
            offset += size;
        }
        Ok(Self {
            map: Arc::new(GuestMemoryMmap::from_regions(regions)?),
            bytes,
            threads: 1,
        })
    }

    /// Lets KVM map this memory into the guest.
    pub fn register(&self, vm: &VmFd) -> Result<(), MemoryError> {
        for (slot, region) in (0..).zip(self.map.iter()) {
            let address = region.start_addr().0;
            let memory = kvm_userspace_memory_region {
                slot,
                flags: 0,
                guest_phys_addr: address,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // SAFETY: the mapping lives in `self`, which teardown unmaps only after
            // the VM fd is closed.
            unsafe { vm.set_user_memory_region(memory) }
                .map_err(|source| MemoryError::Register { address, source })?;
        }
        Ok(())
    }

    /// Drops the pages from `threads` threads at once when the memory goes.
    pub fn release_threads(&mut self, threads: usize) {
        self.threads = threads.max(1);
    }

    /// The memory itself.
    pub fn map(&self) -> &GuestMemoryMmap {
        &self.map
    }

    /// A reference for a device. It must be dropped before [`Ram::unmap`].
    pub fn share(&self) -> Arc<GuestMemoryMmap> {
        self.map.clone()
    }
}

impl Ram for GuestRam {
    type Error = UnmapError;

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn unmap(self) -> Result<(), UnmapError> {
        let holders = Arc::strong_count(&self.map);
        let map = Arc::into_inner(self.map).ok_or(UnmapError::Shared(holders - 1))?;
        let pieces: Vec<_> = map.iter().flat_map(pieces).collect();
        drop_pages(&pieces, self.threads)
        // The mappings themselves go with `map`, cheaply: they are empty now.
    }
}

fn map_region(
    range: &Range<u64>,
    offset: u64,
    thp: bool,
    backing: &Backing,
) -> Result<GuestRegionMmap, MemoryError> {
    let bytes = range.end - range.start;
    let size = usize::try_from(bytes).unwrap_or(usize::MAX);
    let flags = libc::MAP_PRIVATE | libc::MAP_NORESERVE;
    let builder = MmapRegionBuilder::new(size).with_mmap_prot(libc::PROT_READ | libc::PROT_WRITE);
    let builder = match backing {
        Backing::Anonymous => builder.with_mmap_flags(flags | libc::MAP_ANONYMOUS),
        Backing::File(file) => builder
            .with_mmap_flags(flags)
            .with_file_offset(FileOffset::from_arc(file.clone(), offset)),
    };
    let map = builder
        .build()
        .map_err(|source| MemoryError::Map { bytes, source })?;
    let advice = if thp {
        libc::MADV_HUGEPAGE
    } else {
        libc::MADV_NOHUGEPAGE
    };
    // SAFETY: the range is exactly the mapping just made. The advice changes no
    // content, and a kernel without huge pages may refuse it.
    unsafe { libc::madvise(map.as_ptr().cast(), size, advice) };
    GuestRegionMmap::new(map, GuestAddress(range.start)).ok_or(MemoryError::Layout(
        GuestRegionCollectionError::NoMemoryRegion,
    ))
}

/// Host address and length; an integer, because it crosses threads.
#[derive(Clone, Copy)]
struct Piece {
    address: usize,
    bytes: usize,
}

fn pieces(region: &GuestRegionMmap) -> impl Iterator<Item = Piece> {
    let base = region.as_ptr() as usize;
    let size = region.size();
    (0..size).step_by(PIECE).map(move |offset| Piece {
        address: base + offset,
        bytes: PIECE.min(size - offset),
    })
}

/// Gives the pages back; the first error wins, but every piece is tried.
fn drop_pages(pieces: &[Piece], threads: usize) -> Result<(), UnmapError> {
    let share = pieces.len().div_ceil(threads).max(1);
    let mut shares = pieces.chunks(share);
    let own = shares.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || drop_share(share))
                    .map_err(|_| share)
            })
            .collect();
        let mut result = drop_share(own);
        for other in others {
            let ended = match other {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // No thread to be had: do its share here.
                Err(share) => drop_share(share),
            };
            result = result.and(ended);
        }
        result
    })
}

fn drop_share(pieces: &[Piece]) -> Result<(), UnmapError> {
    let mut result = Ok(());
    for piece in pieces {
        let address = piece.address as *mut libc::c_void;
        // SAFETY: the piece lies inside a mapping that the caller owns alone, so
        // nobody sees its bytes turn to zero.
        if unsafe { libc::madvise(address, piece.bytes, libc::MADV_DONTNEED) } != 0 {
            result = result.and(Err(UnmapError::Drop {
                bytes: piece.bytes,
                source: std::io::Error::last_os_error(),
            }));
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use vm_memory::Bytes;

    use super::*;

    /// Resident bytes of this process, from /proc.
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[test]
    fn unmapped_memory_is_back_with_the_host() {
        const SIZE: u64 = 256 << 20;
        for threads in [1, 3] {
            let mut ram = GuestRam::new(SIZE, false, &Backing::Anonymous).unwrap();
            ram.release_threads(threads);
            for offset in (0..SIZE).step_by(4096) {
                let address = GuestAddress(arch::RAM_START + offset);
                ram.map().write_obj(1u8, address).unwrap();
            }
            let before = resident();
            ram.unmap().unwrap();
            let freed = before.saturating_sub(resident());
            assert!(freed > SIZE / 10 * 9, "{freed} bytes, {threads} threads");
        }
    }

    #[test]
    fn memory_that_a_device_still_uses_is_reported() {
        let ram = GuestRam::new(4 << 20, false, &Backing::Anonymous).unwrap();
        let _device = ram.share();
        assert!(matches!(ram.unmap(), Err(UnmapError::Shared(1))));
    }
}
