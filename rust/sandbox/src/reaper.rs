// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Deferred release: give memory back after the reply, but never out of sight.
//!
//! A [`Reaper`] runs each release on a thread of its own. Linux lets a new
//! thread inherit the CPU affinity, scheduling policy, nice value and cgroup of
//! its creator, so the work is charged to whoever caused it; a pool of long-lived
//! workers would lose exactly that.
//!
//! What is pending is bounded by bytes and by count. Past either bound, after
//! [`Reaper::shutdown`], or when no thread can be started, the release runs on
//! the caller's thread before [`Reaper::release`] returns: slower, never lost.
//! [`Reaper::wait_released`] is the barrier for callers that need the memory back.
//!
//! ```
//! use sandbox::reaper::{Limits, Reaper};
//!
//! let reaper = Reaper::new(Limits { bytes: 1 << 30, count: 4 });
//! let ram = vec![0u8; 1 << 20];
//! reaper.release("guest a", 1 << 20, move || {
//!     drop(ram);
//!     Ok(())
//! });
//! reaper.wait_released(None).expect("no timeout was given");
//! assert_eq!(reaper.counters().pending_bytes, 0);
//! ```

mod counters;
mod ledger;
mod worker;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use counters::{Cause, Counters, Failure, Placement, Report, WhyInline};
use ledger::Ledger;

/// What a release ends with; the text of an error is kept in [`Reaper::failures`].
pub type ReleaseResult = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Called after every release, on the thread that ran it.
pub type Observer = dyn Fn(&Report) + Send + Sync;

/// How much may be pending before releases run inline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sum of the bytes of all pending releases.
    pub bytes: u64,
    /// Number of pending releases, and so of threads.
    pub count: usize,
}

impl Limits {
    /// Defers nothing: every release runs inline.
    pub const INLINE: Self = Self { bytes: 0, count: 0 };
}

/// Returned by [`Reaper::wait_released`] when the time ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{count} releases of {bytes} bytes are still pending")]
pub struct StillPending {
    /// Bytes not yet released.
    pub bytes: u64,
    /// Releases not yet ended.
    pub count: usize,
}

/// Runs releases in the background, within [`Limits`]. Dropping it joins them all.
pub struct Reaper {
    ledger: Arc<Ledger>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    stack_bytes: usize,
}

impl Reaper {
    /// A reaper that reports to nobody; see [`Reaper::with_observer`].
    pub fn new(limits: Limits) -> Self {
        Self::with_observer(limits, Box::new(|_| ()))
    }

    /// A reaper that calls `observer` after every release.
    pub fn with_observer(limits: Limits, observer: Box<Observer>) -> Self {
        Self {
            ledger: Arc::new(Ledger::new(limits, observer)),
            threads: Mutex::new(Vec::new()),
            stack_bytes: worker::STACK_BYTES,
        }
    }

    /// Runs `work`, in the background where the bounds allow it.
    ///
    /// `bytes` is what `work` gives back and is only accounted, not checked. An
    /// error or a panic in `work` is kept in [`Reaper::failures`], never passed on.
    pub fn release<F>(&self, label: &str, bytes: u64, work: F) -> Placement
    where
        F: FnOnce() -> ReleaseResult + Send + 'static,
    {
        let why = match self.ledger.reserve(bytes) {
            Ok(()) => match worker::spawn(&self.ledger, self.stack_bytes, label, bytes, work) {
                Ok(thread) => {
                    self.keep(thread);
                    return Placement::Deferred;
                }
                Err(work) => {
                    let why = WhyInline::NoThread;
                    worker::run(&self.ledger, label, bytes, Placement::Inline(why), work);
                    self.ledger.unreserve(bytes);
                    return Placement::Inline(why);
                }
            },
            Err(why) => why,
        };
        worker::run(&self.ledger, label, bytes, Placement::Inline(why), work);
        Placement::Inline(why)
    }

    /// Runs `work` on the caller's thread, for callers whose own promise is that
    /// the memory is back. Counted and reported like any other release.
    pub fn release_now<F>(&self, label: &str, bytes: u64, work: F) -> Placement
    where
        F: FnOnce() -> ReleaseResult,
    {
        let placement = Placement::Inline(WhyInline::Asked);
        worker::run(&self.ledger, label, bytes, placement, work);
        placement
    }

    /// Waits until nothing is pending, at most `timeout` when one is given.
    pub fn wait_released(&self, timeout: Option<Duration>) -> Result<(), StillPending> {
        self.wait_below(0, timeout)
    }

    /// Waits until at most `bytes` are pending: admission control for whoever is
    /// about to need memory that an earlier guest has not given back yet.
    pub fn wait_below(&self, bytes: u64, timeout: Option<Duration>) -> Result<(), StillPending> {
        let deadline = timeout.map(|time| Instant::now() + time);
        self.ledger.wait_below(bytes, deadline)
    }

    /// The figures so far.
    pub fn counters(&self) -> Counters {
        self.ledger.counters()
    }

    /// The last failures, oldest first; [`Counters::failed`] counts all of them.
    pub fn failures(&self) -> Vec<Failure> {
        self.ledger.failures()
    }

    /// Joins every pending release. Later releases run inline.
    pub fn shutdown(&self) {
        self.ledger.close();
        let threads = std::mem::take(&mut *self.lock_threads());
        for thread in threads {
            // The thread catches the panics of its work, so this cannot fail.
            let _ = thread.join();
        }
    }

    fn keep(&self, thread: JoinHandle<()>) {
        let mut threads = self.lock_threads();
        threads.retain(|thread| !thread.is_finished());
        threads.push(thread);
    }

    fn lock_threads(&self) -> std::sync::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl std::fmt::Debug for Reaper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Reaper").field(&self.counters()).finish()
    }
}

#[cfg(test)]
mod tests;
