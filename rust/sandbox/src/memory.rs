// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Guest memory: where it lies in the guest, how it is mapped here, how it goes.

mod map;
mod release;

use std::io;
use std::sync::Arc;

use kvm_bindings::kvm_userspace_memory_region;
use kvm_ioctls::VmFd;
use vm_memory::mmap::MmapRegionError;
use vm_memory::{
    GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionCollectionError,
};

use crate::arch;
use crate::config::{MemoryConfig, PAGE};
use crate::hugepages::{self, PoolError};
use crate::restore::file::{FileError, MemoryFile};
use crate::restore::on_demand::{OnDemand, Prefetch, Progress, Region, StartError};
use crate::teardown::Ram;

/// Where the bytes of new guest memory come from.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Zeroes.
    Fresh,
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
    /// The pool of huge pages has not enough.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The memory file does not give what it should.
    #[error(transparent)]
    File(#[from] FileError),
    /// Loading on demand could not begin.
    #[error(transparent)]
    OnDemand(#[from] StartError),
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
    config: MemoryConfig,
    threads: usize,
    on_demand: Option<OnDemand>,
}

impl GuestRam {
    /// Maps guest memory, laid out as this architecture wants it.
    pub fn new(config: &MemoryConfig, backing: &Backing) -> Result<Self, MemoryError> {
        if let Some(page) = config.hugepages() {
            hugepages::check(page, config.host_numa_node, config.size)?;
        }
        let mut offset = 0;
        let mut regions = Vec::new();
        for range in arch::ram_ranges(config.size) {
            let size = range.end - range.start;
            regions.push(map::map_region(&range, offset, config, backing)?);
            offset += size;
        }
        Ok(Self {
            map: Arc::new(GuestMemoryMmap::from_regions(regions)?),
            config: *config,
            threads: 1,
            on_demand: None,
        })
    }

    /// Memory with the content of a file.
    pub fn copied(config: &MemoryConfig, file: &MemoryFile) -> Result<Self, MemoryError> {
        let ram = Self::new(config, &Backing::Fresh)?;
        let mut offset = 0;
        for region in ram.map.iter() {
            let length = region.len() as usize;
            // SAFETY: the mapping was just made, lives as long as `ram`, and nobody
            // else knows of it yet.
            let memory = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), length) };
            file.copy_to(offset, memory)?;
            offset += region.len();
        }
        Ok(ram)
    }

    /// Memory that gets the content of a file when it is touched. `failed` is told
    /// when that has become impossible, just before the memory gets inaccessible.
    pub fn on_demand(
        config: &MemoryConfig,
        file: MemoryFile,
        prefetch: Prefetch,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, MemoryError> {
        let mut ram = Self::new(config, &Backing::Fresh)?;
        let mut offset = 0;
        let mut regions = Vec::new();
        for region in ram.map.iter() {
            let start = region.as_ptr() as usize;
            regions.push(Region {
                memory: start..start + region.len() as usize,
                offset,
                page: config.hugepages().unwrap_or(PAGE) as usize,
            });
            offset += region.len();
        }
        // SAFETY: the mappings are new, and teardown and drop end the loading first.
        let loading = unsafe { OnDemand::start(regions, file, prefetch, failed) }?;
        ram.on_demand = Some(loading);
        Ok(ram)
    }

    /// How far loading on demand is, if that is how the memory came.
    pub fn progress(&self) -> Option<Progress> {
        self.on_demand.as_ref().map(OnDemand::progress)
    }

    /// Makes sure that all of the memory can be read, and loads what is missing.
    pub fn load_all(&self) -> io::Result<()> {
        let Some(on_demand) = &self.on_demand else {
            return Ok(());
        };
        for region in self.map.iter() {
            let (address, bytes) = (region.as_ptr().cast(), region.len() as usize);
            // SAFETY: the mapping lives as long as `self`. Where it has become
            // inaccessible this is an error, while a read would be the end of us.
            if unsafe { libc::madvise(address, bytes, libc::MADV_POPULATE_READ) } != 0 {
                let error = io::Error::last_os_error();
                let reason = on_demand.progress().failure;
                return Err(reason.map_or(error, io::Error::other));
            }
        }
        Ok(())
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
        self.config.size
    }

    fn unmap(mut self) -> Result<(), UnmapError> {
        self.on_demand = None;
        let holders = Arc::strong_count(&self.map);
        let map = Arc::get_mut(&mut self.map).ok_or(UnmapError::Shared(holders - 1))?;
        if self.config.hugepages().is_some() || self.config.shared {
            // Few pages, or a file's: they go with the mapping.
            return Ok(());
        }
        let pieces: Vec<_> = map.iter().flat_map(release::pieces).collect();
        release::drop_pages(&pieces, self.threads)
        // The mappings themselves go with `self`, cheaply: they are empty now.
    }
}

impl Drop for GuestRam {
    fn drop(&mut self) {
        // Its threads must not outlive the mapping they fill.
        self.on_demand = None;
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;

    fn fresh(size: u64) -> Result<GuestRam, MemoryError> {
        let config = MemoryConfig {
            size,
            ..Default::default()
        };
        GuestRam::new(&config, &Backing::Fresh)
    }

    /// Resident bytes of this process, from /proc.
    fn resident() -> u64 {
        let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    }

    #[test]
    fn unmapped_memory_is_back_with_the_host() {
        const SIZE: u64 = 256 << 20;
        for threads in [1, 3] {
            let mut ram = fresh(SIZE).unwrap();
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
        let ram = fresh(4 << 20).unwrap();
        let _device = ram.share();
        assert!(matches!(ram.unmap(), Err(UnmapError::Shared(1))));
    }
}
