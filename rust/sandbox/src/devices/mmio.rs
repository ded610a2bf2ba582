// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! virtio over MMIO, version 2 (virtio 1.2, section 4.2): registers, queues and
//! the life of the worker.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;

use kvm_ioctls::{IoEventAddress, VmFd};
use serde::{Deserialize, Serialize};
use virtio_queue::QueueT;
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

use super::bus::BusDevice;
use super::queue::{DeviceQueue, Interrupt, QueueState, MAX_SIZE};
use super::virtio::{Backend, Io, OWN_TOKENS, VERSION_1};
use super::worker::{Events, Worker};
use super::DeviceError;
use crate::arch::DeviceSlot;

const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
const VENDOR: u32 = 0x324d_564b;
const DRIVER_OK: u32 = virtio_bindings::virtio_config::VIRTIO_CONFIG_S_DRIVER_OK;
const NEEDS_RESET: u32 = virtio_bindings::virtio_config::VIRTIO_CONFIG_S_NEEDS_RESET;

/// Register offsets.
mod register {
    pub(super) const MAGIC: u64 = 0x0;
    pub(super) const VERSION: u64 = 0x4;
    pub(super) const DEVICE_ID: u64 = 0x8;
    pub(super) const VENDOR_ID: u64 = 0xc;
    pub(super) const DEVICE_FEATURES: u64 = 0x10;
    pub(super) const DEVICE_FEATURES_SELECT: u64 = 0x14;
    pub(super) const DRIVER_FEATURES: u64 = 0x20;
    pub(super) const DRIVER_FEATURES_SELECT: u64 = 0x24;
    pub(super) const QUEUE_SELECT: u64 = 0x30;
    pub(super) const QUEUE_SIZE_MAX: u64 = 0x34;
    pub(super) const QUEUE_SIZE: u64 = 0x38;
    pub(super) const QUEUE_READY: u64 = 0x44;
    pub(super) const QUEUE_NOTIFY: u64 = 0x50;
    pub(super) const INTERRUPT_STATUS: u64 = 0x60;
    pub(super) const INTERRUPT_ACK: u64 = 0x64;
    pub(super) const STATUS: u64 = 0x70;
    pub(super) const QUEUE_DESC_LOW: u64 = 0x80;
    pub(super) const QUEUE_DESC_HIGH: u64 = 0x84;
    pub(super) const QUEUE_AVAIL_LOW: u64 = 0x90;
    pub(super) const QUEUE_AVAIL_HIGH: u64 = 0x94;
    pub(super) const QUEUE_USED_LOW: u64 = 0xa0;
    pub(super) const QUEUE_USED_HIGH: u64 = 0xa4;
    pub(super) const GENERATION: u64 = 0xfc;
    pub(super) const CONFIG: u64 = 0x100;
}

/// Registers of one device.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TransportState {
    kind: u32,
    status: u32,
    driver_features: u64,
    interrupt_status: u32,
    queues: Vec<QueueState>,
}

/// What a worker takes along and brings back.
#[derive(Debug)]
struct Parts {
    backend: Box<dyn Backend>,
    queues: Vec<DeviceQueue>,
}

/// A virtio device as the guest sees it.
#[derive(Debug)]
pub(super) struct Transport {
    kind: u32,
    device_features: u64,
    config: Vec<u8>,
    features_select: u32,
    driver_features_select: u32,
    driver_features: u64,
    queue_select: usize,
    status: u32,
    interrupt: Interrupt,
    /// At home while no worker runs.
    parts: Option<Parts>,
    worker: Option<Worker<Parts>>,
    restored: bool,
}

