// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One burst: processes started as fast as this machine can, watched until each
//! guest has answered.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::guest::WorkDir;
use super::{memory_file, Failure, Mode, PATIENCE};

/// What is cloned.
pub(super) struct Origin<'a> {
    snapshot: &'a Path,
    /// Context id of its vsock device; clones need a socket each.
    vsock: Option<u32>,
}

impl<'a> Origin<'a> {
    /// Looks into the snapshot.
    pub(super) fn new(snapshot: &'a Path) -> Result<Self, Failure> {
        let config = sandbox::snapshot::load(snapshot)?.config;
        if !config.net.is_empty() {
            return Err("the guest has a network interface, and its clones would share it".into());
        }
        let vsock = config.vsock.map(|vsock| vsock.cid);
        Ok(Self { snapshot, vsock })
    }
}

/// What a clone did.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    /// To the first byte of its console.
    pub(super) first: Duration,
    /// To the next one.
    pub(super) round: Duration,
    /// Bytes of its proportional set size then.
    pub(super) resident: u64,
}

/// One clone; killed when it has been looked at.
struct Clone {
    child: Child,
    console: PathBuf,
    ended: bool,
    first: Option<Duration>,
    round: Option<Duration>,
}

/// Starts `count` clones at once. A clone that ends by itself or does not answer in
/// time has no answer.
pub(super) fn run(
    dir: &WorkDir,
    origin: &Origin<'_>,
    mode: Mode,
    count: usize,
) -> Result<Vec<Option<Answer>>, Failure> {
    let start = Instant::now();
    let mut clones = Vec::<Clone>::new();
    for _ in 0..count {
        clones.push(Clone::start(dir, origin, mode)?);
        // The first ones answer while the last ones are being started.
        for clone in clones.iter_mut().filter(|clone| clone.round.is_none()) {
            clone.look(start);
        }
    }
    let waiting = |clones: &[Clone]| clones.iter().any(|clone| clone.round.is_none());
    while waiting(&clones) && start.elapsed() < PATIENCE {
        let mut ended = 0;
        for clone in clones.iter_mut().filter(|clone| clone.round.is_none()) {
            clone.look(start);
            ended += usize::from(clone.round.is_none() && clone.has_ended());
        }
        if ended > 0 && ended == clones.iter().filter(|clone| clone.round.is_none()).count() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(clones.iter().map(Clone::answer).collect())
}

impl Clone {
    fn start(dir: &WorkDir, origin: &Origin<'_>, mode: Mode) -> Result<Self, Failure> {
        let console = dir.fresh("console");
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("run");
        if let Some(cid) = origin.vsock {
            let socket = dir.fresh("vsock");
            command.arg(format!("--vsock={cid},{}", socket.display()));
        }
        let child = command
            .arg("--api-socket")
            .arg(dir.fresh("api"))
            .arg("--restore")
            .arg(origin.snapshot)
            .arg("--clone-directory")
            .arg(dir.fresh("clone"))
            .args(mode.options)
            .arg("--console-file")
            .arg(&console)
            .stdin(Stdio::null())
            .spawn()?;
        Ok(Self {
            child,
            console,
            ended: false,
            first: None,
            round: None,
        })
    }

    fn look(&mut self, start: Instant) {
        let bytes = std::fs::metadata(&self.console).map_or(0, |file| file.len());
        let now = start.elapsed();
        if bytes > 0 {
            self.first.get_or_insert(now);
        }
        if bytes > 1 && !self.ended {
            self.round = Some(now);
            // It has done its part; the others should have the machine.
            self.signal(libc::SIGSTOP);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.ended = !matches!(self.child.try_wait(), Ok(None));
        self.ended
    }

    fn answer(&self) -> Option<Answer> {
        Some(Answer {
            first: self.first?,
            round: self.round?,
            resident: proportional(self.child.id())?,
        })
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a child that has not been waited for, so the number is still its.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }
}

impl Drop for Clone {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Proportional set size of a process, in bytes: a page that many map counts for
/// each of them in part.
fn proportional(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

/// What copying costs at least: as many `cp` of the memory file at once. The time of
/// each, from the start of the burst.
pub(super) fn copies(
    dir: &WorkDir,
    snapshot: &Path,
    count: usize,
) -> Result<Vec<Duration>, Failure> {
    let start = Instant::now();
    let places: Vec<_> = (0..count).map(|_| dir.fresh("copy")).collect();
    let mut running = Vec::new();
    for place in &places {
        let file = memory_file(snapshot);
        running.push(Command::new("cp").arg(file).arg(place).spawn()?);
    }
    let mut times = Vec::new();
    while !running.is_empty() {
        let mut still = Vec::new();
        for mut child in running {
            match child.try_wait()? {
                None => still.push(child),
                Some(status) if status.success() => times.push(start.elapsed()),
                Some(status) => return Err(format!("cp of the memory file: {status}").into()),
            }
        }
        running = still;
        std::thread::sleep(Duration::from_millis(1));
    }
    for place in places {
        std::fs::remove_file(place)?;
    }
    Ok(times)
}
