// SPDX-License-Identifier: GPL-2.0

//! Mappings that EL2 holds: guests of a protected host (pKVM).
//!
//! The host keeps one node for each mapping in a binary search tree and has no table to walk. The
//! tree belongs to a VM that is already unlinked, so it is *drained*: taken apart in IPA order by
//! rotations, without rebalancing and without the interval tree's augmentation. Neighbouring pages
//! are given back to the hypervisor as one run.

use crate::{
    addr::{
        Ipa,
        IpaRange, //
    },
    destroy::Backend,
    geometry::Geometry,
    stats::Destroyed, //
};

/// What a node of the tree says: pages `gfn` to `gfn + nr_pages` of the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// First guest frame number.
    pub gfn: u64,
    /// Number of pages, never 0.
    pub nr_pages: u64,
}

/// What became of a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The hypervisor gave its pages back.
    Released,
    /// The hypervisor refused: it still takes the pages for the guest's.
    Stuck,
}

/// The mapping tree and the hypervisor behind it.
///
/// # Safety
///
/// - Nodes reached from the root stay valid until they are passed to [`MappingOps::settle`], and
///   nobody else uses the tree.
/// - `left`, `right` and their setters are plain accessors of the same two links, and the links
///   form a binary search tree over [`Mapping::gfn`].
pub unsafe trait MappingOps {
    /// A pointer to a node.
    type Node: Copy;

    /// The node with smaller addresses below `node`.
    fn left(&self, node: Self::Node) -> Option<Self::Node>;
    /// The node with larger addresses below `node`.
    fn right(&self, node: Self::Node) -> Option<Self::Node>;
    /// Changes what [`MappingOps::left`] returns.
    fn set_left(&mut self, node: Self::Node, left: Option<Self::Node>);
    /// Changes what [`MappingOps::right`] returns.
    fn set_right(&mut self, node: Self::Node, right: Option<Self::Node>);
    /// What `node` maps.
    fn mapping(&self, node: Self::Node) -> Mapping;

    /// Most pages that go into one [`MappingOps::release`], unless one mapping alone has more.
    fn max_run(&self) -> u64;

    /// Asks the hypervisor for the pages from `gfn` on. They are whole mappings in a row: `first`
    /// and those that its `right` link leads to.
    ///
    /// Returns how many pages it gave back, from the first one on. It may stop after any mapping
    /// and be asked again; where it gives back nothing, or stops in a mapping, the next page was
    /// refused.
    fn release(&mut self, first: Self::Node, gfn: u64, nr_pages: u64) -> u64;

    /// Ends a mapping: gives back or keeps what the host holds for its pages, and frees the node.
    /// May be put off until [`MappingOps::flush`].
    ///
    /// # Safety
    ///
    /// - `node` is out of the tree, its fate is what the hypervisor said, and it is not used again.
    unsafe fn settle(&mut self, node: Self::Node, fate: Fate);

    /// Does what was put off.
    fn flush(&mut self);
}

/// A request to the hypervisor costs what so many mappings cost.
const REQUEST_WORK: u64 = 16;

/// Mappings that were taken from the tree and wait for the hypervisor, linked by `right`.
struct Run<N> {
    head: Option<N>,
    tail: Option<N>,
    gfn: u64,
    nr_pages: u64,
    /// Whether no other mapping continues it.
    closed: bool,
    /// How many of the pages the hypervisor has given back.
    released: u64,
    /// Whether it was asked and gave back nothing.
    refused: bool,
    /// Whether asking was put off until there is a new budget.
    put_off: bool,
}

impl<N> Run<N> {
    const EMPTY: Self = Self {
        head: None,
        tail: None,
        gfn: 0,
        nr_pages: 0,
        closed: false,
        released: 0,
        refused: false,
        put_off: false,
    };

    /// Whether the hypervisor has to be asked before the first mapping can be settled.
    #[inline]
    fn is_waiting(&self) -> bool {
        self.released == 0 && !self.refused
    }
}

/// The unlinked mapping tree of a VM that is being destroyed.
#[must_use = "mappings that are not destroyed leak"]
pub struct PkvmBackend<M: MappingOps> {
    ops: M,
    geometry: Geometry,
    root: Option<M::Node>,
    run: Run<M::Node>,
    done: Destroyed,
}

impl<M: MappingOps> PkvmBackend<M> {
    /// Takes over the tree below `root`.
    ///
    /// # Safety
    ///
    /// - `root` is the root of the tree that `ops` describes, no vCPU of the VM can be loaded any
    ///   more, and nobody else destroys it.
    pub unsafe fn new(ops: M, geometry: Geometry, root: Option<M::Node>) -> Self {
        Self {
            ops,
            geometry,
            root,
            run: Run::EMPTY,
            done: Destroyed::default(),
        }
    }

    /// The mapping operations.
    pub fn ops(&mut self) -> &mut M {
        &mut self.ops
    }

    /// Brings the node with the smallest address to the root and returns it.
    ///
    /// Each rotation takes a node off the left spine for good, so that draining `n` nodes takes
    /// fewer than `n` of them. Between two rotations the tree is whole.
    #[inline]
    fn first(&mut self) -> Option<M::Node> {
        let mut root = self.root?;
        while let Some(left) = self.ops.left(root) {
            let between = self.ops.right(left);
            self.ops.set_left(root, between);
            self.ops.set_right(left, Some(root));
            root = left;
        }
        self.root = Some(root);
        Some(root)
    }

