// SPDX-License-Identifier: GPL-2.0

//! A task that wakes up at given times, and how late it ran.

use clap::ValueEnum;
use s2_selftests::host;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

/// Of the waiting task, compared with the destroying one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Priority {
    /// SCHED_FIFO: runs as soon as the kernel lets it
    Higher,
    /// SCHED_OTHER: also waits for its share of the CPU
    Equal,
}

/// What the task saw.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wait {
    /// Longest time from when it should have run to when it did, in nanoseconds.
    pub(crate) worst_ns: u64,
    pub(crate) wakeups: u64,
}

/// The running task.
pub(crate) struct Waiter {
    enough: Arc<AtomicBool>,
    thread: JoinHandle<Wait>,
}

impl Waiter {
    /// Starts to wait, on the CPU that the caller is kept on.
    pub(crate) fn start(priority: Priority, interval_ns: u64) -> Result<Self> {
        let enough = Arc::new(AtomicBool::new(false));
        let (ready, started) = mpsc::channel();
        let flag = Arc::clone(&enough);
        let thread = thread::spawn(move || {
            let set = prioritise(priority);
            let good = set.is_ok();
            // The other end waits for this one word.
            let _ = ready.send(set);
            if good {
                watch(&flag, interval_ns)
            } else {
                Wait::default()
            }
        });
        started.recv().map_err(Stop::failed("the waiting task"))??;
        Ok(Waiter { enough, thread })
    }

    /// Ends the task, after it has caught up, and returns what it saw.
    pub(crate) fn stop(self) -> Wait {
        self.enough.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Wakes up every `interval_ns` until told to stop.
fn watch(enough: &AtomicBool, interval_ns: u64) -> Wait {
    let mut wait = Wait::default();
    let mut due = monotonic_ns() + interval_ns;
    while !enough.load(Ordering::Relaxed) {
        sleep_until(due);
        let now = monotonic_ns();
        wait.worst_ns = wait.worst_ns.max(now.saturating_sub(due));
        wait.wakeups += 1;
        due = now.max(due) + interval_ns;
    }
    wait
}

/// The clock that `sleep_until` goes by.
fn monotonic_ns() -> u64 {
    let mut t = timespec(0);
    // SAFETY: `t` is a valid timespec for the length of the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

fn sleep_until(ns: u64) {
    let t = timespec(ns);
    // SAFETY: `t` is valid for the length of the call; nothing is wanted back.
    unsafe {
        libc::clock_nanosleep(
            libc::CLOCK_MONOTONIC,
            libc::TIMER_ABSTIME,
            &t,
            std::ptr::null_mut(),
        )
    };
}

fn timespec(ns: u64) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

fn prioritise(priority: Priority) -> Result<()> {
    if priority == Priority::Equal {
        return Ok(());
    }
    let fifo = libc::sched_param { sched_priority: 1 };
    // SAFETY: `fifo` is valid for the length of the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &fifo) } {
        0 => Ok(()),
        _ => Err(Stop::missing("SCHED_FIFO")(io::Error::last_os_error())),
    }
}

/// Keeps this thread, and those it starts, on the CPU it runs on.
pub(crate) fn stay_on_this_cpu() -> Result<()> {
    // SAFETY: Takes nothing and says a number, negative where it is not known.
    let cpu = unsafe { libc::sched_getcpu() };
    host::stay_on_cpu(usize::try_from(cpu).unwrap_or(0))
}
