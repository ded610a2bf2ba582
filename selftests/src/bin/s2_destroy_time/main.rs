// SPDX-License-Identifier: GPL-2.0

//! Times the end of KVM guests on arm64 and checks that nothing is left.

mod cycles;
mod held;
mod hold;
mod measure;
mod options;
mod plan;
mod report;

use clap::Parser;
use kvm_ioctls::Kvm;
use options::Impl;
use options::Options;
use report::Report;
use s2_selftests::host;
use s2_selftests::host::HugePool;
use s2_selftests::host::Mode;
use s2_selftests::row::Row;
use s2_selftests::row::Unit;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Spec;
use s2_selftests::stats;
use s2_selftests::stats::ImplGuard;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// What all tests of a run share.
struct Env {
    kvm: Kvm,
    mode: Mode,
    unit: Unit,
    settle: Duration,
    setup: bool,
    watch: bool,
    module: Option<PathBuf>,
}

impl Env {
    fn new(options: &Options) -> Result<Self> {
        Ok(Env {
            kvm: host::open_kvm()?,
            mode: host::mode(),
            unit: match options.insns {
                true => Unit::Instructions,
                false => Unit::Nanoseconds,
            },
            settle: Duration::from_secs(options.settle),
            setup: options.setup,
            watch: options.watch,
            module: options.module.clone(),
        })
    }

    /// Huge pages for one test, if it needs them and we may reserve them.
    fn huge_pool(&self, spec: &Spec) -> Result<Option<HugePool>> {
        match spec.backing {
            Backing::Hugetlb if self.setup => HugePool::reserve(spec.size).map(Some),
            _ => Ok(None),
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        // Nobody reads any more; there is nowhere to say so.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("s2_destroy_time: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<u8> {
    let specs = plan::specs(options);
    let tests: Vec<(String, &Spec)> = specs
        .iter()
        .flat_map(|spec| (1..=options.runs).map(move |run| (name(options, spec, run), spec)))
        .collect();
    let names: Vec<String> = tests.iter().map(|(name, _)| name.clone()).collect();
    if options.list {
        names.iter().for_each(|name| println!("{name}"));
        return Ok(0);
    }
    let env = Env::new(options);
    if let (true, Ok(env)) = (options.hold, &env) {
        return hold::hold(env, options).map(|()| 0);
    }
    let mut report = Report::start(options.json, tests.len())?;
    let ready = env.and_then(|env| Ok((choose(options.implementation)?, env)));
    let (_chosen, env) = match ready {
        Ok(ready) => ready,
        Err(stop) => return report.all(&names, &stop),
    };
    let (mode, destroy) = (env.mode, stats::current_impl());
    report.note(&format!("mode {mode}, destroy in {destroy}"))?;
    for (name, spec) in tests {
        report.test(&name, &test(&env, options, spec))?;
    }
    report.finish()
}

fn name(options: &Options, spec: &Spec, run: u32) -> String {
    let mut name = spec.to_string();
    if let Some(cycles) = options.cycles {
        name += &format!(" {cycles} cycles");
    }
    if options.runs > 1 {
        name += &format!(" run {run}");
    }
    name
}

fn choose(implementation: Impl) -> Result<Option<ImplGuard>> {
    match implementation {
        Impl::Current => Ok(None),
        Impl::Rust => ImplGuard::select("rust").map(Some),
        Impl::C => ImplGuard::select("c").map(Some),
    }
}

fn test(env: &Env, options: &Options, spec: &Spec) -> Result<Option<Row>> {
    match (spec.case, options.cycles) {
        (Case::HeldVcpuFd | Case::HeldKvmRun, Some(_)) => {
            Err(Stop::Skip("held cases are no cycles".into()))
        }
        (Case::HeldVcpuFd | Case::HeldKvmRun, None) => held::check(env, spec).map(|()| None),
        (_, Some(cycles)) => cycles::check(env, spec, cycles).map(|()| None),
        (_, None) => measure::row(env, spec).map(Some),
    }
}
