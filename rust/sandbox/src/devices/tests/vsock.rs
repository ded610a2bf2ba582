// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The socket device, with this test as the guest.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use vm_memory::{Bytes, GuestAddress};

use super::driver::{Driver, Machine, DATA};
use super::Dir;
use crate::config::VsockConfig;
use crate::devices::vsock::Vsock;

const GUEST: u64 = 3;
const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const EVENT: usize = 2;
const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const RST: u16 = 3;
const SHUTDOWN: u16 = 4;
const RW: u16 = 5;
const CREDIT_UPDATE: u16 = 6;
const OUT: u64 = DATA;
const IN: u64 = DATA + 0x1_0000;
const ROOM: u32 = 4096;

fn open(dir: &Dir) -> Box<Vsock> {
    let socket = dir.0.join("vsock");
    Box::new(Vsock::open(&VsockConfig { cid: 3, socket }).unwrap())
}

struct Guest<'a> {
    machine: &'a Machine,
    driver: Driver,
    forwarded: u32,
}

#[derive(Debug)]
struct Packet {
    op: u16,
    host_port: u32,
    guest_port: u32,
    credit: u32,
    forwarded: u32,
    data: Vec<u8>,
}

impl Guest<'_> {
    fn send(&mut self, op: u16, host_port: u32, guest_port: u32, data: &[u8]) {
        let mut header = Vec::new();
        header.extend(GUEST.to_le_bytes());
        header.extend(2u64.to_le_bytes());
        header.extend(guest_port.to_le_bytes());
        header.extend(host_port.to_le_bytes());
        header.extend((data.len() as u32).to_le_bytes());
        header.extend(1u16.to_le_bytes());
        header.extend(op.to_le_bytes());
        header.extend(if op == SHUTDOWN { 3u32 } else { 0 }.to_le_bytes());
        header.extend(65536u32.to_le_bytes());
        header.extend(self.forwarded.to_le_bytes());
        header.extend(data);
        let memory = &self.machine.memory;
        memory.write_slice(&header, GuestAddress(OUT)).unwrap();
        let length = header.len() as u32;
        self.driver.add(TRANSMIT, &[(OUT, length, false)]);
        self.driver.take(TRANSMIT);
    }

    fn receive(&mut self) -> Packet {
        self.driver.add(RECEIVE, &[(IN, ROOM, true)]);
        let length = self.driver.take(RECEIVE) as usize;
        let mut bytes = vec![0; length];
        let memory = &self.machine.memory;
        memory.read_slice(&mut bytes, GuestAddress(IN)).unwrap();
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(24) as usize, length - 44);
        self.forwarded = self.forwarded.wrapping_add(word(24));
        Packet {
            op: u16::from_le_bytes([bytes[30], bytes[31]]),
            host_port: word(16),
            guest_port: word(20),
            credit: word(36),
            forwarded: word(40),
            data: bytes[44..].to_vec(),
        }
    }

    /// Receives `count` bytes of data, which may come in pieces.
    fn receive_data(&mut self, count: usize) -> Vec<u8> {
        let mut data = Vec::new();
        while data.len() < count {
            let packet = self.receive();
            match packet.op {
                RW => data.extend(packet.data),
                CREDIT_UPDATE => (),
                other => panic!("operation {other}"),
            }
        }
        data
    }
}

fn attach<'a>(machine: &'a Machine, dir: &Dir) -> Guest<'a> {
    Guest {
        machine,
        driver: machine.attach(open(dir)),
        forwarded: 0,
    }
}

#[test]
fn the_guest_connects_to_a_program_of_the_host() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-out");
    let listener = UnixListener::bind(dir.0.join("vsock_1234")).unwrap();
    let mut guest = attach(&machine, &dir);
    guest.send(REQUEST, 1234, 700, b"");
    let answer = guest.receive();
    assert_eq!(
        (answer.op, answer.host_port, answer.guest_port),
        (RESPONSE, 1234, 700)
    );
    let (mut stream, _) = listener.accept().unwrap();
    guest.send(RW, 1234, 700, b"from the guest");
    let mut data = [0; 14];
    stream.read_exact(&mut data).unwrap();
    assert_eq!(&data, b"from the guest");
    let long: Vec<u8> = (0..20_000u32).map(|byte| (byte / 5) as u8).collect();
    stream.write_all(&long).unwrap();
    assert_eq!(guest.receive_data(long.len()), long);
    guest.send(SHUTDOWN, 1234, 700, b"");
    assert_eq!(guest.receive().op, RST);
    assert_eq!(stream.read(&mut data).unwrap(), 0);
}

