// SPDX-License-Identifier: GPL-2.0

//! What the kernel component says about a destroy, and which one it runs.

use crate::Result;
use crate::Stop;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const LAST: &str = "/sys/kernel/debug/kvm_s2/last";
const WATCH: &str = "/sys/kernel/debug/kvm_s2/watch";
const IMPL: &str = "/sys/module/kvm_s2/parameters/impl";

/// Figures of one destroy, as the kernel's debugfs file gives them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destroy(BTreeMap<String, String>);

impl Destroy {
    /// Reads `key value` lines.
    pub fn parse(text: &str) -> Self {
        let entry = |line: &str| {
            let (key, value) = line.split_once(char::is_whitespace)?;
            Some((key.to_owned(), value.trim().to_owned()))
        };
        Destroy(text.lines().filter_map(entry).collect())
    }

    /// A figure, or `None` when the kernel did not measure it (`-`).
    pub fn figure(&self, key: &str) -> Option<u64> {
        self.0.get(key)?.parse().ok()
    }

    /// Takes over figures that were measured elsewhere.
    pub fn take(&mut self, other: &Destroy, keys: &[&str]) {
        for key in keys {
            if let Some(value) = other.0.get(*key) {
                self.0.insert((*key).into(), value.clone());
            }
        }
    }

    /// A word, such as the implementation's name.
    pub fn word(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// Marks a point in time, to find the destroy that comes after it.
#[derive(Debug, Clone, Copy)]
pub struct Mark(Option<u64>);

impl Mark {
    /// Remembers the number of the last destroy so far.
    pub fn now() -> Self {
        Mark(last().and_then(|d| d.figure("seq")))
    }

    /// The one destroy since the mark.
    ///
    /// `None` when the kernel has no component, when nothing was destroyed, or
    /// when another VM ended meanwhile and the figures could be its own.
    pub fn only_destroy(&self) -> Option<Destroy> {
        let destroy = last()?;
        (destroy.figure("seq") == self.0.map(|seq| seq + 1)).then_some(destroy)
    }

    /// Whether anything was destroyed since the mark; `None` if unknowable.
    pub fn any_destroy(&self) -> Option<bool> {
        Some(last()?.figure("seq")? != self.0?)
    }
}

fn last() -> Option<Destroy> {
    Some(Destroy::parse(&fs::read_to_string(LAST).ok()?))
}

/// The implementation that runs now: `rust` or `c`. A kernel without the
/// component has upstream's, which is `c`.
pub fn current_impl() -> String {
    fs::read_to_string(IMPL).map_or("c".into(), |text| text.trim().into())
}

/// Selects an implementation until it is dropped, then puts the old one back.
#[derive(Debug)]
pub struct ImplGuard {
    old: Option<String>,
}

impl ImplGuard {
    /// Selects `name`, which is `rust` or `c`.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel has no such implementation or does not
    /// let us choose; [`Stop::Fail`] when it says it did and did not.
    pub fn select(name: &str) -> Result<Self> {
        if current_impl() == name {
            return Ok(ImplGuard { old: None });
        }
        if !Path::new(IMPL).exists() {
            return Err(Stop::Skip(format!("no `{name}` in this kernel: no {IMPL}")));
        }
        let old = Some(current_impl());
        fs::write(IMPL, name).map_err(Stop::missing(IMPL))?;
        match current_impl() {
            now if now == name => Ok(ImplGuard { old }),
            now => Err(Stop::Fail(format!("wrote {name} to {IMPL}, read {now}"))),
        }
    }
}

impl Drop for ImplGuard {
    fn drop(&mut self) {
        if let Some(old) = &self.old {
            if let Err(error) = fs::write(IMPL, old) {
                eprintln!("# {IMPL} could not be put back to {old}: {error}");
            }
        }
    }
}

/// What the kernel looks at while upstream's destroy works, which then takes longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// How long it is between two chances to schedule.
    Steps = 1,
    /// What is done to tables, and how much of them is read.
    Tables = 2,
}

/// Has the kernel watch until it is dropped.
#[derive(Debug)]
pub struct WatchGuard;

impl WatchGuard {
    /// Chooses what to look at. `None` where the kernel has no bench built in.
    ///
    /// # Errors
    ///
    /// [`Stop::Skip`] when the kernel has one and does not let us choose.
    pub fn start(watch: Watch) -> Result<Option<Self>> {
        if !Path::new(WATCH).exists() {
            return Ok(None);
        }
        fs::write(WATCH, (watch as u32).to_string()).map_err(Stop::missing(WATCH))?;
        Ok(Some(WatchGuard))
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        if let Err(error) = fs::write(WATCH, "0") {
            eprintln!("# {WATCH} could not be put back: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_not_a_figure() {
        let d = Destroy::parse("seq 7\nimpl rust\nns  1200\nleaves 65536\nmax_el2_ns -\n");
        assert_eq!(d.figure("seq"), Some(7));
        assert_eq!(d.figure("ns"), Some(1200));
        assert_eq!(d.figure("max_el2_ns"), None);
        assert_eq!(d.figure("absent"), None);
        assert_eq!(d.word("impl"), Some("rust"));
    }

    #[test]
    fn only_what_is_named_is_taken_over() {
        let mut d = Destroy::parse("ns 1200\natomics -\n");
        d.take(
            &Destroy::parse("ns 9\natomics 600\n"),
            &["atomics", "tlbis"],
        );
        assert_eq!(d, Destroy::parse("ns 1200\natomics 600\n"));
    }

    #[test]
    fn an_empty_file_has_no_figures() {
        assert_eq!(Destroy::parse(""), Destroy::default());
    }
}
