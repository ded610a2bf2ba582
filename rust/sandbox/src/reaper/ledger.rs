// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The books: what is pending, what has ended, and who waits for it.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::counters::{Counters, Failure, Placement, Report, WhyInline};
use super::{Limits, Observer, StillPending};

/// Failures kept for [`super::Reaper::failures`]; older ones are only counted.
const KEPT_FAILURES: usize = 64;

pub(super) struct Ledger {
    limits: Limits,
    observer: Box<Observer>,
    books: Mutex<Books>,
    changed: Condvar,
}

#[derive(Default)]
struct Books {
    counters: Counters,
    failures: VecDeque<Failure>,
    closed: bool,
}

impl Ledger {
    pub(super) fn new(limits: Limits, observer: Box<Observer>) -> Self {
        Self {
            limits,
            observer,
            books: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Takes `bytes` into what is pending, or says which bound forbids it.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), WhyInline> {
        let mut books = self.lock();
        if books.closed {
            return Err(WhyInline::ShutDown);
        }
        let counters = &mut books.counters;
        let sum = counters.pending_bytes.saturating_add(bytes);
        if counters.pending >= self.limits.count {
            return Err(WhyInline::Count);
        }
        if sum > self.limits.bytes {
            return Err(WhyInline::Bytes);
        }
        counters.pending += 1;
        counters.pending_bytes = sum;
        counters.peak_pending_bytes = counters.peak_pending_bytes.max(sum);
        Ok(())
    }

    /// Undoes [`Ledger::reserve`], after the release has ended.
    pub(super) fn unreserve(&self, bytes: u64) {
        let mut books = self.lock();
        books.counters.pending -= 1;
        books.counters.pending_bytes -= bytes;
        drop(books);
        self.changed.notify_all();
    }

    /// Books an ended release and tells the observer.
    pub(super) fn record(&self, report: &Report) {
        let mut books = self.lock();
        let counters = &mut books.counters;
        let nanoseconds = u64::try_from(report.time.as_nanos()).unwrap_or(u64::MAX);
        counters.busy_ns = counters.busy_ns.saturating_add(nanoseconds);
        match (&report.failure, report.placement) {
            (Some(_), _) => counters.failed += 1,
            (None, Placement::Deferred) => counters.released += 1,
            (None, Placement::Inline(_)) => counters.inline += 1,
        }
        if report.failure.is_none() {
            counters.released_bytes = counters.released_bytes.saturating_add(report.bytes);
        }
        if let Some(cause) = &report.failure {
            if books.failures.len() == KEPT_FAILURES {
                books.failures.pop_front();
            }
            books.failures.push_back(Failure {
                label: report.label.clone(),
                bytes: report.bytes,
                cause: cause.clone(),
            });
        }
        drop(books);
        (self.observer)(report);
    }

    pub(super) fn wait_below(
        &self,
        bytes: u64,
        deadline: Option<Instant>,
    ) -> Result<(), StillPending> {
        let mut books = self.lock();
        loop {
            let counters = &books.counters;
            // A release of zero bytes is still work that has not ended.
            if counters.pending_bytes <= bytes && (bytes > 0 || counters.pending == 0) {
                return Ok(());
            }
            let pending = StillPending {
                bytes: counters.pending_bytes,
                count: counters.pending,
            };
            books = match deadline {
                None => self
                    .changed
                    .wait(books)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(pending);
                    }
                    self.changed
                        .wait_timeout(books, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
    }

    pub(super) fn counters(&self) -> Counters {
        self.lock().counters
    }

    pub(super) fn failures(&self) -> Vec<Failure> {
        self.lock().failures.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
