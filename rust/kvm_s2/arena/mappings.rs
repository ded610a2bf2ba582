// SPDX-License-Identifier: GPL-2.0

//! The mappings of a protected host's guest, and a hypervisor that holds their pages.

use core::cell::Cell;

use super::buffer::{
    self,
    Buffer, //
};
use crate::{
    destroy::stage2_destroy,
    geometry::Geometry,
    pkvm::{
        Fate,
        Mapping,
        MappingOps,
        PkvmBackend, //
    },
    stats::Destroyed,
};

/// A mapping by number, in the order of insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeId(pub usize);

/// A node of the tree, and what the hypervisor knows about its pages.
#[derive(Clone, Copy)]
struct Node {
    mapping: Mapping,
    left: Option<NodeId>,
    right: Option<NodeId>,
    /// Pages that the hypervisor gives back; it refuses the next one.
    willing: u64,
    /// Pages that it was asked for and gave back.
    given: Option<u64>,
    fate: Option<Fate>,
}

/// What no destroy of mappings may do, each counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MappingFaults {
    /// Nodes used after they were settled.
    pub use_after_free: u64,
    /// Pages asked for that are not whole mappings in a row, or a second time.
    pub bad_release: u64,
    /// Nodes settled twice, out of order, or otherwise than the hypervisor said.
    pub bad_settle: u64,
}

/// The mappings of one guest.
pub struct Mappings {
    geometry: Geometry,
    nodes: Buffer<Node>,
    used: usize,
    root: Option<NodeId>,
    max_run: u64,
    per_call: u64,
    /// Where the last settled mapping ended.
    settled_to: u64,
    rotations: u64,
    largest: u64,
    flushes: u64,
    use_after_free: Cell<u64>,
    bad_release: u64,
    bad_settle: u64,
}

impl Mappings {
    /// No mappings, with memory for `max_nodes`. The hypervisor takes `max_run` pages at once.
    ///
    /// `None` when there is not as much memory.
    pub fn new(geometry: Geometry, max_nodes: usize, max_run: u64) -> Option<Self> {
        let unused = Node {
            mapping: Mapping {
                gfn: 0,
                nr_pages: 0,
            },
            left: None,
            right: None,
            willing: 0,
            given: None,
            fate: None,
        };
        Some(Self {
            geometry,
            nodes: buffer::filled(unused, max_nodes)?,
            used: 0,
            root: None,
            max_run,
            per_call: u64::MAX,
            settled_to: 0,
            rotations: 0,
            largest: 0,
            flushes: 0,
            use_after_free: Cell::new(0),
            bad_release: 0,
            bad_settle: 0,
        })
    }

    /// Adds a mapping as a leaf of the tree, which is not balanced: its shape is up to the order.
    /// The hypervisor will give back the first `willing` of its pages.
    ///
    /// `false` when it overlaps with another one, or when memory is used up.
    #[must_use]
    pub fn insert(&mut self, mapping: Mapping, willing: u64) -> bool {
        let end = mapping.gfn.saturating_add(mapping.nr_pages);
        let mut parent = None;
        let mut next = self.root;
        while let Some(node) = next.and_then(|id| self.nodes.get(id.0)) {
            parent = next;
            next = if end <= node.mapping.gfn {
                node.left
            } else if mapping.gfn >= node.mapping.gfn.saturating_add(node.mapping.nr_pages) {
                node.right
            } else {
                return false;
            };
        }
        self.add_below(parent, mapping, willing)
    }

    /// Has the hypervisor stop each call after the mapping with which `pages` are given back.
    pub fn stop_after(&mut self, pages: u64) {
        self.per_call = pages;
    }

    fn add_below(&mut self, parent: Option<NodeId>, mapping: Mapping, willing: u64) -> bool {
        let id = NodeId(self.used);
        let Some(node) = self.nodes.get_mut(id.0) else {
            return false;
        };
        node.mapping = mapping;
        node.willing = willing.min(mapping.nr_pages);
        self.used += 1;
        match parent.and_then(|parent| self.nodes.get_mut(parent.0)) {
            Some(above) if mapping.gfn < above.mapping.gfn => above.left = Some(id),
            Some(above) => above.right = Some(id),
            None => self.root = Some(id),
        }
        true
    }

