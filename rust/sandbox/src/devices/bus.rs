// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Finds the device behind an address.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A device with registers.
pub trait BusDevice: Send {
    /// Reads registers at `offset` into `data`.
    fn read(&mut self, offset: u64, data: &mut [u8]);

    /// Writes `data` to registers at `offset`.
    fn write(&mut self, offset: u64, data: &[u8]);
}

/// Devices by address.
#[derive(Default)]
pub struct Bus {
    entries: Vec<Entry>,
}

struct Entry {
    start: u64,
    length: u64,
    device: Arc<Mutex<dyn BusDevice>>,
}

impl Bus {
    /// Puts `device` at `start`; ranges must not overlap.
    pub fn insert(&mut self, start: u64, length: u64, device: Arc<Mutex<dyn BusDevice>>) {
        self.entries.push(Entry {
            start,
            length,
            device,
        });
    }

    /// Reads; an address without a device reads as all ones, as on a real bus.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        data.fill(0xff);
        self.with(address, |device, offset| device.read(offset, data));
    }

    /// Writes; without a device nothing happens.
    pub fn write(&self, address: u64, data: &[u8]) {
        self.with(address, |device, offset| device.write(offset, data));
    }

    fn with(&self, address: u64, access: impl FnOnce(&mut dyn BusDevice, u64)) {
        for entry in &self.entries {
            let offset = address.wrapping_sub(entry.start);
            if offset < entry.length {
                let mut device = entry.device.lock().unwrap_or_else(PoisonError::into_inner);
                access(&mut *device, offset);
                return;
            }
        }
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges = self.entries.iter().map(|entry| (entry.start, entry.length));
        f.debug_list().entries(ranges).finish()
    }
}
