// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a figure may be at most.

use crate::document::Document;
use crate::format::count;
use crate::metric::Metric;
use crate::pairs::{pair, Key};
use crate::row::{Backing, Guest, Impl, Mode, Order, Row};
use serde::Deserialize;
use std::fmt;

/// What a figure is divided by before it is judged.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(rename_all = "lowercase")]
pub enum Against {
    /// Nothing: the figure itself.
    #[default]
    Nothing,
    /// Upstream's figure for the same case.
    Upstream,
    /// The smallest figure of all rows that the limit is about.
    Smallest,
    /// The pages that were mapped.
    Pages,
}

/// A bound on one metric of all rows that it is about. An empty list means "any".
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The bounded figure.
    pub metric: Metric,
    /// The highest figure that is still good.
    pub max: f64,
    /// What the figure is divided by.
    #[serde(default)]
    pub against: Against,
    /// Which code: ours unless said otherwise.
    #[serde(rename = "impl", default = "ours")]
    pub implementations: Vec<Impl>,
    /// How the host kernel runs KVM.
    #[serde(rename = "mode", default)]
    pub modes: Vec<Mode>,
    /// Names of cases.
    #[serde(rename = "case", default)]
    pub cases: Vec<String>,
    /// What stands behind guest memory.
    #[serde(rename = "backing", default)]
    pub backings: Vec<Backing>,
    /// In which order things go away.
    #[serde(rename = "order", default)]
    pub orders: Vec<Order>,
    /// What kind of guest.
    #[serde(rename = "guest", default)]
    pub guests: Vec<Guest>,
    /// Widths of the guest's physical address space in bits.
    #[serde(default)]
    pub ipa_bits: Vec<u32>,
    /// Beginning of the kernel release, such as "7.3"; empty is every kernel.
    #[serde(default)]
    pub kernel: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitFile {
    limit: Vec<Limit>,
}

/// What became of a limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Every row keeps it; the highest figure of them.
    Good(f64),
    /// Some row is past it; the highest figure.
    Past(f64),
    /// There is a row, but its figure was not measured: nothing says that it is good.
    NotMeasured,
    /// No row is about it.
    NotRun,
}

fn ours() -> Vec<Impl> {
    vec![Impl::Rust]
}

/// Reads a file of `[[limit]]` entries.
///
/// # Errors
///
/// Points at the place in the file and says what is expected there.
pub fn parse(text: &str) -> Result<Vec<Limit>, toml::de::Error> {
    toml::from_str(text).map(|file: LimitFile| file.limit)
}

impl Limit {
    /// A bound on every row of `cases`, whoever destroyed.
    pub fn on_all(metric: Metric, max: f64, cases: Vec<String>) -> Limit {
        Limit {
            metric,
            max,
            against: Against::Nothing,
            implementations: Vec::new(),
            modes: Vec::new(),
            cases,
            backings: Vec::new(),
            orders: Vec::new(),
            guests: Vec::new(),
            ipa_bits: Vec::new(),
            kernel: String::new(),
        }
    }

    /// Judges the rows of `document` that the limit is about.
    pub fn judge(&self, document: &Document) -> Verdict {
        let release = document.kernel.as_deref().unwrap_or("");
        if !release.starts_with(&self.kernel) {
            return Verdict::NotRun;
        }
        let rows = document.rows.iter().filter(|row| self.is_about(row));
        let rows: Vec<&Row> = rows.collect();
        let figures = match self.against {
            Against::Nothing => rows.iter().map(|row| self.metric.of(row)).collect(),
            Against::Upstream => self.over_upstream(&rows, &document.rows),
            Against::Smallest => self.over_smallest(&rows),
            Against::Pages => rows.iter().map(|row| self.over_pages(row)).collect(),
        };
        if figures.is_empty() {
            return Verdict::NotRun;
        }
        let worst = figures.iter().flatten().copied().fold(f64::MIN, f64::max);
        if worst > self.max {
            Verdict::Past(worst)
        } else if figures.contains(&None) {
            Verdict::NotMeasured
        } else {
            Verdict::Good(worst)
        }
    }

    /// Rows without one of upstream's beside them have nothing to be judged by.
    fn over_upstream(&self, rows: &[&Row], all: &[Row]) -> Vec<Option<f64>> {
        let pairs = pair(all);
        let upstream = |row: &Row| {
            let pair = pairs.iter().find(|pair| pair.key == Key::of(row))?;
            pair.figure(Impl::C, self.metric)
        };
        let ratio = |row: &&Row| {
            let upstream = upstream(row)?;
            Some(self.metric.of(row).map(|figure| figure / upstream))
        };
        rows.iter().filter_map(ratio).collect()
    }

    /// One row alone shows no growth.
    fn over_smallest(&self, rows: &[&Row]) -> Vec<Option<f64>> {
        let figures: Vec<Option<f64>> = rows.iter().map(|row| self.metric.of(row)).collect();
        let smallest = figures.iter().flatten().copied().fold(f64::MAX, f64::min);
        match figures.len() {
            0 | 1 => Vec::new(),
            _ => figures.iter().map(|f| f.map(|f| f / smallest)).collect(),
        }
    }

    fn over_pages(&self, row: &Row) -> Option<f64> {
        let pages = row.pages.filter(|pages| *pages > 0)?;
        Some(self.metric.of(row)? / pages as f64)
    }

    fn is_about(&self, row: &Row) -> bool {
        fn any<T: PartialEq>(list: &[T], item: &T) -> bool {
            list.is_empty() || list.contains(item)
        }
        any(&self.implementations, &row.implementation)
            && any(&self.modes, &row.mode)
            && any(&self.cases, &row.case)
            && any(&self.backings, &row.backing)
            && (self.orders.is_empty() || row.order.is_some_and(|o| self.orders.contains(&o)))
            && any(&self.guests, &row.guest)
            && any(&self.ipa_bits, &row.ipa_bits)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut about: Vec<String> = Vec::new();
        if !self.kernel.is_empty() {
            about.push(format!("Linux {}", self.kernel));
        }
        about.extend(self.modes.iter().map(Mode::to_string));
        about.extend(self.cases.iter().cloned());
        about.extend(self.backings.iter().map(Backing::to_string));
        about.extend(self.orders.iter().map(Order::to_string));
        about.extend(self.guests.iter().map(|guest| format!("{guest} guest")));
        about.extend(self.ipa_bits.iter().map(|bits| format!("IPA {bits}")));
        if about.is_empty() {
            about.push("every case".into());
        }
        let of = match self.against {
            Against::Nothing => "",
            Against::Upstream => " over upstream's",
            Against::Smallest => " over the smallest",
            Against::Pages => " per page",
        };
        let max = count(self.max);
        write!(f, "{}: {}{of} at most {max}", about.join(" "), self.metric)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Good(worst) | Verdict::Past(worst) => write!(f, "is {}", count(*worst)),
            Verdict::NotMeasured => write!(f, "not measured"),
            Verdict::NotRun => write!(f, "not run"),
        }
    }
}

impl Verdict {
    /// The word that starts the line about a limit.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Good(_) => "ok  ",
            Verdict::Past(_) | Verdict::NotMeasured => "FAIL",
            Verdict::NotRun => "skip",
        }
    }

    /// Whether a run with this verdict fails.
    pub fn is_failure(self) -> bool {
        matches!(self, Verdict::Past(_) | Verdict::NotMeasured)
    }
}
