// SPDX-License-Identifier: GPL-2.0

//! The large VM, in a process of its own.

use crate::options::Options;
use crate::small::Closes;
use crate::small::Pool;
use s2_selftests::clock;
use s2_selftests::holder;
use s2_selftests::host;
use s2_selftests::kmod;
use s2_selftests::size;
use s2_selftests::spec::word;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::vm;
use s2_selftests::vm::Guest;
use s2_selftests::vm::Quiet;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Child;
use std::process::Stdio;
use std::thread;

/// Closes the VMs of `pool` from the moment a large one begins to die until it is
/// gone. Returns how long the closes took and how long the death.
pub(crate) fn with_dying(options: &Options, pool: Pool) -> Result<(Closes, u64)> {
    let mut child = start(options)?;
    let order = options.order;
    let started = clock::now_ns();
    // Ends when the process is reaped, and with it the VM is gone.
    let death = thread::spawn(move || {
        let ended = match order {
            Order::Sigkill => child.kill(),
            _ => child
                .stdin
                .take()
                .map_or(Ok(()), |mut stdin| stdin.write_all(b"\n")),
        };
        ended.and_then(|()| child.wait()).map(|_| clock::now_ns())
    });
    let closes = pool.close_while(|| !death.is_finished());
    let gone = death
        .join()
        .map_err(|_| Stop::Fail("the watching thread panicked".into()))?
        .map_err(Stop::failed("ending the large VM"))?;
    Ok((closes, gone - started))
}

fn start(options: &Options) -> Result<Child> {
    let mut command = holder::command();
    command.args(["--die", "--size", &options.size.to_string()]);
    command.args(["--guest", &word(options.guest)]);
    command.args(options.real.then_some("--real"));
    if let Some(module) = &options.module {
        command.arg("--module").arg(module);
    }
    holder::start(command.stdin(Stdio::piped()))
}

/// The large VM's side: builds it, says so, and ends it when a line comes.
pub(crate) fn die(options: &Options) -> io::Result<()> {
    holder::hold(build(options), |vm| {
        io::stdin().read_line(&mut String::new())?;
        drop(vm.close());
        Ok(())
    })
}

fn build(options: &Options) -> Result<Quiet> {
    host::stay_on_cpu(1)?;
    let kvm = host::open_kvm()?;
    let limit = host::ipa_limit(&kvm);
    if options.real || options.guest == Kind::Protected {
        return real(options, &kvm);
    }
    let bits = limit.min(40);
    if options.size > 1 << bits {
        let size = size::format(options.size);
        return Err(Stop::Skip(format!("{size} does not fit in {bits} bits")));
    }
    let vm = vm::create(&kvm, options.guest, bits)?;
    let module = kmod::find(options.module.as_deref())?;
    let mib = options.size >> 20;
    let parameters = format!("vm_fd={} size_mib={mib} ipa_bits={bits}", vm.as_raw_fd());
    kmod::run(&module, &parameters)?;
    Ok(Quiet::empty(vm))
}

fn real(options: &Options, kvm: &kvm_ioctls::Kvm) -> Result<Quiet> {
    let spec = Spec {
        case: Case::Dense4k,
        size: options.size,
        ipa: None,
        backing: Backing::Page4k,
        order: options.order,
        guest: options.guest,
        vcpus: 1,
    };
    let touch = spec
        .touch()
        .ok_or_else(|| Stop::Fail("nothing to touch".into()))?;
    if options.guest == Kind::Protected {
        host::allow_locking(options.size)?;
    }
    let bits = spec.ipa_bits(host::ipa_limit(kvm))?;
    Ok(Guest::build(kvm, &spec, touch, bits)?.run()?.close_vcpus())
}
