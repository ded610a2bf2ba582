// SPDX-License-Identifier: GPL-2.0

//! What a destroy must do, worked out from a list of entries and without any table.

use std::collections::{
    BTreeMap,
    BTreeSet, //
};

use kvm_s2::{
    arena::{
        Arena,
        Entry,
        Faults,
        Life,
        TableId, //
    },
    Destroyed, Geometry, Ipa, Level,
};

/// A table by its level and its first address.
type Place = (i8, u64);

/// `entry` into the next `nr` slots of `level` from `ipa` on.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) ipa: u64,
    pub(crate) level: Level,
    pub(crate) entry: Entry,
    pub(crate) nr: u64,
}

/// What somebody else does to the count of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Touch {
    /// Holds it until after the destroy.
    Hold,
    /// Holds it until the scheduler is let in for the first time, or until after the destroy.
    Pass,
    /// Drops a reference that is not theirs.
    Steal,
}

/// A stage-2, and all that happens to it until it is gone.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) geometry: Geometry,
    pub(crate) steps: Vec<Step>,
    /// The tables to touch, modulo their number; the first touch of a table counts.
    pub(crate) touches: Vec<(usize, Touch)>,
    pub(crate) budget: u32,
    /// Whether the destroy goes by the counts. It cannot find out that one is short then.
    pub(crate) trust: bool,
}

/// The entries of a stage-2, by level and address.
struct Reference {
    start: i8,
    /// Bits of the address for a page, and for each level more.
    page_shift: u32,
    end: u64,
    entries: BTreeMap<Place, Entry>,
    /// How many entries each table holds.
    tables: BTreeMap<Place, u32>,
}

impl Reference {
    fn new(geometry: &Geometry) -> Self {
        let mut new = Self {
            start: geometry.start_level().get(),
            page_shift: geometry.granule().page_shift(),
            end: 1 << geometry.ia_bits(),
            entries: BTreeMap::new(),
            tables: BTreeMap::new(),
        };
        let mut root = 0;
        while root < new.end {
            new.tables.insert((new.start, root), 0);
            root += new.bytes(new.start - 1);
        }
        new
    }

    fn bytes(&self, level: i8) -> u64 {
        bytes(self.page_shift, level)
    }

    fn table_of(&self, ipa: u64, level: i8) -> Place {
        (level, ipa / self.bytes(level - 1) * self.bytes(level - 1))
    }

    fn slot_of(&self, ipa: u64, level: i8) -> Place {
        (level, ipa / self.bytes(level) * self.bytes(level))
    }

    fn map(&mut self, ipa: u64, level: i8, entry: Entry) -> bool {
        let outside = ipa >= self.end || level < self.start;
        if outside || level == 3 && matches!(entry, Entry::Stray | Entry::Table) {
            return false;
        }
        let taken = (self.start..=level).any(|l| self.entries.contains_key(&self.slot_of(ipa, l)));
        let is_table = level < 3 && self.tables.contains_key(&self.table_of(ipa, level + 1));
        if taken || is_table && entry != Entry::Table {
            return false;
        }

        let lowest = level + i8::from(entry == Entry::Table);
        for l in self.start + 1..=lowest {
            if !self.tables.contains_key(&self.table_of(ipa, l)) {
                self.tables.insert(self.table_of(ipa, l), 0);
                self.count(ipa, l - 1);
            }
        }
        if entry != Entry::Table {
            self.entries.insert(self.slot_of(ipa, level), entry);
            self.count(ipa, level);
        }
        true
    }

    fn count(&mut self, ipa: u64, level: i8) {
        *self.tables.entry(self.table_of(ipa, level)).or_default() += 1;
    }

    /// The figures that do not depend on the budget.
    fn destroyed(&self) -> Destroyed {
        let mut done = Destroyed::default();
        for (&(level, _), entry) in &self.entries {
            match entry {
                Entry::Stray => done.leaked += 1,
                _ => done.leaves += 1,
            }
            if *entry == Entry::Leaf {
                done.pages += self.bytes(level) >> self.page_shift;
            }
        }
        let roots = self.tables.keys().filter(|(level, _)| *level == self.start);
        done.tables = (self.tables.len() - roots.count()) as u64;
        done.table_bytes = self
            .tables
            .keys()
            .map(|place| self.bytes_read(*place))
            .sum();
        done
    }

    /// Bytes of a table that have to be read: what is past the address space translates nothing,
    /// which is only looked at when it takes less to read on.
    fn bytes_read(&self, (level, base): Place) -> u64 {
        let slots = 1 << (self.page_shift - 3);
        let used = (self.end - base).div_ceil(self.bytes(level));
        let whole = level == 3 && self.start < 3;
        8 * if whole { slots } else { used.min(slots) }
    }

    /// The chunks that must be entered, and those that may be.
    fn chunks(&self, chunk: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
        let leaves = self.entries.iter().filter(|(_, e)| **e != Entry::Stray);
        let must = leaves.map(|((_, ipa), _)| ipa / chunk).collect();
        let below_root = self.tables.keys().filter(|(level, _)| *level > self.start);
        let all = self.entries.keys().chain(below_root);
        (must, all.map(|(_, ipa)| ipa / chunk).collect())
    }
}

/// Bytes below one entry of `level`; some levels of large pages reach past any number.
fn bytes(page_shift: u32, level: i8) -> u64 {
    let shift = page_shift + (page_shift - 3) * (3 - level) as u32;
    1u64.checked_shl(shift).unwrap_or(u64::MAX)
}

