// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Many VMM processes, each with a touched guest, paused at the same moment.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use sandbox::api::Client;
use sandbox::vm::Release;
use serde_json::{json, Value};

use super::guest::{config, wait_touched, WorkDir};
use super::pause::{Pair, CASES};
use crate::cli::bar;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the clients saw.
#[derive(Debug, Default)]
pub(super) struct Replies {
    /// From request to reply, with a durable snapshot in it.
    pub(super) reply: Pair,
    /// Stop and teardown of that, by the VMM's own clock.
    pub(super) teardown: Pair,
}

/// Pauses `count` guests at once, `rounds` times for each case in turns.
pub(super) fn run(
    dir: &WorkDir,
    count: usize,
    bytes: u64,
    rounds: usize,
) -> Result<Replies, Failure> {
    let mut replies = Replies::default();
    let bar = bar(rounds as u64 * 2, "burst");
    for round in 0..rounds {
        for turn in 0..2 {
            let release = CASES[(round + turn) % 2];
            let vmms = (0..count)
                .map(|_| Vmm::start(dir, bytes))
                .collect::<Result<Vec<_>, _>>()?;
            for vmm in &vmms {
                wait_touched(&vmm.console)?;
            }
            for (reply, teardown) in pause_all(&vmms, release)? {
                replies.reply.of(release).push(reply);
                replies.teardown.of(release).push(teardown);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    Ok(replies)
}

fn pause_all(vmms: &[Vmm], release: Release) -> Result<Vec<(Duration, Duration)>, Failure> {
    let barrier = Barrier::new(vmms.len());
    std::thread::scope(|scope| {
        let threads: Vec<_> = vmms
            .iter()
            .map(|vmm| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    vmm.pause(release)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a client panicked")?)
            .collect()
    })
}

/// One VMM process.
struct Vmm {
    child: Child,
    client: Client,
    console: PathBuf,
    snapshot: PathBuf,
}

impl Vmm {
    fn start(dir: &WorkDir, bytes: u64) -> Result<Self, Failure> {
        let (socket, console) = (dir.fresh("api"), dir.fresh("console"));
        let child = Command::new(std::env::current_exe()?)
            .args(["run", "--api-socket"])
            .arg(&socket)
            .stdin(Stdio::null())
            .spawn()?;
        let vmm = Self {
            child,
            client: Client::new(&socket),
            console,
            snapshot: dir.fresh("snapshot"),
        };
        while vmm.client.get("vmm.ping").is_err() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let config = serde_json::to_string(&config(bytes, false, &vmm.console))?;
        vmm.client.put("vm.create", &config)?;
        vmm.client.put("vm.boot", "")?;
        Ok(vmm)
    }

    fn pause(&self, release: Release) -> Result<(Duration, Duration), Failure> {
        let body = json!({
            "destination_url": format!("file://{}", self.snapshot.display()),
            "release": release,
        });
        let start = Instant::now();
        let text = self.client.put("vm.pause", &body.to_string())?;
        let reply = start.elapsed();
        let text: Value = serde_json::from_str(&text)?;
        let part = |pointer: &str| text.pointer(pointer).and_then(Value::as_u64);
        let sum = ["/stop_ns", "/teardown/close_ns", "/teardown/release_ns"]
            .iter()
            .filter_map(|pointer| part(pointer))
            .sum();
        Ok((reply, Duration::from_nanos(sum)))
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        // Nothing is left in it but the memory it may still be giving back.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.snapshot);
    }
}
