// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A driver for any virtio-mmio device.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvm_ioctls::{Kvm, VmFd};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};
use vmm_sys_util::eventfd::EventFd;

use crate::arch;
use crate::config::MemoryConfig;
use crate::devices::bus::BusDevice;
use crate::devices::mmio::{Transport, TransportState};
use crate::devices::virtio::{Backend, VERSION_1};
use crate::memory::{Backing, GuestRam};

const SIZE: u16 = 64;
const RINGS: u64 = arch::RAM_START + 0x10_0000;
const RING_BYTES: u64 = 0x1_0000;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x8000;
const NEXT: u16 = 1;
const WRITE: u16 = 2;

/// A buffer of a chain: where, how long, and whether the device writes it.
pub(super) type Buffer = (u64, u32, bool);

/// Where tests put their data.
pub(super) const DATA: u64 = arch::RAM_START + 0x20_0000;

/// Memory and a VM to connect devices to, unless there is no KVM.
pub(super) struct Machine {
    pub(super) memory: Arc<GuestMemoryMmap>,
    vm: VmFd,
}

impl Machine {
    /// Says on the error output why there is none.
    pub(super) fn new() -> Option<Self> {
        let vm = match Kvm::new().and_then(|kvm| kvm.create_vm()) {
            Ok(vm) => vm,
            Err(error) => {
                let text = format!("SKIP devices: /dev/kvm: {error}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
                return None;
            }
        };
        arch::prepare_vm(&vm).unwrap();
        let ram = GuestRam::new(
            &MemoryConfig {
                size: 8 << 20,
                ..Default::default()
            },
            &Backing::Fresh,
        )
        .unwrap();
        Some(Self {
            memory: ram.share(),
            vm,
        })
    }

    /// Connects a device and goes through the driver's side of its set-up.
    pub(super) fn attach(&self, backend: Box<dyn Backend>) -> Driver {
        let queues = backend.queues();
        let mut driver = self.connect(backend, None);
        driver.write(0x70, 3);
        driver.write(0x24, 1);
        driver.write(0x20, (VERSION_1 >> 32) as u32);
        driver.write(0x70, 11);
        for queue in 0..queues {
            driver.set_up(queue);
        }
        driver.write(0x70, 15);
        driver
    }

    /// Connects a device in a state that was saved, and starts its worker.
    pub(super) fn reattach(&self, backend: Box<dyn Backend>, mut old: Driver) -> Driver {
        let state = old.transport.save();
        let mut driver = self.connect(backend, Some(&state));
        driver.rings = std::mem::take(&mut old.rings);
        driver.transport.start().unwrap();
        driver
    }

    fn connect(&self, backend: Box<dyn Backend>, state: Option<&TransportState>) -> Driver {
        let rings = vec![Ring::default(); backend.queues()];
        // Devices of one test come one after another; each has a place of its own.
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let index = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let slot = arch::device_slot(index % arch::MAX_DEVICES);
        let memory = self.memory.clone();
        let transport = Transport::new(&self.vm, slot, memory.clone(), backend, state).unwrap();
        Driver {
            notifiers: transport.notifiers(),
            transport,
            memory,
            rings,
        }
    }
}

#[derive(Clone, Default)]
struct Ring {
    added: u16,
    taken: u16,
    descriptors: u16,
}

/// The driver of one device.
pub(super) struct Driver {
    pub(super) transport: Transport,
    memory: Arc<GuestMemoryMmap>,
    notifiers: Vec<EventFd>,
    rings: Vec<Ring>,
}

impl Driver {
    pub(super) fn read(&mut self, register: u64) -> u32 {
        let mut data = [0; 4];
        self.transport.read(register, &mut data);
        u32::from_le_bytes(data)
    }

    fn write(&mut self, register: u64, value: u32) {
        self.transport.write(register, &value.to_le_bytes());
    }

    fn set_up(&mut self, queue: usize) {
        let base = ring(queue);
        self.write(0x30, queue as u32);
        assert!(self.read(0x34) >= u32::from(SIZE));
        self.write(0x38, SIZE.into());
        for (register, address) in [(0x80, base), (0x90, base + AVAILABLE), (0xa0, base + USED)] {
            self.write(register, address as u32);
            self.write(register + 4, (address >> 32) as u32);
        }
        self.write(0x44, 1);
    }

    /// Gives the device a chain of buffers.
    pub(super) fn add(&mut self, queue: usize, chain: &[Buffer]) {
        let base = ring(queue);
        let ring = &mut self.rings[queue];
        let head = ring.descriptors % SIZE;
        for (position, &(address, length, writable)) in chain.iter().enumerate() {
            let index = ring.descriptors % SIZE;
            let last = position + 1 == chain.len();
            let flags = if last { 0 } else { NEXT } | if writable { WRITE } else { 0 };
            ring.descriptors += 1;
            let entry = GuestAddress(base + u64::from(index) * 16);
            let next = ring.descriptors % SIZE;
            let rest = u64::from(length) | u64::from(flags) << 32 | u64::from(next) << 48;
            self.memory.write_obj(address, entry).unwrap();
            let second = GuestAddress(entry.0 + 8);
            self.memory.write_obj(rest, second).unwrap();
        }
        let entry = base + AVAILABLE + 4 + u64::from(ring.added % SIZE) * 2;
        self.memory.write_obj(head, GuestAddress(entry)).unwrap();
        ring.added += 1;
        let index = GuestAddress(base + AVAILABLE + 2);
        self.memory
            .store(ring.added, index, std::sync::atomic::Ordering::Release)
            .unwrap();
        self.notifiers[queue].write(1).unwrap();
    }

    /// Waits for the device to interrupt.
    pub(super) fn wait_interrupt(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while self.read(0x60) & 1 == 0 {
            assert!(Instant::now() < deadline, "no interrupt");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Whether the device has given a chain back that has not been taken.
    pub(super) fn has_used(&self, queue: usize) -> bool {
        let index = GuestAddress(ring(queue) + USED + 2);
        let order = std::sync::atomic::Ordering::Acquire;
        let used: u16 = self.memory.load(index, order).unwrap();
        used != self.rings[queue].taken
    }

    /// Waits for the device to give a chain back; how much it wrote.
    pub(super) fn take(&mut self, queue: usize) -> u32 {
        let base = ring(queue) + USED;
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.has_used(queue) {
            assert!(Instant::now() < deadline, "queue {queue} stands still");
            std::thread::sleep(Duration::from_micros(200));
        }
        let slot = u64::from(self.rings[queue].taken % SIZE);
        self.rings[queue].taken += 1;
        let length = GuestAddress(base + 4 + slot * 8 + 4);
        self.memory.read_obj(length).unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.transport.join();
    }
}

fn ring(queue: usize) -> u64 {
    RINGS + queue as u64 * RING_BYTES
}