    /// Destroys the mappings in steps of `budget` and calls `resched` between them.
    pub fn destroy(&mut self, budget: u32, mut resched: impl FnMut(&mut Self)) -> Destroyed {
        let geometry = self.geometry;
        let root = self.root.take();
        // SAFETY: The tree belongs to these mappings, which have no vCPU, and it has no root any
        // more for others to start from.
        let mut backend = unsafe { PkvmBackend::new(self, geometry, root) };
        stage2_destroy(&mut backend, &geometry, geometry.range(), budget, |b| {
            resched(b.ops());
        })
    }

    /// What became of a mapping, if it is settled.
    pub fn fate(&self, id: NodeId) -> Option<Fate> {
        self.nodes.get(id.0)?.fate
    }

    /// How many mappings are settled.
    pub fn settled(&self) -> usize {
        let nodes = self.nodes.iter().take(self.used);
        nodes.filter(|node| node.fate.is_some()).count()
    }

    /// What went wrong so far.
    pub fn faults(&self) -> MappingFaults {
        MappingFaults {
            use_after_free: self.use_after_free.get(),
            bad_release: self.bad_release,
            bad_settle: self.bad_settle,
        }
    }

    /// Rotations of the tree so far.
    pub fn rotations(&self) -> u64 {
        self.rotations
    }

    /// Pages in the largest request so far.
    pub fn largest_run(&self) -> u64 {
        self.largest
    }

    /// Calls of [`MappingOps::flush`] so far.
    pub fn flushes(&self) -> u64 {
        self.flushes
    }

    /// A node that is not settled.
    fn node(&self, id: NodeId) -> Option<&Node> {
        let node = self.nodes.get(id.0).filter(|node| node.fate.is_none());
        let missing = u64::from(node.is_none());
        self.use_after_free.set(self.use_after_free.get() + missing);
        node
    }

    fn node_mut(&mut self, id: NodeId) -> Option<&mut Node> {
        self.node(id)?;
        self.nodes.get_mut(id.0)
    }
}

// SAFETY: Links are plain fields, and nodes stay in memory, settled or not.
unsafe impl MappingOps for &mut Mappings {
    type Node = NodeId;

    fn left(&self, node: NodeId) -> Option<NodeId> {
        self.node(node)?.left
    }

    fn right(&self, node: NodeId) -> Option<NodeId> {
        self.node(node)?.right
    }

    fn set_left(&mut self, node: NodeId, left: Option<NodeId>) {
        self.rotations += 1;
        if let Some(node) = self.node_mut(node) {
            node.left = left;
        }
    }

    fn set_right(&mut self, node: NodeId, right: Option<NodeId>) {
        if let Some(node) = self.node_mut(node) {
            node.right = right;
        }
    }

    fn mapping(&self, node: NodeId) -> Mapping {
        let none = Mapping {
            gfn: 0,
            nr_pages: 1,
        };
        self.node(node).map_or(none, |node| node.mapping)
    }

    fn max_run(&self) -> u64 {
        self.max_run
    }

    fn release(&mut self, first: NodeId, gfn: u64, nr_pages: u64) -> u64 {
        self.largest = self.largest.max(nr_pages);
        let per_call = self.per_call;
        let mut given = 0;
        let mut asked = 0;
        let mut next = Some(first);
        while asked < nr_pages {
            let here = next.and_then(|id| self.node_mut(id));
            let fits = |node: &&mut Node| node.mapping.gfn == gfn + asked && node.given.is_none();
            let Some(node) = here.filter(fits) else {
                self.bad_release += 1;
                break;
            };
            if node.willing == 0 && given > 0 {
                break;
            }
            next = node.right;
            asked += node.mapping.nr_pages;
            node.given = Some(node.willing);
            given += node.willing;
            if node.willing < node.mapping.nr_pages || given >= per_call {
                break;
            }
        }
        self.bad_release += u64::from(asked > nr_pages);
        given
    }

    unsafe fn settle(&mut self, id: NodeId, fate: Fate) {
        let settled_to = self.settled_to;
        let Some(node) = self.node_mut(id) else {
            self.bad_settle += 1;
            return;
        };
        let said = match node.given {
            Some(pages) if pages == node.mapping.nr_pages => Some(Fate::Released),
            Some(_) => Some(Fate::Stuck),
            None => None,
        };
        let start = node.mapping.gfn;
        let end = start + node.mapping.nr_pages;
        node.fate = Some(fate);
        self.bad_settle += u64::from(said != Some(fate) || start < settled_to);
        self.settled_to = end;
    }

    fn flush(&mut self) {
        self.flushes += 1;
    }
}
