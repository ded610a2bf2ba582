// SPDX-License-Identifier: GPL-2.0

//! How long a task waits for the CPU on which a stage-2 table is destroyed.

mod waiter;

use clap::Parser;
use clap::ValueEnum;
use s2_selftests::kmod;
use s2_selftests::size;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::stats::current_impl;
use s2_selftests::stats::ImplGuard;
use s2_selftests::stats::Mark;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::path::PathBuf;
use std::process::ExitCode;
use waiter::Priority;
use waiter::Waiter;

/// Measures how long a task that wakes up every so often waits for its CPU while
/// a stage-2 table, built by module kvm_s2_bench, is destroyed on that CPU.
///
/// Prints one JSON object. Exit code 0 is a figure, 1 a failure, 2 bad usage, 4
/// says that this machine cannot tell.
#[derive(Debug, Parser)]
#[command(name = "s2_destroy_wait", version, after_help = EXAMPLES)]
struct Options {
    /// What is mapped: empty, dense-4k, dense-2m or sparse
    #[arg(long, default_value = "dense-4k")]
    case: Case,

    /// Guest address space the dense cases map
    #[arg(long, default_value = "1G", value_parser = size::parse, value_name = "BYTES")]
    size: u64,

    /// Bits of guest address space
    #[arg(long, default_value_t = 40, value_name = "BITS")]
    ipa: u32,

    /// Which destroy to run: rust or c [default: what runs now]
    #[arg(long = "impl", value_name = "IMPL")]
    implementation: Option<String>,

    /// The waiting task's priority, compared with that of the destroying one
    #[arg(long, value_enum, default_value_t = Priority::Higher)]
    priority: Priority,

    /// Microseconds from one wake-up to the next
    #[arg(long, default_value_t = 1000, value_name = "US", value_parser = clap::value_parser!(u64).range(1..))]
    interval: u64,

    /// kvm_s2_bench.ko [default: below /lib/modules]
    #[arg(long, value_name = "FILE")]
    module: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  s2_destroy_wait --size 128G --impl c
  s2_destroy_wait --size 128G --impl rust --priority equal";

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(stop) => {
            eprintln!("s2_destroy_wait: {stop}");
            ExitCode::from(match stop {
                Stop::Skip(_) => 4,
                Stop::Fail(_) => 1,
            })
        }
    }
}

fn run(options: &Options) -> Result<String> {
    let spec = Spec {
        case: options.case,
        size: options.size,
        ipa: Some(options.ipa),
        backing: Backing::Kernel,
        order: Order::CloseFirst,
        guest: Guest::None,
        vcpus: 1,
    };
    spec.check()?;
    let module = kmod::find(options.module.as_deref())?;
    let _chosen = options.implementation.as_deref().map(ImplGuard::select);
    if let Some(Err(stop)) = _chosen {
        return Err(stop);
    }

    let mark = Mark::now();
    waiter::stay_on_this_cpu()?;
    let waiter = Waiter::start(options.priority, options.interval * 1000)?;
    let loaded = kmod::run(&module, &kmod::parameters(&spec, options.ipa));
    let wait = waiter.stop();
    loaded?;
    let destroy = mark
        .only_destroy()
        .ok_or_else(|| Stop::Fail("not exactly one stage-2 was destroyed".into()))?;

    Ok(serde_json::json!({
        "impl": current_impl(),
        "case": options.case,
        "size_bytes": options.size,
        "ipa_bits": options.ipa,
        "priority": options.priority.to_possible_value().map(|v| v.get_name().to_owned()),
        "worst_wait_ns": wait.worst_ns,
        "wakeups": wait.wakeups,
        "destroy_ns": destroy.figure("ns"),
        "max_stretch_ns": destroy.figure("max_stretch_ns"),
        "rescheds": destroy.figure("rescheds"),
    })
    .to_string())
}
