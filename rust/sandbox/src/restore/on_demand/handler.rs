// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The two threads that load memory, and what they share.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Content, Region, Source};
use crate::restore::file::BLOCK;
use crate::restore::uffd::{Filled, Userfault};

/// Memory that is being loaded, as the threads see it.
pub(super) struct Shared {
    userfault: Userfault,
    regions: Vec<Region>,
    /// Readable when the threads should end.
    stop: OwnedFd,
    stopping: AtomicBool,
    pub(super) loaded: AtomicU64,
    pub(super) faults: AtomicU64,
    outcome: Mutex<Outcome>,
}

/// How it has ended, if it has.
pub(super) enum Outcome {
    Loading(Box<dyn FnOnce(&str) + Send>),
    Complete,
    Failed(String),
}

impl Shared {
    pub(super) fn new(
        userfault: Userfault,
        regions: Vec<Region>,
        failed: Box<dyn FnOnce(&str) + Send>,
    ) -> io::Result<Self> {
        Ok(Self {
            userfault,
            regions,
            stop: event()?,
            stopping: AtomicBool::new(false),
            loaded: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            outcome: Mutex::new(Outcome::Loading(failed)),
        })
    }

    pub(super) fn serve_faults<S: Source>(&self, source: &S) -> Result<(), String> {
        let mut buffer = Vec::new();
        while self.wait().map_err(|e| format!("poll: {e}"))? {
            let fault = self.userfault.next_fault();
            if let Some(address) = fault.map_err(|e| format!("userfaultfd: {e}"))? {
                let (region, chunk) = self.chunk_at(address)?;
                self.load(source, region, chunk, &mut buffer, Content::Zero)?;
                self.faults.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    pub(super) fn prefetch<S: Source>(&self, source: &S) -> Result<(), String> {
        idle_priority();
        let mut buffer = Vec::new();
        for region in &self.regions {
            for start in region.memory.clone().step_by(region.chunk()) {
                if self.stopping.load(Ordering::Relaxed) {
                    return Ok(());
                }
                let chunk = start..region.memory.end.min(start + region.chunk());
                self.load(source, region, chunk, &mut buffer, Content::Data)?;
            }
        }
        for region in &self.regions {
            let done = self.userfault.unregister(&region.memory);
            done.map_err(|e| format!("cannot end on-demand loading: {e}"))?;
        }
        let mut outcome = self.outcome();
        if matches!(*outcome, Outcome::Loading(_)) {
            *outcome = Outcome::Complete;
        }
        drop(outcome);
        self.stop();
        Ok(())
    }

    /// Fills one chunk. Zeroes are only worth a page to somebody who waits for one:
    /// with `least` being data they are left out.
    fn load<S: Source>(
        &self,
        source: &S,
        region: &Region,
        chunk: Range<usize>,
        buffer: &mut Vec<u8>,
        least: Content,
    ) -> Result<(), String> {
        let offset = region.offset + (chunk.start - region.memory.start) as u64;
        buffer.resize(chunk.len(), 0);
        let content = source.read(offset, buffer).map_err(|e| e.to_string())?;
        let filled = match (content, region.page > BLOCK) {
            (Content::Zero, _) if least == Content::Data => return Ok(()),
            (Content::Zero, true) => {
                buffer.fill(0);
                self.userfault.copy(chunk.start, buffer, region.page)
            }
            (Content::Zero, false) => self.userfault.zero(chunk.start, chunk.len(), region.page),
            (Content::Data, _) => self.userfault.copy(chunk.start, buffer, region.page),
        };
        match filled {
            Ok(Filled::New) if content == Content::Data => {
                self.loaded.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                Ok(())
            }
            Ok(_) => Ok(()),
            // Loading was completed, or ended, by the other thread just now.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) && self.over() => Ok(()),
            Err(error) => Err(format!("cannot fill memory at {:#x}: {error}", chunk.start)),
        }
    }

    fn chunk_at(&self, address: usize) -> Result<(&Region, Range<usize>), String> {
        let region = self.regions.iter().find(|r| r.memory.contains(&address));
        let region = region.ok_or_else(|| format!("fault at foreign address {address:#x}"))?;
        let into = address - region.memory.start;
        let start = address - into % region.chunk();
        Ok((region, start..region.memory.end.min(start + region.chunk())))
    }

    /// Waits for a fault; false when it is time to end.
    fn wait(&self) -> io::Result<bool> {
        let poll = |fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds = [
            poll(self.userfault.as_raw_fd()),
            poll(self.stop.as_raw_fd()),
        ];
        // SAFETY: the array is valid and has two entries.
        if unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) } < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(true),
                _ => Err(error),
            };
        }
        Ok(fds[1].revents == 0)
    }

    pub(super) fn fail(&self, reason: String) {
        let mut outcome = self.outcome();
        if !matches!(*outcome, Outcome::Loading(_)) {
            return;
        }
        let loading = std::mem::replace(&mut *outcome, Outcome::Failed(reason.clone()));
        drop(outcome);
        if let Outcome::Loading(failed) = loading {
            failed(&reason);
        }
        self.seal();
        self.stop();
    }

    /// Makes the memory inaccessible, and only then lets waiters try again.
    pub(super) fn seal(&self) {
        for region in &self.regions {
            let memory = &region.memory;
            let address = memory.start as *mut libc::c_void;
            // SAFETY: the caller of `start` left the protection of this range to us.
            if unsafe { libc::mprotect(address, memory.len(), libc::PROT_NONE) } != 0 {
                // Out of memory for mappings. Waiting for ever is better than zeroes.
                continue;
            }
            // A range that is no longer registered has no waiters.
            let _ = self.userfault.wake(memory);
        }
    }

    fn over(&self) -> bool {
        !matches!(*self.outcome(), Outcome::Loading(_)) || self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let one = 1u64.to_ne_bytes();
        // SAFETY: an eventfd takes eight bytes; when its counter is full it is readable.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    pub(super) fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}

impl Region {
    /// Bytes that are loaded at once.
    fn chunk(&self) -> usize {
        BLOCK.max(self.page)
    }
}

fn event() -> io::Result<OwnedFd> {
    // SAFETY: a system call without pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new fd that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Lets everything else on this CPU go first, the guest above all.
fn idle_priority() {
    // SAFETY: all-zero parameters are what this policy wants.
    unsafe {
        let parameters = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters);
    }
}
