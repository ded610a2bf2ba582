// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! All connections of a guest, and the packets that wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use super::super::virtio::OWN_TOKENS;
use super::super::worker::Events;
use super::connection::{Connection, Phase};
use super::packet::{op, Header, Ports, HOST_CID, SHUTDOWN_BOTH, SHUTDOWN_SEND};

/// More connections are refused.
const MAX_CONNECTIONS: usize = 1024;
/// Host ports for connections into the guest start here.
const FIRST_PORT: u32 = 1 << 30;

/// The connections, by their number in the worker's event set.
#[derive(Debug)]
pub(super) struct Muxer {
    guest_cid: u64,
    path: PathBuf,
    connections: BTreeMap<u64, (Ports, Connection)>,
    replies: VecDeque<Header>,
    next_token: u64,
    next_port: u32,
}

impl Muxer {
    pub(super) fn new(guest_cid: u64, path: PathBuf) -> Self {
        Self {
            guest_cid,
            path,
            connections: BTreeMap::new(),
            replies: VecDeque::new(),
            next_token: OWN_TOKENS + 1,
            next_port: FIRST_PORT,
        }
    }

    /// A worker starts: it must wait for every stream.
    pub(super) fn watch(&mut self, events: &Events) -> io::Result<()> {
        for (&token, (_, connection)) in &self.connections {
            events.add(&connection.stream, token, connection.interest())?;
        }
        Ok(())
    }

    /// A host program has connected to the socket.
    pub(super) fn accept(&mut self, stream: UnixStream, events: &Events) {
        let ports = Ports {
            host: self.next_port,
            guest: 0,
        };
        // A program that cannot be served sees its connection closed.
        if self.insert(ports, stream, Phase::Greeting, events) {
            self.next_port = self.next_port.checked_add(1).unwrap_or(FIRST_PORT);
        }
    }

    /// Something happened on a stream.
    pub(super) fn on_stream(&mut self, token: u64, events: &Events) {
        let Some((ports, connection)) = self.connections.get_mut(&token) else {
            return;
        };
        match connection.phase {
            Phase::Greeting => match connection.greeting() {
                Ok(None) => (),
                Ok(Some(port)) => {
                    ports.guest = port;
                    connection.phase = Phase::Requested;
                    let request = Header::to_guest(self.guest_cid, *ports, op::REQUEST);
                    self.replies.push_back(request);
                }
                Err(_) => {
                    self.connections.remove(&token);
                    return;
                }
            },
            Phase::Requested => (),
            Phase::Open => {
                connection.readable = true;
                self.flush(token);
            }
        }
        self.rearm(token, events);
    }

    /// A packet of the guest.
    pub(super) fn take(&mut self, header: &Header, payload: &[u8], events: &Events) {
        if header.target_cid != HOST_CID || header.source_cid != self.guest_cid {
            return;
        }
        let Some(token) = self.find(header.ports) else {
            match header.op {
                op::REQUEST => self.connect(header, events),
                op::RST => (),
                _ => self.reply(header.ports, op::RST),
            }
            return;
        };
        let Some((_, connection)) = self.connections.get_mut(&token) else {
            return;
        };
        connection.learn(header);
        match header.op {
            op::RESPONSE if connection.phase == Phase::Requested => {
                connection.phase = Phase::Open;
                let line = format!("OK {}\n", header.ports.host);
                if connection.stream.write_all(line.as_bytes()).is_err() {
                    self.close(token);
                }
            }
            op::RW if connection.phase == Phase::Open => {
                if connection.write(payload).is_err() {
                    self.close(token);
                } else {
                    self.tell_credit(token);
                }
            }
            op::CREDIT_REQUEST => {
                let update = Header::to_guest(self.guest_cid, header.ports, op::CREDIT_UPDATE);
                self.replies.push_back(connection.sign(update));
            }
            op::CREDIT_UPDATE => (),
            op::SHUTDOWN => self.guest_ends(token, header.flags),
            op::RST => {
                self.connections.remove(&token);
            }
            _ => self.close(token),
        }
        self.rearm(token, events);
    }

    /// There may be something for the guest.
    pub(super) fn has_packet(&self) -> bool {
        let waiting = |(_, c): &(Ports, Connection)| c.readable && c.room() > 0;
        !self.replies.is_empty() || self.connections.values().any(waiting)
    }

