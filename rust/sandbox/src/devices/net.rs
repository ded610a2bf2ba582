// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! virtio-net on a tap.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use virtio_bindings::virtio_ids::VIRTIO_ID_NET;
use virtio_bindings::virtio_net::VIRTIO_NET_F_MAC;
use vmm_sys_util::epoll::EventSet;

use super::virtio::{Backend, Io, OWN_TOKENS};
use crate::config::{parse_mac, NetConfig};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const QUEUES: usize = 2;
const TAP: u64 = OWN_TOKENS;
/// `struct virtio_net_hdr_v1`, which the tap reads and writes as it is.
const HEADER: libc::c_int = 12;
/// Largest frame without segmentation offload, and its header.
const FRAME: usize = 65562 + 12;

/// One interface.
#[derive(Debug)]
pub(super) struct Net {
    tap: File,
    mac: [u8; 6],
    buffer: Vec<u8>,
    /// A frame in `buffer` that the guest had no room for yet.
    waiting: Option<usize>,
}

impl Net {
    pub(super) fn open(config: &NetConfig) -> io::Result<Self> {
        let mac = parse_mac(&config.mac).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Self {
            tap: open_tap(&config.tap)?,
            mac,
            buffer: vec![0; FRAME],
            waiting: None,
        })
    }

    fn receive(&mut self, io: &mut Io<'_>) {
        let queue = &mut io.queues[RECEIVE];
        loop {
            let length = match self.waiting {
                Some(length) => length,
                None => match self.tap.read(&mut self.buffer) {
                    Ok(length) if length > 0 => length,
                    // Nothing there, or the tap is down.
                    _ => break,
                },
            };
            self.waiting = Some(length);
            let Some(chain) = queue.pop() else {
                // Nobody reads: stop watching, or the worker would spin.
                let _ = io.events.change(&self.tap, TAP, EventSet::empty());
                break;
            };
            // A frame that does not fit is dropped, as a card would.
            let written = queue
                .writer(&chain)
                .and_then(|mut writer| writer.write_all(&self.buffer[..length]).ok())
                .map_or(0, |()| length as u32);
            queue.push(chain.head_index(), written);
            self.waiting = None;
        }
        queue.notify_guest();
    }

    fn transmit(&mut self, io: &mut Io<'_>) {
        let queue = &mut io.queues[TRANSMIT];
        let mut frame = Vec::new();
        while let Some(chain) = queue.pop() {
            frame.clear();
            if let Some(reader) = queue.reader(&chain) {
                // The tap refuses what is no frame; a full tap loses it, as a wire.
                let _ = reader
                    .take(FRAME as u64)
                    .read_to_end(&mut frame)
                    .and_then(|_| self.tap.write(&frame));
            }
            queue.push(chain.head_index(), 0);
        }
        queue.notify_guest();
    }
}

/// Attaches to a tap, which the kernel makes when there is none of that name; one
/// made so is gone when the fd is closed.
fn open_tap(name: &str) -> io::Result<File> {
    let tap = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    // SAFETY: all zeroes is a valid request without a name.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a name has 1 to 15 characters",
        ));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = flags as libc::c_short;
    // SAFETY: the request is a live local of the type this call takes.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &request) })?;
    // SAFETY: this call reads one int.
    check(unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETVNETHDRSZ, &HEADER) })?;
    Ok(tap)
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl Backend for Net {
    fn kind(&self) -> u32 {
        VIRTIO_ID_NET
    }

    fn name(&self) -> &'static str {
        "net"
    }

    fn features(&self) -> u64 {
        1 << VIRTIO_NET_F_MAC
    }

    fn queues(&self) -> usize {
        QUEUES
    }

    fn config(&self) -> &[u8] {
        &self.mac
    }

    fn start(&mut self, io: &mut Io<'_>, _restored: bool) -> io::Result<()> {
        io.events.add(&self.tap, TAP, EventSet::IN)
    }

    fn on_queue(&mut self, queue: usize, io: &mut Io<'_>) {
        match queue {
            RECEIVE => {
                let _ = io.events.change(&self.tap, TAP, EventSet::IN);
                self.receive(io);
            }
            _ => self.transmit(io),
        }
    }

    fn on_event(&mut self, _token: u64, io: &mut Io<'_>) {
        self.receive(io);
    }
}
