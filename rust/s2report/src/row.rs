// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One measured end of one guest, as the bench prints it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

/// Keys every row has, measured or null. A row that lacks one comes from another program.
pub const KEYS: [&str; 19] = [
    "mode",
    "impl",
    "case",
    "size_bytes",
    "ipa_bits",
    "pages",
    "destroy_insns",
    "insns_per_page",
    "close_insns",
    "tables_freed",
    "hypercalls",
    "tlbis",
    "rescheds",
    "max_stretch_insns",
    "max_el2_insns",
    "leaked",
    "backing",
    "order",
    "guest",
];

/// How the host kernel runs KVM.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The host kernel itself runs at EL2.
    Vhe,
    /// The host kernel runs at EL1 with a small part at EL2.
    Nvhe,
    /// As nVHE, and EL2 does not trust the host (pKVM).
    Protected,
}

/// Which code destroyed the tables.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Impl {
    /// The kernel's own code.
    C,
    /// This project's code.
    Rust,
}

/// What stood behind guest memory.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// Anonymous 4 KiB pages.
    #[serde(rename = "4k")]
    Small,
    /// Transparent huge pages.
    Thp,
    /// Pages of the hugetlb pool.
    Hugetlb,
    /// No guest: the kernel built the table itself.
    Kernel,
}

/// In which order the VM and its memory went away.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The VM was closed, then guest memory unmapped.
    CloseFirst,
    /// Guest memory was unmapped, then the VM closed.
    UnmapFirst,
    /// The process was killed.
    Sigkill,
}

/// What kind of guest was destroyed.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Guest {
    /// An ordinary VM.
    Normal,
    /// A VM whose memory the host may not see.
    Protected,
    /// A table without a VM.
    None,
}

/// One row. Figures are `None` when they were not measured.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Row {
    /// How the host kernel ran KVM.
    pub mode: Mode,
    /// Which code destroyed the tables.
    #[serde(rename = "impl")]
    pub implementation: Impl,
    /// Name of the case: lower-case letters, digits and dashes.
    pub case: String,
    /// Mapped guest memory in bytes.
    pub size_bytes: u64,
    /// Width of the guest's physical address space, 32..=52 bits.
    pub ipa_bits: u32,
    /// 4 KiB pages of guest memory that were mapped, by entries of whatever size.
    pub pages: Option<u64>,
    /// Instructions of the destroy itself.
    pub destroy_insns: Option<u64>,
    /// The same per page.
    pub insns_per_page: Option<f64>,
    /// Instructions of the closing system call.
    pub close_insns: Option<u64>,
    /// Table pages given back.
    pub tables_freed: Option<u64>,
    /// Calls into EL2.
    pub hypercalls: Option<u64>,
    /// TLB invalidations.
    pub tlbis: Option<u64>,
    /// Points where the CPU was offered to others.
    pub rescheds: Option<u64>,
    /// Longest stretch between two such points, in instructions.
    pub max_stretch_insns: Option<u64>,
    /// Longest stay at EL2, in instructions.
    pub max_el2_insns: Option<u64>,
    /// Table pages that were not given back.
    pub leaked: Option<u64>,
    /// What stood behind guest memory.
    pub backing: Backing,
    /// In which order things went away; null where there was no VM.
    pub order: Option<Order>,
    /// What kind of guest it was.
    pub guest: Guest,
    /// Whatever else the bench had to say; kept as it came.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Row {
    /// Reads a row from its JSON object.
    ///
    /// # Errors
    ///
    /// Says which key is missing, of the wrong kind or out of range.
    pub fn from_value(value: Value) -> Result<Row, String> {
        let Some(object) = value.as_object() else {
            return Err("a row is a JSON object".into());
        };
        if let Some(key) = KEYS.iter().find(|key| !object.contains_key(**key)) {
            return Err(format!("key `{key}` is missing"));
        }
        let row: Row = serde_json::from_value(value).map_err(|e| e.to_string())?;
        row.check()?;
        Ok(row)
    }

    /// A count that not every bench reports.
    pub fn extra_count(&self, key: &str) -> Option<u64> {
        self.extra.get(key).and_then(Value::as_u64)
    }

    fn check(&self) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.case.is_empty() || !self.case.chars().all(plain) {
            return Err(format!("`case` \"{}\" is not a plain name", self.case));
        }
        if !(32..=52).contains(&self.ipa_bits) {
            return Err(format!("`ipa_bits` {} is not in 32..=52", self.ipa_bits));
        }
        if self.insns_per_page.is_some_and(|x| x < 0.0) {
            return Err("`insns_per_page` is negative".into());
        }
        if self.insns_per_page.is_some() && self.pages.unwrap_or(0) == 0 {
            return Err("`insns_per_page` is given, but no `pages` to divide by".into());
        }
        Ok(())
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mode::Vhe => "vhe",
            Mode::Nvhe => "nvhe",
            Mode::Protected => "protected",
        })
    }
}

impl fmt::Display for Impl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Impl::C => "c",
            Impl::Rust => "rust",
        })
    }
}

impl fmt::Display for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Backing::Small => "4k",
            Backing::Thp => "thp",
            Backing::Hugetlb => "hugetlb",
            Backing::Kernel => "kernel",
        })
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Order::CloseFirst => "close-first",
            Order::UnmapFirst => "unmap-first",
            Order::Sigkill => "sigkill",
        })
    }
}

impl fmt::Display for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Guest::Normal => "normal",
            Guest::Protected => "protected",
            Guest::None => "no",
        })
    }
}
