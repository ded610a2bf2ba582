// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox bench pause`: the table of what a pause reply waits for.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use sandbox::reaper::{Limits, Reaper};
use sandbox::vm::{restore, Release, RestoreOptions};

use super::guest::{touched, WorkDir};
use super::report::Report;
use super::stats::Times;
use super::{burst, turnover};
use crate::cli::{bar, parse_size, show_size, Outcome};

/// The guest that must not become slower by deferring.
const SMALL: u64 = 16 << 20;
/// Memory of the guest whose restore is timed.
const RESTORED: u64 = 64 << 20;
/// Restores for each run of the other cases: it is their noise that must be small.
const RESTORES: usize = 4;

const EXAMPLES: &str = "\
Runs with inline and deferred release take turns, so that drift of the machine
meets both alike. Times are wall-clock times of this machine. The last column is
where the ratio is in 95 of 100 resamplings of the runs: a change that cannot be
told from noise has 1 inside.

Examples:
  sandbox bench pause
  sandbox bench pause --quick --json pause.json
  sandbox bench pause --size 4G --thp --release-threads 2";

/// Options of `sandbox bench pause`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Pause {
    /// Memory of the single guest, all touched
    #[arg(long, value_parser = parse_size, default_value = "2G", value_name = "SIZE")]
    size: u64,
    /// Runs of each case
    #[arg(long, default_value_t = 12, value_name = "N")]
    runs: usize,
    /// VMM processes paused at once
    #[arg(long, default_value_t = 50, value_name = "N")]
    burst: usize,
    /// Memory of each of them
    #[arg(long, value_parser = parse_size, default_value = "128M", value_name = "SIZE")]
    burst_size: u64,
    /// Rounds of the burst for each case
    #[arg(long, default_value_t = 3, value_name = "N")]
    burst_rounds: usize,
    /// Allow transparent huge pages for the single guest
    #[arg(long)]
    thp: bool,
    /// Threads that give one guest's memory back
    #[arg(long, default_value_t = 1, value_name = "N")]
    release_threads: usize,
    /// Where snapshots go
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Small sizes and few runs: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Inline and deferred, in turns.
pub(super) const CASES: [Release; 2] = [Release::BeforeReply, Release::Deferred];

/// One figure under both.
#[derive(Debug, Default)]
pub(super) struct Pair {
    pub(super) inline: Times,
    pub(super) deferred: Times,
}

impl Pair {
    pub(super) fn of(&mut self, release: Release) -> &mut Times {
        match release {
            Release::BeforeReply => &mut self.inline,
            Release::Deferred => &mut self.deferred,
        }
    }
}

impl Pause {
    pub(super) fn run(&self) -> Outcome {
        let (size, runs, burst, rounds) = if self.quick {
            (self.size.min(256 << 20), 3, self.burst.min(8), 1)
        } else {
            (self.size, self.runs, self.burst, self.burst_rounds)
        };
        let dir = WorkDir::new(&self.dir).map_err(|e| e.to_string())?;
        let mut report = Report::default();
        let run = |e: Box<dyn std::error::Error + Send + Sync>| e.to_string();

        let (large, _) = self
            .teardown(&dir, size, runs, "large guest")
            .map_err(run)?;
        report.pair(
            &format!("{} guest: teardown share of the reply", show_size(size)),
            &large,
        );
        let (small, reply) = self
            .teardown(&dir, SMALL, runs, "small guest")
            .map_err(run)?;
        report.pair("16 MiB guest: teardown share of the reply", &small);
        report.pair("16 MiB guest: stop and teardown", &reply);
        let resumed = self.resume(&dir, runs * RESTORES).map_err(run)?;
        report.pair("64 MiB guest: restore after a pause", &resumed);
        if burst > 0 {
            let replies = burst::run(&dir, burst, self.burst_size, rounds).map_err(run)?;
            let name = format!(
                "{burst} pauses at once, {} each",
                show_size(self.burst_size)
            );
            report.means(&format!("{name}: reply"), &replies.reply);
            report.means(&format!("{name}: without the snapshot"), &replies.teardown);
        }
        report.turnover(&turnover::run(&dir, size / 4, runs.max(4)).map_err(run)?);
        let (guest, count) = (size / 16, 8);
        let seen = turnover::at_once(&dir, guest, count).map_err(run)?;
        report.at_once(count, &seen);
        report.print();
        if let Some(path) = &self.json {
            report.write(path)?;
        }
        Ok(())
    }

    /// Teardown alone, and with the stop before it; no snapshot in between.
    fn teardown(
        &self,
        dir: &WorkDir,
        bytes: u64,
        runs: usize,
        what: &str,
    ) -> Result<(Pair, Pair), Box<dyn std::error::Error + Send + Sync>> {
        let reaper = Reaper::new(Limits {
            bytes: u64::MAX,
            count: 1,
        });
        let (mut shares, mut replies) = (Pair::default(), Pair::default());
        let bar = bar(runs as u64 * 2, what);
        for run in 0..runs {
            for turn in 0..2 {
                // Whoever goes first may have it easier: that changes too.
                let release = CASES[(run + turn) % 2];
                let vm = touched(dir, bytes, self.thp, self.release_threads)?;
                let start = Instant::now();
                let vm = vm.pause();
                let stopped = start.elapsed();
                let report = vm.teardown(&reaper, what, release);
                let share = Duration::from_nanos(report.close_ns + report.release_ns);
                shares.of(release).push(share);
                replies.of(release).push(stopped + share);
                reaper.wait_released(None)?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        match reaper.failures().first() {
            Some(failure) => Err(failure.cause.to_string().into()),
            None => Ok((shares, replies)),
        }
    }

    /// Restore and resume right after a pause, while its memory may be going.
    fn resume(
        &self,
        dir: &WorkDir,
        runs: usize,
    ) -> Result<Pair, Box<dyn std::error::Error + Send + Sync>> {
        let reaper = Reaper::new(Limits {
            bytes: u64::MAX,
            count: 1,
        });
        let mut times = Pair::default();
        let snapshot = dir.fresh("snapshot");
        let bar = bar(runs as u64 * 2, "restore");
        for run in 0..runs {
            for turn in 0..2 {
                let release = CASES[(run + turn) % 2];
                let vm = touched(dir, RESTORED, false, 1)?.pause();
                vm.snapshot(&snapshot)?;
                let _ = vm.teardown(&reaper, "restore", release);
                let start = Instant::now();
                let vm = restore(&snapshot, &RestoreOptions::default())?.0.resume()?;
                times.of(release).push(start.elapsed());
                drop(vm);
                reaper.wait_released(None)?;
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        Ok(times)
    }
}
