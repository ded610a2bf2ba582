// SPDX-License-Identifier: GPL-2.0

//! The small VM, and how long its closes take.

use kvm_ioctls::Kvm;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::vm::Guest;
use s2_selftests::vm::Quiet;
use s2_selftests::Result;
use s2_selftests::Stop;

const IPA_BITS: u32 = 40;

/// Durations of closes, in ns.
#[derive(Debug, Default)]
pub(crate) struct Closes(Vec<u64>);

impl Closes {
    pub(crate) fn add(&mut self, other: Closes) {
        self.0.extend(other.0);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest duration that `percent` of them do not exceed.
    pub(crate) fn percentile(&self, percent: usize) -> Option<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100);
        sorted.get(rank.max(1) - 1).copied()
    }
}

/// Small VMs that have run and only need to be closed.
pub(crate) struct Pool(Vec<Quiet>);

impl Pool {
    pub(crate) fn build(kvm: &Kvm, count: u32) -> Result<Self> {
        (0..count)
            .map(|_| build(kvm))
            .collect::<Result<_>>()
            .map(Pool)
    }

    /// Closes one VM after the other while `go_on`. Returns how long each close took.
    pub(crate) fn close_while(self, mut go_on: impl FnMut() -> bool) -> Closes {
        let close = |vm: Quiet| vm.close().1;
        let vms = self.0.into_iter().take_while(|_| go_on());
        Closes(vms.map(close).collect())
    }
}

fn build(kvm: &Kvm) -> Result<Quiet> {
    let spec = Spec {
        case: Case::OneMib,
        size: 1 << 20,
        ipa: Some(IPA_BITS),
        backing: Backing::Page4k,
        order: Order::CloseFirst,
        guest: Kind::Normal,
        vcpus: 1,
    };
    let touch = spec
        .touch()
        .ok_or_else(|| Stop::Fail("nothing to touch".into()))?;
    let guest = Guest::build(kvm, &spec, touch, IPA_BITS)?;
    Ok(guest.run()?.close_vcpus())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let closes = Closes((1..=100).rev().collect());
        assert_eq!(closes.percentile(50), Some(50));
        assert_eq!(closes.percentile(99), Some(99));
        assert_eq!(Closes(vec![7]).percentile(99), Some(7));
        assert_eq!(Closes::default().percentile(50), None);
    }
}
