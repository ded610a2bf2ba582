// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! One stream between a port of the guest and a Unix socket, with its credit.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::num::Wrapping;
use std::os::unix::net::UnixStream;

use vmm_sys_util::epoll::EventSet;

use super::packet::{Header, CREDIT};

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A host program has connected and must still name its port.
    Greeting,
    /// The guest has been asked.
    Requested,
    /// Data flows.
    Open,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    pub(super) phase: Phase,
    /// The stream may have data for the guest.
    pub(super) readable: bool,
    /// The host program will not send any more.
    pub(super) ended: bool,
    /// Data of the guest that the stream has not taken yet, at most [`CREDIT`].
    backlog: VecDeque<u8>,
    /// Bytes of the guest that went into the stream.
    forwarded: Wrapping<u32>,
    /// What the guest was last told of `forwarded`.
    told: Wrapping<u32>,
    /// Bytes sent to the guest.
    sent: Wrapping<u32>,
    guest_credit: u32,
    guest_forwarded: Wrapping<u32>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream, phase: Phase) -> Self {
        Self {
            stream,
            phase,
            readable: false,
            ended: false,
            backlog: VecDeque::new(),
            forwarded: Wrapping(0),
            told: Wrapping(0),
            sent: Wrapping(0),
            guest_credit: 0,
            guest_forwarded: Wrapping(0),
        }
    }

    /// Takes over what a packet says about the guest's buffers.
    pub(super) fn learn(&mut self, header: &Header) {
        self.guest_credit = header.credit;
        self.guest_forwarded = Wrapping(header.forwarded);
    }

    /// Bytes the guest has room for.
    pub(super) fn room(&self) -> usize {
        let in_flight = (self.sent - self.guest_forwarded).0;
        self.guest_credit.saturating_sub(in_flight) as usize
    }

    /// Passes data of the guest on. Fails when the stream is gone or the guest
    /// sends more than it was allowed.
    pub(super) fn write(&mut self, data: &[u8]) -> io::Result<()> {
        if self.backlog.len() + data.len() > CREDIT as usize {
            return Err(ErrorKind::InvalidData.into());
        }
        self.backlog.extend(data);
        self.flush()
    }

    /// Writes as much of the backlog as the stream takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while !self.backlog.is_empty() {
            let (first, _) = self.backlog.as_slices();
            match self.stream.write(first) {
                Ok(count) => {
                    self.backlog.drain(..count);
                    self.forwarded += Wrapping(count as u32);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Nothing of the guest's data is left here.
    pub(super) fn is_flushed(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Reads up to `room` bytes for the guest; `None` when there is nothing now.
    pub(super) fn read(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut data = vec![0; room];
        loop {
            match self.stream.read(&mut data) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    data.truncate(count);
                    self.sent += Wrapping(count as u32);
                    return Some(data);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => (),
                Err(_) => self.ended = true,
            }
            self.readable = false;
            return None;
        }
    }

    /// Reads the line `CONNECT <port>`; `None` until it is whole.
    pub(super) fn greeting(&mut self) -> io::Result<Option<u32>> {
        let mut byte = [0];
        loop {
            match self.stream.read(&mut byte) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) if byte == *b"\n" => break,
                // The line is collected where the guest's data will be later.
                Ok(_) if self.backlog.len() < 32 => self.backlog.push_back(byte[0]),
                Ok(_) => return Err(ErrorKind::InvalidData.into()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        let line: Vec<u8> = self.backlog.drain(..).collect();
        std::str::from_utf8(&line)
            .ok()
            .and_then(|line| line.strip_prefix("CONNECT "))
            .and_then(|port| port.trim_end().parse().ok())
            .map(Some)
            .ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Fills in what a packet to the guest must say about this side.
    pub(super) fn sign(&mut self, mut header: Header) -> Header {
        self.told = self.forwarded;
        header.forwarded = self.forwarded.0;
        header
    }

    /// The guest may believe that there is little room left, and there is more.
    pub(super) fn must_tell(&self) -> bool {
        (self.forwarded - self.told).0 >= CREDIT / 2
    }

    /// What to wait for on the stream.
    pub(super) fn interest(&self) -> EventSet {
        let mut set = EventSet::empty();
        if !self.readable && !self.ended && self.phase != Phase::Requested {
            set |= EventSet::IN;
        }
        if !self.backlog.is_empty() && self.phase == Phase::Open {
            set |= EventSet::OUT;
        }
        set
    }
}
