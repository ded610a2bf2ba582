// SPDX-License-Identifier: GPL-2.0

//! The ways a guest ends.

use crate::memory::Memory;
use crate::options::Options;
use crate::Env;
use kvm_ioctls::Kvm;
use s2_selftests::holder;
use s2_selftests::host;
use s2_selftests::spec::word;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::vm::Guest;
use s2_selftests::vm::Halted;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::fmt;
use std::fs;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

/// How a guest ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// vCPUs, VM, memory.
    CloseFirst,
    /// Memory, vCPUs, VM.
    UnmapFirst,
    /// With its process.
    Sigkill,
    /// With its process, which used more memory than it may.
    OomKill,
    /// As close-first, with dirty logging on.
    Logging,
}

impl End {
    pub(crate) const ALL: [End; 5] = [
        End::CloseFirst,
        End::UnmapFirst,
        End::Sigkill,
        End::OomKill,
        End::Logging,
    ];
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::CloseFirst => "close-first",
            End::UnmapFirst => "unmap-first",
            End::Sigkill => "sigkill",
            End::OomKill => "oom-kill",
            End::Logging => "logging",
        })
    }
}

/// A guest of that kind on all of `memory`, not run yet.
pub(crate) fn build(env: &Env, kind: Kind, memory: &Memory) -> Result<Guest> {
    build_on(&env.kvm, kind, memory.map()?)
}

fn build_on(kvm: &Kvm, kind: Kind, ram: s2_selftests::ram::GuestRam) -> Result<Guest> {
    let spec = Spec {
        case: Case::Dense4k,
        size: ram.len(),
        ipa: None,
        backing: Backing::Page4k,
        order: Order::CloseFirst,
        guest: kind,
        vcpus: 2,
    };
    let ipa_bits = spec.ipa_bits(host::ipa_limit(kvm))?;
    let touch = spec.touch().ok_or(Stop::Fail("nothing to touch".into()))?;
    Guest::build_on(ram, kvm, &spec, touch, ipa_bits)
}

/// Runs a guest of that kind on all of `memory`, and ends it.
pub(crate) fn live(env: &Env, kind: Kind, memory: &Memory, end: End) -> Result<()> {
    match end {
        End::Sigkill => kill(kind, memory),
        End::OomKill => starve(kind, memory),
        End::CloseFirst | End::UnmapFirst | End::Logging => {
            finish(build(env, kind, memory)?.run()?, end)
        }
    }
}

/// Ends a guest in this process.
pub(crate) fn finish(halted: Halted, end: End) -> Result<()> {
    if end == End::Logging {
        halted.log_dirty()?;
    }
    if end == End::UnmapFirst {
        halted.unmap_ram().0.close();
    } else {
        drop(halted.close_vcpus().close());
    }
    Ok(())
}

/// Starts a process whose guest has run when this returns.
fn start(kind: Kind, memory: &Memory, more: &[&str]) -> Result<Child> {
    let file = memory.file().try_clone().map_err(Stop::failed("dup"))?;
    let mut command = holder::command();
    command.args(["--hold", &word(kind)]).args(more);
    // This process has what the guest needs, so that a skip there is a failure.
    holder::start(command.stdin(Stdio::from(file)))
        .map_err(|stop| Stop::Fail(format!("the holder said: {stop}")))
}

fn kill(kind: Kind, memory: &Memory) -> Result<()> {
    let mut child = start(kind, memory, &[])?;
    let reaped = child.kill().and_then(|()| child.wait());
    reaped.map(drop).map_err(Stop::failed("killing the holder"))
}

const GROUP: &str = "/sys/fs/cgroup/s2_reuse";
const GROUP_BYTES: &str = "16M";

/// The holder goes to a small control group and asks for more than that has.
fn starve(kind: Kind, memory: &Memory) -> Result<()> {
    fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory")
        .and_then(|()| fs::create_dir_all(GROUP))
        .and_then(|()| fs::write(format!("{GROUP}/memory.max"), GROUP_BYTES))
        .map_err(Stop::missing("memory control group"))?;
    let status = start(kind, memory, &["--hungry"])
        .and_then(|mut child| child.wait().map_err(Stop::failed("waiting for the holder")));
    let events = fs::read_to_string(format!("{GROUP}/memory.events")).unwrap_or_default();
    let removed = fs::remove_dir(GROUP);
    if status?.signal() != Some(libc::SIGKILL) || events.contains("oom_kill 0\n") {
        return Err(Stop::Fail(format!("the holder was not starved: {events}")));
    }
    removed.map_err(Stop::failed("removing the control group"))
}

/// The holder's side: a guest on the file at stdin.
pub(crate) fn hold(kind: Kind, options: &Options) -> io::Result<()> {
    holder::hold(hold_guest(kind), |_alive| {
        if options.hungry {
            eat()?;
        }
        loop {
            thread::sleep(Duration::from_secs(1));
        }
    })
}

fn hold_guest(kind: Kind) -> Result<Halted> {
    let file = io::stdin().as_fd().try_clone_to_owned();
    let file = File::from(file.map_err(Stop::failed("dup"))?);
    let len = file.metadata().map_err(Stop::failed("fstat"))?.len();
    host::allow_locking(len)?;
    let ram = s2_selftests::ram::GuestRam::shared(&file, len)?;
    build_on(&host::open_kvm()?, kind, ram)?.run()
}

/// Uses memory until there is no more.
fn eat() -> io::Result<()> {
    fs::write(
        format!("{GROUP}/cgroup.procs"),
        std::process::id().to_string(),
    )?;
    let mut meals = Vec::new();
    for _ in 0..64 {
        meals.push(vec![1u8; 1 << 20]);
    }
    std::hint::black_box(&meals);
    Ok(())
}
