// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One aligned table of upstream against ours.

use crate::document::Document;
use crate::format::{count_or_dash, ratio, size};
use crate::metric::Metric;
use crate::pairs::{pair, Pair};
use crate::row::Impl;

const HEAD: [&str; 11] = [
    "mode",
    "case",
    "backing",
    "IPA",
    "size",
    "upstream",
    "ours",
    "ratio",
    "upstream/page",
    "ours/page",
    "leaked",
];
// Words to the left, numbers to the right.
const WORDS: usize = 3;

/// Renders `document` with `metric` as the compared figure.
pub fn render(document: &Document, metric: Metric) -> String {
    let pairs = pair(&document.rows);
    let lines: Vec<[String; 11]> = pairs.iter().map(|pair| cells(pair, metric)).collect();
    let head = HEAD.map(str::to_owned);
    let width = |column: usize| {
        let all = lines.iter().chain([&head]);
        all.map(|line| line[column].len()).max().unwrap_or(0)
    };
    let widths: [usize; 11] = std::array::from_fn(width);

    let kernel = document.kernel.as_deref().unwrap_or("(release not given)");
    let mut text = format!("kernel {kernel}: {metric}, in {}\n\n", metric.unit());
    if !document.host.is_empty() {
        let facts = document
            .host
            .iter()
            .map(|(name, words)| format!("{name}: {words}\n"));
        text.insert_str(text.len() - 1, &facts.collect::<String>());
    }
    text += &align(&head, &widths);
    for (i, line) in lines.iter().enumerate() {
        if i > 0 && pairs[i].key.mode != pairs[i - 1].key.mode {
            text.push('\n');
        }
        text += &align(line, &widths);
    }
    text
}

fn cells(pair: &Pair<'_>, metric: Metric) -> [String; 11] {
    let upstream = pair.figure(Impl::C, metric);
    let ours = pair.figure(Impl::Rust, metric);
    let leaked = |side| count_or_dash(pair.worst(side, Metric::Leaked));
    [
        pair.key.mode.to_string(),
        pair.key.case.clone(),
        pair.key.how(),
        pair.key.ipa_bits.to_string(),
        size(pair.key.size_bytes),
        count_or_dash(upstream),
        count_or_dash(ours),
        ratio(upstream, ours),
        count_or_dash(pair.per_page(Impl::C, metric)),
        count_or_dash(pair.per_page(Impl::Rust, metric)),
        format!("{}/{}", leaked(Impl::C), leaked(Impl::Rust)),
    ]
}

fn align(cells: &[String; 11], widths: &[usize; 11]) -> String {
    let mut line = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        if i < WORDS {
            line += &format!("{cell:<width$}  ");
        } else {
            line += &format!("{cell:>width$}  ");
        }
    }
    line.trim_end().to_owned() + "\n"
}
