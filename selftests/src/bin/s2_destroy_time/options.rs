// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::Parser;
use clap::ValueEnum;
use s2_selftests::size;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest;
use s2_selftests::spec::Order;
use std::path::PathBuf;

/// Which destroy the kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Impl {
    /// The Rust component
    Rust,
    /// Upstream's
    C,
    /// Whatever runs now
    Current,
}

/// Times how long a KVM guest on arm64 takes to end, and checks that nothing is
/// left of it.
///
/// Guests are real: a vCPU writes one word to every page. Without --case,
/// --backing, --order or --guest the standard list runs (see --list); with any
/// of them, every combination of the words given, where a word not given is the
/// case's own backing, close-first, normal. Verdicts are KTAP; exit code 0 is a
/// pass, 1 a failure, 2 bad usage, 4 when everything was skipped.
#[derive(Debug, Parser)]
#[command(name = "s2_destroy_time", version, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Print what would run, one test per line, and exit
    #[arg(long)]
    pub(crate) list: bool,

    /// What the guest has mapped when it ends
    #[arg(long, value_delimiter = ',', value_name = "CASE,..")]
    pub(crate) case: Vec<Case>,

    /// Guest address space a case is about, e.g. 256M [default: 64M; 64G for
    /// sparse; 1m and empty have their own]
    #[arg(long, value_parser = size::parse, value_name = "BYTES")]
    pub(crate) size: Option<u64>,

    /// Bits of guest address space [default: 48 for 1m, else 40, or what the
    /// host has]; a host in protected mode always uses all it has
    #[arg(long, value_delimiter = ',', value_name = "BITS,..")]
    pub(crate) ipa: Vec<u32>,

    /// What backs guest memory
    #[arg(long, value_delimiter = ',', value_name = "BACKING,..")]
    pub(crate) backing: Vec<Backing>,

    /// How the VM ends
    #[arg(long, value_delimiter = ',', value_name = "ORDER,..")]
    pub(crate) order: Vec<Order>,

    /// Which kind of guest. A protected guest's memory is mapped page by page
    /// and locked, and reads as zero once it is gone
    #[arg(long, value_delimiter = ',', value_name = "GUEST,..")]
    pub(crate) guest: Vec<Guest>,

    /// Number of vCPUs that share the touching
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(crate) vcpus: u64,

    /// Which destroy to run; the kernel's choice is put back afterwards
    #[arg(long = "impl", value_enum, default_value_t = Impl::Current)]
    pub(crate) implementation: Impl,

    /// Run each test this many times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) runs: u32,

    /// Create, touch and destroy each guest N times, and compare the memory
    /// counters of before and after, instead of timing
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) cycles: Option<u32>,

    /// Longest wait for memory counters to come back, in seconds
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    pub(crate) settle: u64,

    /// The clock counts instructions, one per nanosecond (QEMU -icount shift=0)
    #[arg(long)]
    pub(crate) insns: bool,

    /// End each guest of upstream's destroy again while the kernel's bench
    /// watches it, for its longest stretch and its operations on tables
    #[arg(long)]
    pub(crate) watch: bool,

    /// Print results as JSON, one object per line, in place of KTAP; what was
    /// skipped or failed goes to stderr
    #[arg(long)]
    pub(crate) json: bool,

    /// Reserve the huge pages --backing hugetlb needs, and give them back (root)
    #[arg(long)]
    pub(crate) setup: bool,

    /// kvm_s2_bench.ko, for --backing kernel [default: below /lib/modules]
    #[arg(long, value_name = "FILE")]
    pub(crate) module: Option<PathBuf>,

    /// Build and run one guest, say so, and wait to be killed
    #[arg(long, hide = true)]
    pub(crate) hold: bool,
}

const EXAMPLES: &str = "\
What \"end of VM\" and close_* span:
  close-first   close() of the VM fd, which destroys the tables
  unmap-first   munmap() of guest memory, then that close()
  sigkill       from kill() until the process is reaped

Examples:
  s2_destroy_time                                  the standard list
  s2_destroy_time --case dense-4k --size 256M --order close-first,unmap-first
  s2_destroy_time --case 1m --ipa 40,48 --json --insns
  s2_destroy_time --case dense-2m --backing hugetlb --setup
  s2_destroy_time --case dense-4k --backing kernel --size 128G --impl rust
  s2_destroy_time --cycles 1000                    nothing may grow";
