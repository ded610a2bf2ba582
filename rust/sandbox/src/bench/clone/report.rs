// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The table, and the same as JSON.

use std::path::Path;

use serde_json::{json, Value};

use super::{Seen, Times, MODES};
use crate::cli::show_size;

/// Everything measured.
pub(super) struct Report {
    /// What was cloned, in words.
    pub(super) guest: String,
    /// Clones in a burst.
    pub(super) count: usize,
    /// In the order of [`MODES`].
    pub(super) seen: [Seen; MODES.len()],
    /// The copies by hand.
    pub(super) floor: Times,
}

impl Report {
    /// Prints the table.
    pub(super) fn print(&self) {
        let head = [
            "mode",
            "run",
            "first output ms",
            "whole round ms",
            "memory each",
            "alone ms",
        ];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(MODES.iter().zip(&self.seen).map(|(mode, seen)| {
            [
                mode.name.to_owned(),
                format!("{} of {}", seen.first.count(), seen.started),
                both(&seen.first),
                both(&seen.round),
                show_size(seen.resident()),
                ms(seen.alone.median()),
            ]
        }));
        let dash = || "-".to_owned();
        lines.push([
            "cp".to_owned(),
            dash(),
            both(&self.floor),
            dash(),
            dash(),
            dash(),
        ]);
        println!("{} clones at once; guest: {}", self.count, self.guest);
        let width = |column: usize| {
            lines
                .iter()
                .map(|line| line[column].len())
                .max()
                .unwrap_or(0)
        };
        let widths = [0, 1, 2, 3, 4, 5].map(width);
        for [name, rest @ ..] in &lines {
            print!("{name:0$}", widths[0]);
            for (text, width) in rest.iter().zip(&widths[1..]) {
                print!("  {text:>width$}");
            }
            println!();
        }
        println!("times are p50 (p99); memory is the median proportional set size after the round");
        let [copy, mmap, ..] = &self.seen;
        println!(
            "mmap to copy: first output {:.3}, memory {:.3}",
            mmap.first.median() / copy.first.median(),
            mmap.resident() as f64 / copy.resident() as f64,
        );
    }

    /// Writes everything, every single figure included.
    pub(super) fn write(&self, path: &Path) -> Result<(), std::io::Error> {
        let modes = MODES.iter().zip(&self.seen).map(|(mode, seen)| {
            json!({
                "mode": mode.name,
                "started": seen.started,
                "run": seen.first.count(),
                "first_output": seen.first.to_json(),
                "round": seen.round.to_json(),
                "pss_bytes": { "median": seen.resident(), "all": seen.resident },
                "alone_first_output": seen.alone.to_json(),
            })
        });
        let all = json!({
            "schema": 1,
            "bench": "clone",
            "guest": self.guest,
            "count": self.count,
            "modes": modes.collect::<Vec<Value>>(),
            "cp": self.floor.to_json(),
        });
        std::fs::write(path, format!("{all:#}\n"))
    }
}

fn both(times: &Times) -> String {
    format!("{} ({})", ms(times.median()), ms(times.p99()))
}

fn ms(nanoseconds: f64) -> String {
    format!("{:.1}", nanoseconds / 1e6)
}
