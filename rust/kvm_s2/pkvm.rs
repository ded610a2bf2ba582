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

/// What one request to the hypervisor achieved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// Pages given back, from the first one on. Less than asked for means that the next page was
    /// refused.
    pub nr_pages: u64,
    /// Calls that it took.
    pub hypercalls: u64,
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
    fn release(&mut self, first: Self::Node, gfn: u64, nr_pages: u64) -> Release;

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

/// Mappings that were taken from the tree and wait for the hypervisor, linked by `right`.
struct Run<N> {
    head: Option<N>,
    tail: Option<N>,
    gfn: u64,
    nr_pages: u64,
    /// How many of the pages the hypervisor has given back.
    released: u64,
    /// Whether the page after those was refused.
    refused: bool,
}

impl<N> Run<N> {
    const EMPTY: Self = Self {
        head: None,
        tail: None,
        gfn: 0,
        nr_pages: 0,
        released: 0,
        refused: false,
    };

    /// Whether the hypervisor has to be asked before the first mapping can be settled.
    #[inline]
    fn is_waiting(&self, first: Mapping) -> bool {
        self.released < first.nr_pages && !self.refused
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

    /// Takes the mappings that continue the run, below `end`. Returns how many.
    #[inline]
    fn collect(&mut self, end: Ipa) -> u64 {
        let max = self.ops.max_run();
        let mut taken = 0;
        while let Some(node) = self.first() {
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
    fn settle(&mut self, budget: u32) -> u64 {
        let mut settled = 0;
        while let Some(node) = self.run.head {
            let mapping = self.ops.mapping(node);
            if settled >= u64::from(budget) || self.run.is_waiting(mapping) {
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

    /// Asks the hypervisor for what is left of the run.
    #[inline]
    fn release(&mut self, first: M::Node) {
        let release = self.ops.release(first, self.run.gfn, self.run.nr_pages);
        self.done.hypercalls += release.hypercalls;
        self.run.released = release.nr_pages.min(self.run.nr_pages);
        self.run.refused = self.run.released < self.run.nr_pages;
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

    /// One of three: takes a run from the tree, asks the hypervisor for it, or settles `budget`
    /// mappings of it. Each leaves a state to go on from.
    ///
    /// Each takes a budget of its own.
    fn destroy_range(&mut self, range: IpaRange, budget: &mut u32) -> u64 {
        let budget = core::mem::take(budget);
        let Some(head) = self.run.head else {
            return self.collect(range.end);
        };
        if self.run.is_waiting(self.ops.mapping(head)) {
            self.release(head);
            return self.run.released;
        }
        self.settle(budget)
    }

    fn destroy_root(&mut self) -> Destroyed {
        self.ops.flush();
        self.done
    }
}
