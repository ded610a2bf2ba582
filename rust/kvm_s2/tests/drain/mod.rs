// SPDX-License-Identifier: GPL-2.0

//! What draining a tree of mappings must do, worked out from a sorted list of them.

use std::collections::BTreeSet;

use kvm_s2::{
    arena::mappings::{
        MappingFaults,
        Mappings,
        NodeId, //
    },
    Destroyed, Fate, Geometry, Mapping,
};

/// One mapping: where it starts, its pages, and how many of them the hypervisor gives back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Item {
    pub(crate) gfn: u64,
    pub(crate) nr_pages: u64,
    pub(crate) willing: u64,
}

/// Mappings in the order they are inserted, and how they are drained.
#[derive(Clone, Debug)]
pub(crate) struct Drain {
    pub(crate) geometry: Geometry,
    pub(crate) items: Vec<Item>,
    pub(crate) max_run: u64,
    pub(crate) per_call: u64,
    pub(crate) budget: u32,
}

impl Drain {
    /// Inserts what does not overlap, drains, and compares.
    pub(crate) fn check(&self) {
        let mut mappings =
            Mappings::new(self.geometry, self.items.len(), self.max_run).expect("memory");
        mappings.stop_after(self.per_call);
        let mut kept: Vec<Item> = Vec::new();
        for item in &self.items {
            let fits = kept.iter().all(|other| {
                item.gfn + item.nr_pages <= other.gfn || other.gfn + other.nr_pages <= item.gfn
            });
            let mapping = Mapping {
                gfn: item.gfn,
                nr_pages: item.nr_pages,
            };
            assert_eq!(mappings.insert(mapping, item.willing), fits, "{item:?}");
            kept.extend(fits.then_some(*item));
        }

        let mut settled = 0;
        let mut rescheds = 0;
        let done = mappings.destroy(self.budget, |mappings| {
            let step = mappings.settled() - settled;
            assert!(step <= self.budget.max(1) as usize, "step of {step}");
            settled = mappings.settled();
            rescheds += 1;
        });
        assert_eq!(mappings.faults(), MappingFaults::default());
        assert!(mappings.rotations() <= kept.len().saturating_sub(1) as u64);
        for (nr, item) in kept.iter().enumerate() {
            let fate = match item.willing >= item.nr_pages {
                true => Fate::Released,
                false => Fate::Stuck,
            };
            assert_eq!(mappings.fate(NodeId(nr)), Some(fate), "{item:?}");
        }

        kept.sort_by_key(|item| item.gfn);
        assert_eq!(
            done,
            Destroyed {
                rescheds,
                ..self.destroyed(&kept)
            }
        );
    }

    fn chunk(&self, item: &Item) -> u64 {
        let granule = self.geometry.granule();
        item.gfn / (granule.max_block_size() >> granule.page_shift())
    }

    /// The figures for these mappings, which are sorted.
    fn destroyed(&self, items: &[Item]) -> Destroyed {
        let given: u64 = items
            .iter()
            .map(|item| item.willing.min(item.nr_pages))
            .sum();
        let chunks: BTreeSet<u64> = items.iter().map(|item| self.chunk(item)).collect();
        Destroyed {
            leaves: items.len() as u64,
            pages: given,
            leaked: items.iter().map(|item| item.nr_pages).sum::<u64>() - given,
            chunks: chunks.len() as u64,
            requests: self.runs(items).iter().map(|run| self.requests(run)).sum(),
            ..Destroyed::default()
        }
    }

    /// Neighbours in a chunk that go to the hypervisor together.
    fn runs<'a>(&self, items: &'a [Item]) -> Vec<&'a [Item]> {
        let mut runs = Vec::new();
        let mut start = 0;
        let mut pages = 0;
        for (nr, item) in items.iter().enumerate() {
            let before = nr.checked_sub(1).map(|before| items[before]);
            let goes_on = before.is_some_and(|before| {
                before.gfn + before.nr_pages == item.gfn
                    && self.chunk(&before) == self.chunk(item)
                    && pages + item.nr_pages <= self.max_run
            });
            if !goes_on {
                runs.extend(items.get(start..nr).filter(|run| !run.is_empty()));
                start = nr;
                pages = 0;
            }
            pages += item.nr_pages;
        }
        runs.extend(items.get(start..).filter(|run| !run.is_empty()));
        runs
    }

    /// How often the hypervisor is asked for a run: again after each stop, until it has decided
    /// on all of it. Only what it refuses at once, or in a part, is not asked for again.
    fn requests(&self, run: &[Item]) -> u64 {
        let mut rest = run;
        let mut requests = 0;
        while !rest.is_empty() {
            requests += 1;
            let mut given = 0;
            let mut decided = 0;
            for item in rest {
                let part = item.willing.min(item.nr_pages);
                if part == 0 && given > 0 {
                    break;
                }
                decided += 1;
                given += part;
                if part < item.nr_pages || given >= self.per_call {
                    break;
                }
            }
            rest = &rest[decided..];
        }
        requests
    }
}
