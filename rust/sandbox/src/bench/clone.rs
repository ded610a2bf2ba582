// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox bench clone`: many clones of one snapshot at the same moment.

mod burst;
mod picture;
mod report;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use sandbox::config::Afterwards;
use sandbox::vm::PausedVm;

use super::guest::{self, WorkDir};
use super::stats::Times;
use crate::cli::{bar, parse_size, show_size, Outcome};
use report::Report;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const EXAMPLES: &str = "\
Starts VMM processes that all go on from one snapshot, and waits for the first byte
of each guest's console and for a whole round of its working set after that. Then
the process is stopped, so that it takes no time from the others, and its memory is
looked at. Modes take turns. Times are wall-clock times of this machine, from the
start of the burst.

With --snapshot the guest is whatever that snapshot is of; it must write to its
console from time to time, and have no network interface. Its clones share its disks.

Examples:
  sandbox bench clone
  sandbox bench clone --quick
  sandbox bench clone --size 512M --count 16 --json clone.json --svg clone.svg
  sandbox bench clone --snapshot /var/lib/web.snapshot";

/// Options of `sandbox bench clone`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Clone {
    /// Clones started at once
    #[arg(long, default_value_t = 64, value_name = "N")]
    count: usize,
    /// Memory of the guest, all touched
    #[arg(long, value_parser = parse_size, default_value = "128M", value_name = "SIZE")]
    size: u64,
    /// What it writes in each round [default: 1/32 of its memory]
    #[arg(long, value_parser = parse_size, value_name = "SIZE")]
    working_set: Option<u64>,
    /// Bursts in each mode
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: usize,
    /// Clones started alone in each mode
    #[arg(long, default_value_t = 5, value_name = "N")]
    alone: usize,
    /// Clone this snapshot instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["size", "working_set"])]
    snapshot: Option<PathBuf>,
    /// Where the snapshot, consoles and copies go
    #[arg(long, default_value = "/dev/shm", value_name = "DIR")]
    dir: PathBuf,
    /// Few and small: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Also write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also draw how many had answered when
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A way to bring memory back, as options of `sandbox run`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) name: &'static str,
    pub(super) options: &'static [&'static str],
}

pub(super) const MODES: [Mode; 4] = [
    Mode {
        name: "copy",
        options: &["--memory-mode", "copy"],
    },
    Mode {
        name: "mmap",
        options: &["--memory-mode", "mmap"],
    },
    Mode {
        name: "on-demand",
        options: &["--memory-mode", "on-demand"],
    },
    Mode {
        name: "on-demand, no prefetch",
        options: &["--memory-mode", "on-demand", "--no-prefetch"],
    },
];

/// What was seen in one mode, of all bursts together.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Clones started in bursts.
    pub(super) started: usize,
    /// To the first byte of a clone's console.
    pub(super) first: Times,
    /// To the end of a whole round.
    pub(super) round: Times,
    /// Proportional set size then, in bytes.
    pub(super) resident: Vec<u64>,
    /// To the first byte of a clone that is alone.
    pub(super) alone: Times,
}

impl Clone {
    pub(super) fn run(&self) -> Outcome {
        let (count, rounds, alone) = match self.quick {
            true => (self.count.min(8), 1, 1),
            false => (self.count, self.rounds, self.alone),
        };
        self.measure(count, rounds, alone)
            .map_err(|error| error.to_string())?;
        Ok(())
    }

    fn measure(&self, count: usize, rounds: usize, alone: usize) -> Result<(), Failure> {
        let dir = WorkDir::new(&self.dir)?;
        let (snapshot, guest) = match &self.snapshot {
            Some(place) => (place.clone(), place.display().to_string()),
            None => self.make_snapshot(&dir)?,
        };
        let origin = burst::Origin::new(&snapshot)?;
        let mut seen = MODES.map(|_| Seen::default());
        let bar = bar((MODES.len() * (rounds + alone) + rounds) as u64, "clones");
        for run in 0..rounds.max(alone) {
            for turn in 0..MODES.len() {
                // Whoever goes first may have it easier: that changes too.
                let index = (run + turn) % MODES.len();
                if run < alone {
                    let answers = burst::run(&dir, &origin, MODES[index], 1)?;
                    for answer in answers.into_iter().flatten() {
                        seen[index].alone.push(answer.first);
                    }
                    bar.inc(1);
                }
                if run < rounds {
                    let answers = burst::run(&dir, &origin, MODES[index], count)?;
                    seen[index].add(&answers);
                    bar.inc(1);
                }
            }
        }
        let mut floor = Times::default();
        for _ in 0..rounds {
            for time in burst::copies(&dir, &snapshot, count)? {
                floor.push(time);
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        let report = Report {
            guest,
            count,
            seen,
            floor,
        };
        report.print();
        if let Some(path) = &self.json {
            report.write(path)?;
        }
        match &self.svg {
            Some(path) => picture::draw(&report, path),
            None => Ok(()),
        }
    }

    /// Saves a guest that has touched everything and goes round its working set.
    fn make_snapshot(&self, dir: &WorkDir) -> Result<(PathBuf, String), Failure> {
        let size = match self.quick {
            true => self.size.min(32 << 20),
            false => self.size,
        };
        let set = self.working_set.unwrap_or(size / 32);
        let (place, console) = (dir.fresh("snapshot"), dir.fresh("console"));
        let mut config = guest::config(size, false, &console);
        if let Some(builtin) = &mut config.payload.builtin {
            builtin.then = Afterwards::Beat;
            builtin.working_set = Some(set);
        }
        let vm = PausedVm::create(config)?.resume()?;
        guest::wait_touched(&console)?;
        vm.pause().snapshot(&place)?;
        let words = format!(
            "{} touched, {} of it written again",
            show_size(size),
            show_size(set)
        );
        Ok((place, words))
    }
}

impl Seen {
    fn add(&mut self, answers: &[Option<burst::Answer>]) {
        self.started += answers.len();
        for answer in answers.iter().flatten() {
            self.first.push(answer.first);
            self.round.push(answer.round);
            self.resident.push(answer.resident);
        }
    }

    /// The median.
    pub(super) fn resident(&self) -> u64 {
        let mut sorted = self.resident.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or(0)
    }
}

/// The memory file of a snapshot.
fn memory_file(snapshot: &Path) -> PathBuf {
    snapshot.join(sandbox::snapshot::MEMORY_FILE)
}

/// A clone that has not answered by then has failed.
const PATIENCE: Duration = Duration::from_secs(300);
