// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The figures of a row by name.

use crate::row::Row;
use clap::ValueEnum;
use serde::Deserialize;
use std::fmt;

/// A figure that tables, pictures and limits can be about.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Metric {
    /// Instructions of the destroy itself.
    DestroyInsns,
    /// The same per 4 KiB page.
    InsnsPerPage,
    /// Instructions of the closing system call.
    CloseInsns,
    /// Instructions of unmapping guest memory.
    UnmapInsns,
    /// Nanoseconds of the destroy itself, where a clock counts those.
    DestroyNs,
    /// Nanoseconds of the closing system call.
    CloseNs,
    /// Nanoseconds of unmapping guest memory.
    UnmapNs,
    /// Table pages given back.
    TablesFreed,
    /// Calls into EL2.
    Hypercalls,
    /// TLB invalidations.
    Tlbis,
    /// Points where the CPU was offered to others.
    Rescheds,
    /// Longest stretch between two such points, in instructions.
    MaxStretchInsns,
    /// Longest stay at EL2, in instructions.
    MaxEl2Insns,
    /// Table pages that were not given back.
    Leaked,
    /// Atomic operations on reference counts of tables.
    Atomics,
    /// Calls to find, count or give up tables.
    HelperCalls,
    /// Bytes of tables that were read.
    TableBytes,
}

impl Metric {
    /// The figure of `row`, or `None` when it was not measured.
    pub fn of(self, row: &Row) -> Option<f64> {
        let count = match self {
            Metric::InsnsPerPage => return row.insns_per_page,
            Metric::DestroyInsns => row.destroy_insns,
            Metric::CloseInsns => row.close_insns,
            Metric::UnmapInsns => row.extra_count("unmap_insns"),
            Metric::DestroyNs => row.extra_count("destroy_ns"),
            Metric::CloseNs => row.extra_count("close_ns"),
            Metric::UnmapNs => row.extra_count("unmap_ns"),
            Metric::TablesFreed => row.tables_freed,
            Metric::Hypercalls => row.hypercalls,
            Metric::Tlbis => row.tlbis,
            Metric::Rescheds => row.rescheds,
            Metric::MaxStretchInsns => row.max_stretch_insns,
            Metric::MaxEl2Insns => row.max_el2_insns,
            Metric::Leaked => row.leaked,
            Metric::Atomics => row.extra_count("atomics"),
            Metric::HelperCalls => row.extra_count("helper_calls"),
            Metric::TableBytes => row.extra_count("table_bytes"),
        };
        count.map(|n| n as f64)
    }

    /// What one unit of the figure is, in the plural.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::InsnsPerPage => "instructions per page",
            Metric::DestroyNs | Metric::CloseNs | Metric::UnmapNs => "nanoseconds",
            Metric::TablesFreed | Metric::Leaked => "table pages",
            Metric::Hypercalls => "hypercalls",
            Metric::Tlbis => "TLB invalidations",
            Metric::Rescheds => "resched points",
            Metric::Atomics => "atomic operations",
            Metric::HelperCalls => "calls",
            Metric::TableBytes => "bytes",
            _ => "instructions",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.to_possible_value();
        f.pad(name.as_ref().map_or("", |value| value.get_name()))
    }
}
