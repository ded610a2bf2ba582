// SPDX-License-Identifier: GPL-2.0

//! A VM whose memory is reaped by another process while its own dies.

use crate::small;
use s2_selftests::host;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::io::BufRead;
use std::io::BufReader;
use std::io::Write;
use std::process::Command;
use std::process::Stdio;

const READY: &str = "ready";

/// Kills a process with a guest and reaps its memory, as a low-memory killer does.
pub(crate) fn end() -> Result<()> {
    let mut child = Command::new("/proc/self/exe")
        .arg("--hold")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Stop::failed("starting the holder"))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(Stop::failed("reading from the holder"))?;
    }
    // SAFETY: the call takes two numbers, and the child is not reaped yet.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    child.kill().map_err(Stop::failed("killing the holder"))?;
    // SAFETY: a descriptor and no flags.
    let reaped = unsafe { libc::syscall(libc::SYS_process_mrelease, pidfd, 0) };
    let error = io::Error::last_os_error();
    child
        .wait()
        .map_err(Stop::failed("waiting for the holder"))?;
    // SAFETY: the descriptor is ours and used no more.
    unsafe { libc::close(pidfd as libc::c_int) };
    match (line.trim(), reaped, error.raw_os_error()) {
        // Dead already: there is nothing left to reap, which is as good.
        (READY, 0, _) | (READY, _, Some(libc::ESRCH)) => Ok(()),
        (READY, _, Some(libc::ENOSYS)) => Err(Stop::Skip("no process_mrelease".into())),
        (READY, ..) => Err(Stop::Fail(format!("process_mrelease: {error}"))),
        (text, ..) => Err(Stop::Fail(format!("the holder said: {text}"))),
    }
}

/// The holder's side: runs a guest and waits for its end.
pub(crate) fn hold() -> io::Result<()> {
    let mut stdout = io::stdout();
    match host::open_kvm().and_then(|kvm| small(&kvm)) {
        Ok(_alive) => {
            writeln!(stdout, "{READY}")?;
            stdout.flush()?;
            io::copy(&mut io::stdin(), &mut io::sink()).map(|_| ())
        }
        Err(stop) => writeln!(stdout, "{stop}"),
    }
}
