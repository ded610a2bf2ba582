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

mod handler;

use std::io;
use std::ops::Range;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use serde::Serialize;

use super::file::BLOCK;
use super::uffd::Userfault;
use handler::{Outcome, Shared};

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
        let shared = Shared::new(userfault, regions, Box::new(failed));
        let shared = Arc::new(shared.map_err(StartError::Thread)?);
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

fn advise_small_pages(region: &Region) {
    let address = region.memory.start as *mut libc::c_void;
    // SAFETY: the advice changes no content. Where it is refused there are no
    // transparent huge pages to fear.
    unsafe { libc::madvise(address, region.memory.len(), libc::MADV_NOHUGEPAGE) };
}

#[cfg(test)]
mod tests;
