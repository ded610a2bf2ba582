// SPDX-License-Identifier: GPL-2.0

//! A process that holds a guest, so that both can end together.
//!
//! It is this program again, and says on its stdout in one line what became of the guest.

use crate::Result;
use crate::Stop;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

const READY: &str = "ready";
const SKIP: &str = "skip ";

/// This program again; the caller adds arguments and what it reads from.
pub fn command() -> Command {
    Command::new("/proc/self/exe")
}

/// Starts the holder, whose guest has run when this returns.
///
/// # Errors
///
/// What the holder says, once it is gone: [`Stop::Skip`] or [`Stop::Fail`].
pub fn start(command: &mut Command) -> Result<Child> {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Stop::failed("starting the holder"))?;
    let mut line = String::new();
    let read = match child.stdout.take() {
        Some(stdout) => BufReader::new(stdout).read_line(&mut line),
        None => Ok(0),
    };
    if let (Ok(_), READY) = (&read, line.trim()) {
        return Ok(child);
    }
    // It is gone already, or of no use.
    let _ = child.kill();
    let _ = child.wait();
    read.map_err(Stop::failed("reading from the holder"))?;
    Err(match line.trim().strip_prefix(SKIP) {
        Some(reason) => Stop::Skip(reason.into()),
        None => Stop::Fail(format!("the holder said: {}", line.trim())),
    })
}

/// The holder's side: says what became of the guest, and keeps it while `wait` runs.
///
/// # Errors
///
/// When stdout cannot be written, and those of `wait`.
pub fn hold<T>(guest: Result<T>, wait: impl FnOnce(T) -> io::Result<()>) -> io::Result<()> {
    let mut stdout = io::stdout();
    match guest {
        Ok(guest) => {
            writeln!(stdout, "{READY}")?;
            stdout.flush()?;
            wait(guest)
        }
        Err(Stop::Skip(reason)) => writeln!(stdout, "{SKIP}{reason}"),
        Err(Stop::Fail(reason)) => writeln!(stdout, "{reason}"),
    }
}

/// Waits until whoever started this is gone, which ends the pipe it reads from.
///
/// # Errors
///
/// When stdin cannot be read.
pub fn until_stdin_ends<T>(guest: T) -> io::Result<()> {
    io::copy(&mut io::stdin(), &mut io::sink())?;
    drop(guest);
    Ok(())
}
