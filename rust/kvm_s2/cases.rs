// SPDX-License-Identifier: GPL-2.0

//! The cases that cargo and KUnit both run: small tables, destroyed under every geometry.

use crate::{
    addr::Ipa,
    arena::{
        Arena,
        Entry,
        Faults,
        Life,
        TableId, //
    },
    geometry::{
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
    },
    stats::Destroyed,
};

/// The line of the first check that did not hold.
type Outcome<T = ()> = Result<T, u32>;

macro_rules! check {
    ($cond:expr) => {
        if !$cond {
            return Err(line!());
        }
    };
}

mod counts;
mod mappings;

const LEVELS: [i8; 5] = [-1, 0, 1, 2, 3];
const GRANULES: [Granule; 3] = [K4, K16, K64];
const BUDGETS: [u32; 3] = [1, 3, u32::MAX];

/// What KVM builds on the machines there are: every granule and layout, one root table and many,
/// and a root that already holds the pages.
const SHAPES: [(Granule, u32, i8, OutputAddress); 12] = [
    (K4, 52, -1, Lpa2),
    (K4, 48, 0, Standard),
    (K4, 43, 1, Standard),
    (K4, 40, 1, Lpa2),
    (K4, 32, 2, Standard),
    (K4, 25, 3, Standard),
    (K16, 52, 0, Lpa2),
    (K16, 48, 1, Standard),
    (K16, 40, 2, Lpa2),
    (K64, 52, 1, Standard),
    (K64, 46, 2, Standard),
    (K64, 33, 3, Standard),
];

fn shapes() -> impl Iterator<Item = Geometry> {
    SHAPES
        .iter()
        .filter_map(|&(granule, ia_bits, start, output)| {
            Geometry::new(granule, ia_bits, Level::new(start)?, output).ok()
        })
}

fn levels(geometry: &Geometry) -> impl Iterator<Item = Level> {
    let start = geometry.start_level();
    let levels = LEVELS.iter().filter_map(|&level| Level::new(level));
    levels.filter(move |level| *level >= start)
}

fn build(geometry: Geometry, max_tables: usize) -> Outcome<Arena> {
    Arena::new(geometry, max_tables).ok_or(line!())
}

/// The first page of every `step` bytes below `end`. Returns how many.
fn map_pages(arena: &mut Arena, end: u64, step: u64) -> Outcome<u64> {
    let mut ipa = 0;
    while ipa < end {
        check!(arena.map(Ipa(ipa), Level::LAST, Entry::Leaf));
        ipa += step;
    }
    Ok(ipa / step)
}

fn page_size(geometry: &Geometry) -> u64 {
    geometry.granule().level_size(Level::LAST)
}

/// The level whose entries are as large as a chunk, when the address space has many of those.
fn chunk_level(geometry: &Geometry) -> Option<Level> {
    let chunk = geometry.granule().max_block_size();
    let many = geometry.range().end.0 / chunk >= 8;
    levels(geometry).find(|&level| many && geometry.granule().level_size(level) == chunk)
}

/// The last page of the address space.
fn top_page(geometry: &Geometry) -> Ipa {
    Ipa(geometry.range().end.0 - page_size(geometry))
}

/// Bytes of a whole tree when each of its tables is read once, and of the root only what translates
/// an address.
fn bytes_of(arena: &Arena) -> u64 {
    let geometry = arena.geometry();
    let slots = geometry.range().end.0 >> geometry.granule().level_shift(geometry.start_level());
    let below = arena.nr_tables() - geometry.nr_root_tables();
    8 * slots.max(1) + below as u64 * page_size(geometry)
}

/// Destroys everything; checks that each table was read once and each leaf was seen once.
fn destroy(arena: &mut Arena, budget: u32, leaves: u64, pages: u64) -> Outcome<Destroyed> {
    let below_root = arena.nr_tables() - arena.geometry().nr_root_tables();
    let bytes = bytes_of(arena);
    let mut rescheds = 0;
    let done = arena.destroy(budget, |_| rescheds += 1);

    check!(done.leaves == leaves);
    check!(done.pages == pages);
    check!(done.tables == below_root as u64);
    check!(done.table_bytes == bytes);
    check!(done.rescheds == rescheds);
    check!(done.requests == 0);
    check!(arena.faults() == Faults::default());
    Ok(done)
}

/// [`destroy`], and nothing may be left.
fn destroy_all(arena: &mut Arena, budget: u32, leaves: u64, pages: u64) -> Outcome<Destroyed> {
    let done = destroy(arena, budget, leaves, pages)?;
    check!(done.leaked == 0);
    check!(arena.is_clean());
    Ok(done)
}