    /// The next packet for the guest, with at most `room` bytes of data.
    pub(super) fn give(&mut self, room: usize, events: &Events) -> Option<(Header, Vec<u8>)> {
        if let Some(header) = self.replies.pop_front() {
            return Some((header, Vec::new()));
        }
        let tokens: Vec<u64> = self.connections.keys().copied().collect();
        for token in tokens {
            let (ports, connection) = self.connections.get_mut(&token)?;
            let room = room.min(connection.room());
            if !connection.readable || room == 0 {
                continue;
            }
            let mut header = Header::to_guest(self.guest_cid, *ports, op::RW);
            let payload = match connection.read(room) {
                Some(payload) => payload,
                None if connection.ended => {
                    header.op = op::SHUTDOWN;
                    header.flags = SHUTDOWN_BOTH;
                    Vec::new()
                }
                None => {
                    self.rearm(token, events);
                    continue;
                }
            };
            header.length = payload.len() as u32;
            let header = connection.sign(header);
            self.rearm(token, events);
            return Some((header, payload));
        }
        None
    }

    fn find(&self, ports: Ports) -> Option<u64> {
        self.connections
            .iter()
            .find(|(_, (known, c))| *known == ports && c.phase != Phase::Greeting)
            .map(|(&token, _)| token)
    }

    /// The guest connects to a port of the host.
    fn connect(&mut self, header: &Header, events: &Events) {
        let mut path = self.path.clone().into_os_string();
        path.push(format!("_{}", header.ports.host));
        let connected = UnixStream::connect(path)
            .is_ok_and(|stream| self.insert(header.ports, stream, Phase::Open, events));
        if !connected {
            self.reply(header.ports, op::RST);
            return;
        }
        if let Some((_, connection)) = self.connections.values_mut().next_back() {
            connection.learn(header);
        }
        self.reply(header.ports, op::RESPONSE);
    }

    fn insert(&mut self, ports: Ports, stream: UnixStream, phase: Phase, events: &Events) -> bool {
        if self.connections.len() >= MAX_CONNECTIONS || stream.set_nonblocking(true).is_err() {
            return false;
        }
        let connection = Connection::new(stream, phase);
        let token = self.next_token;
        if events
            .add(&connection.stream, token, connection.interest())
            .is_err()
        {
            return false;
        }
        self.next_token += 1;
        self.connections.insert(token, (ports, connection));
        true
    }

    /// The guest will not send (or not receive) any more.
    fn guest_ends(&mut self, token: u64, flags: u32) {
        let Some((ports, connection)) = self.connections.get_mut(&token) else {
            return;
        };
        if flags & SHUTDOWN_BOTH == SHUTDOWN_BOTH {
            let ports = *ports;
            self.connections.remove(&token);
            self.reply(ports, op::RST);
        } else if flags & SHUTDOWN_SEND != 0 && connection.is_flushed() {
            // A stream that is gone already needs no half-close.
            let _ = connection.stream.shutdown(std::net::Shutdown::Write);
        }
    }

    fn flush(&mut self, token: u64) {
        let Some((_, connection)) = self.connections.get_mut(&token) else {
            return;
        };
        if connection.flush().is_err() {
            self.close(token);
        } else {
            self.tell_credit(token);
        }
    }

    fn tell_credit(&mut self, token: u64) {
        if let Some((ports, connection)) = self.connections.get_mut(&token) {
            if connection.must_tell() {
                let update = Header::to_guest(self.guest_cid, *ports, op::CREDIT_UPDATE);
                self.replies.push_back(connection.sign(update));
            }
        }
    }

    fn close(&mut self, token: u64) {
        if let Some((ports, _)) = self.connections.remove(&token) {
            self.reply(ports, op::RST);
        }
    }

    fn reply(&mut self, ports: Ports, op: u16) {
        self.replies
            .push_back(Header::to_guest(self.guest_cid, ports, op));
    }

    /// Waits for what the connection needs next. One that cannot be waited for
    /// would hang silently, so it is closed.
    fn rearm(&mut self, token: u64, events: &Events) {
        if let Some((_, connection)) = self.connections.get(&token) {
            if events
                .change(&connection.stream, token, connection.interest())
                .is_err()
            {
                self.close(token);
            }
        }
    }
}