#[test]
fn a_program_of_the_host_connects_to_the_guest() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-in");
    let mut guest = attach(&machine, &dir);
    let mut stream = UnixStream::connect(dir.0.join("vsock")).unwrap();
    stream.write_all(b"CONNECT 52\n").unwrap();
    let request = guest.receive();
    assert_eq!((request.op, request.guest_port), (REQUEST, 52));
    guest.send(RESPONSE, request.host_port, 52, b"");
    let line = format!("OK {}\n", request.host_port);
    let mut answer = vec![0; line.len()];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, line.as_bytes());
    stream.write_all(b"hello").unwrap();
    assert_eq!(guest.receive_data(5), b"hello");
    drop(stream);
    assert_eq!(guest.receive().op, SHUTDOWN);
}

#[test]
fn nobody_there_and_nonsense_are_answered_with_a_reset() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-rst");
    let mut guest = attach(&machine, &dir);
    guest.send(REQUEST, 9, 700, b"");
    assert_eq!(guest.receive().op, RST);
    guest.send(RW, 9, 701, b"who is this?");
    assert_eq!(guest.receive().op, RST);
    for greeting in ["CONNECT x\n", "GET / HTTP/1.1\n", &"y".repeat(100)] {
        let mut stream = UnixStream::connect(dir.0.join("vsock")).unwrap();
        stream.write_all(greeting.as_bytes()).unwrap();
        // Closed with unread data, a stream may report a reset instead of its end.
        assert!(matches!(stream.read(&mut [0; 8]), Ok(0) | Err(_)));
    }
}

#[test]
fn a_slow_program_holds_the_guest_back_by_credit() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-credit");
    let listener = UnixListener::bind(dir.0.join("vsock_5")).unwrap();
    let mut guest = attach(&machine, &dir);
    guest.send(REQUEST, 5, 700, b"");
    let credit = guest.receive().credit;
    let (mut stream, _) = listener.accept().unwrap();
    let piece = [7; 4096];
    let (mut sent, mut forwarded) = (0u32, 0u32);
    // The program reads nothing: the socket fills up, and then the credit.
    while sent + 4096 - forwarded <= credit {
        guest.send(RW, 5, 700, &piece);
        sent += 4096;
        guest.send(7, 5, 700, b"");
        let mut update = guest.receive();
        while guest_behind(&update, forwarded) {
            update = guest.receive();
        }
        forwarded = update.forwarded;
    }
    assert!(sent > credit, "nothing was ever forwarded");
    let mut all = vec![0; sent as usize];
    stream.read_exact(&mut all).unwrap();
    assert!(all.iter().all(|&byte| byte == 7));
    // More than was allowed ends the connection.
    for _ in 0..100 {
        guest.send(RW, 5, 700, &piece);
    }
    let mut last = guest.receive();
    while last.op == CREDIT_UPDATE {
        last = guest.receive();
    }
    assert_eq!(last.op, RST);
}

/// An update that was on its way before the one that was asked for.
fn guest_behind(update: &Packet, forwarded: u32) -> bool {
    update.forwarded < forwarded
}

#[test]
fn a_restored_guest_is_told_that_its_connections_are_gone() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-restore");
    let mut driver = machine.attach(open(&dir));
    driver.add(EVENT, &[(IN, 8, true)]);
    driver.transport.join();
    let path = dir.0.join("vsock");
    assert!(path.exists());
    // The old device has gone, and its socket with it, before the new one comes.
    let old = Dir::new("vsock-restored");
    let mut driver = machine.reattach(open(&old), driver);
    assert!(!path.exists());
    assert_eq!(driver.take(EVENT), 4);
    let event: u32 = machine.memory.read_obj(GuestAddress(IN)).unwrap();
    assert_eq!(event, 0);
}

#[test]
fn a_restored_guest_hears_of_new_connections_after_the_end_of_the_old_ones() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let dir = Dir::new("vsock-order");
    let mut driver = machine.attach(open(&dir));
    driver.add(EVENT, &[(IN, 8, true)]);
    driver.transport.join();
    let dir = Dir::new("vsock-ordered");
    let mut driver = machine.reattach(open(&dir), driver);
    let mut stream = UnixStream::connect(dir.0.join("vsock")).unwrap();
    stream.write_all(b"CONNECT 52\n").unwrap();
    driver.add(RECEIVE, &[(IN, ROOM, true)]);
    assert_eq!(driver.take(EVENT), 4);
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert!(!driver.has_used(RECEIVE), "too early");
    // This is how the guest says that it has read the event.
    driver.add(EVENT, &[(OUT, 8, true)]);
    assert_eq!(driver.take(RECEIVE), 44);
}
