// SPDX-License-Identifier: GPL-2.0

//! One measured result, as people and as programs read it.

use crate::host::Mode;
use crate::spec::Backing;
use crate::spec::Case;
use crate::spec::Guest;
use crate::spec::Order;
use crate::spec::Spec;
use crate::stats::Destroy;
use serde::Serialize;

/// What a nanosecond of the clock stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Time.
    Nanoseconds,
    /// Instructions, on a machine whose clock counts them.
    Instructions,
}

/// What user space measured, in clock ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Ticks {
    /// The end of the VM; what that spans depends on [`Order`].
    pub close: Option<u64>,
    /// Unmapping guest memory.
    pub unmap: Option<u64>,
}

/// One result. A figure that was not measured is `None`, never zero.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "the keys are the documented JSON schema")]
pub struct Row {
    pub mode: Mode,
    pub r#impl: String,
    pub case: Case,
    pub size_bytes: u64,
    pub ipa_bits: u32,
    pub pages: u64,
    pub destroy_insns: Option<u64>,
    pub insns_per_page: Option<f64>,
    pub close_insns: Option<u64>,
    pub tables_freed: Option<u64>,
    pub hypercalls: Option<u64>,
    pub tlbis: Option<u64>,
    pub rescheds: Option<u64>,
    pub max_stretch_insns: Option<u64>,
    pub max_el2_insns: Option<u64>,
    pub leaked: Option<u64>,
    pub atomics: Option<u64>,
    pub helper_calls: Option<u64>,
    pub table_bytes: Option<u64>,
    pub backing: Backing,
    pub order: Order,
    pub guest: Guest,
    pub vcpus: u64,
    pub unmap_insns: Option<u64>,
    pub destroy_ns: Option<u64>,
    pub close_ns: Option<u64>,
    pub unmap_ns: Option<u64>,
    #[serde(skip)]
    pub remark: Option<String>,
}

impl Row {
    /// Puts together what was asked, what was timed and what the kernel counted.
    pub fn new(spec: &Spec, host: (Mode, u32), unit: Unit, ticks: Ticks, destroy: &Destroy) -> Row {
        let (mode, ipa_bits) = host;
        let insns = |t: Option<u64>| t.filter(|_| unit == Unit::Instructions);
        let ns = |t: Option<u64>| t.filter(|_| unit == Unit::Nanoseconds);
        let pages = match spec.backing {
            Backing::Kernel => destroy.figure("pages").unwrap_or(spec.pages()),
            _ => spec.pages(),
        };
        let destroy_insns = insns(destroy.figure("ns"));
        // Unmapped first, the pages were gone when the destroy began.
        let there = pages > 0 && spec.order != Order::UnmapFirst;
        let per_page = |n| there.then(|| hundredths(n as f64 / pages as f64));
        Row {
            mode,
            r#impl: destroy.word("impl").unwrap_or("c").into(),
            case: spec.case,
            size_bytes: match (spec.backing, spec.case) {
                (Backing::Kernel, Case::Sparse) => 1 << ipa_bits,
                _ => spec.size,
            },
            ipa_bits,
            pages,
            destroy_insns,
            insns_per_page: destroy_insns.and_then(per_page),
            close_insns: insns(ticks.close),
            tables_freed: destroy.figure("tables"),
            hypercalls: destroy.figure("hypercalls"),
            tlbis: destroy.figure("tlbis"),
            rescheds: destroy.figure("rescheds"),
            max_stretch_insns: insns(destroy.figure("max_stretch_ns")),
            max_el2_insns: insns(destroy.figure("max_el2_ns")),
            leaked: destroy.figure("leaked"),
            atomics: destroy.figure("atomics"),
            helper_calls: destroy.figure("helper_calls"),
            table_bytes: destroy.figure("table_bytes"),
            backing: spec.backing,
            order: spec.order,
            guest: spec.guest,
            vcpus: spec.vcpus,
            unmap_insns: insns(ticks.unmap),
            destroy_ns: ns(destroy.figure("ns")),
            close_ns: ns(ticks.close),
            unmap_ns: ns(ticks.unmap),
            remark: None,
        }
    }

