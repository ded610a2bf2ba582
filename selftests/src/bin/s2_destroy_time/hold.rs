// SPDX-License-Identifier: GPL-2.0

//! A guest in a process of its own, to be killed with it.

use crate::measure;
use crate::options::Options;
use crate::plan;
use crate::Env;
use s2_selftests::clock;
use s2_selftests::holder;
use s2_selftests::row::Ticks;
use s2_selftests::spec::word;
use s2_selftests::spec::Guest;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::vm;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::process::Stdio;

/// Starts a holder of `spec`, kills it once its guest has run, and times from
/// the signal until nothing of the process is left.
pub(crate) fn kill(spec: &Spec, ipa_bits: u32) -> Result<Ticks> {
    let mut command = holder::command();
    command
        .args(arguments(spec, ipa_bits))
        .stdin(Stdio::piped());
    let mut child = holder::start(&mut command)?;
    let (reaped, close) = clock::timed(|| child.kill().and_then(|()| child.wait()));
    reaped.map_err(Stop::failed("killing the holder"))?;
    Ok(Ticks {
        close: Some(close),
        unmap: None,
    })
}

fn arguments(spec: &Spec, ipa_bits: u32) -> Vec<String> {
    let guest = match spec.guest {
        Guest::Protected => Guest::Protected,
        Guest::Normal | Guest::None => Guest::Normal,
    };
    let mut arguments: Vec<String> = [
        ("--case", word(spec.case)),
        ("--ipa", ipa_bits.to_string()),
        ("--backing", word(spec.backing)),
        ("--guest", word(guest)),
        ("--vcpus", spec.vcpus.to_string()),
    ]
    .into_iter()
    .flat_map(|(option, value)| [option.into(), value])
    .collect();
    if spec.touch().is_some() {
        arguments.extend(["--size".into(), spec.size.to_string()]);
    }
    arguments.push("--hold".into());
    arguments
}

/// The holder's side: runs the one guest `options` describe and waits. When the
/// parent is gone, the pipe ends and so does the holder.
pub(crate) fn hold(env: &Env, options: &Options) -> io::Result<()> {
    let guest = match plan::specs(options).first() {
        Some(spec) => ran(env, spec),
        None => Err(Stop::Fail("nothing to hold".into())),
    };
    holder::hold(guest, holder::until_stdin_ends)
}

/// Something that is alive as long as it is not dropped.
enum Alive {
    Ran { _guest: vm::Halted },
    Empty { _vm: vm::Quiet },
}

fn ran(env: &Env, spec: &Spec) -> Result<Alive> {
    let spec = Spec {
        order: Order::Sigkill,
        ..spec.clone()
    };
    let ipa_bits = measure::supported(env, &spec)?;
    Ok(match measure::halted(&env.kvm, &spec, ipa_bits)? {
        Some(guest) => Alive::Ran { _guest: guest },
        None => Alive::Empty {
            _vm: vm::Quiet::empty(vm::create(&env.kvm, spec.guest, ipa_bits)?),
        },
    })
}
