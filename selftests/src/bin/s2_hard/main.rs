// SPDX-License-Identifier: GPL-2.0

//! Ends that are out of the ordinary: many at once, out of memory, half made.

mod faults;
mod many;
mod reaped;

use clap::Parser;
use kvm_ioctls::Kvm;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::ktap::Ktap;
use s2_selftests::meminfo;
use s2_selftests::spec::page;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::stats::ImplGuard;
use s2_selftests::vm::Guest;
use s2_selftests::vm::Halted;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

/// Ends KVM guests in ways that are out of the ordinary, and checks that nothing
/// is left of them.
#[derive(Debug, Parser)]
#[command(name = "s2_hard", version)]
struct Options {
    /// Which destroy to run, rust or c [default: what runs now]
    #[arg(long = "impl", value_parser = ["rust", "c"])]
    implementation: Option<String>,

    /// Number of VMs that end at once, at most 200 on a protected host
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    vms: u32,

    /// Run one guest, say so, and wait to be killed
    #[arg(long, hide = true)]
    hold: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let code = match options.hold {
        true => reaped::hold().map(|()| 0),
        false => run(&options),
    };
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("s2_hard: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<u8> {
    let mut ktap = Ktap::start(io::stdout(), 3)?;
    let (_chosen, ready) = match options.implementation.as_deref().map(ImplGuard::select) {
        Some(Ok(chosen)) => (Some(chosen), Ok(())),
        Some(Err(stop)) => (None, Err(stop)),
        None => (None, Ok(())),
    };
    let test = |body: &dyn Fn(&Kvm) -> Result<()>| {
        ready.clone()?;
        nothing_is_left(body)
    };
    let vms = match host::mode() {
        Mode::Protected => options.vms.min(many::MOST_AT_EL2),
        _ => options.vms,
    };
    let name = format!("{vms} VMs end at once, on four threads");
    ktap.verdict(&name, &test(&|kvm| many::end(kvm, vms)))?;
    let name = "a killed VM is reaped by process_mrelease";
    ktap.verdict(name, &test(&|_| reaped::end()))?;
    let name = "a VM whose creation runs out of memory at each step";
    ktap.verdict(name, &test(&faults::every_allocation))?;
    ktap.finish()
}

/// Runs a test and checks that stage-2 memory and the kernel's calm are as before.
fn nothing_is_left(body: &dyn Fn(&Kvm) -> Result<()>) -> Result<()> {
    let kvm = host::open_kvm()?;
    let (before, warned) = (meminfo::stage2_kib()?, host::has_warned());
    body(&kvm)?;
    meminfo::wait_stage2(before, Duration::from_secs(30))?;
    match host::has_warned() && !warned {
        true => Err(Stop::Fail("the kernel warned; see dmesg".into())),
        false => Ok(()),
    }
}

/// A guest of four pages that has run.
fn small(kvm: &Kvm) -> Result<Halted> {
    let spec = Spec {
        case: Case::Dense4k,
        size: 4 * page(),
        ipa: None,
        backing: Backing::Page4k,
        order: Order::CloseFirst,
        guest: Kind::Normal,
        vcpus: 1,
    };
    let touch = spec
        .touch()
        .ok_or_else(|| Stop::Fail("nothing to touch".into()))?;
    let bits = spec.ipa_bits(host::ipa_limit(kvm))?;
    Guest::build(kvm, &spec, touch, bits)?.run()
}
