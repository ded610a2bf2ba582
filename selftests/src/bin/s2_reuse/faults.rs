// SPDX-License-Identifier: GPL-2.0

//! What EL2 refuses, on a kernel that can be told to.

use crate::end;
use crate::end::End;
use crate::memory::Memory;
use crate::Env;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::spec::page;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::stats;
use s2_selftests::stats::Destroy;
use s2_selftests::stats::Mark;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::fs;
use std::path::Path;

const REFUSE_EVERY: &str = "/sys/kernel/debug/kvm_s2/refuse_every";
const REFUSE_RUNS: &str = "/sys/kernel/debug/kvm_s2/refuse_runs";

/// One guest frame in so many is refused.
const EVERY: u64 = 64;

/// A fault that is asked for until this is dropped.
struct Fault(&'static str);

impl Fault {
    fn ask(env: &Env, file: &'static str, value: u64) -> Result<Self> {
        if env.mode != Mode::Protected {
            return Err(Stop::Skip("EL2 has no say but in protected mode".into()));
        }
        if stats::current_impl() != "rust" {
            return Err(Stop::Skip("upstream takes no runs".into()));
        }
        if !Path::new(file).exists() {
            return Err(Stop::Skip(format!(
                "no {file}: CONFIG_KVM_S2_PKVM_FAULTS has it"
            )));
        }
        fs::write(file, value.to_string()).map_err(Stop::missing(file))?;
        Ok(Fault(file))
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        if let Err(error) = fs::write(self.0, "0") {
            eprintln!("# {} could not be reset: {error}", self.0);
        }
    }
}

fn end_one(env: &Env, kind: Kind, memory: &Memory) -> Result<Destroy> {
    let mark = Mark::now();
    end::live(env, kind, memory, End::CloseFirst)?;
    mark.only_destroy()
        .ok_or_else(|| Stop::Fail("not exactly one VM ended".into()))
}

fn expect(destroy: &Destroy, figure: &str, expected: u64) -> Result<()> {
    match destroy.figure(figure) {
        Some(found) if found == expected => Ok(()),
        found => Err(Stop::Fail(format!("{figure} is {found:?}, not {expected}"))),
    }
}

fn logged(text: &str) -> usize {
    host::kernel_log().matches(text).count()
}

/// Each refused page is counted, the VM reports itself once, and everything else is
/// released: neither tables nor the time at EL2 are any worse for it.
pub(crate) fn refused_pages(env: &Env, kind: Kind) -> Result<()> {
    const REPORT: &str = "EL2 keeps gfn";
    // Pages that are lost are never read again: EL2 still has a protected guest's.
    let memory = Memory::new(env.size)?;
    let reports = logged(REPORT);
    let fault = Fault::ask(env, REFUSE_EVERY, EVERY)?;
    let destroy = end_one(env, kind, &memory)?;
    drop(fault);

    let pages = env.size / page();
    expect(&destroy, "leaves", pages)?;
    expect(&destroy, "leaked", pages / EVERY)?;
    expect(&destroy, "pages", pages - pages / EVERY)?;
    match logged(REPORT) - reports {
        1 => Ok(()),
        n => Err(Stop::Fail(format!("{n} reports of one VM"))),
    }
}

/// The calls for single pages do, and the log says once that they had to.
pub(crate) fn refused_runs(env: &Env, kind: Kind) -> Result<()> {
    let memory = Memory::new(env.size)?;
    let fault = Fault::ask(env, REFUSE_RUNS, 1)?;
    let destroy = end_one(env, kind, &memory)?;
    drop(fault);

    let pages = env.size / page();
    expect(&destroy, "pages", pages)?;
    expect(&destroy, "leaked", 0)?;
    memory.check(kind)?;
    match logged("EL2 refuses runs of pages") {
        1 => Ok(()),
        n => Err(Stop::Fail(format!(
            "the log says {n} times that runs are refused"
        ))),
    }
}
