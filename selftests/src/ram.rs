// SPDX-License-Identifier: GPL-2.0

//! Guest memory: a mapping that knows what it must be made of.

use crate::spec::block;
use crate::spec::page;
use crate::spec::Backing;
use crate::Result;
use crate::Stop;
use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::ptr::NonNull;

/// Guest memory. Dropping it unmaps it, so the owner decides when that is.
#[derive(Debug)]
pub struct GuestRam {
    map: NonNull<libc::c_void>,
    map_len: usize,
    base: NonNull<u8>,
    len: usize,
    backing: Backing,
}

// SAFETY: a mapping belongs to the process, whichever thread unmaps it.
unsafe impl Send for GuestRam {}

impl GuestRam {
    /// Maps `len` bytes, aligned for the largest mapping the backing allows.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the pool of huge pages is too small or transparent
    /// huge pages are off; [`Stop::Fail`] when mapping fails.
    pub fn new(len: u64, backing: Backing) -> Result<Self> {
        // A block more than asked, so that an aligned start can be chosen.
        let (huge, slack) = match backing {
            Backing::Hugetlb => (libc::MAP_HUGETLB | libc::MAP_HUGE_2MB, 0),
            _ => (0, block()),
        };
        let map_len = (len + slack) as usize;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | huge;
        let map = map(map_len, flags, -1).map_err(|error| match backing {
            Backing::Hugetlb => Stop::Skip(format!(
                "{} huge pages of 2M are not free ({error}); --setup reserves them",
                len / block()
            )),
            _ => Stop::Fail(format!("mmap of {map_len} bytes: {error}")),
        })?;
        // SAFETY: less than a block is skipped, and the mapping has a block of
        // slack or is aligned to one.
        let base = unsafe { map.cast::<u8>().byte_add(map.align_offset_to(block())) };
        let ram = GuestRam {
            map,
            map_len,
            base,
            len: len as usize,
            backing,
        };
        ram.advise()?;
        Ok(ram)
    }

    /// Maps the first `len` bytes of `file`, whose pages stay when this is dropped.
    ///
    /// # Errors
    ///
    /// [`Stop::Fail`] when mapping fails.
    pub fn shared(file: &File, len: u64) -> Result<Self> {
        let map = map(len as usize, libc::MAP_SHARED, file.as_raw_fd())
            .map_err(Stop::failed("mmap of shared memory"))?;
        Ok(GuestRam {
            map,
            map_len: len as usize,
            base: map.cast(),
            len: len as usize,
            backing: Backing::Page4k,
        })
    }

    fn advise(&self) -> Result<()> {
        let advice = match self.backing {
            Backing::Thp => libc::MADV_HUGEPAGE,
            Backing::Page4k => libc::MADV_NOHUGEPAGE,
            Backing::Hugetlb | Backing::Kernel => return Ok(()),
        };
        // SAFETY: the range is ours and the advice changes no contents.
        let rc = unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, advice) };
        let error = io::Error::last_os_error();
        match (rc, self.backing) {
            (0, _) => Ok(()),
            (_, Backing::Thp) => Err(Stop::Skip(format!("no transparent huge pages: {error}"))),
            // A kernel that has no huge pages has nothing to forbid.
            _ => Ok(()),
        }
    }

    /// Address of the first byte, aligned to a 2M block.
    pub fn host_addr(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Bytes of guest memory.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Whether there is no memory at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies `bytes` to the start of guest memory, before the guest runs.
    ///
    /// # Panics
    ///
    /// When there are more bytes than guest memory.
    pub fn fill_start(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.len);
        // SAFETY: the destination is ours alone, mapped and long enough.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.as_ptr(), bytes.len()) };
    }

    /// The first word of each page, after the guest is gone.
    ///
    /// Reading memory of a protected guest that still lives raises SIGSEGV.
    pub fn first_words(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len / page() as usize).map(|index| {
            // SAFETY: the offset is inside the mapping and page aligned, so the
            // word is too; volatile because a guest wrote it.
            unsafe {
                self.base
                    .byte_add(index * page() as usize)
                    .cast::<u64>()
                    .read_volatile()
            }
        })
    }

    /// Which page frames of the host's it is made of, once it is touched.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel does not tell.
    pub fn frames(&self) -> Result<Vec<u64>> {
        const FRAME: u64 = (1 << 55) - 1;
        const PAGEMAP: &str = "/proc/self/pagemap";
        let mut entries = vec![0; self.len / page() as usize * 8];
        File::open(PAGEMAP)
            .and_then(|file| file.read_exact_at(&mut entries, self.host_addr() / page() * 8))
            .map_err(Stop::missing(PAGEMAP))?;
        let words = entries.chunks_exact(8).flat_map(<[u8; 8]>::try_from);
        let frames: Vec<u64> = words.map(|word| u64::from_ne_bytes(word) & FRAME).collect();
        match frames.contains(&0) {
            false => Ok(frames),
            true => Err(Stop::Skip(format!("{PAGEMAP} hides frames; run as root"))),
        }
    }

    /// Checks that memory really is what was asked for, once it is touched.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel could not find enough huge pages.
    pub fn check_backing(&self) -> Result<()> {
        let smaps = fs::read_to_string("/proc/self/smaps").map_err(Stop::missing("smaps"))?;
        let huge = anon_huge_kib(&smaps, self.host_addr()).unwrap_or(0) << 10;
        match self.backing {
            Backing::Thp if huge < self.len() => Err(Stop::Skip(format!(
                "only {huge} of {} bytes are transparent huge pages",
                self.len
            ))),
            Backing::Page4k if huge > 0 => Err(Stop::Fail(format!(
                "{huge} bytes are huge pages in spite of MADV_NOHUGEPAGE"
            ))),
            _ => Ok(()),
        }
    }
}

