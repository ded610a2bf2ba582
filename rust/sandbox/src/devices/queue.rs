// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One virtqueue with its notifications: an eventfd in, an interrupt out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use virtio_queue::{DescriptorChain, Error, Queue, QueueOwnedT, QueueT, Reader, Writer};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

/// Entries that a queue can have.
pub(super) const MAX_SIZE: u16 = 256;

/// Bit of the interrupt status: a queue has used buffers.
const USED_BUFFERS: u32 = 1;

/// A queue as a snapshot keeps it.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct QueueState {
    size: u16,
    ready: bool,
    next_avail: u16,
    next_used: u16,
    descriptors: u64,
    available: u64,
    used: u64,
}

/// Interrupt line and status of one device.
#[derive(Clone, Debug)]
pub(super) struct Interrupt {
    pub(super) status: Arc<AtomicU32>,
    pub(super) event: Arc<EventFd>,
}

impl Interrupt {
    /// Tells the guest to look at its queues.
    pub(super) fn raise(&self) {
        self.status.fetch_or(USED_BUFFERS, Ordering::SeqCst);
        // The counter can only be full if an interrupt is pending anyway.
        let _ = self.event.write(1);
    }
}

/// A queue while its device works.
#[derive(Debug)]
pub(super) struct DeviceQueue {
    pub(super) queue: Queue,
    pub(super) notify: EventFd,
    memory: Arc<GuestMemoryMmap>,
    interrupt: Interrupt,
    /// Buffers have been given back since the guest was last told.
    used: bool,
}

pub(super) type Chain = DescriptorChain<Arc<GuestMemoryMmap>>;

impl DeviceQueue {
    pub(super) fn new(
        notify: EventFd,
        memory: Arc<GuestMemoryMmap>,
        interrupt: Interrupt,
    ) -> Result<Self, Error> {
        Ok(Self {
            queue: Queue::new(MAX_SIZE)?,
            notify,
            memory,
            interrupt,
            used: false,
        })
    }

    /// Takes the next buffer of the guest.
    pub(super) fn pop(&mut self) -> Option<Chain> {
        self.queue.pop_descriptor_chain(self.memory.clone())
    }

    /// Puts the buffer that was popped last back, to be popped again.
    pub(super) fn unpop(&mut self) {
        self.queue.go_to_previous_position();
    }

    /// Reads what the guest put into a buffer.
    pub(super) fn reader<'a>(&'a self, chain: &Chain) -> Option<Reader<'a, ()>> {
        chain.clone().reader(&self.memory).ok()
    }

    /// Writes into what the guest left free of a buffer.
    pub(super) fn writer<'a>(&'a self, chain: &Chain) -> Option<Writer<'a, ()>> {
        chain.clone().writer(&self.memory).ok()
    }

    /// The memory its buffers are in.
    pub(super) fn share(&self) -> Arc<GuestMemoryMmap> {
        self.memory.clone()
    }

    /// Gives a buffer back with `length` bytes written. A guest that broke its
    /// own ring does not get it, and hangs alone.
    pub(super) fn push(&mut self, head: u16, length: u32) {
        self.used |= self.queue.add_used(&*self.memory, head, length).is_ok();
    }

    /// Interrupts the guest if there is something to look at and it wants to know.
    pub(super) fn notify_guest(&mut self) {
        if std::mem::take(&mut self.used)
            && self.queue.needs_notification(&*self.memory).unwrap_or(true)
        {
            self.interrupt.raise();
        }
    }

    /// Interrupts the guest in any case: after a restore nobody knows whether it
    /// saw the last one.
    pub(super) fn force_interrupt(&self) {
        self.interrupt.raise();
    }

    pub(super) fn save(&self) -> QueueState {
        QueueState {
            size: self.queue.size(),
            ready: self.queue.ready(),
            next_avail: self.queue.next_avail(),
            next_used: self.queue.next_used(),
            descriptors: self.queue.desc_table(),
            available: self.queue.avail_ring(),
            used: self.queue.used_ring(),
        }
    }

    pub(super) fn restore(&mut self, state: &QueueState) {
        let halves = |address: u64| (Some(address as u32), Some((address >> 32) as u32));
        let queue = &mut self.queue;
        queue.set_size(state.size);
        let (low, high) = halves(state.descriptors);
        queue.set_desc_table_address(low, high);
        let (low, high) = halves(state.available);
        queue.set_avail_ring_address(low, high);
        let (low, high) = halves(state.used);
        queue.set_used_ring_address(low, high);
        queue.set_next_avail(state.next_avail);
        queue.set_next_used(state.next_used);
        queue.set_ready(state.ready);
    }
}
