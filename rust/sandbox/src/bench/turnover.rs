// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Guests that replace each other as fast as they can, and guests that all end at
//! once, under a small bound: what is pending and resident must stay within it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sandbox::reaper::{Limits, Reaper};
use sandbox::vm::Release;

use super::guest::{touched, WorkDir};

/// Guests whose memory may be pending.
const BOUND: u64 = 2;

/// What was seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turnover {
    /// Memory of each guest.
    pub(super) guest: u64,
    /// Bound on pending bytes.
    pub(super) bound: u64,
    /// The most that was pending.
    pub(super) peak_pending: u64,
    /// The most that was resident, above what the process needed before.
    pub(super) peak_resident: u64,
    /// Releases that ran deferred and inline.
    pub(super) placed: (u64, u64),
}

/// Runs `count` guests one after another, each torn down deferred.
pub(super) fn run(
    dir: &WorkDir,
    bytes: u64,
    count: usize,
) -> Result<Turnover, Box<dyn std::error::Error + Send + Sync>> {
    let bound = BOUND * bytes;
    let reaper = Reaper::new(Limits {
        bytes: bound,
        count: usize::MAX,
    });
    let (peak, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let before = resident()?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                peak.fetch_max(resident().unwrap_or(0), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let result = (0..count).try_for_each(|_| {
            let vm = touched(dir, bytes, false, 1)?.pause();
            let _ = vm.teardown(&reaper, "turnover", Release::Deferred);
            Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
        });
        over.store(true, Ordering::Relaxed);
        result
    })?;
    reaper.wait_released(None)?;
    let counters = reaper.counters();
    Ok(Turnover {
        guest: bytes,
        bound,
        peak_pending: counters.peak_pending_bytes,
        peak_resident: peak.load(Ordering::Relaxed).saturating_sub(before),
        placed: (counters.released, counters.inline),
    })
}

/// Runs `count` guests at the same time and tears all of them down at once.
pub(super) fn at_once(
    dir: &WorkDir,
    bytes: u64,
    count: usize,
) -> Result<Turnover, Box<dyn std::error::Error + Send + Sync>> {
    let bound = BOUND * bytes;
    let reaper = Reaper::new(Limits {
        bytes: bound,
        count: usize::MAX,
    });
    let before = resident()?;
    let guests = (0..count)
        .map(|_| Ok(touched(dir, bytes, false, 1)?.pause()))
        .collect::<Result<Vec<_>, Box<dyn std::error::Error + Send + Sync>>>()?;
    let peak = resident()?.saturating_sub(before);
    std::thread::scope(|scope| {
        for vm in guests {
            scope.spawn(|| vm.teardown(&reaper, "at once", Release::Deferred));
        }
    });
    reaper.wait_released(None)?;
    let counters = reaper.counters();
    Ok(Turnover {
        guest: bytes,
        bound,
        peak_pending: counters.peak_pending_bytes,
        peak_resident: peak,
        placed: (counters.released, counters.inline),
    })
}

/// Resident bytes of this process.
fn resident() -> std::io::Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let kib = text
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|value| value.trim().strip_suffix(" kB"))
        .and_then(|value| value.parse::<u64>().ok());
    Ok(kib.unwrap_or(0) << 10)
}
