// SPDX-License-Identifier: GPL-2.0

//! Guests of a protected host: a few mappings, in every tree, with every refusal.

use super::{
    shapes,
    Outcome,
    BUDGETS, //
};
use crate::{
    arena::mappings::{
        MappingFaults,
        Mappings,
        NodeId, //
    },
    geometry::Geometry,
    pkvm::{
        Fate,
        Mapping, //
    },
    stats::Destroyed,
};

/// Most pages in one call, as the kernel has it.
const MAX_RUN: u64 = 512;

fn build(geometry: Geometry, max_nodes: usize) -> Outcome<Mappings> {
    Mappings::new(geometry, max_nodes, MAX_RUN).ok_or(line!())
}

fn geometry() -> Outcome<Geometry> {
    shapes().next().ok_or(line!())
}

fn insert(mappings: &mut Mappings, gfn: u64, nr_pages: u64, willing: u64) -> Outcome {
    check!(mappings.insert(Mapping { gfn, nr_pages }, willing));
    Ok(())
}

/// Destroys everything; checks that each mapping was settled once, and at what cost.
fn destroy(mappings: &mut Mappings, budget: u32, leaves: u64) -> Outcome<Destroyed> {
    let mut rescheds = 0;
    let mut settled = 0;
    let mut longest = 0;
    let done = mappings.destroy(budget, |mappings| {
        longest = longest.max(mappings.settled() - settled);
        settled = mappings.settled();
        rescheds += 1;
    });
    check!(mappings.faults() == MappingFaults::default());
    check!(mappings.settled() as u64 == leaves && done.leaves == leaves);
    check!(done.rescheds == rescheds && longest <= budget.max(1) as usize);
    check!(done.tables == 0 && done.table_bytes == 0);
    // Each rotation takes a node off the left spine for good.
    check!(mappings.rotations() <= leaves.saturating_sub(1));
    check!(mappings.largest_run() <= MAX_RUN);
    check!(mappings.flushes() == 1);
    Ok(done)
}

/// A guest that mapped nothing costs nothing, however wide its address space is.
fn no_mappings() -> Outcome {
    for geometry in shapes() {
        let done = destroy(&mut build(geometry, 0)?, 1, 0)?;
        check!(done == Destroyed::default());
    }
    Ok(())
}

/// Neighbours go to the hypervisor together, up to its limit and to the end of a chunk.
fn runs() -> Outcome {
    for geometry in shapes() {
        let chunk = geometry.granule().max_block_size() >> geometry.granule().page_shift();
        if geometry.range().end.0 < 2 * geometry.granule().max_block_size() {
            continue;
        }
        for budget in BUDGETS {
            let mut mappings = build(geometry, 700)?;
            for gfn in chunk - 600..chunk + 100 {
                insert(&mut mappings, gfn, 1, 1)?;
            }
            let done = destroy(&mut mappings, budget, 700)?;
            check!(done.pages == 700 && done.leaked == 0);
            check!(done.requests == 3 && done.chunks == 2);
        }
    }
    Ok(())
}

/// What is no neighbour goes alone.
fn gaps() -> Outcome {
    let mut mappings = build(geometry()?, 40)?;
    for nr in 0..40 {
        insert(&mut mappings, 3 * nr, 2, 2)?;
    }
    let done = destroy(&mut mappings, 1, 40)?;
    check!(done.pages == 80 && done.requests == 40);
    Ok(())
}

/// A page that is refused stays, and with it its mapping; all others are given back.
fn one_refusal() -> Outcome {
    const NR: u64 = 20;
    for refused in 0..NR {
        for budget in BUDGETS {
            let mut mappings = build(geometry()?, NR as usize)?;
            for gfn in 0..NR {
                insert(&mut mappings, gfn, 1, u64::from(gfn != refused))?;
            }
            let done = destroy(&mut mappings, budget, NR)?;
            check!(done.pages == NR - 1 && done.leaked == 1);
            // Those before it, itself, and those after it.
            let parts = [refused, 1, NR - 1 - refused];
            check!(done.requests == parts.iter().filter(|&&part| part > 0).count() as u64);
            check!(mappings.fate(NodeId(refused as usize)) == Some(Fate::Stuck));
        }
    }
    Ok(())
}

