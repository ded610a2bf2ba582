// SPDX-License-Identifier: GPL-2.0

//! One test: build a guest, end it, look at what is left.

use crate::hold;
use crate::Env;
use kvm_ioctls::Kvm;
use s2_selftests::clock;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::kmod;
use s2_selftests::meminfo;
use s2_selftests::ram::GuestRam;
use s2_selftests::row::Row;
use s2_selftests::row::Ticks;
use s2_selftests::spec::block;
use s2_selftests::spec::page;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Guest as Kind;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;
use s2_selftests::stats;
use s2_selftests::stats::Destroy;
use s2_selftests::stats::Mark;
use s2_selftests::stats::Watch;
use s2_selftests::stats::WatchGuard;
use s2_selftests::vm;
use s2_selftests::vm::Guest;
use s2_selftests::vm::Halted;
use s2_selftests::vm::Quiet;
use s2_selftests::Result;
use s2_selftests::Stop;

/// Whether this host can run `spec`, and with how many bits of address space.
pub(crate) fn supported(env: &Env, spec: &Spec) -> Result<u32> {
    spec.check()?;
    if spec.guest == Kind::Protected {
        if env.mode != Mode::Protected {
            return Err(Stop::Skip(
                "protected guests need a host booted with kvm-arm.mode=protected".into(),
            ));
        }
        host::knows_protected_guests()?;
        host::allow_locking(spec.size)?;
    }
    let limit = host::ipa_limit(&env.kvm);
    let bits = spec.ipa_bits(limit)?;
    // A protected host gives every guest all it has, whatever was asked.
    Ok(match (env.mode, spec.backing) {
        (Mode::Protected, Backing::Page4k | Backing::Thp | Backing::Hugetlb) => limit,
        _ => bits,
    })
}

/// Runs one test and checks that stage-2 memory, locked memory and the kernel's
/// calm are back where they were.
pub(crate) fn row(env: &Env, spec: &Spec) -> Result<Row> {
    let ipa_bits = supported(env, spec)?;
    let _pool = env.huge_pool(spec)?;
    let mark = Mark::now();
    let (ticks, mut destroy) = once(env, spec, ipa_bits)?;
    if let Some(destroy) = &mut destroy {
        watch(env, spec, ipa_bits, destroy)?;
    }

    let mut row = Row::new(
        spec,
        (env.mode, ipa_bits),
        env.unit,
        ticks,
        &destroy.clone().unwrap_or_default(),
    );
    match destroy {
        Some(destroy) => check_figures(spec, &destroy)?,
        None if spec.backing == Backing::Kernel => {
            return Err(Stop::Fail("the module left no figures in debugfs".into()));
        }
        None => {
            row.r#impl = stats::current_impl();
            row.remark = mark.any_destroy().map(|_| OTHER_VM.into());
        }
    }
    Ok(row)
}

/// Ends one guest, and says what that took.
fn once(env: &Env, spec: &Spec, ipa_bits: u32) -> Result<(Ticks, Option<Destroy>)> {
    let before = Before::read()?;
    let mark = Mark::now();
    let ticks = end(env, spec, ipa_bits)?;
    let destroy = mark.only_destroy();
    before.check(env)?;
    Ok((ticks, destroy))
}

/// Upstream's destroy tells nothing of itself. Where that is wanted, ends the same guest again
/// under watch, and takes over what was seen.
fn watch(env: &Env, spec: &Spec, ipa_bits: u32, destroy: &mut Destroy) -> Result<()> {
    if !env.watch || destroy.word("impl") != Some("c") {
        return Ok(());
    }
    let tables: &[&str] = &["atomics", "helper_calls", "table_bytes"];
    for (what, keys) in [
        (Watch::Steps, &["max_stretch_ns"][..]),
        (Watch::Tables, tables),
    ] {
        if what == Watch::Tables && destroy.word("backend") == Some("pkvm") {
            continue;
        }
        let Some(_watching) = WatchGuard::start(what)? else {
            return Ok(());
        };
        if let (_, Some(seen)) = once(env, spec, ipa_bits)? {
            destroy.take(&seen, keys);
        }
    }
    Ok(())
}

/// Checks what the kernel counted against what was asked of it.
fn check_figures(spec: &Spec, destroy: &Destroy) -> Result<()> {
    let (ran, asked) = (destroy.word("impl"), stats::current_impl());
    if ran != Some(&asked) {
        return Err(Stop::Fail(format!("{asked} was chosen, {ran:?} ran")));
    }
    if let Some(n @ 1..) = destroy.figure("leaked") {
        return Err(Stop::Fail(format!("the kernel says {n} tables leaked")));
    }
    check_place(spec, destroy)?;
    let there = match (spec.order, spec.backing, spec.guest) {
        (_, Backing::Kernel, _) => return Ok(()),
        // Its memory is pinned: unmapping it takes nothing from the guest.
        (_, _, Kind::Protected) | (Order::CloseFirst | Order::Sigkill, ..) => spec.mappings(),
        (Order::UnmapFirst, ..) => 0,
    };
    match destroy.figure("leaves") {
        Some(found) if found != there => Err(Stop::Fail(format!(
            "destroy found {found} mappings, the order leaves it {there}"
        ))),
        _ => Ok(()),
    }
}