impl Drop for GuestRam {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing borrows from it any more.
        let rc = unsafe { libc::munmap(self.map.as_ptr(), self.map_len) };
        // Memory of a guest that stays reachable would void every later figure.
        assert_eq!(rc, 0, "munmap: {}", io::Error::last_os_error());
    }
}

trait AlignOffset {
    fn align_offset_to(&self, align: u64) -> usize;
}

impl AlignOffset for NonNull<libc::c_void> {
    fn align_offset_to(&self, align: u64) -> usize {
        let addr = self.as_ptr() as u64;
        (addr.next_multiple_of(align) - addr) as usize
    }
}

fn map(len: usize, flags: libc::c_int, fd: RawFd) -> io::Result<NonNull<libc::c_void>> {
    // SAFETY: a new mapping at an address the kernel picks.
    let addr = unsafe {
        libc::mmap(
            ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            flags,
            fd,
            0,
        )
    };
    match NonNull::new(addr) {
        Some(map) if addr != libc::MAP_FAILED => Ok(map),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `AnonHugePages` of the mapping that holds `addr`, from the text of smaps.
fn anon_huge_kib(smaps: &str, addr: u64) -> Option<u64> {
    let holds = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let end = rest.split(' ').next()?;
        let start = u64::from_str_radix(start, 16).ok()?;
        Some((start..u64::from_str_radix(end, 16).ok()?).contains(&addr))
    };
    smaps
        .lines()
        .skip_while(|line| holds(line) != Some(true))
        .find_map(|line| line.strip_prefix("AnonHugePages:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
00400000-00500000 r-xp 00000000 08:02 1 /bin/x
AnonHugePages:         0 kB
ffff80000000-ffff90000000 rw-p 00000000 00:00 0
Rss:              262144 kB
AnonHugePages:     10240 kB
";

    #[test]
    fn huge_pages_are_read_from_the_mapping_that_holds_the_address() {
        assert_eq!(anon_huge_kib(SMAPS, 0xffff_8800_0000), Some(10240));
        assert_eq!(anon_huge_kib(SMAPS, 0x40_1000), Some(0));
        assert_eq!(anon_huge_kib(SMAPS, 0x1000), None);
    }

    #[test]
    fn memory_is_block_aligned_and_starts_with_what_was_put_there() {
        let mut ram = GuestRam::new(4 * page(), Backing::Page4k).unwrap();
        assert_eq!(ram.host_addr() % block(), 0);
        ram.fill_start(&0x1122_u64.to_ne_bytes());
        assert_eq!(ram.first_words().collect::<Vec<_>>(), [0x1122, 0, 0, 0]);
        assert_eq!(ram.check_backing(), Ok(()));
    }
}
