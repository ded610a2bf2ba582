// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Whether the host has room for a guest while an earlier one is still going.

use std::fs;

use crate::api::ApiError;
use crate::config::MemoryConfig;
use crate::hugepages;
use crate::reaper::Reaper;

/// Waits until the host has what a guest needs, as long as releases are pending that
/// may provide it; then it is an error. On a host that does not say how much it has,
/// all pending releases are waited for instead.
pub fn admit(reaper: &Reaper, memory: &MemoryConfig) -> Result<(), ApiError> {
    let bytes = memory.size;
    loop {
        let pending = reaper.counters().pending_bytes;
        match available(memory) {
            Ok(available) if available >= bytes => return Ok(()),
            // Whatever is wrong with a pool, whoever maps the memory has the words.
            Err(Unknown) if pending == 0 => return Ok(()),
            Ok(available) if pending == 0 => {
                return Err(ApiError::NoMemory {
                    needed: bytes,
                    available,
                });
            }
            // Any release that ends lowers what is pending: look again then.
            _ => {
                let _ = reaper.wait_below(pending - 1, None);
            }
        }
    }
}

/// Nobody says how much there is, or it is not for us to say.
struct Unknown;

/// Bytes that a guest with such memory can have.
fn available(memory: &MemoryConfig) -> Result<u64, Unknown> {
    match memory.hugepages() {
        Some(page) => hugepages::check(page, memory.host_numa_node, memory.size)
            .map(|pool| pool.available().saturating_mul(page))
            .map_err(|_| Unknown),
        None => host_available().ok_or(Unknown),
    }
}

/// Bytes the host can give without swapping: what is free for all, or for this
/// process's control group if that is less.
fn host_available() -> Option<u64> {
    let host = fs::read_to_string("/proc/meminfo").ok()?;
    let host = meminfo_available(&host)?;
    Some(group_available().map_or(host, |group| host.min(group)))
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// Room below the limit of the unified control group, if there is a limit.
fn group_available() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let read = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(format!("/sys/fs/cgroup{group}/{name}")).ok()?;
        text.trim().parse().ok()
    };
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::reaper::Limits;

    fn memory(size: u64) -> MemoryConfig {
        MemoryConfig {
            size,
            ..Default::default()
        }
    }

    #[test]
    fn what_fits_is_admitted_and_what_never_will_is_refused() {
        let reaper = Reaper::new(Limits {
            bytes: 1 << 20,
            count: 1,
        });
        admit(&reaper, &memory(1 << 20)).unwrap();
        let error = admit(&reaper, &memory(1 << 60)).unwrap_err();
        assert!(matches!(error, ApiError::NoMemory { needed, .. } if needed == 1 << 60));
    }

    #[test]
    fn pending_releases_are_waited_for_before_refusing() {
        let reaper = Reaper::new(Limits {
            bytes: 1 << 20,
            count: 1,
        });
        let (open, opened) = channel::<()>();
        reaper.release("old", 1 << 20, move || {
            let _ = opened.recv();
            Ok(())
        });
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| admit(&reaper, &memory(1 << 60)));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!waiting.is_finished());
            drop(open);
            assert!(waiting.join().unwrap().is_err());
        });
    }

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal: 9 kB\nMemAvailable:   12345 kB\n";
        assert_eq!(meminfo_available(text), Some(12345 << 10));
    }
}
