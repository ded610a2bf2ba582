// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The disk.

use std::path::Path;

use vm_memory::{Bytes, GuestAddress};

use super::driver::{Driver, Machine, DATA};
use super::Dir;
use crate::config::DiskConfig;
use crate::devices::block::Block;

const READ: u32 = 0;
const WRITE: u32 = 1;
const FLUSH: u32 = 4;
const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;
const BUFFER: u64 = DATA + 0x1000;
const STATUS: u64 = DATA + 0x8000;

fn open(path: &Path, readonly: bool) -> Box<Block> {
    let path = path.to_owned();
    Box::new(Block::open(&DiskConfig { path, readonly }).unwrap())
}

/// Sends one request with `length` bytes of data and returns its status.
fn request(machine: &Machine, disk: &mut Driver, kind: u32, sector: u64, length: u32) -> u8 {
    let memory = &machine.memory;
    memory
        .write_obj(u64::from(kind), GuestAddress(DATA))
        .unwrap();
    memory.write_obj(sector, GuestAddress(DATA + 8)).unwrap();
    memory.write_obj(0xffu8, GuestAddress(STATUS)).unwrap();
    let mut chain = vec![(DATA, 16, false)];
    if length > 0 {
        // Split, as a driver's scatter list is.
        let half = length / 2;
        let writable = kind == READ;
        chain.push((BUFFER, half, writable));
        chain.push((BUFFER + u64::from(half), length - half, writable));
    }
    chain.push((STATUS, 1, true));
    disk.add(0, &chain);
    let written = disk.take(0);
    let status = memory.read_obj(GuestAddress(STATUS)).unwrap();
    if status == OK && kind == READ {
        assert_eq!(written, length + 1);
    }
    status
}

#[test]
fn reads_writes_and_flushes_reach_the_file() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("block");
    let path = dir.0.join("disk");
    let content: Vec<u8> = (0..8192u32).map(|byte| (byte / 3) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let mut disk = machine.attach(open(&path, false));
    assert_eq!(disk.read(0x8), 2);
    assert_eq!(disk.read(0x100), 16, "capacity in sectors");

    assert_eq!(request(&machine, &mut disk, READ, 2, 4096), OK);
    let mut data = vec![0; 4096];
    let buffer = GuestAddress(BUFFER);
    machine.memory.read_slice(&mut data, buffer).unwrap();
    assert_eq!(data, content[1024..5120]);

    machine.memory.write_slice(&[0xa5; 1024], buffer).unwrap();
    assert_eq!(request(&machine, &mut disk, WRITE, 14, 1024), OK);
    assert_eq!(request(&machine, &mut disk, FLUSH, 0, 0), OK);
    let now = std::fs::read(&path).unwrap();
    assert_eq!(now[7168..], [0xa5; 1024]);
    assert_eq!(now[..7168], content[..7168]);

    // Past the end nothing is written, and the file does not grow.
    for sector in [15, 16, 1000] {
        assert_eq!(request(&machine, &mut disk, WRITE, sector, 1024), IO_ERROR);
    }
    assert_eq!(std::fs::read(&path).unwrap(), now);
}

#[test]
fn a_restored_guest_is_interrupted_even_if_nothing_has_happened() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("interrupt");
    let path = dir.0.join("disk");
    std::fs::write(&path, [9; 4096]).unwrap();
    let mut disk = machine.attach(open(&path, false));
    disk.transport.join();
    assert_eq!(disk.read(0x60), 0);
    // The last interrupt before the snapshot may have been lost.
    let mut disk = machine.reattach(open(&path, false), disk);
    disk.wait_interrupt();
}

#[test]
fn what_is_not_on_the_disk_is_an_error_of_the_request_only() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("bounds");
    let path = dir.0.join("disk");
    std::fs::write(&path, [1; 4096]).unwrap();
    let mut disk = machine.attach(open(&path, true));
    for sector in [7, 8, u64::MAX / 512, u64::MAX] {
        assert_eq!(request(&machine, &mut disk, READ, sector, 1024), IO_ERROR);
    }
    assert_eq!(request(&machine, &mut disk, WRITE, 0, 512), UNSUPPORTED);
    assert_eq!(request(&machine, &mut disk, 77, 0, 0), UNSUPPORTED);
    // A chain without room for a status, and one outside memory.
    disk.add(0, &[(DATA, 16, false)]);
    assert_eq!(disk.take(0), 0);
    disk.add(0, &[(1 << 50, 16, false), (STATUS, 1, true)]);
    disk.take(0);
    assert_eq!(request(&machine, &mut disk, READ, 0, 512), OK);
    assert_eq!(std::fs::read(&path).unwrap(), [1; 4096]);
}

#[test]
fn a_stopped_disk_goes_on_with_what_came_meanwhile() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("stopped");
    let path = dir.0.join("disk");
    std::fs::write(&path, [9; 4096]).unwrap();
    let mut disk = machine.attach(open(&path, false));
    assert_eq!(request(&machine, &mut disk, READ, 0, 512), OK);
    disk.transport.join();
    disk.add(
        0,
        &[(DATA, 16, false), (BUFFER, 512, true), (STATUS, 1, true)],
    );
    // Another device takes over, as after a restore; the request is in memory.
    let mut disk = machine.reattach(open(&path, false), disk);
    assert_eq!(disk.take(0), 513);
}
