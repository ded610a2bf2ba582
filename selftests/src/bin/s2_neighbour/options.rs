// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::Parser;
use s2_selftests::size;
use s2_selftests::spec::Guest;
use s2_selftests::spec::Order;
use std::path::PathBuf;

/// Times the close of a small VM while a large one dies, and when none does.
///
/// Both run on the same host but share nothing: the one should not notice the
/// other. The large VM lives in a process of its own and has a table that module
/// kvm_s2_bench builds, or with --real touches its memory. Needs two CPUs.
#[derive(Debug, Parser)]
#[command(name = "s2_neighbour", version, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// What the large VM has mapped, in 4K pages
    #[arg(long, default_value = "16G", value_parser = size::parse, value_name = "BYTES")]
    pub(crate) size: u64,

    /// How the large VM ends: close-first, or sigkill of its process
    #[arg(long, default_value = "close-first")]
    pub(crate) order: Order,

    /// Which kind of guest the large VM is; protected ones are always real
    #[arg(long, default_value = "normal")]
    pub(crate) guest: Guest,

    /// Let a vCPU touch the memory of the large VM, as on a protected host it must
    #[arg(long)]
    pub(crate) real: bool,

    /// Which destroy to run, rust or c [default: what runs now]
    #[arg(long = "impl", value_parser = ["rust", "c"])]
    pub(crate) implementation: Option<String>,

    /// Number of small VMs to close on the idle host, and most during one death
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) closes: u32,

    /// Number of large VMs that die, one after the other
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) deaths: u32,

    /// Fail when p99 grows by more than this factor
    #[arg(long, value_name = "FACTOR")]
    pub(crate) max_ratio: Option<f64>,

    /// Fail when a close takes more than this share of a large VM's end
    #[arg(long, value_name = "SHARE")]
    pub(crate) max_share: Option<f64>,

    /// Print one JSON object in place of KTAP
    #[arg(long)]
    pub(crate) json: bool,

    /// kvm_s2_bench.ko [default: below /lib/modules]
    #[arg(long, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,

    /// Be the large VM
    #[arg(long, hide = true)]
    pub(crate) die: bool,
}

const EXAMPLES: &str = "\
Examples:
  s2_neighbour --size 128G --impl c
  s2_neighbour --size 128G --impl rust --order sigkill --max-ratio 1.2
  s2_neighbour --size 512M --real --guest protected";
