// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Memory that is loaded as it is touched, and in the background meanwhile.
//!
//! One thread serves faults; another one, at idle priority, loads the rest. When
//! everything is loaded the memory is ordinary memory and both have ended.
//!
//! A page that cannot be had must not read as zero, which is what the kernel makes
//! of it when a userfaultfd is closed. So on a failure, a panic of either thread
//! included, and when it is stopped early, all of the memory is made inaccessible
//! first and waiters are woken only then: KVM_RUN returns EFAULT, and a thread of
//! the VMM that touches the memory gets SIGSEGV.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};

use serde::Serialize;

use super::file::BLOCK;
use super::uffd::{Filled, Userfault};

/// Where the bytes come from.
pub trait Source: Send + Sync + 'static {
    /// Why they cannot be had.
    type Error: std::fmt::Display;

    /// Fills `buffer` from `offset` on, or says that it would all be zero. Offsets are
    /// multiples of a block.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<Content, Self::Error>;
}

/// What a [`Source`] has at some place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The buffer is filled.
    Data,
    /// All zero.
    Zero,
}

/// One mapping to fill.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Host addresses; the size is a multiple of `page`.
    pub memory: Range<usize>,
    /// Where it begins in the source, a multiple of [`BLOCK`] and of `page`.
    pub offset: u64,
    /// Bytes of a page of the mapping: the host's base page, or the huge page's.
    pub page: usize,
}

/// Whether untouched memory is loaded too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// Only what is touched is ever loaded.
    Off,
    /// Everything is, when there is time for it.
    Background,
}

/// Loading on demand could not begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A region is not aligned as it must be.
    #[error("region at {:#x} (offset {:#x}) is not made of whole blocks", .0.memory.start, .0.offset)]
    Unaligned(Region),
    /// userfaultfd was refused.
    #[error("userfaultfd: {0}")]
    Userfault(io::Error),
    /// The kernel does not report faults of this mapping.
    #[error("cannot register memory for on-demand loading: {0}")]
    Register(io::Error),
    /// No thread could be started.
    #[error("cannot start a thread for on-demand loading: {0}")]
    Thread(io::Error),
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    /// Bytes of data loaded so far.
    pub loaded: u64,
    /// Faults that were served.
    pub faults: u64,
    /// Everything is loaded.
    pub complete: bool,
    /// Why loading has failed, and the memory is inaccessible.
    pub failure: Option<String>,
}

/// Memory that is being loaded. Dropping it stops the loading; unless that was
/// complete the memory is inaccessible from then on.
#[derive(Debug)]
pub struct OnDemand {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl OnDemand {
    /// Begins to load `regions` from `source`. `failed` is called at most once, with
    /// the reason, before the memory becomes inaccessible.
    ///
    /// # Safety
    ///
    /// The regions must be mapped writable, untouched so far, and stay mapped until
    /// the result is dropped. Nobody but the result may change their protection, and
    /// nobody may drop their pages meanwhile: they would be loaded again.
    pub unsafe fn start<S: Source>(
        regions: Vec<Region>,
        source: S,
        prefetch: Prefetch,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> Result<Self, StartError> {
        let userfault = Userfault::open().map_err(StartError::Userfault)?;
        for region in &regions {
            let aligned = |number: u64, unit: usize| number % unit as u64 == 0;
            let whole = aligned(region.offset, BLOCK.max(region.page))
                && aligned(region.memory.len() as u64, region.page);
            if !whole {
                return Err(StartError::Unaligned(region.clone()));
            }
            // A huge page put over a partly filled range would undo what is there.
            advise_small_pages(region);
            let registered = userfault.register(&region.memory);
            registered.map_err(StartError::Register)?;
        }
        let shared = Arc::new(Shared {
            userfault,
            regions,
            stop: event().map_err(StartError::Thread)?,
            stopping: AtomicBool::new(false),
            loaded: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            outcome: Mutex::new(Outcome::Loading(Box::new(failed))),
        });
        let source = Arc::new(source);
        // If a thread cannot be had, the drop stops the other one.
        let mut this = Self {
            shared,
            threads: Vec::new(),
        };
        this.spawn("fault", {
            let source = source.clone();
            move |shared| shared.serve_faults(&*source)
        })?;
        if prefetch == Prefetch::Background {
            this.spawn("prefetch", move |shared| shared.prefetch(&*source))?;
        }
        Ok(this)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let outcome = self.shared.outcome();
        Progress {
            loaded: self.shared.loaded.load(Ordering::Relaxed),
            faults: self.shared.faults.load(Ordering::Relaxed),
            complete: matches!(*outcome, Outcome::Complete),
            failure: match &*outcome {
                Outcome::Failed(reason) => Some(reason.clone()),
                _ => None,
            },
        }
    }

    fn spawn(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shared) -> Result<(), String> + Send + 'static,
    ) -> Result<(), StartError> {
        let shared = self.shared.clone();
        let thread = Builder::new().name(name.to_owned()).spawn(move || {
            let reason = match catch_unwind(AssertUnwindSafe(|| work(&shared))) {
                Ok(Ok(())) => return,
                Ok(Err(reason)) => reason,
                Err(_) => "the handler panicked".to_owned(),
            };
            shared.fail(reason);
        });
        self.threads.push(thread.map_err(StartError::Thread)?);
        Ok(())
    }
}

impl Drop for OnDemand {
    fn drop(&mut self) {
        self.shared.stop();
        for thread in self.threads.drain(..) {
            // What it panicked with has been reported.
            let _ = thread.join();
        }
        if !matches!(*self.shared.outcome(), Outcome::Complete) {
            self.shared.seal();
        }
    }
}

struct Shared {
    userfault: Userfault,
    regions: Vec<Region>,
    /// Readable when the threads should end.
    stop: OwnedFd,
    stopping: AtomicBool,
    loaded: AtomicU64,
    faults: AtomicU64,
    outcome: Mutex<Outcome>,
}

enum Outcome {
    Loading(Box<dyn FnOnce(&str) + Send>),
    Complete,
    Failed(String),
}

impl Shared {
    fn serve_faults<S: Source>(&self, source: &S) -> Result<(), String> {
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

    fn prefetch<S: Source>(&self, source: &S) -> Result<(), String> {
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

    fn fail(&self, reason: String) {
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
    fn seal(&self) {
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

    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        let one = 1u64.to_ne_bytes();
        // SAFETY: an eventfd takes eight bytes; when its counter is full it is readable.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    fn outcome(&self) -> MutexGuard<'_, Outcome> {
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

fn advise_small_pages(region: &Region) {
    let address = region.memory.start as *mut libc::c_void;
    // SAFETY: the advice changes no content. Where it is refused there are no
    // transparent huge pages to fear.
    unsafe { libc::madvise(address, region.memory.len(), libc::MADV_NOHUGEPAGE) };
}

/// Lets everything else on this CPU go first, the guest above all.
fn idle_priority() {
    // SAFETY: all-zero parameters are what this policy wants.
    unsafe {
        let parameters = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_IDLE, &parameters);
    }
}

#[cfg(test)]
mod tests;
