// SPDX-License-Identifier: GPL-2.0

//! All tables of a small geometry, under every budget that makes a difference.
//!
//! Three root slots, a chunk each, hold any entry or a table; two slots of that table hold any
//! entry or a table of pages, which is empty or has one page.

use kvm_s2::{
    arena::Entry,
    Geometry,
    Granule,
    Level,
    OutputAddress, //
};

mod reference;

use reference::{
    Plan,
    Step,
    Touch, //
};

/// What can be below one slot: each list is put there in turn.
type Choice = Vec<Step>;

fn step(ipa: u64, level: Level, entry: Entry) -> Step {
    Step {
        ipa,
        level,
        entry,
        nr: 1,
    }
}

/// Nothing, entries that end here, a table with nothing in it, or one with a page.
fn simple_choices(ipa: u64, level: Level, leaves: &[Entry]) -> Vec<Choice> {
    let mut choices = vec![vec![], vec![step(ipa, level, Entry::Table)]];
    choices.extend(leaves.iter().map(|leaf| vec![step(ipa, level, *leaf)]));
    choices.push(vec![step(ipa, Level::LAST, Entry::Leaf)]);
    choices
}

/// Every pair of one choice from each side.
fn pairs(left: &[Choice], right: &[Choice]) -> Vec<Choice> {
    let both = |l: &Choice, r: &Choice| [l.as_slice(), r.as_slice()].concat();
    left.iter()
        .flat_map(|l| right.iter().map(move |r| both(l, r)))
        .collect()
}

fn level(nr: i8) -> Level {
    Level::new(nr).expect("a level")
}

/// A root at level 1 with four slots, each as large as a chunk.
fn geometry() -> Geometry {
    Geometry::new(Granule::K4, 32, level(1), OutputAddress::Standard).expect("a shape")
}

/// All there can be in one root slot.
fn root_slot(nr: u64) -> Vec<Choice> {
    let block = geometry().granule().level_size(level(2));
    let base = nr * geometry().granule().max_block_size();
    let mut choices = pairs(
        &simple_choices(base, level(2), &[Entry::Leaf, Entry::Locked]),
        &simple_choices(base + 511 * block, level(2), &[Entry::Donated]),
    );
    for entry in [Entry::Table, Entry::Leaf, Entry::Stray] {
        choices.push(vec![step(base, level(1), entry)]);
    }
    choices
}

/// Checks every tree with every touch; returns how many.
fn check_all(trees: &[Choice], touches: &[Option<(usize, Touch)>], budgets: &[u32]) -> usize {
    for steps in trees {
        for touch in touches {
            for &budget in budgets {
                let plan = Plan {
                    geometry: geometry(),
                    steps: steps.clone(),
                    touches: touch.iter().copied().collect(),
                    budget,
                    trust: budget == 1,
                };
                plan.check();
            }
        }
    }
    trees.len() * touches.len() * budgets.len()
}

#[test]
fn every_small_tree_is_destroyed_under_every_budget() {
    let trees = pairs(&pairs(&root_slot(0), &root_slot(1)), &root_slot(3));
    let checked = check_all(&trees, &[None], &[1, 2, u32::MAX]);
    println!("{checked} trees and budgets");
    assert_eq!(checked, 23 * 23 * 23 * 3);
}

#[test]
fn every_table_of_a_small_tree_is_held_passed_and_short() {
    let trees = pairs(&root_slot(0), &root_slot(3));
    // The root, and two tables of pages below each of its slots.
    let touches: Vec<_> = (0..7)
        .flat_map(|nr| [Touch::Hold, Touch::Pass, Touch::Steal].map(|touch| Some((nr, touch))))
        .collect();
    let checked = check_all(&trees, &touches, &[1, u32::MAX]);
    println!("{checked} trees, tables, touches and budgets");
    assert_eq!(checked, 23 * 23 * 7 * 3 * 2);
}
