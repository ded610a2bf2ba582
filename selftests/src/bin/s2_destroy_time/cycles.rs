// SPDX-License-Identifier: GPL-2.0

//! Many lives, one after the other: no memory counter may follow their number.

use crate::measure;
use crate::Env;
use s2_selftests::meminfo;
use s2_selftests::spec::Spec;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::thread;
use std::time::Duration;
use std::time::Instant;

/// Lives before the first reading, to fill the allocators' caches.
const WARM_UP: u32 = 32;

/// Repeats `spec` and compares the counters of before and after.
pub(crate) fn check(env: &Env, spec: &Spec, cycles: u32) -> Result<()> {
    for _ in 0..WARM_UP {
        measure::row(env, spec)?;
    }
    thread::sleep(SETTLE_STEP);
    let before = meminfo::read()?;
    for cycle in 1..=cycles {
        measure::row(env, spec).map_err(|stop| match stop {
            Stop::Fail(reason) => Stop::Fail(format!("cycle {cycle}: {reason}")),
            skip => skip,
        })?;
    }
    // Some of it is freed after a grace period.
    let deadline = Instant::now() + env.settle;
    loop {
        let leaks = meminfo::leaks(&before, &meminfo::read()?);
        if leaks.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let leaks = leaks.join("\n");
            return Err(Stop::Fail(format!("after {cycles} cycles:\n{leaks}")));
        }
        thread::sleep(SETTLE_STEP);
    }
}

const SETTLE_STEP: Duration = Duration::from_millis(100);
