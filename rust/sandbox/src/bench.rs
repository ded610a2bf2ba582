// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox bench`: the figures this project promises, measured on this machine.

mod burst;
mod clone;
mod guest;
mod interval;
mod pause;
mod report;
mod stats;
mod turnover;

use clap::Subcommand;

use crate::cli::Outcome;

/// What can be measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Bench {
    /// What a pause reply waits for, inline and deferred
    Pause(pause::Pause),
    /// How fast and how small clones are, in each restore mode
    Clone(clone::Clone),
}

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Self::Pause(pause) => pause.run(),
            Self::Clone(clone) => clone.run(),
        }
    }
}
