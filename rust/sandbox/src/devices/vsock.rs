// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! virtio-vsock between the guest and Unix sockets of the host.
//!
//! A connection of the guest to port P of the host goes to the socket with `_P`
//! appended to its name. A host program connects to the socket itself, writes
//! `CONNECT P\n` and reads `OK <host port>\n`; then the stream is the guest's.

mod connection;
mod muxer;
mod packet;

use std::io;

use virtio_bindings::virtio_ids::VIRTIO_ID_VSOCK;
use virtio_vsock::packet::VsockPacket;
use vmm_sys_util::epoll::EventSet;

use super::virtio::{Backend, Io, OWN_TOKENS};
use crate::config::VsockConfig;
use crate::socket::BoundSocket;
use muxer::Muxer;
use packet::{Header, MAX_PAYLOAD};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const EVENT: usize = 2;
const QUEUES: usize = 3;
const LISTENER: u64 = OWN_TOKENS;
/// Tells the guest that all its connections are gone.
const TRANSPORT_RESET: u32 = 0;

/// The device.
#[derive(Debug)]
pub(super) struct Vsock {
    socket: BoundSocket,
    muxer: Muxer,
    config: [u8; 8],
    reset: Reset,
}

/// Telling a restored guest that its connections are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    /// It knows.
    Done,
    /// It has not given a buffer for it yet.
    Owed,
    /// It has not given the buffer back yet. Until then it may still take a new
    /// connection for an old one, or end it with the old ones.
    Sent,
}

impl Vsock {
    pub(super) fn open(config: &VsockConfig) -> io::Result<Self> {
        let cid = u64::from(config.cid);
        Ok(Self {
            socket: BoundSocket::bind(&config.socket)?,
            muxer: Muxer::new(cid, config.socket.clone()),
            config: cid.to_le_bytes(),
            reset: Reset::Done,
        })
    }

    /// Takes every packet the guest has put out.
    fn transmit(&mut self, io: &mut Io<'_>) {
        let queue = &mut io.queues[TRANSMIT];
        let memory = queue.share();
        while let Some(mut chain) = queue.pop() {
            let head = chain.head_index();
            // What is no packet is given back unread; the guest talks to itself.
            if let Ok(packet) = VsockPacket::from_tx_virtq_chain(&*memory, &mut chain, MAX_PAYLOAD)
            {
                let mut payload = vec![0; packet.len() as usize];
                if let Some(data) = packet.data_slice() {
                    data.copy_to(&mut payload);
                }
                self.muxer.take(&Header::of(&packet), &payload, io.events);
            }
            queue.push(head, 0);
        }
        queue.notify_guest();
    }

    /// Fills the guest's buffers with whatever there is for it.
    fn receive(&mut self, io: &mut Io<'_>) {
        if self.reset != Reset::Done {
            return;
        }
        let queue = &mut io.queues[RECEIVE];
        let memory = queue.share();
        while self.muxer.has_packet() {
            let Some(mut chain) = queue.pop() else {
                break;
            };
            let head = chain.head_index();
            let packet = VsockPacket::from_rx_virtq_chain(&*memory, &mut chain, MAX_PAYLOAD);
            let Ok(mut packet) = packet else {
                queue.push(head, 0);
                continue;
            };
            let room = packet.data_slice().map_or(0, |data| data.len());
            match self.muxer.give(room, io.events) {
                Some((header, payload)) => {
                    if let Some(data) = packet.data_slice() {
                        data.copy_from(&payload);
                    }
                    let written = header.write_to(&mut packet);
                    queue.push(head, written + payload.len() as u32);
                }
                None => {
                    // Only streams that turned out to be empty were left.
                    queue.unpop();
                    break;
                }
            }
        }
        queue.notify_guest();
    }

    fn send_reset(&mut self, io: &mut Io<'_>) {
        let queue = &mut io.queues[EVENT];
        let Some(chain) = queue.pop() else {
            return;
        };
        let sent = queue.writer(&chain).is_some_and(|mut writer| {
            io::Write::write_all(&mut writer, &TRANSPORT_RESET.to_le_bytes()).is_ok()
        });
        queue.push(chain.head_index(), if sent { 4 } else { 0 });
        queue.notify_guest();
        self.reset = Reset::Sent;
    }
}

impl Backend for Vsock {
    fn kind(&self) -> u32 {
        VIRTIO_ID_VSOCK
    }

    fn name(&self) -> &'static str {
        "vsock"
    }

    fn features(&self) -> u64 {
        0
    }

    fn queues(&self) -> usize {
        QUEUES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn start(&mut self, io: &mut Io<'_>, restored: bool) -> io::Result<()> {
        // The streams of a snapshot's connections were not in the snapshot.
        if restored {
            self.reset = Reset::Owed;
        }
        io.events
            .add(self.socket.listener(), LISTENER, EventSet::IN)?;
        self.muxer.watch(io.events)
    }

    fn on_queue(&mut self, queue: usize, io: &mut Io<'_>) {
        match queue {
            TRANSMIT => self.transmit(io),
            EVENT => match self.reset {
                Reset::Owed => self.send_reset(io),
                Reset::Sent => self.reset = Reset::Done,
                Reset::Done => (),
            },
            _ => (),
        }
        self.receive(io);
    }

    fn on_event(&mut self, token: u64, io: &mut Io<'_>) {
        if token == LISTENER {
            while let Ok((stream, _)) = self.socket.listener().accept() {
                self.muxer.accept(stream, io.events);
            }
        } else {
            self.muxer.on_stream(token, io.events);
        }
        self.receive(io);
    }
}