/// Checks that the destroy held up nobody: not inside the MMU notifier's release, unless EL2 had
/// to give pages back that were about to be freed.
fn check_place(spec: &Spec, destroy: &Destroy) -> Result<()> {
    let memory_first = spec.order == Order::Sigkill && spec.backing != Backing::Kernel;
    let inside = destroy.word("backend") == Some("pkvm") && spec.guest == Kind::Normal;
    let want = u64::from(memory_first && !inside);
    match destroy.figure("deferred") {
        Some(deferred) if destroy.word("impl") == Some("rust") && deferred != want => {
            Err(Stop::Fail(format!(
                "the destroy was deferred {deferred} times, not {want}"
            )))
        }
        _ => Ok(()),
    }
}

const OTHER_VM: &str = "figures of destroy left out: not exactly one VM ended";

/// State of the host that a test must leave as it found it.
pub(crate) struct Before {
    stage2_kib: u64,
    locked_kib: u64,
    warned: bool,
}

impl Before {
    pub(crate) fn read() -> Result<Self> {
        Ok(Before {
            stage2_kib: meminfo::stage2_kib()?,
            locked_kib: meminfo::locked_kib(),
            warned: host::has_warned(),
        })
    }

    /// Stage-2 memory at that time, in KiB.
    pub(crate) fn stage2_kib(&self) -> u64 {
        self.stage2_kib
    }

    pub(crate) fn check(&self, env: &Env) -> Result<()> {
        meminfo::wait_stage2(self.stage2_kib, env.settle)?;
        let (was, is) = (self.locked_kib, meminfo::locked_kib());
        if was != is {
            return Err(Stop::Fail(format!("VmLck is {is} kB, was {was} kB before")));
        }
        if host::has_warned() && !self.warned {
            return Err(Stop::Fail("the kernel warned; see dmesg".into()));
        }
        Ok(())
    }
}

fn end(env: &Env, spec: &Spec, ipa_bits: u32) -> Result<Ticks> {
    if spec.backing == Backing::Kernel {
        let path = kmod::find(env.module.as_deref())?;
        let parameters = kmod::parameters(spec, ipa_bits);
        kmod::run(&path, &parameters)?;
        return Ok(Ticks::default());
    }
    match spec.order {
        Order::CloseFirst => close_first(env, spec, ipa_bits),
        Order::UnmapFirst => match halted(&env.kvm, spec, ipa_bits)? {
            Some(halted) => unmap_first(env.mode, halted),
            None => Err(Stop::Skip("an empty VM has no memory to unmap".into())),
        },
        Order::Sigkill => hold::kill(spec, ipa_bits),
    }
}

/// A guest that ran and stopped, on the memory it should have.
pub(crate) fn halted(kvm: &Kvm, spec: &Spec, ipa_bits: u32) -> Result<Option<Halted>> {
    let Some(touch) = spec.touch() else {
        return Ok(None);
    };
    let start = meminfo::stage2_kib()?;
    let halted = Guest::build(kvm, spec, touch, ipa_bits)?.run()?;
    halted.ram().check_backing()?;
    check_mapped(spec, meminfo::stage2_kib()?.saturating_sub(start))?;
    Ok(Some(halted))
}

/// Checks by the tables in use that pages are pages and blocks are blocks.
fn check_mapped(spec: &Spec, tables_kib: u64) -> Result<()> {
    // A table of 8-byte entries takes a page and maps a block.
    let as_pages_kib = spec.size.div_ceil(block()) * (page() >> 10);
    let text = format!("{tables_kib} kB of tables for {spec}");
    match spec.backing {
        Backing::Page4k if spec.stride() == page() && tables_kib < as_pages_kib => {
            Err(Stop::Fail(format!("{text}: not mapped in 4K pages")))
        }
        Backing::Thp | Backing::Hugetlb if spec.size > 32 << 20 && tables_kib >= as_pages_kib => {
            Err(Stop::Fail(format!("{text}: not mapped in 2M blocks")))
        }
        _ => Ok(()),
    }
}

fn close_first(env: &Env, spec: &Spec, ipa_bits: u32) -> Result<Ticks> {
    let quiet = match halted(&env.kvm, spec, ipa_bits)? {
        Some(halted) => {
            let tables = meminfo::stage2_kib()?;
            let quiet = halted.close_vcpus();
            if meminfo::stage2_kib()? < tables {
                return Err(Stop::Fail("tables went before the VM was closed".into()));
            }
            quiet
        }
        None => Quiet::empty(vm::create(&env.kvm, spec.guest, ipa_bits)?),
    };
    let (ram, close) = quiet.close();
    if let (Kind::Protected, Some(ram)) = (spec.guest, &ram) {
        check_wiped(ram)?;
    }
    let unmap = ram.map(|ram| clock::timed(|| drop(ram)).1);
    let close = Some(close);
    Ok(Ticks { close, unmap })
}

fn unmap_first(mode: Mode, halted: Halted) -> Result<Ticks> {
    let tables = meminfo::stage2_kib()?;
    let (bare, unmap) = halted.unmap_ram();
    // EL2 keeps the tables of a protected host's guests until they are dead.
    if mode != Mode::Protected && meminfo::stage2_kib()? >= tables {
        return Err(Stop::Fail("munmap left all tables to the VM".into()));
    }
    Ok(Ticks {
        close: Some(unmap + bare.close()),
        unmap: Some(unmap),
    })
}

/// Memory a protected guest wrote to must come back without what it wrote.
fn check_wiped(ram: &GuestRam) -> Result<()> {
    match ram.first_words().filter(|&word| word != 0).count() {
        0 => Ok(()),
        n => Err(Stop::Fail(format!(
            "{n} pages of a protected guest can be read after its end \
             (so it is under QEMU before 8.1 in hVHE; there, boot with \
             arm64_sw.hvhe=0 id_aa64mmfr1.vh=0)"
        ))),
    }
}