/// Every width of the address space, with every root it can have.
fn empty_space() -> Outcome {
    for granule in GRANULES {
        for ia_bits in 13..=52 {
            for level in LEVELS.iter().filter_map(|&level| Level::new(level)) {
                let Ok(geometry) = Geometry::new(granule, ia_bits, level, Standard) else {
                    continue;
                };
                let done = destroy_all(&mut build(geometry, 0)?, 1, 0, 0)?;
                check!(done.chunks == 0 && done.rescheds == 0);
            }
        }
    }
    Ok(())
}

/// The smallest table that a destroy by chunks can free too early.
fn chunk_plus_page(geometry: Geometry) -> Outcome {
    let chunk = geometry.granule().max_block_size();
    let end = geometry.range().end.0.min(chunk + page_size(&geometry));
    let step =
        geometry.granule().level_size(Level::LAST) * geometry.granule().ptrs_per_table() as u64;
    for budget in BUDGETS {
        let mut arena = build(geometry, (end / step) as usize + LEVELS.len())?;
        let pages = map_pages(&mut arena, end, step)?;
        let done = destroy_all(&mut arena, budget, pages, pages)?;
        check!(done.chunks == end.div_ceil(chunk));
    }
    Ok(())
}

/// A table with pages in several chunks stays until the last of them is done.
fn spanning_table(geometry: Geometry) -> Outcome {
    let Some(span) = chunk_level(&geometry) else {
        return Ok(());
    };
    let chunk = geometry.granule().level_size(span);
    let in_table = geometry.granule().ptrs_per_table() as u64;
    let last = in_table.min(geometry.range().end.0 / chunk) - 1;
    for budget in BUDGETS {
        let mut arena = build(geometry, 16)?;
        for nr in [0, 1, last] {
            check!(arena.map(Ipa(nr * chunk), Level::LAST, Entry::Leaf));
        }
        let table = arena.table_at(Ipa(0), span).ok_or(line!())?;
        let mut gone = 0;
        let done = arena.destroy(budget, |arena| {
            gone += u32::from(arena.life(table) != Some(Life::Live));
        });
        check!(gone == 0);
        check!(done.chunks == 3 && (budget > 1 || done.rescheds >= 2));
        check!(arena.is_clean());
    }
    Ok(())
}

/// Pages at both ends of each table of the root.
fn concatenated_root(geometry: Geometry) -> Outcome {
    let table = geometry.root_table_size().min(geometry.range().end.0);
    let roots = geometry.nr_root_tables() as u64;
    let mut arena = build(geometry, 200)?;
    for root in 0..roots {
        for ipa in [root * table, (root + 1) * table - page_size(&geometry)] {
            check!(arena.map(Ipa(ipa), Level::LAST, Entry::Leaf));
        }
    }
    destroy_all(&mut arena, 1, 2 * roots, 2 * roots)?;
    Ok(())
}

/// An entry that leads out of memory costs what hangs there, which is reported, and no more.
fn stray_entry(geometry: Geometry) -> Outcome {
    for level in levels(&geometry).filter(|level| !level.is_last()) {
        let mut arena = build(geometry, 16)?;
        check!(arena.map(Ipa(0), level, Entry::Stray));
        check!(arena.map(top_page(&geometry), Level::LAST, Entry::Leaf));
        let done = destroy(&mut arena, 1, 1, 1)?;
        check!(done.leaked == 1 && arena.lost() == 1);
        check!(arena.is_clean());
    }
    Ok(())
}

/// Entries that map nothing hold a reference like those that do; at the last level and above.
fn annotations(geometry: Geometry) -> Outcome {
    const ENTRIES: [Entry; 4] = [Entry::Leaf, Entry::Locked, Entry::Donated, Entry::Poisoned];
    for level in levels(&geometry) {
        let size = geometry.granule().level_size(level);
        let mut arena = build(geometry, 16)?;
        let mut leaves = 0;
        let mut mapped = 0;
        // Groups of full, mixed and empty slots.
        for nr in (0..100).filter(|nr| nr / 40 != 1 || nr % 3 != 0) {
            let entry = if nr < 40 {
                Entry::Leaf
            } else {
                ENTRIES[nr as usize % 4]
            };
            if nr * size < geometry.range().end.0 {
                check!(arena.map(Ipa(nr * size), level, entry));
                leaves += 1;
                mapped += u64::from(entry == Entry::Leaf);
            }
        }
        destroy_all(
            &mut arena,
            1,
            leaves,
            mapped * (size / page_size(&geometry)),
        )?;
    }
    Ok(())
}

/// Small steps and one large one do the same, and a small step is small.
fn budgets(geometry: Geometry) -> Outcome {
    let step = (geometry.range().end.0 / 64).max(page_size(&geometry));
    let mut whole = None;
    for budget in [u32::MAX, 7, 2, 1, 0] {
        let mut arena = build(geometry, 256)?;
        let pages = map_pages(&mut arena, geometry.range().end.0, step)?;
        let mut freed = 0;
        let mut longest = 0;
        let done = arena.destroy(budget, |arena| {
            longest = longest.max(arena.count(Life::Freed) - freed);
            freed = arena.count(Life::Freed);
        });
        check!(arena.is_clean() && done.pages == pages);
        // Looking for what comes next may give up the tables above.
        check!(longest <= (budget.max(1) as usize).saturating_add(LEVELS.len()));

        let same = Destroyed {
            rescheds: 0,
            ..done
        };
        check!(*whole.get_or_insert(same) == same);
    }
    Ok(())
}

