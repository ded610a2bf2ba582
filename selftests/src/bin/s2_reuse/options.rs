// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::Parser;
use clap::ValueEnum;
use s2_selftests::size;
use s2_selftests::spec::Guest;

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

/// Ends guests in every way, and uses all their memory again in another guest.
///
/// Guests are real and share memory through a file, so that the next one gets the
/// same pages. Those that are protected need a host in protected mode; refused pages
/// need CONFIG_KVM_S2_PKVM_FAULTS. Verdicts are KTAP; exit code 0 is a pass, 1 a
/// failure, 2 bad usage, 4 when everything was skipped.
#[derive(Debug, Parser)]
#[command(name = "s2_reuse", version, after_help = EXAMPLES)]
pub(crate) struct Options {
    /// Memory of each guest
    #[arg(long, default_value = "2M", value_parser = size::parse, value_name = "BYTES")]
    pub(crate) size: u64,

    /// Which destroy to run; the kernel's choice is put back afterwards
    #[arg(long = "impl", value_enum, default_value_t = Impl::Current)]
    pub(crate) implementation: Impl,

    /// Build and run one guest on the file at stdin, say so, and wait to be killed
    #[arg(long, hide = true, value_name = "GUEST")]
    pub(crate) hold: Option<Guest>,

    /// Use up the memory of the control group that stdin's file is not in
    #[arg(long, hide = true)]
    pub(crate) hungry: bool,
}

const EXAMPLES: &str = "\
Examples:
  s2_reuse --impl rust
  s2_reuse --size 16M --impl c";
