// SPDX-License-Identifier: GPL-2.0

//! Memory of a guest that ended, used again by the next one.
//!
//! A page that a destroy left in the wrong state cannot be given to a guest of the
//! other kind, still shows what a protected guest wrote, or is lost.

mod end;
mod faults;
mod memory;
mod options;
mod reuse;

use clap::Parser;
use kvm_ioctls::Kvm;
use options::Impl;
use options::Options;
use reuse::Test;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::ktap::Ktap;
use s2_selftests::stats;
use s2_selftests::stats::ImplGuard;
use s2_selftests::Result;
use std::io;
use std::process::ExitCode;

/// What all tests of a run share.
struct Env {
    kvm: Kvm,
    mode: Mode,
    size: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let code = match options.hold {
        Some(kind) => end::hold(kind, &options).map(|()| 0),
        None => run(&options),
    };
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("s2_reuse: {error}");
            ExitCode::FAILURE
        }
    }
}

fn env(options: &Options) -> Result<Env> {
    host::allow_locking(options.size)?;
    Ok(Env {
        kvm: host::open_kvm()?,
        mode: host::mode(),
        size: options.size,
    })
}

fn choose(implementation: Impl) -> Result<Option<ImplGuard>> {
    match implementation {
        Impl::Current => Ok(None),
        Impl::Rust => ImplGuard::select("rust").map(Some),
        Impl::C => ImplGuard::select("c").map(Some),
    }
}

fn run(options: &Options) -> io::Result<u8> {
    let tests = Test::all();
    let mut ktap = Ktap::start(io::stdout(), tests.len())?;
    let ready = env(options).and_then(|env| Ok((choose(options.implementation)?, env)));
    let (_chosen, env) = match ready {
        Ok(ready) => ready,
        Err(stop) => {
            for test in &tests {
                ktap.verdict(&test.to_string(), &Err::<(), _>(stop.clone()))?;
            }
            return ktap.finish();
        }
    };
    let (mode, destroy) = (env.mode, stats::current_impl());
    ktap.note(&format!("mode {mode}, destroy in {destroy}"))?;
    for test in &tests {
        ktap.verdict(&test.to_string(), &test.check(&env))?;
    }
    ktap.finish()
}
