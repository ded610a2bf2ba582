// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a user of the reaper can see.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::*;

const MIB: u64 = 1 << 20;

/// A release that ends when the returned sender is used or dropped.
fn gate() -> (Sender<()>, impl FnOnce() -> ReleaseResult + Send + 'static) {
    let (open, opened) = channel();
    (open, move || {
        let _ = opened.recv();
        Ok(())
    })
}

fn reaper(bytes: u64, count: usize) -> Reaper {
    Reaper::new(Limits { bytes, count })
}

#[test]
fn returns_before_the_release_ends_and_waits_for_it() {
    let reaper = reaper(MIB, 1);
    let (open, work) = gate();
    assert_eq!(reaper.release("a", MIB, work), Placement::Deferred);
    assert_eq!(
        reaper.wait_released(Some(Duration::from_millis(10))),
        Err(StillPending {
            bytes: MIB,
            count: 1
        })
    );
    drop(open);
    assert_eq!(reaper.wait_released(None), Ok(()));
    let counters = reaper.counters();
    assert_eq!((counters.released, counters.released_bytes), (1, MIB));
    assert!(counters.busy_ns > 0);
}

#[test]
fn bytes_past_the_bound_run_inline() {
    let reaper = reaper(3 * MIB, 8);
    let (open, work) = gate();
    assert_eq!(reaper.release("a", 2 * MIB, work), Placement::Deferred);
    assert_eq!(
        reaper.release("b", 2 * MIB, || Ok(())),
        Placement::Inline(WhyInline::Bytes)
    );
    assert_eq!(reaper.release("c", MIB, || Ok(())), Placement::Deferred);
    drop(open);
    reaper.shutdown();
    let counters = reaper.counters();
    assert_eq!(counters.peak_pending_bytes, 3 * MIB);
    assert_eq!((counters.released, counters.inline), (2, 1));
}

#[test]
fn count_past_the_bound_runs_inline() {
    let reaper = reaper(MIB, 1);
    let (_open, work) = gate();
    assert_eq!(reaper.release("a", 0, work), Placement::Deferred);
    assert_eq!(
        reaper.release("b", 0, || Ok(())),
        Placement::Inline(WhyInline::Count)
    );
}

#[test]
fn wait_below_is_over_as_soon_as_enough_is_back() {
    let reaper = reaper(2 * MIB, 2);
    let (first, work) = gate();
    reaper.release("a", MIB, work);
    let (_second, work) = gate();
    reaper.release("b", MIB, work);
    assert!(reaper
        .wait_below(MIB, Some(Duration::from_millis(1)))
        .is_err());
    drop(first);
    assert_eq!(reaper.wait_below(MIB, None), Ok(()));
    assert_eq!(reaper.counters().pending, 1);
}

#[test]
fn without_a_thread_the_release_still_happens() {
    let mut reaper = reaper(MIB, 1);
    // No address space holds such a stack: thread creation fails.
    reaper.stack_bytes = 1 << 62;
    let ran = Arc::new(AtomicUsize::new(0));
    let seen = ran.clone();
    let placement = reaper.release("a", MIB, move || {
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(())
    });
    assert_eq!(placement, Placement::Inline(WhyInline::NoThread));
    assert_eq!(ran.load(Ordering::Relaxed), 1);
    let counters = reaper.counters();
    assert_eq!((counters.pending, counters.pending_bytes), (0, 0));
}

#[test]
fn failures_and_panics_are_kept_and_told() {
    let told = Arc::new(Mutex::new(Vec::new()));
    let sink = told.clone();
    let observer = move |report: &Report| sink.lock().unwrap().push(report.failure.clone());
    let reaper = Reaper::with_observer(
        Limits {
            bytes: MIB,
            count: 4,
        },
        Box::new(observer),
    );
    reaper.release("bad", 1, || Err("munmap failed".into()));
    reaper.wait_released(None).unwrap();
    reaper.release("worse", 2, || panic!("broken"));
    reaper.wait_released(None).unwrap();
    let causes = [
        Cause::Error("munmap failed".into()),
        Cause::Panic("broken".into()),
    ];
    let kept: Vec<_> = reaper.failures().into_iter().map(|f| f.cause).collect();
    assert_eq!(kept, causes);
    assert_eq!(*told.lock().unwrap(), causes.map(Some));
    assert_eq!(reaper.counters().failed, 2);
    assert_eq!(reaper.counters().released_bytes, 0);
}

#[test]
fn shutdown_joins_and_later_releases_run_inline() {
    let reaper = reaper(MIB, 4);
    let ended = Arc::new(AtomicUsize::new(0));
    for _ in 0..4 {
        let ended = ended.clone();
        reaper.release("a", 0, move || {
            std::thread::sleep(Duration::from_millis(20));
            ended.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
    }
    reaper.shutdown();
    assert_eq!(ended.load(Ordering::Relaxed), 4);
    assert_eq!(
        reaper.release("late", 0, || Ok(())),
        Placement::Inline(WhyInline::ShutDown)
    );
}

#[test]
fn the_caller_s_affinity_and_nice_value_go_along() {
    let reaper = Arc::new(reaper(MIB, 1));
    let caller = std::thread::spawn(move || {
        // SAFETY: plain system calls on the calling thread; the set is a live local.
        let before = unsafe {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(0, &mut one);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one);
            libc::setpriority(libc::PRIO_PROCESS, 0, 7);
            scheduling()
        };
        let (tell, told) = channel();
        reaper.release("a", 0, move || {
            // SAFETY: as above.
            tell.send(unsafe { scheduling() })?;
            Ok(())
        });
        (before, told.recv().unwrap())
    });
    let (before, inside) = caller.join().unwrap();
    assert_eq!(before, (1, 7));
    assert_eq!(inside, before);
}

/// CPUs the calling thread may run on, and its nice value.
///
/// # Safety
///
/// None; it only wraps system calls that are unsafe to declare.
unsafe fn scheduling() -> (i32, i32) {
    // SAFETY: both calls concern the calling thread; the set is a live local.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set);
        (
            libc::CPU_COUNT(&set),
            libc::getpriority(libc::PRIO_PROCESS, 0),
        )
    }
}
