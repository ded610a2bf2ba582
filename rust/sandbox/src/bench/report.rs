// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The table, and the same as JSON.

use std::path::Path;

use serde_json::{json, Value};

use super::interval;
use super::pause::Pair;
use super::turnover::Turnover;
use crate::cli::show_size;

const HEAD: [&str; 6] = [
    "measure",
    "n",
    "inline ms",
    "deferred ms",
    "ratio",
    "95% of ratios",
];

/// Everything measured, in the order it was.
#[derive(Debug, Default)]
pub(super) struct Report {
    lines: Vec<[String; 6]>,
    rows: Vec<Value>,
    notes: Vec<String>,
}

impl Report {
    /// Medians and p99 of a figure.
    pub(super) fn pair(&mut self, name: &str, pair: &Pair) {
        let show = |median: f64, p99: f64| format!("{} ({})", ms(median), ms(p99));
        self.line(
            (name, "median (p99)"),
            pair,
            show(pair.inline.median(), pair.inline.p99()),
            show(pair.deferred.median(), pair.deferred.p99()),
            pair.deferred.median() / pair.inline.median(),
            interval::of_ratio(&pair.inline, &pair.deferred),
        );
    }

    /// Averages and p99 of a figure. The guests of one round depend on each other,
    /// so there is no interval.
    pub(super) fn means(&mut self, name: &str, pair: &Pair) {
        let show = |mean: f64, p99: f64| format!("{} ({})", ms(mean), ms(p99));
        self.line(
            (name, "average (p99)"),
            pair,
            show(pair.inline.mean(), pair.inline.p99()),
            show(pair.deferred.mean(), pair.deferred.p99()),
            pair.deferred.mean() / pair.inline.mean(),
            None,
        );
    }

    /// What was pending and resident while guests replaced each other.
    pub(super) fn turnover(&mut self, seen: &Turnover) {
        let allowed = seen.bound + seen.guest;
        self.notes.push(format!(
            "{} guests one after another: pending at most {} of {} allowed, resident at most {} \
             (bound and one guest: {}); {} deferred, {} inline",
            show_size(seen.guest),
            show_size(seen.peak_pending),
            show_size(seen.bound),
            show_size(seen.peak_resident),
            show_size(allowed),
            seen.placed.0,
            seen.placed.1,
        ));
        self.rows.push(json!({
            "measure": "turnover",
            "guest_bytes": seen.guest,
            "bound_bytes": seen.bound,
            "peak_pending_bytes": seen.peak_pending,
            "peak_resident_bytes": seen.peak_resident,
            "deferred": seen.placed.0,
            "inline": seen.placed.1,
        }));
    }

    /// What was pending when many guests ended at once.
    pub(super) fn at_once(&mut self, count: usize, seen: &Turnover) {
        self.notes.push(format!(
            "{count} guests of {} ended at once: pending at most {} of {} allowed; {} deferred, {} \
             inline",
            show_size(seen.guest),
            show_size(seen.peak_pending),
            show_size(seen.bound),
            seen.placed.0,
            seen.placed.1,
        ));
        self.rows.push(json!({
            "measure": "at once",
            "guests": count,
            "guest_bytes": seen.guest,
            "bound_bytes": seen.bound,
            "peak_pending_bytes": seen.peak_pending,
            "resident_bytes": seen.peak_resident,
            "deferred": seen.placed.0,
            "inline": seen.placed.1,
        }));
    }

    /// Prints the table.
    pub(super) fn print(&self) {
        let head = HEAD.map(str::to_owned);
        let all: Vec<_> = std::iter::once(&head).chain(&self.lines).collect();
        let width = |column: usize| all.iter().map(|line| line[column].len()).max().unwrap_or(0);
        let widths = [0, 1, 2, 3, 4, 5].map(width);
        for line in all {
            let [name, n, inline, deferred, ratio, range] = line;
            let [w0, w1, w2, w3, w4, w5] = widths;
            println!(
                "{name:w0$}  {n:>w1$}  {inline:>w2$}  {deferred:>w3$}  {ratio:>w4$}  {range:>w5$}"
            );
        }
        for note in &self.notes {
            println!("{note}");
        }
    }

    /// Writes everything, every single time included.
    pub(super) fn write(&self, path: &Path) -> Result<(), std::io::Error> {
        let all = json!({ "schema": 1, "bench": "pause", "rows": self.rows });
        std::fs::write(path, format!("{all:#}\n"))
    }

    fn line(
        &mut self,
        (name, kind): (&str, &str),
        pair: &Pair,
        inline: String,
        deferred: String,
        ratio: f64,
        range: Option<(f64, f64)>,
    ) {
        let shown = range.map_or("-".to_owned(), |(low, high)| format!("{low:.3}-{high:.3}"));
        self.lines.push([
            format!("{name}, {kind}"),
            pair.inline.count().to_string(),
            inline,
            deferred,
            format!("{ratio:.3}"),
            shown,
        ]);
        self.rows.push(json!({
            "measure": name,
            "inline": pair.inline.to_json(),
            "deferred": pair.deferred.to_json(),
            "ratio": ratio,
            "ratio_95": range.map(|(low, high)| [low, high]),
        }));
    }
}

fn ms(nanoseconds: f64) -> String {
    format!("{:.2}", nanoseconds / 1e6)
}
