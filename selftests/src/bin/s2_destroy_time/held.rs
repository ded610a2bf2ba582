// SPDX-License-Identifier: GPL-2.0

//! Rules of life: what keeps a VM alive, and that it goes with the last of it.

use crate::measure;
use crate::measure::Before;
use crate::Env;
use s2_selftests::keep;
use s2_selftests::keep::KvmRunMap;
use s2_selftests::meminfo;
use s2_selftests::spec::Case;
use s2_selftests::spec::Spec;
use s2_selftests::stats::Mark;
use s2_selftests::vm::Halted;
use s2_selftests::Result;
use s2_selftests::Stop;

/// Closes all of a VM but one thing, checks that its tables are still there,
/// drops that thing, and checks that they are gone.
pub(crate) fn check(env: &Env, spec: &Spec) -> Result<()> {
    let ipa_bits = measure::supported(env, spec)?;
    let before = Before::read()?;
    let Some(halted) = measure::halted(&env.kvm, spec, ipa_bits)? else {
        return Err(Stop::Skip("nothing to hold on to".into()));
    };
    let mark = Mark::now();
    let keeper = Keeper::take(spec.case, &halted)?;
    let (ram, _) = halted.close_vcpus().close();
    if mark.any_destroy() == Some(true) || meminfo::stage2_kib()? <= before.stage2_kib() {
        return Err(Stop::Fail("the VM was destroyed while it was held".into()));
    }
    drop(keeper);
    before.check(env)?;
    drop(ram);
    match mark.any_destroy() {
        Some(false) => Err(Stop::Fail("no destroy was counted".into())),
        _ => Ok(()),
    }
}

enum Keeper {
    VcpuFd { _fd: std::os::fd::OwnedFd },
    KvmRun { _map: KvmRunMap },
}

impl Keeper {
    fn take(case: Case, halted: &Halted) -> Result<Self> {
        let Some(vcpu) = halted.vcpus().first() else {
            return Err(Stop::Fail("the guest has no vCPU".into()));
        };
        Ok(match case {
            Case::HeldKvmRun => Keeper::KvmRun {
                _map: KvmRunMap::new(vcpu)?,
            },
            _ => Keeper::VcpuFd {
                _fd: keep::vcpu_fd(vcpu)?,
            },
        })
    }
}
