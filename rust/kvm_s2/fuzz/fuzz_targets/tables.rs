// SPDX-License-Identifier: GPL-2.0

//! Any tables, any budget and any references of others, against the reference of the tests.
//!
//! `cargo +nightly fuzz run tables`

#![no_main]

use arbitrary::{
    Result,
    Unstructured, //
};
use kvm_s2::{
    arena::Entry,
    Geometry,
    Granule::{
        self,
        K16,
        K4,
        K64, //
    },
    Level,
    OutputAddress::{
        self,
        Lpa2,
        Standard, //
    },
};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/reference/mod.rs"]
mod reference;

use reference::{
    Plan,
    Step,
    Touch, //
};

/// Small pages more often than large ones.
const SHAPES: [(Granule, u32, i8, OutputAddress); 10] = [
    (K4, 52, -1, Lpa2),
    (K4, 48, 0, Standard),
    (K4, 43, 1, Standard),
    (K4, 40, 1, Lpa2),
    (K4, 39, 0, Standard),
    (K4, 32, 2, Standard),
    (K4, 25, 3, Standard),
    (K4, 32, 1, Standard),
    (K16, 40, 2, Lpa2),
    (K64, 40, 2, Standard),
];

const ENTRIES: [Entry; 6] = [
    Entry::Leaf,
    Entry::Locked,
    Entry::Donated,
    Entry::Poisoned,
    Entry::Table,
    Entry::Stray,
];

/// Slots of a table of pages that are filled at once: few, or more than are read together.
const RUNS: [u64; 6] = [1, 1, 1, 2, 3, 70];

const TOUCHES: [Touch; 3] = [Touch::Hold, Touch::Pass, Touch::Steal];

fn geometry(u: &mut Unstructured<'_>) -> Result<Geometry> {
    let &(granule, ia_bits, start, output) = u.choose(&SHAPES)?;
    let level = Level::new(start).ok_or(arbitrary::Error::IncorrectFormat)?;
    Geometry::new(granule, ia_bits, level, output).map_err(|_| arbitrary::Error::IncorrectFormat)
}

/// A slot by the entries that lead to it, so that small inputs make deep trees.
fn step(u: &mut Unstructured<'_>, geometry: &Geometry) -> Result<Step> {
    let level = u.int_in_range(geometry.start_level().get()..=3)?;
    let level = Level::new(level).ok_or(arbitrary::Error::IncorrectFormat)?;
    let mut ipa = 0u64;
    for above in geometry.start_level().get()..=3 {
        let above = Level::new(above).ok_or(arbitrary::Error::IncorrectFormat)?;
        let slot = match u.arbitrary::<u8>()? {
            // The last slots of a table, and otherwise one of the first.
            near_end @ 250.. => {
                geometry.granule().ptrs_per_table() as u64 - 256 + u64::from(near_end)
            }
            slot => u64::from(slot % 40),
        };
        ipa += slot << geometry.granule().level_shift(above);
    }
    Ok(Step {
        ipa,
        level,
        entry: *u.choose(&ENTRIES)?,
        nr: if level.is_last() {
            *u.choose(&RUNS)?
        } else {
            1
        },
    })
}

fn plan(u: &mut Unstructured<'_>) -> Result<Plan> {
    let geometry = geometry(u)?;
    let budget = match u.int_in_range(0..=6)? {
        6 => u32::MAX,
        small => small,
    };
    let trust = u.arbitrary()?;
    let mut touches = Vec::new();
    for _ in 0..u.int_in_range(0..=3)? {
        touches.push((u.arbitrary::<u8>()?.into(), *u.choose(&TOUCHES)?));
    }
    // Large tables take long to check.
    let max_steps = if geometry.granule() == K4 { 12 } else { 3 };
    let mut steps = Vec::new();
    while !u.is_empty() && steps.len() < max_steps {
        steps.push(step(u, &geometry)?);
    }
    Ok(Plan {
        geometry,
        steps,
        touches,
        budget,
        trust,
    })
}

fuzz_target!(|data: &[u8]| {
    if let Ok(plan) = plan(&mut Unstructured::new(data)) {
        plan.check();
    }
});