impl Plan {
    /// Builds, touches, destroys and lets go; compares each time.
    pub(crate) fn check(&self) {
        let mut reference = Reference::new(&self.geometry);
        let results = self.map_all(|ipa, level, entry| reference.map(ipa.0, level.get(), entry));
        let mut arena = Arena::new(self.geometry, reference.tables.len()).expect("memory");
        let built = self.map_all(|ipa, level, entry| arena.map(ipa, level, entry));
        assert_eq!(built, results, "what could be mapped");

        let tables = tables_of(&reference, &arena);
        assert_eq!(tables.len(), arena.nr_tables());
        for (id, entries) in &tables {
            assert_eq!(arena.refs(*id), Some(1 + entries), "references of {id:?}");
        }
        let touched = self.touch(&mut arena, &tables);
        if self.trust {
            arena.trust_counts();
        }
        let done = self.destroy(&mut arena, &touched);
        self.check_figures(&reference, &touched, done);
        check_remains(&mut arena, &tables, &touched);
    }

    fn map_all(&self, mut map: impl FnMut(Ipa, Level, Entry) -> bool) -> Vec<bool> {
        let page_shift = self.geometry.granule().page_shift();
        let mut results = Vec::new();
        for step in &self.steps {
            let bytes = bytes(page_shift, step.level.get());
            for nr in 0..step.nr {
                let ipa = step.ipa.saturating_add(nr.saturating_mul(bytes));
                results.push(map(Ipa(ipa), step.level, step.entry));
            }
        }
        results
    }

    /// Does to the tables what the plan says. Returns what was done to which.
    fn touch(&self, arena: &mut Arena, tables: &[(TableId, u32)]) -> BTreeMap<usize, Touch> {
        let mut touched = BTreeMap::new();
        for (nr, touch) in &self.touches {
            let (id, _) = tables[nr % tables.len()];
            if !(self.trust && *touch == Touch::Steal) {
                touched.entry(id.0).or_insert(*touch);
            }
        }
        for (id, touch) in &touched {
            match touch {
                Touch::Hold | Touch::Pass => arena.hold(TableId(*id)),
                Touch::Steal => arena.steal(TableId(*id)),
            }
        }
        touched
    }

    /// Most tables between two chances to schedule.
    ///
    /// Beside the budget, looking for what comes next gives up the tables between a last-level
    /// table and the root: once before the last table of a budget, and once after it.
    fn most_at_once(&self) -> usize {
        let above = usize::try_from(2 - self.geometry.start_level().get()).unwrap_or(0);
        (self.budget.max(1) as usize).saturating_add(2 * above)
    }

    fn destroy(&self, arena: &mut Arena, touched: &BTreeMap<usize, Touch>) -> Destroyed {
        // Without the root, which goes last and may be found short before.
        let live = |arena: &Arena| {
            let below_root = (self.geometry.nr_root_tables()..arena.nr_tables()).map(TableId);
            below_root
                .filter(|id| arena.life(*id) == Some(Life::Live))
                .count()
        };
        let mut rescheds = 0;
        let mut before = live(arena);
        let done = arena.destroy(self.budget, |arena| {
            let gone = before - live(arena);
            assert!(gone <= self.most_at_once(), "step of {gone}");
            before = live(arena);
            if rescheds == 0 {
                let passing = touched.iter().filter(|(_, touch)| **touch == Touch::Pass);
                passing.for_each(|(id, _)| arena.release(TableId(*id)));
            }
            rescheds += 1;
        });
        if rescheds == 0 {
            let passing = touched.iter().filter(|(_, touch)| **touch == Touch::Pass);
            passing.for_each(|(id, _)| arena.release(TableId(*id)));
        }
        assert_eq!(done.rescheds, rescheds);
        assert_eq!(arena.faults(), Faults::default());
        done
    }

    fn check_figures(
        &self,
        reference: &Reference,
        touched: &BTreeMap<usize, Touch>,
        done: Destroyed,
    ) {
        let stolen = touched.values().filter(|touch| **touch == Touch::Steal);
        let mut want = reference.destroyed();
        want.leaked += stolen.count() as u64;
        want.chunks = done.chunks;
        want.rescheds = done.rescheds;
        assert_eq!(done, want);

        let (must, may) = reference.chunks(self.geometry.granule().max_block_size());
        assert!(
            (must.len()..=may.len()).contains(&(done.chunks as usize)),
            "{} chunks",
            done.chunks
        );
    }
}

/// Every table, as the arena numbers it, and the entries it holds.
fn tables_of(reference: &Reference, arena: &Arena) -> Vec<(TableId, u32)> {
    let find = |(&(level, base), &entries): (&Place, &u32)| {
        let level = Level::new(level).expect("a level");
        let id = arena.table_at(Ipa(base), level).expect("a table");
        (id, entries)
    };
    reference.tables.iter().map(find).collect()
}

/// What others hold is theirs; what was short is left; the rest is gone.
fn check_remains(arena: &mut Arena, tables: &[(TableId, u32)], touched: &BTreeMap<usize, Touch>) {
    for (id, entries) in tables {
        let (life, refs) = match touched.get(&id.0) {
            Some(Touch::Hold) => (Life::Held, 1),
            Some(Touch::Steal) => (Life::Leaked, *entries),
            Some(Touch::Pass) | None => (Life::Freed, 0),
        };
        assert_eq!(
            (arena.life(*id), arena.refs(*id)),
            (Some(life), Some(refs)),
            "{id:?}"
        );
        if life == Life::Held {
            arena.release(*id);
            assert_eq!(arena.life(*id), Some(Life::Freed));
        }
    }
}