/// A hypervisor that stops early is asked again, and stops are no refusals.
fn stops() -> Outcome {
    for (per_call, requests) in [(1, 20), (7, 3), (20, 1), (u64::MAX, 1)] {
        for budget in BUDGETS {
            let mut mappings = build(geometry()?, 20)?;
            mappings.stop_after(per_call);
            for gfn in 0..20 {
                insert(&mut mappings, gfn, 1, 1)?;
            }
            let done = destroy(&mut mappings, budget, 20)?;
            check!(done.pages == 20 && done.leaked == 0 && done.requests == requests);
        }
    }
    Ok(())
}

/// Large mappings between small ones, of which the hypervisor keeps a part.
fn partial_refusal() -> Outcome {
    for willing in [0, 1, 100, 511] {
        let mut mappings = build(geometry()?, 3)?;
        insert(&mut mappings, 512, 512, willing)?;
        insert(&mut mappings, 511, 1, 1)?;
        insert(&mut mappings, 1024, 1, 1)?;
        let done = destroy(&mut mappings, 1, 3)?;
        check!(done.pages == 2 + willing && done.leaked == 512 - willing);
        check!(mappings.fate(NodeId(0)) == Some(Fate::Stuck));
        check!(mappings.fate(NodeId(1)) == Some(Fate::Released));
        check!(mappings.fate(NodeId(2)) == Some(Fate::Released));
    }
    Ok(())
}

/// Every tree of up to five mappings, with every set of them refused.
fn small_trees() -> Outcome {
    for nr in 1..=5 {
        for order in 0..(1..=nr).product() {
            for refused in 0u64..1 << nr {
                for budget in BUDGETS {
                    small_tree(nr, order, refused, budget)?;
                }
            }
        }
    }
    Ok(())
}

/// The tree that the `order`-th permutation builds.
fn small_tree(nr: u64, order: u64, refused: u64, budget: u32) -> Outcome {
    let mut mappings = build(geometry()?, nr as usize)?;
    let mut left = (1u64 << nr) - 1;
    let mut order = order;
    for remaining in (1..=nr).rev() {
        let skip = order % remaining;
        order /= remaining;
        let mut candidates = (0..nr).filter(|gfn| (left >> gfn) & 1 == 1);
        let gfn = candidates.nth(skip as usize).ok_or(line!())?;
        left &= !(1 << gfn);
        insert(&mut mappings, gfn, 1, (!refused >> gfn) & 1)?;
    }
    let done = destroy(&mut mappings, budget, nr)?;
    check!(done.leaked == u64::from(refused.count_ones()));
    check!(done.pages == nr - done.leaked);
    Ok(())
}

#[cfg_attr(not(test), kernel::macros::kunit_tests(kvm_s2_mappings))]
mod tests {
    use super::*;

    #[test]
    fn no_mappings_cost_nothing() {
        assert_eq!(no_mappings(), Ok(()));
    }

    #[test]
    fn neighbours_go_in_runs() {
        assert_eq!(runs(), Ok(()));
    }

    #[test]
    fn gaps_end_runs() {
        assert_eq!(gaps(), Ok(()));
    }

    #[test]
    fn one_refused_page_stays_alone() {
        assert_eq!(one_refusal(), Ok(()));
    }

    #[test]
    fn early_stops_are_no_refusals() {
        assert_eq!(stops(), Ok(()));
    }

    #[test]
    fn part_of_a_mapping_is_refused() {
        assert_eq!(partial_refusal(), Ok(()));
    }

    #[test]
    fn every_small_tree_is_drained() {
        assert_eq!(small_trees(), Ok(()));
    }
}
