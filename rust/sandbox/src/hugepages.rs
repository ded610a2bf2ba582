// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The host's pools of explicit huge pages: what is in them, and an error that says
//! what to do when it is too little.

use std::fs;
use std::path::{Path, PathBuf};

/// A pool has not enough, or is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// The host has no pages of this size.
    #[error(
        "the host has no huge pages of {}{}; it has {}", show(*.size), on(.node), sizes(.others)
    )]
    NoPool {
        /// Bytes of a page that was asked for.
        size: u64,
        /// The NUMA node, if one was named.
        node: Option<u32>,
        /// Sizes there are.
        others: Vec<u64>,
    },
    /// Too few are free.
    #[error(
        "{needed} huge pages of {} are needed and {available} are available{} (of {}, {} reserved \
         for others); delete guests, or: echo {} > {}", show(*.size), on(.node), .pool.total,
        .pool.reserved, .pool.total + .needed - .available, .knob.display()
    )]
    Short {
        /// Pages needed.
        needed: u64,
        /// Pages that can be had.
        available: u64,
        /// Bytes of a page.
        size: u64,
        /// The NUMA node, if one was named.
        node: Option<u32>,
        /// The pool as it was found.
        pool: Pool,
        /// Where to write the new total.
        knob: PathBuf,
    },
}

/// Pages of one size, on one node or all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages in the pool.
    pub total: u64,
    /// Pages that nobody uses.
    pub free: u64,
    /// Free pages that are promised to a mapping. Counted for all nodes together.
    pub reserved: u64,
    /// Pages that may be added beyond the total when they are needed.
    pub spare: u64,
}

impl Pool {
    /// Pages that a new mapping can have.
    pub fn available(&self) -> u64 {
        self.free.saturating_sub(self.reserved) + self.spare
    }
}

/// Makes sure that the pool has room for `bytes`. The answer is a snapshot: whoever
/// maps the memory must be ready for a refusal, and then comes here for the words.
pub fn check(page: u64, node: Option<u32>, bytes: u64) -> Result<Pool, PoolError> {
    check_in(Path::new("/sys"), page, node, bytes)
}

/// The error for a mapping that the kernel has refused.
pub fn refused(page: u64, node: Option<u32>, bytes: u64) -> PoolError {
    match read(Path::new("/sys"), page, node) {
        Ok((pool, knob)) => short(page, node, bytes, pool, knob),
        Err(error) => error,
    }
}

fn check_in(sys: &Path, page: u64, node: Option<u32>, bytes: u64) -> Result<Pool, PoolError> {
    let (pool, knob) = read(sys, page, node)?;
    if pool.available() >= bytes.div_ceil(page) {
        return Ok(pool);
    }
    Err(short(page, node, bytes, pool, knob))
}

fn short(page: u64, node: Option<u32>, bytes: u64, pool: Pool, knob: PathBuf) -> PoolError {
    PoolError::Short {
        needed: bytes.div_ceil(page),
        available: pool.available().min(bytes.div_ceil(page)),
        size: page,
        node,
        pool,
        knob,
    }
}

fn read(sys: &Path, page: u64, node: Option<u32>) -> Result<(Pool, PathBuf), PoolError> {
    let all = sys.join("kernel/mm/hugepages");
    let place = match node {
        Some(node) => sys.join(format!("devices/system/node/node{node}/hugepages")),
        None => all.clone(),
    };
    let name = format!("hugepages-{}kB", page >> 10);
    let number = |place: &Path, file: &str| -> Option<u64> {
        let text = fs::read_to_string(place.join(&name).join(file)).ok()?;
        text.trim().parse().ok()
    };
    let knob = place.join(&name).join("nr_hugepages");
    let Some(total) = number(&place, "nr_hugepages") else {
        let others = page_sizes(&place);
        return Err(PoolError::NoPool {
            size: page,
            node,
            others,
        });
    };
    let count = |place: &Path, file: &str| number(place, file).unwrap_or(0);
    let surplus = count(&all, "surplus_hugepages");
    let pool = Pool {
        total,
        free: count(&place, "free_hugepages"),
        reserved: count(&all, "resv_hugepages"),
        spare: match node {
            // Surplus pages come from wherever there is room.
            Some(_) => 0,
            None => count(&all, "nr_overcommit_hugepages").saturating_sub(surplus),
        },
    };
    Ok((pool, knob))
}

fn page_sizes(place: &Path) -> Vec<u64> {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let mut sizes: Vec<u64> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kib: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            Some(kib << 10)
        })
        .collect();
    sizes.sort_unstable();
    sizes
}

fn show(bytes: u64) -> String {
    match bytes >> 30 {
        0 => format!("{} MiB", bytes >> 20),
        gib => format!("{gib} GiB"),
    }
}

fn sizes(all: &[u64]) -> String {
    match all {
        [] => "none at all".to_owned(),
        all => all
            .iter()
            .map(|&bytes| show(bytes))
            .collect::<Vec<_>>()
            .join(" and "),
    }
}

fn on(node: &Option<u32>) -> String {
    node.map_or_else(String::new, |node| format!(" on NUMA node {node}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const M2: u64 = 2 << 20;

    /// A host with 100 pages of 2 MiB, 60 free and 20 of those promised; node 1 has 10 free.
    struct Sys(PathBuf);

    impl Sys {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("sandbox-{name}-{}", std::process::id()));
            let write = |place: &str, values: &[(&str, &str)]| {
                let place = path.join(place).join("hugepages-2048kB");
                fs::create_dir_all(&place).unwrap();
                for (file, value) in values {
                    fs::write(place.join(file), format!("{value}\n")).unwrap();
                }
            };
            write(
                "kernel/mm/hugepages",
                &[
                    ("nr_hugepages", "100"),
                    ("free_hugepages", "60"),
                    ("resv_hugepages", "20"),
                    ("nr_overcommit_hugepages", "7"),
                    ("surplus_hugepages", "2"),
                ],
            );
            write(
                "devices/system/node/node1/hugepages",
                &[("nr_hugepages", "50"), ("free_hugepages", "30")],
            );
            Self(path)
        }
    }

    impl Drop for Sys {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn what_is_promised_to_others_does_not_count_as_free() {
        let sys = Sys::new("pool");
        let pool = check_in(&sys.0, M2, None, 45 * M2).unwrap();
        assert_eq!(pool.available(), 60 - 20 + 7 - 2);
        let error = check_in(&sys.0, M2, None, 45 * M2 + 1).unwrap_err();
        let knob = sys
            .0
            .join("kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
        assert_eq!(
            error.to_string(),
            format!(
                "46 huge pages of 2 MiB are needed and 45 are available (of 100, 20 reserved for \
                 others); delete guests, or: echo 101 > {}",
                knob.display()
            )
        );
        check_in(&sys.0, M2, Some(1), 10 * M2).unwrap();
        let error = check_in(&sys.0, M2, Some(1), 11 * M2).unwrap_err();
        assert!(error.to_string().contains("on NUMA node 1"), "{error}");
    }

    #[test]
    fn a_missing_pool_is_named_with_those_there_are() {
        let sys = Sys::new("nopool");
        let error = check_in(&sys.0, 1 << 30, None, 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the host has no huge pages of 1 GiB; it has 2 MiB"
        );
        let error = check_in(&sys.0, M2, Some(9), 1).unwrap_err();
        assert!(error.to_string().contains("node 9; it has none"), "{error}");
    }
}
