// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The first process of a Linux guest in the tests: tries every device, says on
//! the console how that went, then counts there and answers on vsock.
//!
//! A line on vsock port 52 comes back as it is; `reboot` ends the guest.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

const ECHO_PORT: u32 = 52;
const HOST_PORT: u32 = 1234;
const HOST: u32 = 2;
const ADDRESS: &str = "10.213.0.2:7";
const HOST_ADDRESS: &str = "10.213.0.1:7";

fn main() {
    for (kind, place) in [("devtmpfs", "/dev"), ("proc", "/proc"), ("sysfs", "/sys")] {
        mount(kind, place);
    }
    open_console();
    println!("guest: up, {} cpus", cpus());
    say("disk", disk());
    if std::path::Path::new("/sys/class/net/eth0").exists() {
        say("net", net());
    }
    say("vsock", vsock_out());
    std::thread::spawn(|| say("echo", echo()));
    for tick in 0u64.. {
        println!("tick {tick}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn say(device: &str, result: io::Result<()>) {
    match result {
        Ok(()) => println!("{device} ok"),
        Err(error) => println!("{device} failed: {error}"),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn mount(kind: &str, place: &str) {
    let _ = std::fs::create_dir(place);
    let text = |text: &str| std::ffi::CString::new(text).expect("no zero byte in it");
    let (kind, place) = (text(kind), text(place));
    // SAFETY: all strings are valid and outlive the call.
    let _ = unsafe {
        libc::mount(
            kind.as_ptr(),
            place.as_ptr(),
            kind.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
}

/// The kernel gave no console if there was no /dev yet.
fn open_console() {
    if let Ok(console) = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/console")
    {
        for fd in 0..3 {
            // SAFETY: both are file descriptors; the old ones are of no use.
            unsafe { libc::dup2(console.as_raw_fd(), fd) };
        }
    }
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Adds one to the number in the first sector, past the page cache.
fn disk() -> io::Result<()> {
    let disk = OpenOptions::new().read(true).write(true).open("/dev/vda")?;
    let mut sector = [0; 512];
    disk.read_exact_at(&mut sector, 0)?;
    sector[0] += 1;
    disk.write_all_at(&sector, 0)?;
    disk.sync_all()
}

/// Sends a datagram to the host and waits for it to come back.
fn net() -> io::Result<()> {
    configure("eth0", [10, 213, 0, 2])?;
    let socket = UdpSocket::bind(ADDRESS)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = [0; 2048];
    let sent: Vec<u8> = (0..1400).map(|byte| byte as u8).collect();
    for _ in 0..10 {
        // The first ones may go before the link is up.
        let _ = socket.send_to(&sent, HOST_ADDRESS);
        if let Ok(length) = socket.recv(&mut buffer) {
            return same(&sent, &buffer[..length]);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn same(sent: &[u8], received: &[u8]) -> io::Result<()> {
    if sent == received {
        return Ok(());
    }
    Err(io::Error::other("not what was sent"))
}

/// Gives an interface its address and brings it up.
fn configure(name: &str, address: [u8; 4]) -> io::Result<()> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all zeroes is a valid request and a valid address.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let mut set = |code, bytes: [u8; 4]| {
        let address = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(bytes),
            },
            sin_zero: [0; 8],
        };
        // SAFETY: both are plain data of the same size.
        request.ifr_ifru.ifru_addr =
            unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) };
        // SAFETY: the request is a live local of the type these calls take.
        check(unsafe { libc::ioctl(socket.as_raw_fd(), code, &request) })
    };
    set(libc::SIOCSIFADDR, address)?;
    set(libc::SIOCSIFNETMASK, [255, 255, 255, 0])?;
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: as above.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &request) })?;
    Ok(())
}

fn vsock() -> io::Result<OwnedFd> {
    // SAFETY: a plain system call.
    let fd = check(unsafe { libc::socket(libc::AF_VSOCK, libc::SOCK_STREAM, 0) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn address(cid: u32, port: u32) -> libc::sockaddr_vm {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_vm = unsafe { std::mem::zeroed() };
    address.svm_family = libc::AF_VSOCK as libc::sa_family_t;
    address.svm_cid = cid;
    address.svm_port = port;
    address
}

const ADDRESS_SIZE: libc::socklen_t = size_of::<libc::sockaddr_vm>() as libc::socklen_t;

/// Sends more than one credit's worth to the host and reads it back.
fn vsock_out() -> io::Result<()> {
    let socket = vsock()?;
    let address = address(HOST, HOST_PORT);
    // SAFETY: the address is a live local of the size given.
    check(unsafe {
        libc::connect(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_SIZE,
        )
    })?;
    let mut stream = std::fs::File::from(socket);
    let sent: Vec<u8> = (0..300_000u32).map(|byte| (byte / 7) as u8).collect();
    let mut writer = stream.try_clone()?;
    let copy = sent.clone();
    let writing = std::thread::spawn(move || writer.write_all(&copy));
    let mut received = vec![0; sent.len()];
    stream.read_exact(&mut received)?;
    writing.join().map_err(|_| io::Error::other("panicked"))??;
    same(&sent, &received)
}

/// Answers every connection of the host.
fn echo() -> io::Result<()> {
    let socket = vsock()?;
    let address = address(libc::VMADDR_CID_ANY, ECHO_PORT);
    // SAFETY: the address is a live local of the size given.
    check(unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            ADDRESS_SIZE,
        )
    })?;
    // SAFETY: a plain system call on an open socket.
    check(unsafe { libc::listen(socket.as_raw_fd(), 8) })?;
    println!("listening");
    loop {
        // SAFETY: nobody asks for the peer's address.
        let fd = check(unsafe {
            libc::accept(
                socket.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        })?;
        // SAFETY: the descriptor is new and nobody else's.
        let stream = std::fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        std::thread::spawn(move || answer(stream));
    }
}

fn answer(mut stream: std::fs::File) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        if buffer.starts_with(b"reboot") {
            // SAFETY: there is nothing left to lose.
            unsafe { libc::reboot(libc::RB_AUTOBOOT) };
        }
        if stream.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
