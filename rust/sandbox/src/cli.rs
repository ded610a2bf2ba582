// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The command line.

mod clone;
mod control;
mod instance;
mod progress;
mod restoring;
mod run;
mod value;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

pub(crate) use instance::Target;
pub(crate) use progress::{bar, spinner};
pub(crate) use value::{parse_size, show_size};

use crate::bench::Bench;

/// What a command ends with; the message is for people.
pub(crate) type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Small virtual machines that pause without waiting for their memory.
#[derive(Debug, Parser)]
#[command(version, about, after_help = EXAMPLES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  sandbox run --id web --kernel bzImage --initramfs root.cpio --console
  sandbox pause --id web --snapshot /var/lib/web.snapshot
  sandbox restore --id web --snapshot /var/lib/web.snapshot --resume
  sandbox clone --id web --snapshot /var/lib/web.snapshot --count 64 --parallel 16
  sandbox bench pause --quick
  curl --unix-socket $XDG_RUNTIME_DIR/kvm_s2/web/api.sock http://x/api/v1/vm.info";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the VMM process of one VM, in the foreground
    Run(Box<run::Run>),
    /// Show what a VM is and what it is doing
    Info(control::Show),
    /// Show what has been released and what is pending
    Counters(control::Show),
    /// Stop a VM; with --snapshot, save it and give its memory back
    Pause(control::Pause),
    /// Set a paused VM in motion
    Resume(control::Plain),
    /// Save a paused VM, which stays paused
    Snapshot(control::Snapshot),
    /// Bring a VM back in a VMM process that has none
    Restore(control::Restore),
    /// Start VMs that all go on from one snapshot
    Clone(Box<clone::Clone>),
    /// Take a VM apart
    Delete(control::Delete),
    /// End a VMM process and its VM
    Shutdown(control::Plain),
    /// Measure
    #[command(subcommand)]
    Bench(Bench),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

impl Arguments {
    /// Does what was asked.
    pub(crate) fn run(self) -> Outcome {
        match self.command {
            Command::Run(run) => run.run(),
            Command::Info(show) => show.run("vm.info"),
            Command::Counters(show) => show.run("vm.counters"),
            Command::Pause(pause) => pause.run(),
            Command::Resume(plain) => plain.run("vm.resume"),
            Command::Snapshot(snapshot) => snapshot.run(),
            Command::Restore(restore) => restore.run(),
            Command::Clone(clone) => clone.run(),
            Command::Delete(delete) => delete.run(),
            Command::Shutdown(plain) => plain.run("vmm.shutdown"),
            Command::Bench(bench) => bench.run(),
            Command::Completions { shell } => {
                let mut command = Self::command();
                clap_complete::generate(shell, &mut command, "sandbox", &mut std::io::stdout());
                Ok(())
            }
        }
    }
}
