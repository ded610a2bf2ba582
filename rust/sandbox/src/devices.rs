// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The devices of a guest: one serial console, and virtio-mmio devices with a
//! worker thread and a kill eventfd each.

mod block;
mod bus;
mod mmio;
mod net;
mod queue;
mod serial;
mod virtio;
mod vsock;
mod worker;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kvm_ioctls::VmFd;
use serde::{Deserialize, Serialize};
use vm_memory::GuestMemoryMmap;

pub use bus::{Bus, BusDevice};
pub use mmio::TransportState;
pub use serial::SerialState;

use crate::arch;
use crate::config::{VmConfig, PAGE};
use mmio::Transport;
use serial::SerialPort;
use virtio::Backend;

/// What vCPUs reach by I/O port and by address.
#[derive(Debug, Default)]
pub struct Buses {
    /// I/O ports; empty on arm64.
    pub pio: Bus,
    /// Memory-mapped registers.
    pub mmio: Bus,
}

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// KVM refused to wire it up.
    #[error("KVM refuses to connect a device: {0}")]
    Kvm(#[from] kvm_ioctls::Error),
    /// No eventfd.
    #[error("cannot make an eventfd: {0}")]
    EventFd(io::Error),
    /// The console's file could not be opened.
    #[error("serial console: cannot open {path:?}: {source}")]
    Serial {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// A disk could not be used.
    #[error("disk {path:?}: {source}")]
    Disk {
        /// The image.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// A tap could not be used.
    #[error("tap {name:?}: {source}{}", tap_hint(source))]
    Tap {
        /// Its name.
        name: String,
        /// The host's answer.
        source: io::Error,
    },
    /// The vsock's Unix socket could not be made.
    #[error("vsock socket {path:?}: {source}")]
    Vsock {
        /// The socket.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// More devices than there are interrupts for.
    #[error("{0} virtio devices are configured; {max} are possible", max = arch::MAX_DEVICES)]
    TooMany(usize),
    /// A snapshot does not fit its own configuration.
    #[error("the snapshot holds {found} virtio devices, its configuration {expected}")]
    StateMismatch {
        /// In the snapshot.
        found: usize,
        /// By the configuration.
        expected: usize,
    },
}

fn tap_hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (creating a tap needs CAP_NET_ADMIN)",
        Some(libc::EBUSY) => " (another process holds it)",
        Some(libc::ENOENT) => " (no /dev/net/tun: load the tun module)",
        _ => "",
    }
}

/// State of all devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DevicesState {
    serial: SerialState,
    virtio: Vec<TransportState>,
}

/// The devices of one guest.
#[derive(Debug)]
pub struct Devices {
    buses: Arc<Buses>,
    serial: Arc<Mutex<SerialPort>>,
    virtio: Vec<Arc<Mutex<Transport>>>,
}

impl Devices {
    /// Opens what the configuration names and wires it to the VM. With a state,
    /// the devices are as they were when it was saved.
    pub fn new(
        vm: &VmFd,
        memory: &Arc<GuestMemoryMmap>,
        config: &VmConfig,
        state: Option<&DevicesState>,
    ) -> Result<Self, DeviceError> {
        let backends = open_backends(config)?;
        if backends.len() > arch::MAX_DEVICES {
            return Err(DeviceError::TooMany(backends.len()));
        }
        if let Some(state) = state {
            if state.virtio.len() != backends.len() {
                return Err(DeviceError::StateMismatch {
                    found: state.virtio.len(),
                    expected: backends.len(),
                });
            }
        }
        let mut buses = Buses::default();
        let serial = SerialPort::new(vm, &config.serial, state.map(|state| &state.serial))?;
        let serial = Arc::new(Mutex::new(serial));
        if let Some(port) = arch::SERIAL_PORT {
            buses.pio.insert(port, 8, serial.clone());
        }
        if let Some(address) = arch::SERIAL_MMIO {
            buses.mmio.insert(address, PAGE, serial.clone());
        }
        let mut virtio = Vec::new();
        for (index, backend) in backends.into_iter().enumerate() {
            let slot = arch::device_slot(index);
            let saved = state.map(|state| &state.virtio[index]);
            let transport = Transport::new(vm, slot, memory.clone(), backend, saved)?;
            let transport = Arc::new(Mutex::new(transport));
            buses.mmio.insert(slot.address, PAGE, transport.clone());
            virtio.push(transport);
        }
        Ok(Self {
            buses: Arc::new(buses),
            serial,
            virtio,
        })
    }

    /// What vCPUs reach.
    pub fn buses(&self) -> Arc<Buses> {
        self.buses.clone()
    }

    /// Starts the workers of all devices that the guest has set up.
    pub fn start(&self) -> io::Result<()> {
        lock(&self.serial).start(&self.serial)?;
        self.virtio.iter().try_for_each(|one| lock(one).start())
    }

    /// Tells every worker to end, waiting for none.
    pub fn signal(&self) {
        lock(&self.serial).signal();
        for transport in &self.virtio {
            lock(transport).signal();
        }
    }

    /// Waits for every worker. The devices keep what they were doing.
    pub fn join(&self) {
        self.signal();
        let input = lock(&self.serial).take_worker();
        if let Some(input) = input {
            // Outside the lock, which the worker takes for every byte.
            input.join();
        }
        for transport in &self.virtio {
            lock(transport).join();
        }
    }

    /// Reads the state of devices whose workers have ended.
    pub fn save(&self) -> DevicesState {
        DevicesState {
            serial: lock(&self.serial).save(),
            virtio: self.virtio.iter().map(|one| lock(one).save()).collect(),
        }
    }
}

fn lock<T>(device: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Order decides which device the guest sees first.
fn open_backends(config: &VmConfig) -> Result<Vec<Box<dyn Backend>>, DeviceError> {
    let mut backends: Vec<Box<dyn Backend>> = Vec::new();
    for disk in &config.disks {
        let block = block::Block::open(disk).map_err(|source| DeviceError::Disk {
            path: disk.path.clone(),
            source,
        })?;
        backends.push(Box::new(block));
    }
    for net in &config.net {
        let net = net::Net::open(net).map_err(|source| DeviceError::Tap {
            name: net.tap.clone(),
            source,
        })?;
        backends.push(Box::new(net));
    }
    if let Some(vsock) = &config.vsock {
        let device = vsock::Vsock::open(vsock).map_err(|source| DeviceError::Vsock {
            path: vsock.socket.clone(),
            source,
        })?;
        backends.push(Box::new(device));
    }
    Ok(backends)
}

#[cfg(test)]
mod tests;
