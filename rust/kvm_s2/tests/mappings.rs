// SPDX-License-Identifier: GPL-2.0

//! Random trees of mappings, drained and compared with a sorted list.

use kvm_s2::{
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

mod drain;

use drain::{
    Drain,
    Item, //
};

fn geometry() -> impl Strategy<Value = Geometry> {
    let shapes = vec![
        (Granule::K4, 40, 1),
        (Granule::K4, 48, 0),
        (Granule::K16, 47, 1),
        (Granule::K64, 48, 1),
    ];
    select(shapes).prop_filter_map("geometry", |(granule, bits, level)| {
        Geometry::new(granule, bits, Level::new(level)?, OutputAddress::Standard).ok()
    })
}

/// Mappings that are often neighbours: at the start, and on both sides of the end of a chunk.
fn item(geometry: Geometry) -> impl Strategy<Value = Item> {
    let granule = geometry.granule();
    let chunk = granule.max_block_size() >> granule.page_shift();
    let gfn = prop_oneof![0u64..40, chunk - 20..chunk + 20, 0..4 * chunk];
    let nr_pages = prop_oneof![4 => Just(1u64), 1 => 2u64..5, 1 => Just(512)];
    // Most are given back whole.
    let willing = prop_oneof![4 => Just(u64::MAX), 1 => 0u64..5];
    (gfn, nr_pages, willing).prop_map(|(gfn, nr_pages, willing)| Item {
        gfn,
        nr_pages,
        willing,
    })
}

fn drain() -> impl Strategy<Value = Drain> {
    geometry().prop_flat_map(|geometry| {
        let max_run = prop_oneof![1u64..8, Just(512)];
        let per_call = prop_oneof![1u64..8, Just(u64::MAX)];
        let budget = prop_oneof![0u32..8, Just(u32::MAX)];
        (vec(item(geometry), 0..60), max_run, per_call, budget).prop_map(
            move |(items, max_run, per_call, budget)| Drain {
                geometry,
                items,
                max_run,
                per_call,
                budget,
            },
        )
    })
}

proptest! {
    // A failure prints the smallest tree that shows it; PROPTEST_CASES asks for more of them.
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_tree_of_mappings_is_drained_in_order(drain in drain()) {
        drain.check();
    }
}
