// SPDX-License-Identifier: GPL-2.0

//! Random stage-2 tables of every shape, destroyed and compared with the reference.

use kvm_s2::{
    arena::Entry,
    Geometry,
    Granule,
    Level,
    OutputAddress, //
};
use proptest::{
    collection::vec,
    prelude::*,
    sample::select, //
};

mod reference;

use reference::{
    Plan,
    Step,
    Touch, //
};

fn level() -> impl Strategy<Value = Level> {
    (-1i8..=3).prop_filter_map("level", Level::new)
}

/// Any geometry that exists, the widths at its edges more often than others.
fn geometry() -> impl Strategy<Value = Geometry> {
    let granule = select(vec![Granule::K4, Granule::K16, Granule::K64]);
    let output = select(vec![OutputAddress::Standard, OutputAddress::Lpa2]);
    let ia_bits = prop_oneof![13u32..=52, select(vec![25, 32, 33, 36, 40, 43, 47, 48, 52])];
    (granule, ia_bits, level(), output).prop_filter_map(
        "geometry",
        |(granule, bits, level, output)| {
            let output = match granule {
                Granule::K64 => OutputAddress::Standard,
                Granule::K4 | Granule::K16 => output,
            };
            Geometry::new(granule, bits, level, output).ok()
        },
    )
}

/// Addresses at both ends, in a cluster at the start, around the edges of chunks, and anywhere.
fn ipa(geometry: Geometry) -> impl Strategy<Value = u64> {
    let page = geometry.granule().page_shift();
    let chunk = geometry.granule().max_block_size();
    let end = geometry.range().end.0;
    prop_oneof![
        3 => (0u64..600).prop_map(move |nr| nr << page),
        2 => (0u64..8, 0u64..3).prop_map(move |(nr, off)| (nr * chunk + (off << page)).saturating_sub(1 << page)),
        1 => (1u64..8).prop_map(move |nr| end.saturating_sub(nr << page)),
        3 => 0..end,
    ]
}

fn step(geometry: Geometry) -> impl Strategy<Value = Step> {
    let entry = select(vec![
        Entry::Leaf,
        Entry::Leaf,
        Entry::Locked,
        Entry::Donated,
        Entry::Poisoned,
        Entry::Table,
        Entry::Stray,
    ]);
    // The last level is where most entries are.
    let level = prop_oneof![level(), Just(Level::LAST)];
    let nr = prop_oneof![1u64..4, 1u64..100, Just(600)];
    (ipa(geometry), level, entry, nr).prop_map(|(ipa, level, entry, nr)| Step {
        ipa,
        level,
        entry,
        // Runs of tables would only take memory.
        nr: if level.is_last() { nr } else { nr % 8 + 1 },
    })
}

fn plan() -> impl Strategy<Value = Plan> {
    geometry().prop_flat_map(|geometry| {
        let touch = select(vec![Touch::Hold, Touch::Pass, Touch::Steal]);
        let budget = prop_oneof![0u32..6, Just(u32::MAX)];
        let touches = vec((any::<usize>(), touch), 0..4);
        let steps = vec(step(geometry), 0..24);
        (steps, touches, budget, any::<bool>()).prop_map(move |(steps, touches, budget, trust)| {
            Plan {
                geometry,
                steps,
                touches,
                budget,
                trust,
            }
        })
    })
}

proptest! {
    // A failure prints the smallest tree that shows it; PROPTEST_CASES asks for more of them.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_tree_is_destroyed_as_the_reference_says(plan in plan()) {
        plan.check();
    }
}
