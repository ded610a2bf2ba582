// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The network device: frames through a real tap, both ways.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use vm_memory::{Bytes, GuestAddress};

use super::driver::{Driver, Machine, DATA};
use crate::config::NetConfig;
use crate::devices::net::Net;

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const HEADER: u64 = 12;
/// For experiments: nobody else sends this kind of frame.
const KIND: u16 = 0x88b5;
const BUFFER: u32 = 2048;
const GUEST: [u8; 6] = [2, 0, 0, 0, 0, 9];

/// The host's end of a tap: a socket that sees one kind of frame.
struct Host(OwnedFd);

impl Host {
    /// Needs CAP_NET_RAW and, to bring the tap up, CAP_NET_ADMIN.
    fn new(tap: &str) -> io::Result<Self> {
        // Or the host would send frames of its own before the first one of ours.
        let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{tap}/disable_ipv6"), "1");
        let kind = libc::c_int::from(KIND.to_be());
        // SAFETY: a system call without pointers.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, kind) })?;
        // SAFETY: a new fd that nobody else has.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeroes are a valid request, and a valid address.
        let (mut request, mut address): (libc::ifreq, libc::sockaddr_ll) =
            unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(tap.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        // SAFETY: these calls take such a request.
        let index = unsafe {
            check(libc::ioctl(fd, libc::SIOCSIFFLAGS, &request))?;
            check(libc::ioctl(fd, libc::SIOCGIFINDEX, &mut request))?;
            request.ifr_ifru.ifru_ifindex
        };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = KIND.to_be();
        address.sll_ifindex = index;
        let timeout = libc::timeval {
            tv_sec: 10,
            tv_usec: 0,
        };
        // SAFETY: both structures live as long as the calls, with their sizes.
        unsafe {
            let size = size_of_val(&address) as libc::socklen_t;
            check(libc::bind(fd, (&raw const address).cast(), size))?;
            let size = size_of_val(&timeout) as libc::socklen_t;
            let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
            check(libc::setsockopt(
                fd,
                level,
                option,
                (&raw const timeout).cast(),
                size,
            ))?;
        }
        Ok(Self(socket))
    }

    fn send(&self, frame: &[u8]) {
        // SAFETY: the buffer has this many bytes.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
        assert_eq!(sent, frame.len() as isize, "{}", io::Error::last_os_error());
    }

    fn receive(&self) -> Vec<u8> {
        let mut frame = vec![0; BUFFER as usize];
        let (buffer, size) = (frame.as_mut_ptr().cast(), frame.len());
        // SAFETY: the buffer has this many bytes.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), buffer, size, 0) };
        frame.truncate(usize::try_from(length).expect("no frame came out of the tap"));
        frame
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        0.. => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}

fn frame(to: [u8; 6], from: [u8; 6], length: usize) -> Vec<u8> {
    let content = (0..length).map(|byte| byte as u8);
    let mut frame = [to, from].concat();
    frame.extend(KIND.to_be_bytes());
    frame.extend(content);
    frame
}

/// The next frame of our kind that the guest gets; the host's network sends others.
fn guest_receives(machine: &Machine, net: &mut Driver, next: &mut u64) -> Vec<u8> {
    loop {
        let length = net.take(RECEIVE) as usize;
        let place = DATA + 0x1_0000 + *next * u64::from(BUFFER);
        *next += 1;
        let mut bytes = vec![0; length];
        machine
            .memory
            .read_slice(&mut bytes, GuestAddress(place))
            .unwrap();
        let frame = bytes.split_off(HEADER as usize);
        if frame[12..14] == KIND.to_be_bytes() {
            return frame;
        }
    }
}

#[test]
fn frames_go_through_the_tap_both_ways() {
    let Some(machine) = Machine::new() else {
        return;
    };
    let tap = format!("sbxf{}", std::process::id());
    let config = NetConfig {
        tap: tap.clone(),
        mac: "02:00:00:00:00:09".to_owned(),
    };
    let opened = Net::open(&config).and_then(|net| Ok((Host::new(&tap)?, net)));
    let (host, net) = match opened {
        Ok(both) => both,
        Err(error) => {
            eprintln!(
                "SKIP {}: a tap and a packet socket: {error}",
                module_path!()
            );
            return;
        }
    };
    let mut net = machine.attach(Box::new(net));
    assert_eq!(net.read(0x8), 1);
    assert_eq!(net.read(0x100).to_le_bytes(), GUEST[..4], "the address");

    for length in [46, 1, 1500] {
        let sent = frame([0xff; 6], GUEST, length);
        let memory = &machine.memory;
        memory
            .write_slice(&[0; HEADER as usize], GuestAddress(DATA))
            .unwrap();
        memory
            .write_slice(&sent, GuestAddress(DATA + 0x100))
            .unwrap();
        let frame = (DATA + 0x100, sent.len() as u32, false);
        net.add(TRANSMIT, &[(DATA, HEADER as u32, false), frame]);
        assert_eq!(net.take(TRANSMIT), 0);
        assert_eq!(host.receive(), sent);
    }

    // One frame comes before there is room for it, and waits.
    let first = frame(GUEST, [0xff; 6], 100);
    host.send(&first);
    std::thread::sleep(Duration::from_millis(20));
    for number in 0..48 {
        let place = DATA + 0x1_0000 + number * u64::from(BUFFER);
        net.add(RECEIVE, &[(place, BUFFER, true)]);
    }
    let mut next = 0;
    assert_eq!(guest_receives(&machine, &mut net, &mut next), first);
    for length in [46, 1500] {
        let sent = frame(GUEST, [0xff; 6], length);
        host.send(&sent);
        assert_eq!(guest_receives(&machine, &mut net, &mut next), sent);
    }
    net.wait_interrupt();
}
