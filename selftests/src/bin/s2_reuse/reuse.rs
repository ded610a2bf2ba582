// SPDX-License-Identifier: GPL-2.0

//! The tests: which guests follow each other, and what must hold then.

use crate::end;
use crate::end::End;
use crate::faults;
use crate::memory::Memory;
use crate::Env;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::meminfo;
use s2_selftests::spec::word;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::fmt;
use std::time::Duration;

/// Longest wait for the memory of a killed process.
const SETTLE: Duration = Duration::from_secs(5);

/// One test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// A guest ends, and another one gets all its pages.
    Reuse { first: Kind, end: End, second: Kind },
    /// Two guests share all pages, and one ends before the other has run.
    Share { end: End },
    /// EL2 refuses some pages of a guest: they are lost, and nothing else is.
    RefusedPages { kind: Kind },
    /// EL2 refuses all runs of pages: they go back one by one.
    RefusedRuns { kind: Kind },
}

impl Test {
    pub(crate) fn all() -> Vec<Test> {
        let kinds = [Kind::Normal, Kind::Protected];
        let mut all = Vec::new();
        for first in kinds {
            for end in End::ALL {
                // The host sees nothing of a protected guest that it could log.
                if (first, end) != (Kind::Protected, End::Logging) {
                    all.extend(kinds.map(|second| Test::Reuse { first, end, second }));
                }
            }
        }
        all.extend(End::ALL.map(|end| Test::Share { end }));
        all.extend(kinds.map(|kind| Test::RefusedRuns { kind }));
        all.extend(kinds.map(|kind| Test::RefusedPages { kind }));
        all
    }

    fn has(&self, kind: Kind) -> bool {
        match self {
            Test::Reuse { first, second, .. } => *first == kind || *second == kind,
            Test::Share { .. } => kind == Kind::Normal,
            Test::RefusedPages { kind: own } | Test::RefusedRuns { kind: own } => *own == kind,
        }
    }

    /// Runs the test, and checks that the host is as it was.
    pub(crate) fn check(&self, env: &Env) -> Result<()> {
        if self.has(Kind::Protected) {
            if env.mode != Mode::Protected {
                return Err(Stop::Skip(
                    "protected guests need a host booted with kvm-arm.mode=protected".into(),
                ));
            }
            host::knows_protected_guests()?;
        }
        let tables = meminfo::stage2_kib()?;
        let warned = host::has_warned();
        match *self {
            Test::Reuse { first, end, second } => reuse(env, first, end, second)?,
            Test::Share { end } => share(env, end)?,
            Test::RefusedPages { kind } => faults::refused_pages(env, kind)?,
            Test::RefusedRuns { kind } => faults::refused_runs(env, kind)?,
        }
        meminfo::wait_stage2(tables, SETTLE)?;
        match host::has_warned() && !warned {
            true => Err(Stop::Fail("the kernel warned; see dmesg".into())),
            false => Ok(()),
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Test::Reuse { first, end, second } => {
                write!(f, "{} {end}, then {}", word(first), word(second))
            }
            Test::Share { end } => write!(f, "two share, one {end}"),
            Test::RefusedPages { kind } => write!(f, "{}, pages refused", word(kind)),
            Test::RefusedRuns { kind } => write!(f, "{}, runs refused", word(kind)),
        }
    }
}

fn reuse(env: &Env, first: Kind, end: End, second: Kind) -> Result<()> {
    let memory = Memory::new(env.size)?;
    end::live(env, first, &memory, end)?;
    memory.check(first)?;
    end::live(env, second, &memory, End::CloseFirst)?;
    memory.check(second)
}

fn share(env: &Env, end: End) -> Result<()> {
    let memory = Memory::new(env.size)?;
    let waiting = end::build(env, Kind::Normal, &memory)?;
    let ran = end::build(env, Kind::Normal, &memory)?.run()?;
    end::live(env, Kind::Normal, &memory, end)?;
    end::finish(waiting.run()?, end::End::CloseFirst)?;
    memory.check(Kind::Normal)?;
    end::finish(ran, end::End::CloseFirst)?;
    memory.check(Kind::Normal)
}
