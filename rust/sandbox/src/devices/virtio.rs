// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a virtio device brings to the common transport.

use std::fmt;
use std::io;

use super::queue::DeviceQueue;
use super::worker::Events;

/// `VIRTIO_F_VERSION_1`: the only kind of driver there is.
pub(super) const VERSION_1: u64 = 1 << virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;

/// Tokens from here on belong to the backend; below are queue numbers.
pub(super) const OWN_TOKENS: u64 = 1 << 32;

/// The part of a virtio device that is about its purpose.
///
/// All of it runs on the device's worker, except what reads configuration. It
/// keeps its fds open while no worker runs, so that a resumed guest goes on.
pub(super) trait Backend: Send + fmt::Debug {
    /// Number of the device type in the virtio standard.
    fn kind(&self) -> u32;

    /// Name of the worker thread.
    fn name(&self) -> &'static str;

    /// Features offered, beside version 1.
    fn features(&self) -> u64;

    /// Number of queues.
    fn queues(&self) -> usize;

    /// The configuration space.
    fn config(&self) -> &[u8];

    /// The worker starts: watch own fds, with tokens from [`OWN_TOKENS`] on.
    /// `restored` tells that the queues come from a snapshot.
    fn start(&mut self, io: &mut Io<'_>, restored: bool) -> io::Result<()>;

    /// The guest has put buffers into this queue.
    fn on_queue(&mut self, queue: usize, io: &mut Io<'_>);

    /// An own fd is ready.
    fn on_event(&mut self, token: u64, io: &mut Io<'_>);
}

/// What a backend may use while it runs.
pub(super) struct Io<'a> {
    /// The queues, in the standard's order.
    pub(super) queues: &'a mut [DeviceQueue],
    /// The worker's event set.
    pub(super) events: &'a Events,
}