impl Transport {
    pub(super) fn new(
        vm: &VmFd,
        slot: DeviceSlot,
        memory: Arc<GuestMemoryMmap>,
        backend: Box<dyn Backend>,
        state: Option<&TransportState>,
    ) -> Result<Self, DeviceError> {
        let event = || EventFd::new(EFD_NONBLOCK).map_err(DeviceError::EventFd);
        let interrupt = Interrupt {
            status: Arc::new(AtomicU32::new(0)),
            event: Arc::new(event()?),
        };
        vm.register_irqfd(&interrupt.event, slot.gsi)?;
        let mut queues = Vec::new();
        for index in (0u32..).take(backend.queues()) {
            let notify = event()?;
            let address = IoEventAddress::Mmio(slot.address + register::QUEUE_NOTIFY);
            vm.register_ioevent(&notify, &address, index)?;
            let queue = DeviceQueue::new(notify, memory.clone(), interrupt.clone())
                .map_err(|error| DeviceError::EventFd(io::Error::other(error)))?;
            queues.push(queue);
        }
        let mut transport = Self {
            kind: backend.kind(),
            device_features: backend.features() | VERSION_1,
            config: backend.config().to_vec(),
            features_select: 0,
            driver_features_select: 0,
            driver_features: 0,
            queue_select: 0,
            status: 0,
            interrupt,
            parts: Some(Parts { backend, queues }),
            worker: None,
            restored: false,
        };
        if let Some(state) = state {
            transport.restore(state)?;
        }
        Ok(transport)
    }

    fn restore(&mut self, state: &TransportState) -> Result<(), DeviceError> {
        let queues = self.parts.as_mut().map_or(&mut [][..], |p| &mut p.queues);
        if state.kind != self.kind || state.queues.len() != queues.len() {
            return Err(DeviceError::StateMismatch {
                found: state.queues.len(),
                expected: queues.len(),
            });
        }
        for (queue, saved) in queues.iter_mut().zip(&state.queues) {
            queue.restore(saved);
        }
        self.status = state.status;
        self.driver_features = state.driver_features & self.device_features;
        let pending = state.interrupt_status;
        self.interrupt.status.store(pending, Ordering::SeqCst);
        self.restored = true;
        Ok(())
    }

    /// Starts the worker, if the guest's driver is ready and none runs yet.
    pub(super) fn start(&mut self) -> io::Result<()> {
        if self.status & DRIVER_OK == 0 || self.worker.is_some() {
            return Ok(());
        }
        let Some(parts) = self.parts.take() else {
            return Ok(());
        };
        let restored = std::mem::take(&mut self.restored);
        let name = parts.backend.name();
        let worker = Worker::spawn(name, move |events| {
            let mut parts = parts;
            serve(&mut parts, events, restored);
            parts
        })?;
        self.worker = Some(worker);
        Ok(())
    }

    pub(super) fn signal(&self) {
        if let Some(worker) = &self.worker {
            worker.signal();
        }
    }

    pub(super) fn join(&mut self) {
        if let Some(worker) = self.worker.take() {
            worker.signal();
            self.parts = worker.join();
        }
    }

    /// Reads the registers; no worker may be running.
    pub(super) fn save(&self) -> TransportState {
        let queues = self.parts.as_ref().map_or(&[][..], |p| &p.queues);
        TransportState {
            kind: self.kind,
            status: self.status,
            driver_features: self.driver_features,
            interrupt_status: self.interrupt.status.load(Ordering::SeqCst),
            queues: queues.iter().map(DeviceQueue::save).collect(),
        }
    }

    /// What a guest's notifications arrive on, for tests without a guest.
    #[cfg(test)]
    pub(super) fn notifiers(&self) -> Vec<EventFd> {
        let queues = self.parts.iter().flat_map(|parts| &parts.queues);
        queues
            .map(|queue| queue.notify.try_clone().unwrap())
            .collect()
    }

    fn queue(&mut self) -> Option<&mut DeviceQueue> {
        let select = self.queue_select;
        self.parts.as_mut()?.queues.get_mut(select)
    }

    fn read_register(&mut self, offset: u64) -> u32 {
        match offset {
            register::MAGIC => MAGIC,
            register::VERSION => VERSION,
            register::DEVICE_ID => self.kind,
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => match self.features_select {
                0 => self.device_features as u32,
                1 => (self.device_features >> 32) as u32,
                _ => 0,
            },
            register::QUEUE_SIZE_MAX => self.queue().map_or(0, |_| u32::from(MAX_SIZE)),
            register::QUEUE_READY => self.queue().map_or(0, |q| u32::from(q.queue.ready())),
            register::INTERRUPT_STATUS => self.interrupt.status.load(Ordering::SeqCst),
            register::STATUS => self.status,
            // The configuration never changes, so neither does its generation.
            register::GENERATION => 0,
            _ => 0,
        }
    }

    fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            register::DEVICE_FEATURES_SELECT => self.features_select = value,
            register::DRIVER_FEATURES_SELECT => self.driver_features_select = value,
            register::DRIVER_FEATURES => self.accept_features(value),
            register::QUEUE_SELECT => self.queue_select = value as usize,
            register::INTERRUPT_ACK => {
                self.interrupt.status.fetch_and(!value, Ordering::SeqCst);
            }
            register::STATUS => self.set_status(value),
            _ => self.write_queue_register(offset, value),
        }
    }

    fn write_queue_register(&mut self, offset: u64, value: u32) {
        let Some(DeviceQueue { queue, .. }) = self.queue() else {
            return;
        };
        let low = Some(value);
        match offset {
            register::QUEUE_SIZE => queue.set_size(u16::try_from(value).unwrap_or(0)),
            register::QUEUE_READY => queue.set_ready(value == 1),
            register::QUEUE_DESC_LOW => queue.set_desc_table_address(low, None),
            register::QUEUE_DESC_HIGH => queue.set_desc_table_address(None, low),
            register::QUEUE_AVAIL_LOW => queue.set_avail_ring_address(low, None),
            register::QUEUE_AVAIL_HIGH => queue.set_avail_ring_address(None, low),
            register::QUEUE_USED_LOW => queue.set_used_ring_address(low, None),
            register::QUEUE_USED_HIGH => queue.set_used_ring_address(None, low),
            _ => (),
        }
    }

    fn accept_features(&mut self, value: u32) {
        let shift = match self.driver_features_select {
            0 => 0,
            1 => 32,
            _ => return,
        };
        let half = u64::from(u32::MAX) << shift;
        let accepted = (u64::from(value) << shift) & self.device_features;
        self.driver_features = (self.driver_features & !half) | accepted;
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        self.status = value;
        if self.start().is_err() {
            // Without a thread the device is dead; the driver is told so.
            self.status |= NEEDS_RESET;
        }
    }

    fn reset(&mut self) {
        self.join();
        self.status = 0;
        self.driver_features = 0;
        self.interrupt.status.store(0, Ordering::SeqCst);
        if let Some(parts) = &mut self.parts {
            for queue in &mut parts.queues {
                queue.queue.reset();
            }
        }
    }
}

/// The worker's whole life.
fn serve(parts: &mut Parts, events: &Events, restored: bool) {
    let Parts { backend, queues } = parts;
    for (token, queue) in (0..).zip(queues.iter()) {
        if events.add(&queue.notify, token, EventSet::IN).is_err() {
            return;
        }
        if restored {
            queue.force_interrupt();
        }
    }
    let mut io = Io { queues, events };
    if backend.start(&mut io, restored).is_err() {
        return;
    }
    // Buffers may have come while no worker ran.
    for index in 0..io.queues.len() {
        backend.on_queue(index, &mut io);
    }
    events.serve(|token| match token {
        OWN_TOKENS.. => backend.on_event(token, &mut io),
        _ => {
            let index = token as usize;
            let _ = io.queues[index].notify.read();
            backend.on_queue(index, &mut io);
        }
    });
}

impl BusDevice for Transport {
    fn read(&mut self, offset: u64, data: &mut [u8]) {
        if let Some(start) = offset.checked_sub(register::CONFIG) {
            for (byte, index) in data.iter_mut().zip(start as usize..) {
                *byte = self.config.get(index).copied().unwrap_or(0);
            }
        } else if data.len() == 4 {
            data.copy_from_slice(&self.read_register(offset).to_le_bytes());
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        // No device here has configuration that a driver may write.
        if let Ok(bytes) = data.try_into() {
            self.write_register(offset, u32::from_le_bytes(bytes));
        }
    }
}
