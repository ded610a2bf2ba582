// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What `run`, `restore` and `clone` have in common when a snapshot comes back.

use clap::{Args, ValueEnum};
use serde_json::Value;

/// How memory comes from a snapshot.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Mode {
    /// Mmap for a clone of plain private memory, else copy
    Auto,
    /// Read all of it before the guest runs
    Copy,
    /// Map it privately and read what is touched
    Mmap,
    /// Load what is touched with userfaultfd; an error where that is not permitted
    OnDemand,
    /// The same, or auto where that is not permitted
    PreferOnDemand,
}

/// Options about the memory of a restored VM.
#[derive(Clone, Copy, Debug, Args)]
pub(super) struct Memory {
    /// How memory comes from the snapshot
    #[arg(long, value_enum, default_value = "auto")]
    memory_mode: Mode,
    /// With on-demand, never load what is not touched
    #[arg(long)]
    no_prefetch: bool,
}

impl Memory {
    /// The fields of a request to restore.
    pub(super) fn fields(self) -> [(&'static str, Value); 2] {
        [
            ("memory_mode", super::control::word(self.memory_mode).into()),
            ("no_prefetch", self.no_prefetch.into()),
        ]
    }

    /// The same as options of `sandbox run`.
    pub(super) fn arguments(self) -> Vec<String> {
        let mut arguments = vec![
            "--memory-mode".to_owned(),
            super::control::word(self.memory_mode),
        ];
        if self.no_prefetch {
            arguments.push("--no-prefetch".to_owned());
        }
        arguments
    }
}

/// Tells people what the VMM noted about the memory.
pub(super) fn show_notes(plan: &Value) {
    for note in plan["notes"].as_array().into_iter().flatten() {
        eprintln!("sandbox: {}", note.as_str().unwrap_or_default());
    }
}
