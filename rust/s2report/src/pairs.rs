// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Upstream's row beside ours for the same case.

use crate::format;
use crate::metric::Metric;
use crate::row::{Backing, Guest, Impl, Mode, Order, Row};

/// What must be equal for two rows to be comparable.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Key {
    /// How the host kernel ran KVM.
    pub mode: Mode,
    /// Name of the case.
    pub case: String,
    /// What stood behind guest memory.
    pub backing: Backing,
    /// In which order things went away.
    pub order: Option<Order>,
    /// What kind of guest it was.
    pub guest: Guest,
    /// Width of the guest's physical address space in bits.
    pub ipa_bits: u32,
    /// Mapped guest memory in bytes.
    pub size_bytes: u64,
}

impl Key {
    /// The key of one row.
    pub fn of(row: &Row) -> Key {
        Key {
            mode: row.mode,
            case: row.case.clone(),
            backing: row.backing,
            order: row.order,
            guest: row.guest,
            ipa_bits: row.ipa_bits,
            size_bytes: row.size_bytes,
        }
    }

    /// Backing, and what is out of the ordinary: order and kind of guest.
    pub fn how(&self) -> String {
        let mut how = self.backing.to_string();
        if self.guest == Guest::Protected {
            how += ", protected";
        }
        match self.order {
            Some(Order::UnmapFirst) => how += ", unmap first",
            Some(Order::Sigkill) => how += ", sigkill",
            Some(Order::CloseFirst) | None => {}
        }
        how
    }

    /// Case and size in a few words.
    pub fn what(&self) -> String {
        match self.size_bytes {
            0 => self.case.clone(),
            bytes => format!("{}, {}", self.case, format::size(bytes)),
        }
    }
}

/// Rows of one case, by implementation. Either side may be empty.
#[derive(Debug)]
pub struct Pair<'a> {
    /// What the rows have in common.
    pub key: Key,
    rows: Vec<&'a Row>,
}

impl Pair<'_> {
    /// The median figure of one side, or `None` when it was not measured there.
    pub fn figure(&self, side: Impl, metric: Metric) -> Option<f64> {
        self.median(side, |row| metric.of(row))
    }

    /// As [`Pair::figure`], divided by the pages of its row.
    pub fn per_page(&self, side: Impl, metric: Metric) -> Option<f64> {
        self.median(side, |row| {
            let pages = row.pages.filter(|pages| *pages > 0)?;
            Some(metric.of(row)? / pages as f64)
        })
    }

    /// The highest figure of one side: one leak among many runs must not hide behind a median.
    pub fn worst(&self, side: Impl, metric: Metric) -> Option<f64> {
        self.figures(side, |row| metric.of(row)).last().copied()
    }

    // The lower of the two middle values: a figure that some run really had.
    fn median(&self, side: Impl, figure: impl Fn(&Row) -> Option<f64>) -> Option<f64> {
        let figures = self.figures(side, figure);
        figures.get(figures.len().checked_sub(1)? / 2).copied()
    }

    // In rising order.
    fn figures(&self, side: Impl, figure: impl Fn(&Row) -> Option<f64>) -> Vec<f64> {
        let of_side = self.rows.iter().filter(|row| row.implementation == side);
        let mut figures: Vec<f64> = of_side.filter_map(|row| figure(row)).collect();
        figures.sort_by(f64::total_cmp);
        figures
    }
}

/// Groups rows by case; modes in their own order, cases in order of first appearance.
pub fn pair(rows: &[Row]) -> Vec<Pair<'_>> {
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for row in rows {
        let key = Key::of(row);
        match pairs.iter_mut().find(|pair| pair.key == key) {
            Some(pair) => pair.rows.push(row),
            None => pairs.push(Pair {
                key,
                rows: vec![row],
            }),
        }
    }
    pairs.sort_by_key(|pair| pair.key.mode);
    pairs
}