    /// The figures in one line for people.
    pub fn summary(&self) -> String {
        let pair = |insns: Option<u64>, ns: Option<u64>| {
            let counted = insns.map(|n| grouped(n) + " insns");
            counted.or(ns.map(|n| grouped(n) + " ns"))
        };
        let parts = [
            ("destroy", pair(self.destroy_insns, self.destroy_ns)),
            ("per page", self.insns_per_page.map(|n| n.to_string())),
            ("end of VM", pair(self.close_insns, self.close_ns)),
            ("munmap", pair(self.unmap_insns, self.unmap_ns)),
            ("tables", self.tables_freed.map(grouped)),
            ("hypercalls", self.hypercalls.map(grouped)),
        ];
        let known = parts.into_iter().filter_map(|(name, value)| {
            let value = value?;
            Some(format!("{name} {value}"))
        });
        let head = format!("{} pages, ipa {}", grouped(self.pages), self.ipa_bits);
        let all: Vec<String> = std::iter::once(head).chain(known).collect();
        all.join(", ")
    }
}

fn hundredths(n: f64) -> f64 {
    (n * 100.0).round() / 100.0
}

/// `1234567` as `1,234,567`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Spec {
        Spec {
            case: Case::OneMib,
            size: 1 << 20,
            ipa: None,
            backing: Backing::Page4k,
            order: Order::CloseFirst,
            guest: Guest::Normal,
            vcpus: 1,
        }
    }

    fn row(unit: Unit, figures: &str) -> Row {
        let ticks = Ticks {
            close: Some(50_900_000),
            unmap: Some(1000),
        };
        Row::new(
            &spec(),
            (Mode::Nvhe, 48),
            unit,
            ticks,
            &Destroy::parse(figures),
        )
    }

    #[test]
    fn keys_are_those_of_the_schema() {
        let json = serde_json::to_value(row(Unit::Instructions, "")).unwrap();
        for key in [
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
        ] {
            assert!(json.get(key).is_some(), "{key}");
        }
        let words = ["mode", "case", "backing", "order", "guest"].map(|k| json[k].as_str());
        assert_eq!(
            words,
            ["nvhe", "1m", "4k", "close-first", "normal"].map(Some)
        );
    }

    #[test]
    fn time_is_never_passed_off_as_instructions() {
        let time = row(Unit::Nanoseconds, "ns 512\nimpl rust\n");
        assert_eq!((time.close_insns, time.destroy_insns), (None, None));
        assert_eq!(
            (time.close_ns, time.destroy_ns),
            (Some(50_900_000), Some(512))
        );
        let insns = row(Unit::Instructions, "ns 512\nimpl rust\n");
        assert_eq!((insns.close_ns, insns.destroy_insns), (None, Some(512)));
        assert_eq!(insns.insns_per_page, Some(2.0));
        assert_eq!(insns.r#impl, "rust");
    }

    #[test]
    fn pages_that_were_gone_are_not_shared_out() {
        let mut spec = spec();
        spec.order = Order::UnmapFirst;
        let destroy = Destroy::parse("ns 512\n");
        let host = (Mode::Vhe, 48);
        let row = Row::new(&spec, host, Unit::Instructions, Ticks::default(), &destroy);
        assert_eq!((row.destroy_insns, row.insns_per_page), (Some(512), None));
    }

    #[test]
    fn what_was_not_measured_is_null() {
        let json = serde_json::to_value(row(Unit::Instructions, "tlbis -\nleaked 0\n")).unwrap();
        assert!(json["tlbis"].is_null() && json["destroy_insns"].is_null());
        assert_eq!(json["leaked"], 0);
        assert!(!row(Unit::Instructions, "").summary().contains("destroy"));
    }

    #[test]
    fn figures_are_grouped() {
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(50_900_000), "50,900,000");
    }
}
