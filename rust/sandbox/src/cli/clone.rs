// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox clone`: VMM processes that all go on from one snapshot.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use sandbox::api::Client;

use super::control::Mode;
use super::{bar, Outcome};

/// A clone that does not answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `sandbox clone`.
#[derive(Debug, Args)]
pub(super) struct Clone {
    /// Directory to read
    #[arg(long, value_name = "DIR")]
    snapshot: PathBuf,
    /// Ids are this with -0, -1, ... appended
    #[arg(long)]
    id: String,
    /// VMs to start
    #[arg(long, default_value_t = 1, value_name = "N")]
    count: u32,
    /// How many are started at once
    #[arg(long, default_value_t = 4, value_name = "N")]
    parallel: u32,
    /// How their memory comes from the snapshot
    #[arg(long, value_enum, default_value = "mmap")]
    memory_mode: Mode,
}

impl Clone {
    pub(super) fn run(&self) -> Outcome {
        let bar = bar(u64::from(self.count), "cloning");
        let next = AtomicU32::new(0);
        let failures = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..self.parallel.clamp(1, self.count.max(1)) {
                scope.spawn(|| loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.count {
                        break;
                    }
                    let id = format!("{}-{number}", self.id);
                    if let Err(error) = self.start(&id) {
                        let mut failures = failures.lock().unwrap_or_else(|e| e.into_inner());
                        failures.push(format!("{id}: {error}"));
                    }
                    bar.inc(1);
                });
            }
        });
        bar.finish_and_clear();
        let failures = failures.into_inner().unwrap_or_else(|e| e.into_inner());
        if failures.is_empty() {
            return Ok(());
        }
        let all = failures.join("\n  ");
        Err(format!(
            "{} of {} clones failed:\n  {all}",
            failures.len(),
            self.count
        )
        .into())
    }

    /// Starts one and waits until it answers.
    fn start(&self, id: &str) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mode = match self.memory_mode {
            Mode::Copy => "copy",
            Mode::Mmap => "mmap",
        };
        let child = Command::new(program)
            .args(["run", "--id", id, "--memory-mode", mode, "--restore"])
            .arg(&self.snapshot)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        wait_answer(child, &Client::new(&super::instance::socket_of(id)))
    }
}

fn wait_answer(mut child: Child, client: &Client) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if client.get("vmm.ping").is_ok() {
            return Ok(());
        }
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            let output = child.wait_with_output().map_err(|e| e.to_string())?;
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        if Instant::now() > deadline {
            // It has had its chance, and nobody would know of it.
            let _ = child.kill();
            return Err("it does not answer".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