    /// Takes the mappings that continue the run, below `end`, at most `budget` of them. Returns how
    /// many, and closes the run where there are no more.
    #[inline]
    fn collect(&mut self, end: Ipa, budget: u64) -> u64 {
        let max = self.ops.max_run();
        let mut taken = 0;
        while taken < budget {
            let Some(node) = self.first() else { break };
            let mapping = self.ops.mapping(node);
            let next = self.run.gfn.saturating_add(self.run.nr_pages);
            let fits = self.run.nr_pages.saturating_add(mapping.nr_pages) <= max;
            let starts = self.run.head.is_none();
            if self.ipa(mapping.gfn) >= end || !starts && (mapping.gfn != next || !fits) {
                break;
            }
            self.root = self.ops.right(node);
            self.append(node, mapping);
            taken += 1;
        }
        // One without mappings stays open for the next chunk.
        self.run.closed = taken < budget && self.run.head.is_some();
        taken
    }

    #[inline]
    fn append(&mut self, node: M::Node, mapping: Mapping) {
        self.ops.set_right(node, None);
        match self.run.tail {
            Some(tail) => self.ops.set_right(tail, Some(node)),
            None => {
                self.run.head = Some(node);
                self.run.gfn = mapping.gfn;
            }
        }
        self.run.tail = Some(node);
        self.run.nr_pages = self.run.nr_pages.saturating_add(mapping.nr_pages);
    }

    /// Settles mappings from the front of the run, at most `budget` of them, as far as the
    /// hypervisor has decided on them. Returns how many.
    #[inline]
    fn settle(&mut self, budget: u64) -> u64 {
        let mut settled = 0;
        while let Some(node) = self.run.head {
            let mapping = self.ops.mapping(node);
            if settled >= budget || self.run.is_waiting() {
                return settled;
            }
            self.run.head = self.ops.right(node);
            self.run.gfn = self.run.gfn.saturating_add(mapping.nr_pages);
            self.run.nr_pages = self.run.nr_pages.saturating_sub(mapping.nr_pages);

            let fate = if self.run.released >= mapping.nr_pages {
                self.run.released -= mapping.nr_pages;
                self.done.pages += mapping.nr_pages;
                Fate::Released
            } else {
                // Part of a mapping came back: the rest of it stays where it is.
                self.done.pages += self.run.released;
                self.done.leaked += mapping.nr_pages - self.run.released;
                self.run.released = 0;
                self.run.refused = false;
                Fate::Stuck
            };
            self.done.leaves += 1;
            // SAFETY: The node was taken from the tree and now from the run, and `release` said
            // what became of its pages.
            unsafe { self.ops.settle(node, fate) };
            settled += 1;
        }
        self.run = Run::EMPTY;
        settled
    }

    /// Asks the hypervisor for what is left of the run. Returns how much work that was.
    #[inline]
    fn release(&mut self, first: M::Node) -> u64 {
        let released = self.ops.release(first, self.run.gfn, self.run.nr_pages);
        self.done.requests += 1;
        self.run.released = released.min(self.run.nr_pages);
        self.run.refused = self.run.released == 0;
        self.run.put_off = false;
        REQUEST_WORK + self.run.released
    }

    /// One of three: takes some of a run from the tree, asks the hypervisor for the run, or settles
    /// some of it. Returns how much work that was, 0 at `end`.
    #[inline]
    fn step(&mut self, end: Ipa, budget: u64) -> u64 {
        if !self.run.closed {
            let taken = self.collect(end, budget);
            if taken > 0 {
                return taken;
            }
        }
        let Some(first) = self.run.head else {
            return 0;
        };
        if !self.run.is_waiting() {
            return self.settle(budget);
        }
        if self.run.nr_pages > budget && !self.run.put_off {
            // It may take as long as all of a budget, so what was left of this one is void.
            self.run.put_off = true;
            return budget;
        }
        self.release(first)
    }

    #[inline]
    fn ipa(&self, gfn: u64) -> Ipa {
        Ipa(gfn << self.geometry.granule().page_shift())
    }
}

impl<M: MappingOps> Backend for PkvmBackend<M> {
    fn next_mapped(&mut self) -> Ipa {
        if self.run.head.is_some() {
            return self.ipa(self.run.gfn);
        }
        match self.first() {
            Some(node) => self.ipa(self.ops.mapping(node).gfn),
            None => self.geometry.range().end,
        }
    }

    /// Each step leaves a state to go on from.
    fn destroy_range(&mut self, range: IpaRange, budget: &mut u32) -> u64 {
        let mut all = 0;
        while *budget > 0 {
            let work = self.step(range.end, u64::from(*budget));
            if work == 0 {
                break;
            }
            all += work;
            *budget = budget.saturating_sub(u32::try_from(work).unwrap_or(u32::MAX));
        }
        all
    }

    fn destroy_root(&mut self) -> Destroyed {
        self.ops.flush();
        self.done
    }
}
