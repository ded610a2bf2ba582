// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Commands for a VMM process that runs already.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use sandbox::api::Client;
use serde_json::{json, Value};

use super::restoring::{show_notes, Memory};
use super::{spinner, Outcome, Target};

/// A command without options of its own.
#[derive(Debug, Args)]
pub(super) struct Plain {
    #[command(flatten)]
    target: Target,
}

/// A command that prints what it is told.
#[derive(Debug, Args)]
pub(super) struct Show {
    #[command(flatten)]
    target: Target,
    /// One line of JSON instead of an indented text
    #[arg(long)]
    json: bool,
}

/// When memory goes back to the host.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReleaseWhen {
    /// After the reply, within the bounds of the VMM process
    Deferred,
    /// Before the reply
    BeforeReply,
}

#[derive(Debug, Args)]
pub(super) struct Pause {
    #[command(flatten)]
    target: Target,
    /// Save the VM in this directory and take it apart
    #[arg(long, value_name = "DIR")]
    snapshot: Option<PathBuf>,
    /// When its memory goes back to the host
    #[arg(long, value_enum, default_value = "deferred", requires = "snapshot")]
    release: ReleaseWhen,
    /// Print the reply as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct Snapshot {
    #[command(flatten)]
    target: Target,
    /// Directory to write
    #[arg(long, value_name = "DIR")]
    snapshot: PathBuf,
}

#[derive(Debug, Args)]
pub(super) struct Restore {
    #[command(flatten)]
    target: Target,
    /// Directory to read
    #[arg(long, value_name = "DIR")]
    snapshot: PathBuf,
    #[command(flatten)]
    memory: Memory,
    /// Set it in motion too
    #[arg(long)]
    resume: bool,
}

#[derive(Debug, Args)]
pub(super) struct Delete {
    #[command(flatten)]
    target: Target,
    /// When its memory goes back to the host
    #[arg(long, value_enum, default_value = "deferred")]
    release: ReleaseWhen,
}

impl Plain {
    pub(super) fn run(&self, name: &str) -> Outcome {
        client(&self.target).put(name, "")?;
        Ok(())
    }
}

impl Show {
    pub(super) fn run(&self, name: &str) -> Outcome {
        let reply = client(&self.target).get(name)?;
        if self.json {
            println!("{reply}");
        } else {
            let value: Value = serde_json::from_str(&reply)?;
            println!("{value:#}");
        }
        Ok(())
    }
}

impl Pause {
    pub(super) fn run(&self) -> Outcome {
        let Some(directory) = &self.snapshot else {
            client(&self.target).put("vm.pause", "")?;
            return Ok(());
        };
        let body = json!({
            "destination_url": file_url(directory)?,
            "release": word(self.release),
        });
        let spinner = spinner(format!("pausing {}", self.target.name()));
        let reply = client(&self.target).put("vm.pause", &body.to_string())?;
        spinner.finish_and_clear();
        if self.json {
            println!("{reply}");
            return Ok(());
        }
        let reply: Value = serde_json::from_str(&reply)?;
        let milliseconds = |pointer: &str| reply.pointer(pointer).map_or(0.0, as_milliseconds);
        println!(
            "stopped {:.2} ms, saved {:.2} ms, closed {:.2} ms, memory {:.2} ms ({})",
            milliseconds("/stop_ns"),
            milliseconds("/snapshot_ns"),
            milliseconds("/teardown/close_ns"),
            milliseconds("/teardown/release_ns"),
            reply["teardown"]["release"],
        );
        Ok(())
    }
}

impl Snapshot {
    pub(super) fn run(&self) -> Outcome {
        let body = json!({ "destination_url": file_url(&self.snapshot)? });
        let spinner = spinner(format!("saving {}", self.target.name()));
        client(&self.target).put("vm.snapshot", &body.to_string())?;
        spinner.finish_and_clear();
        Ok(())
    }
}

impl Restore {
    pub(super) fn run(&self) -> Outcome {
        let mut body = restore_body(&self.snapshot, self.memory)?;
        body["resume"] = self.resume.into();
        let spinner = spinner(format!("restoring {}", self.target.name()));
        let plan = client(&self.target).put("vm.restore", &body.to_string())?;
        spinner.finish_and_clear();
        show_notes(&serde_json::from_str(&plan)?);
        Ok(())
    }
}

impl Delete {
    pub(super) fn run(&self) -> Outcome {
        let body = json!({ "release": word(self.release) });
        client(&self.target).put("vm.delete", &body.to_string())?;
        Ok(())
    }
}

/// Body of `vm.restore`.
pub(super) fn restore_body(directory: &Path, memory: Memory) -> Result<Value, std::io::Error> {
    let mut body = json!({ "source_url": file_url(directory)? });
    for (name, value) in memory.fields() {
        body[name] = value;
    }
    Ok(body)
}

fn client(target: &Target) -> Client {
    Client::new(&target.socket())
}

/// The path as the VMM process will see it, which may run elsewhere.
fn file_url(path: &Path) -> Result<String, std::io::Error> {
    Ok(format!("file://{}", std::path::absolute(path)?.display()))
}

pub(super) fn word(value: impl ValueEnum) -> String {
    value
        .to_possible_value()
        .map_or_else(String::new, |value| value.get_name().to_owned())
}

fn as_milliseconds(nanoseconds: &Value) -> f64 {
    nanoseconds.as_f64().unwrap_or(0.0) / 1e6
}
