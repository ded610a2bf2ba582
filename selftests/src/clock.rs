// SPDX-License-Identifier: GPL-2.0

//! The clock the figures are read from.

/// Nanoseconds of `CLOCK_MONOTONIC_RAW`, which no time daemon bends.
///
/// Under an emulator that counts instructions one nanosecond is one
/// instruction.
pub fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec for the length of the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut t) };
    assert_eq!(rc, 0, "CLOCK_MONOTONIC_RAW has existed since Linux 2.6.28");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Runs `f` and returns its value and how long it took, in nanoseconds.
pub fn timed<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let start = now_ns();
    let value = f();
    (value, now_ns() - start)
}