/// The scheduler is let in when a budget is spent, if more is to come: never for an empty chunk,
/// and not between light chunks that one budget pays for.
fn resched_after_work(geometry: Geometry) -> Outcome {
    let Some(span) = chunk_level(&geometry) else {
        return Ok(());
    };
    let chunk = geometry.granule().level_size(span);
    for (first, level, want) in [(Entry::Leaf, Level::LAST, 1), (Entry::Stray, span, 0)] {
        let mut arena = build(geometry, 16)?;
        check!(arena.map(Ipa(0), level, first));
        check!(arena.map(Ipa(5 * chunk), Level::LAST, Entry::Leaf));
        let done = arena.destroy(1, |_| ());
        // Nothing was given up in the chunk that held only a stray.
        check!(done.chunks == 1 + want && done.rescheds == want);
    }
    for (budget, want) in [(1, 7), (2, 3), (8, 0), (u32::MAX, 0)] {
        let mut arena = build(geometry, 16)?;
        for nr in 0..8 {
            check!(arena.map(Ipa(nr * chunk), span, Entry::Leaf));
        }
        let done = arena.destroy(budget, |_| ());
        check!(done.chunks == 8 && done.rescheds == want);
    }
    Ok(())
}

/// Empty tables, one in each chunk, are work too: the scheduler is let in between them.
fn empty_tables(geometry: Geometry) -> Outcome {
    let Some(span) = chunk_level(&geometry) else {
        return Ok(());
    };
    let mut arena = build(geometry, 16)?;
    for nr in 0..8 {
        check!(arena.map(
            Ipa(nr * geometry.granule().level_size(span)),
            span,
            Entry::Table
        ));
    }
    let done = destroy_all(&mut arena, 1, 0, 0)?;
    check!(done.rescheds >= 6);
    Ok(())
}

/// Tables that were built for a page that never came.
fn half_built(geometry: Geometry) -> Outcome {
    for level in levels(&geometry).filter(|level| !level.is_last()) {
        let mut arena = build(geometry, 16)?;
        check!(arena.map(Ipa(0), level, Entry::Table));
        check!(arena.map(top_page(&geometry), Level::LAST, Entry::Leaf));
        destroy_all(&mut arena, 1, 1, 1)?;
    }
    Ok(())
}

/// A destroyed root is not destroyed again without anybody noticing.
fn second_destroy() -> Outcome {
    for geometry in shapes() {
        let mut arena = build(geometry, 16)?;
        check!(arena.map(Ipa(0), Level::LAST, Entry::Leaf));
        destroy_all(&mut arena, 1, 1, 1)?;
        arena.destroy(1, |_| ());
        check!(!arena.is_clean());
        check!(arena.life(TableId(0)) == Some(Life::Freed));
    }
    Ok(())
}

fn every_shape(case: fn(Geometry) -> Outcome) -> Outcome {
    check!(shapes().count() == SHAPES.len());
    shapes().try_for_each(case)
}

#[cfg_attr(not(test), kernel::macros::kunit_tests(kvm_s2))]
mod tests {
    use super::*;

    #[test]
    fn empty_space_is_free() {
        assert_eq!(empty_space(), Ok(()));
    }

    #[test]
    fn chunk_plus_page_is_freed_once() {
        assert_eq!(every_shape(chunk_plus_page), Ok(()));
    }

    #[test]
    fn spanning_table_stays_to_the_end() {
        assert_eq!(every_shape(spanning_table), Ok(()));
    }

    #[test]
    fn concatenated_root_is_visited_whole() {
        assert_eq!(every_shape(concatenated_root), Ok(()));
    }

    #[test]
    fn stray_entry_is_reported() {
        assert_eq!(every_shape(stray_entry), Ok(()));
    }

    #[test]
    fn annotations_hold_references() {
        assert_eq!(every_shape(annotations), Ok(()));
    }

    #[test]
    fn budgets_give_the_same_figures() {
        assert_eq!(every_shape(budgets), Ok(()));
    }

    #[test]
    fn resched_only_after_work() {
        assert_eq!(every_shape(resched_after_work), Ok(()));
    }

    #[test]
    fn empty_tables_count_as_work() {
        assert_eq!(every_shape(empty_tables), Ok(()));
    }

    #[test]
    fn half_built_tables_are_freed() {
        assert_eq!(every_shape(half_built), Ok(()));
    }

    #[test]
    fn second_destroy_is_noticed() {
        assert_eq!(second_destroy(), Ok(()));
    }
}
