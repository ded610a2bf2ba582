// SPDX-License-Identifier: GPL-2.0

//! A VM whose memory is reaped by another process while its own dies.

use crate::small;
use s2_selftests::holder;
use s2_selftests::host;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::process::Stdio;

/// Kills a process with a guest and reaps its memory, as a low-memory killer does.
pub(crate) fn end() -> Result<()> {
    // This process could run a guest, so that a skip there is a failure.
    let mut child = holder::start(holder::command().arg("--hold").stdin(Stdio::piped()))
        .map_err(|stop| Stop::Fail(format!("the holder said: {stop}")))?;
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
    match (reaped, error.raw_os_error()) {
        // Dead already: there is nothing left to reap, which is as good.
        (0, _) | (_, Some(libc::ESRCH)) => Ok(()),
        (_, Some(libc::ENOSYS)) => Err(Stop::Skip("no process_mrelease".into())),
        _ => Err(Stop::Fail(format!("process_mrelease: {error}"))),
    }
}

/// The holder's side: runs a guest and waits for its end.
pub(crate) fn hold() -> io::Result<()> {
    let guest = host::open_kvm().and_then(|kvm| small(&kvm));
    holder::hold(guest, holder::until_stdin_ends)
}
