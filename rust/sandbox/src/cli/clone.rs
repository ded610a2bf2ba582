// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! `sandbox clone`: VMM processes that all go on from one snapshot.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use clap::Args;
use sandbox::api::Client;
use serde_json::{json, Value};

use super::restoring::Memory;
use super::{bar, Outcome};

/// A clone that does not answer by then has failed.
const PATIENCE: Duration = Duration::from_secs(120);

const EXAMPLES: &str = "\
Each clone is a VMM process of its own; `sandbox shutdown --id ID-0` ends one. The
words {id} and {number} in an option become the id and the number of the clone.

Clones of plain private memory map the snapshot's memory file. Each has a hard link
to it in a directory of its own, so the snapshot may be deleted while they run.

Examples:
  sandbox clone --snapshot /var/lib/web.snapshot --id web --count 64 --parallel 16
  sandbox clone --snapshot /var/lib/web.snapshot --id web --count 8 \\
      --net 'tap{number}' --vsock '3,/tmp/{id}.vsock' --console-file '/tmp/{id}.log'";

/// Options of `sandbox clone`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
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
    #[command(flatten)]
    memory: Memory,
    /// Where the clones' own directories go [default: SNAPSHOT.clones]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Disk file of each clone, instead of the snapshot's; may be repeated
    #[arg(long, value_name = "DISK")]
    disk: Vec<String>,
    /// Tap of each clone; may be repeated
    #[arg(long, value_name = "TAP")]
    net: Vec<String>,
    /// Vsock device of each clone, as CID,SOCKET
    #[arg(long, value_name = "VSOCK")]
    vsock: Option<String>,
    /// File for the console of each clone
    #[arg(long, value_name = "FILE")]
    console_file: Option<String>,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// What became of one clone: how its memory came, or why it failed.
type Started = Result<Value, String>;

impl Clone {
    pub(super) fn run(&self) -> Outcome {
        let start = Instant::now();
        let all = self.start_all();
        let failed = all.values().filter(|started| started.is_err()).count();
        if self.json {
            println!("{}", self.to_json(&all));
        } else {
            self.show(&all, start.elapsed());
        }
        match failed {
            0 => Ok(()),
            _ => Err(format!("{failed} of {} clones failed", self.count).into()),
        }
    }

    fn start_all(&self) -> BTreeMap<u32, Started> {
        let bar = bar(u64::from(self.count), "cloning");
        let next = AtomicU32::new(0);
        let all = Mutex::new(BTreeMap::new());
        std::thread::scope(|scope| {
            for _ in 0..self.parallel.clamp(1, self.count.max(1)) {
                scope.spawn(|| loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= self.count {
                        break;
                    }
                    let started = self.start(number);
                    let mut all = all.lock().unwrap_or_else(|e| e.into_inner());
                    all.insert(number, started);
                    bar.inc(1);
                });
            }
        });
        bar.finish_and_clear();
        all.into_inner().unwrap_or_else(|e| e.into_inner())
    }

    /// Starts one and waits until it answers.
    fn start(&self, number: u32) -> Started {
        let id = self.id_of(number);
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let child = Command::new(program)
            .args(["run", "--id", &id, "--restore"])
            .arg(&self.snapshot)
            .arg("--clone-directory")
            .arg(self.directory().join(&id))
            .args(self.memory.arguments())
            .args(self.own(number, &id))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // What is typed at this terminal later is not meant for the clones.
            .process_group(0)
            .spawn()
            .map_err(|e| e.to_string())?;
        let client = Client::new(&super::instance::socket_of(&id));
        wait_answer(child, &client)?;
        let info = client.get("vm.info").map_err(|e| e.to_string())?;
        let info: Value = serde_json::from_str(&info).map_err(|e| e.to_string())?;
        Ok(info["memory_mode"].clone())
    }

    /// Options for what only this clone has.
    fn own(&self, number: u32, id: &str) -> Vec<String> {
        let option = |name: &str, value: &String| {
            let value = value.replace("{id}", id);
            [
                name.to_owned(),
                value.replace("{number}", &number.to_string()),
            ]
        };
        let disks = self.disk.iter().map(|disk| option("--disk", disk));
        let taps = self.net.iter().map(|tap| option("--net", tap));
        let vsock = self.vsock.iter().map(|vsock| option("--vsock", vsock));
        let console = self
            .console_file
            .iter()
            .map(|file| option("--console-file", file));
        disks
            .chain(taps)
            .chain(vsock)
            .chain(console)
            .flatten()
            .collect()
    }

    fn id_of(&self, number: u32) -> String {
        format!("{}-{number}", self.id)
    }

    /// Beside the snapshot, because a hard link stays on its file system.
    fn directory(&self) -> PathBuf {
        self.dir.clone().unwrap_or_else(|| {
            // Without a trailing slash, which would make it a name inside.
            let mut name = self.snapshot.components().as_path().as_os_str().to_owned();
            name.push(".clones");
            name.into()
        })
    }

    fn show(&self, all: &BTreeMap<u32, Started>, time: Duration) {
        let mut kinds = BTreeMap::<String, usize>::new();
        for (number, started) in all {
            match started {
                Ok(memory) => {
                    let notes = memory["notes"].as_array().into_iter().flatten();
                    let notes: Vec<_> = notes.filter_map(Value::as_str).collect();
                    let mode = memory["effective"].as_str().unwrap_or("unknown");
                    let own = self.id_of(*number);
                    let text = format!("{mode} {}", notes.join("; ").replace(&own, "ID"));
                    *kinds.entry(text.trim().to_owned()).or_default() += 1;
                }
                Err(reason) => eprintln!("{}: {reason}", self.id_of(*number)),
            }
        }
        for (kind, count) in kinds {
            println!("{count} clones run: {kind}");
        }
        println!("{:.1} ms until all had answered", time.as_secs_f64() * 1e3);
    }

    fn to_json(&self, all: &BTreeMap<u32, Started>) -> Value {
        let clones = all.iter().map(|(number, started)| match started {
            Ok(memory) => json!({ "id": self.id_of(*number), "memory_mode": memory }),
            Err(reason) => json!({ "id": self.id_of(*number), "error": reason }),
        });
        Value::Array(clones.collect())
    }
}

fn wait_answer(mut child: Child, client: &Client) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if child.try_wait().map_err(|e| e.to_string())?.is_some() {
            let output = child.wait_with_output().map_err(|e| e.to_string())?;
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        // Whoever answers has the id; if it is another process, ours has ended.
        if answers(client, child.id()) {
            return Ok(());
        }
        if Instant::now() > deadline {
            // It has had its chance, and nobody would know of it.
            let _ = child.kill();
            let _ = child.wait();
            return Err("it does not answer".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn answers(client: &Client, pid: u32) -> bool {
    let Ok(reply) = client.get("vmm.ping") else {
        return false;
    };
    serde_json::from_str::<Value>(&reply).is_ok_and(|reply| reply["pid"] == pid)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_help_shows_what_may_be_typed() {
        let mut command = crate::cli::Arguments::command();
        let clone = command.find_subcommand_mut("clone").unwrap();
        let help = clone.render_long_help().to_string();
        assert!(help.contains("--net 'tap{number}'"), "{help}");
    }
}
