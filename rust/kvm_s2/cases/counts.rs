// SPDX-License-Identifier: GPL-2.0

//! Tables whose reference count is not what their entries make it.

use super::{
    build,
    destroy,
    every_shape,
    levels,
    page_size,
    shapes,
    top_page,
    Outcome,
    BUDGETS, //
};
use crate::{
    addr::Ipa,
    arena::{
        Entry,
        Life, //
    },
    geometry::{
        Geometry,
        Level, //
    },
};

/// Everything below a reference that somebody else holds is freed, and the table with it: when the
/// holder is done, be it after the destroy or during it.
fn held_table(geometry: Geometry) -> Outcome {
    for level in levels(&geometry) {
        for during in [false, true] {
            let mut arena = build(geometry, 16)?;
            check!(arena.map(Ipa(0), Level::LAST, Entry::Leaf));
            check!(arena.map(top_page(&geometry), Level::LAST, Entry::Leaf));
            let held = arena.table_at(Ipa(0), level).ok_or(line!())?;
            arena.hold(held);

            let mut holders = 1;
            let done = arena.destroy(1, |arena| {
                if during && holders > 0 {
                    arena.release(held);
                    holders -= 1;
                }
            });
            check!(done.leaked == 0 && done.leaves == 2);
            if holders > 0 {
                check!(arena.life(held) == Some(Life::Held));
                check!(arena.count(Life::Freed) == arena.nr_tables() - 1);
                arena.release(held);
            }
            check!(arena.is_clean());
        }
    }
    Ok(())
}

/// A table with fewer references than entries is left alone, once, and nothing else is.
fn short_count(geometry: Geometry) -> Outcome {
    for level in levels(&geometry) {
        for budget in BUDGETS {
            let mut arena = build(geometry, 16)?;
            check!(arena.map(Ipa(0), Level::LAST, Entry::Leaf));
            check!(arena.map(top_page(&geometry), Level::LAST, Entry::Leaf));
            let short = arena.table_at(Ipa(0), level).ok_or(line!())?;
            arena.steal(short);

            let done = destroy(&mut arena, budget, 2, 2)?;
            check!(done.leaked == 1);
            check!(arena.life(short) == Some(Life::Leaked));
            check!(arena.count(Life::Freed) == arena.nr_tables() - 1);
        }
    }
    Ok(())
}

/// A destroy that goes by the counts misses nothing, whoever else holds a table.
fn trusted_counts(geometry: Geometry) -> Outcome {
    for level in levels(&geometry) {
        let mut arena = build(geometry, 16)?;
        for nr in [0, 1, 40, 100] {
            check!(arena.map(Ipa(nr * page_size(&geometry)), Level::LAST, Entry::Leaf));
        }
        check!(arena.map(top_page(&geometry), Level::LAST, Entry::Leaf));
        let held = arena.table_at(Ipa(0), level).ok_or(line!())?;
        arena.hold(held);
        arena.trust_counts();

        let done = destroy(&mut arena, 1, 5, 5)?;
        check!(done.leaked == 0);
        arena.release(held);
        check!(arena.is_clean());
    }
    Ok(())
}

/// The search for entries ends where the count says: a page that it does not cover is not seen.
fn search_ends_with_the_count() -> Outcome {
    for geometry in shapes().filter(|geometry| !geometry.start_level().is_last()) {
        let mut arena = build(geometry, 16)?;
        let far = geometry.granule().ptrs_per_table() as u64 - 1;
        for nr in [0, far] {
            check!(arena.map(Ipa(nr * page_size(&geometry)), Level::LAST, Entry::Leaf));
        }
        arena.steal(arena.table_at(Ipa(0), Level::LAST).ok_or(line!())?);
        arena.trust_counts();
        let done = arena.destroy(1, |_| ());
        check!(done.leaves == 1 && done.leaked == 0);
        check!(arena.faults().miscounted == 1);
    }
    Ok(())
}

#[cfg_attr(not(test), kernel::macros::kunit_tests(kvm_s2_counts))]
mod tests {
    use super::*;

    #[test]
    fn held_table_neither_leaks_nor_goes_early() {
        assert_eq!(every_shape(held_table), Ok(()));
    }

    #[test]
    fn short_count_is_leaked_and_reported() {
        assert_eq!(every_shape(short_count), Ok(()));
    }

    #[test]
    fn trusted_counts_miss_nothing() {
        assert_eq!(every_shape(trusted_counts), Ok(()));
    }

    #[test]
    fn search_ends_where_the_count_says() {
        assert_eq!(search_ends_with_the_count(), Ok(()));
    }
}
