// SPDX-License-Identifier: GPL-2.0

//! Memory counters: the oracle for leaks.

use crate::spec::page;
use crate::Result;
use crate::Stop;
use std::collections::BTreeMap;
use std::fs;
use std::thread;
use std::time::Duration;
use std::time::Instant;

/// Counter of the tables that translate for guests and devices.
pub const STAGE2: &str = "SecPageTables";

/// `name: value` lines of a file in /proc, in KiB where the file says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Reads the text of /proc/meminfo or /proc/self/status.
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (name, rest) = line.split_once(':')?;
            let value = rest.split_whitespace().next()?.parse().ok()?;
            Some((name.to_owned(), value))
        };
        Counters(text.lines().filter_map(entry).collect())
    }

    /// Counts pages on the CPUs' own free lists as free, which `MemFree` does
    /// not: they move there by the thousand while nothing leaks.
    fn with_free_lists(mut self, zoneinfo: &str) -> Self {
        if let Some(free) = self.0.get_mut("MemFree") {
            *free += free_list_pages(zoneinfo) * page() / 1024;
        }
        self
    }

    /// The counter's value, if the kernel has it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).copied()
    }
}

/// /proc/meminfo now, with what each CPU still held back folded in.
///
/// # Errors
///
/// [`Stop::Skip`] when /proc is not there.
pub fn read() -> Result<Counters> {
    // Without it counts lag by up to a batch per CPU; only root may ask.
    let _ = fs::read("/proc/sys/vm/stat_refresh");
    let text = fs::read_to_string("/proc/meminfo").map_err(Stop::missing("/proc/meminfo"))?;
    let zoneinfo = fs::read_to_string("/proc/zoneinfo").unwrap_or_default();
    Ok(Counters::parse(&text).with_free_lists(&zoneinfo))
}

/// Pages on the CPUs' free lists, from the text of /proc/zoneinfo.
fn free_list_pages(zoneinfo: &str) -> u64 {
    zoneinfo
        .lines()
        .filter_map(|line| {
            line.trim()
                .strip_prefix("count:")?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .sum()
}

/// Stage-2 table memory in KiB.
///
/// # Errors
///
/// [`Stop::Skip`] on a kernel that does not count it (before 6.1).
pub fn stage2_kib() -> Result<u64> {
    read()?
        .get(STAGE2)
        .ok_or_else(|| Stop::Skip(format!("this kernel has no {STAGE2} in /proc/meminfo")))
}

/// Memory this process has locked, in KiB. Pages of a protected guest count.
pub fn locked_kib() -> u64 {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Counters::parse(&text).get("VmLck").unwrap_or(0)
}

/// Waits until stage-2 table memory is back at `start` KiB.
///
/// # Errors
///
/// [`Stop::Fail`] with both values when `settle` has passed before that.
pub fn wait_stage2(start: u64, settle: Duration) -> Result<()> {
    let deadline = Instant::now() + settle;
    loop {
        let now = stage2_kib()?;
        if now == start {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let by = now as i64 - start as i64;
            return Err(Stop::Fail(format!(
                "{STAGE2} is {now} kB, was {start} kB before: {by:+} kB after {settle:?}"
            )));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// How far one counter may move over many cycles.
#[derive(Debug, Clone, Copy)]
pub struct Tolerance {
    /// Name in /proc/meminfo.
    pub name: &'static str,
    /// Growth in KiB that is still noise.
    pub kib: u64,
    /// Whether a leak makes it larger (`Slab`) or smaller (`MemFree`).
    pub leak: Direction,
}

/// Which way a counter moves when something leaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Memory in use.
    Grows,
    /// Memory left.
    Shrinks,
}

/// The counters a life cycle must leave as they were, whatever its number.
///
/// The slack is what the allocator's own caches move by; a leak of one page,
/// or of one object of 256 bytes, per cycle passes it within 1,000 cycles.
pub const TOLERANCES: [Tolerance; 6] = [
    grows(STAGE2, 0),
    grows("Mlocked", 0),
    grows("PageTables", 32),
    grows("Percpu", 32),
    grows("Slab", 256),
    Tolerance {
        name: "MemFree",
        kib: 2048,
        leak: Direction::Shrinks,
    },
];

const fn grows(name: &'static str, kib: u64) -> Tolerance {
    Tolerance {
        name,
        kib,
        leak: Direction::Grows,
    }
}

/// Names the counters that leaked between two readings, one per line.
pub fn leaks(before: &Counters, after: &Counters) -> Vec<String> {
    TOLERANCES
        .iter()
        .filter_map(|t| {
            let (was, is) = (before.get(t.name)?, after.get(t.name)?);
            let leaked = match t.leak {
                Direction::Grows => is.saturating_sub(was),
                Direction::Shrinks => was.saturating_sub(is),
            };
            (leaked > t.kib).then(|| {
                let name = t.name;
                format!("{name}: {was} -> {is} kB (at most {} kB allowed)", t.kib)
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(slab: u64, stage2: u64, free: u64) -> Counters {
        Counters::parse(&format!(
            "MemFree:  {free} kB\nSlab:  {slab} kB\nSecPageTables:   {stage2} kB\nHugePages_Total: 3\n"
        ))
    }

    #[test]
    fn lines_with_and_without_unit_are_read() {
        let read = counters(10, 4, 900);
        assert_eq!(read.get("Slab"), Some(10));
        assert_eq!(read.get("HugePages_Total"), Some(3));
        assert_eq!(read.get("Percpu"), None);
    }

    #[test]
    fn pages_on_free_lists_are_free() {
        let zoneinfo = "    cpu: 0\n              count:    2571\n    cpu: 1\n count: 29\n";
        let read = counters(10, 4, 900).with_free_lists(zoneinfo);
        assert_eq!(read.get("MemFree"), Some(900 + 2600 * 4));
    }

    #[test]
    fn one_table_is_a_leak_and_noise_is_not() {
        let before = counters(1000, 4, 90_000);
        assert!(leaks(&before, &counters(1256, 4, 88_000)).is_empty());
        assert!(leaks(&before, &counters(1257, 4, 90_000))[0].starts_with("Slab: 1000 -> 1257"));
        assert!(leaks(&before, &counters(1000, 8, 90_000))[0].starts_with("SecPageTables"));
        assert!(leaks(&before, &counters(1000, 4, 87_000))[0].starts_with("MemFree"));
    }

    #[test]
    fn getting_memory_back_is_no_leak() {
        assert!(leaks(&counters(1000, 8, 100), &counters(10, 4, 9000)).is_empty());
    }
}
