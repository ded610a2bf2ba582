// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Runs one release, on the caller's thread or on a new one.

use std::any::Any;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::counters::{Cause, Placement, Report};
use super::ledger::Ledger;
use super::ReleaseResult;

/// A release makes a few system calls; a small stack keeps a burst of them cheap.
pub(super) const STACK_BYTES: usize = 128 << 10;

/// Starts a thread for `work`, which [`Ledger::reserve`] has already accepted.
/// Gives `work` back when there is no thread to be had.
pub(super) fn spawn<F>(
    ledger: &Arc<Ledger>,
    stack_bytes: usize,
    label: &str,
    bytes: u64,
    work: F,
) -> Result<JoinHandle<()>, F>
where
    F: FnOnce() -> ReleaseResult + Send + 'static,
{
    // A failed spawn drops its closure, and memory with it: keep `work` outside.
    let slot = Arc::new(Mutex::new(Some(work)));
    let thread = {
        let (slot, ledger, label) = (slot.clone(), ledger.clone(), label.to_owned());
        Builder::new()
            .name("reaper".into())
            .stack_size(stack_bytes)
            .spawn(move || {
                if let Some(work) = take(&slot) {
                    run(&ledger, &label, bytes, Placement::Deferred, work);
                }
                ledger.unreserve(bytes);
            })
    };
    match thread {
        Ok(thread) => Ok(thread),
        Err(_) => Err(take(&slot).expect("only a running thread empties the slot")),
    }
}

fn take<F>(slot: &Mutex<Option<F>>) -> Option<F> {
    slot.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Runs `work` here and books how it ended.
pub(super) fn run<F>(ledger: &Ledger, label: &str, bytes: u64, placement: Placement, work: F)
where
    F: FnOnce() -> ReleaseResult,
{
    let start = Instant::now();
    // `work` is consumed either way, so no broken state of it can be seen later.
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(Cause::Error(error.to_string())),
        Err(panic) => Some(Cause::Panic(message(panic.as_ref()))),
    };
    ledger.record(&Report {
        label: label.to_owned(),
        bytes,
        placement,
        time: start.elapsed(),
        failure,
    });
}

fn message(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "no message".to_owned()
    }
}
