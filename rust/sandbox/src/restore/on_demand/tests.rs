// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::*;
use crate::restore::userfault_permitted;

const BYTES: usize = 4 * BLOCK;

/// A private mapping that goes with the test.
struct Map(*mut u8);

impl Map {
    fn new() -> Self {
        let (prot, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping at a place of the kernel's choice.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), BYTES, prot, flags, -1, 0) };
        assert_ne!(address, libc::MAP_FAILED);
        Self(address.cast())
    }

    fn region(&self) -> Vec<Region> {
        let start = self.0 as usize;
        vec![Region {
            memory: start..start + BYTES,
            offset: 0,
            page: 4096,
        }]
    }

    fn start<S: Source>(
        &self,
        source: S,
        prefetch: Prefetch,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> OnDemand {
        // SAFETY: the map is new, and outlives the result in every test.
        unsafe { OnDemand::start(self.region(), source, prefetch, failed) }.unwrap()
    }

    /// Reads a byte as the kernel does for KVM: an error instead of a signal.
    fn peek(&self, offset: usize) -> io::Result<u8> {
        let (reader, writer) = UnixStream::pair()?;
        // SAFETY: the kernel checks the address.
        let written = unsafe { libc::write(writer.as_raw_fd(), self.0.add(offset).cast(), 1) };
        if written != 1 {
            return Err(io::Error::last_os_error());
        }
        let mut byte = [0];
        io::Read::read_exact(&mut &reader, &mut byte)?;
        Ok(byte[0])
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: our own mapping.
        unsafe { libc::munmap(self.0.cast(), BYTES) };
    }
}

// SAFETY: only an address; tests read through it with system calls.
unsafe impl Sync for Map {}

/// Block `n` is full of `n`, so the first one is zero.
struct Numbers;

impl Source for Numbers {
    type Error = String;

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<Content, String> {
        match offset as usize / BLOCK {
            0 => Ok(Content::Zero),
            number => {
                buffer.fill(number as u8);
                Ok(Content::Data)
            }
        }
    }
}

/// Ends as its name says once `after` blocks were read.
enum Broken {
    Fails,
    Panics,
}

impl Source for Broken {
    type Error = String;

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<Content, String> {
        match self {
            _ if offset == 0 => Numbers.read(BLOCK as u64, buffer),
            Self::Fails => Err("the disk is gone".to_owned()),
            Self::Panics => panic!("killed on purpose"),
        }
    }
}

fn wait_for(done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !done() {
        assert!(Instant::now() < deadline);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn skip() -> bool {
    let reason = userfault_permitted().err();
    if let Some(reason) = &reason {
        eprintln!("SKIP {}: {reason}", module_path!());
    }
    reason.is_some()
}

#[test]
fn pages_are_loaded_when_they_are_touched_and_no_others() {
    if skip() {
        return;
    }
    let map = Map::new();
    let memory = map.start(Numbers, Prefetch::Off, |_| unreachable!());
    assert_eq!(map.peek(2 * BLOCK + 5).unwrap(), 2);
    assert_eq!(map.peek(3 * BLOCK - 1).unwrap(), 2);
    assert_eq!(map.peek(7).unwrap(), 0);
    // Whoever waits for a page is woken before it is counted.
    wait_for(|| memory.progress().faults == 2);
    assert_eq!(memory.progress().loaded, BLOCK as u64);
    assert!(!memory.progress().complete);
}

#[test]
fn the_background_loads_the_rest_and_then_lets_go() {
    if skip() {
        return;
    }
    let map = Map::new();
    let memory = map.start(Numbers, Prefetch::Background, |_| unreachable!());
    wait_for(|| memory.progress().complete);
    assert_eq!(memory.progress().loaded, 3 * BLOCK as u64);
    drop(memory);
    // Ordinary memory now, zeroes included.
    for block in 0..4 {
        assert_eq!(map.peek(block * BLOCK + 9).unwrap(), block as u8);
    }
}

#[test]
fn a_handler_that_dies_mid_fault_is_an_error_and_never_a_zero_page() {
    if skip() {
        return;
    }
    for source in [Broken::Fails, Broken::Panics] {
        let map = Map::new();
        let (sender, receiver) = channel();
        let memory = map.start(source, Prefetch::Off, move |reason| {
            sender.send(reason.to_owned()).unwrap();
        });
        assert_eq!(map.peek(0).unwrap(), 1);
        let error = map.peek(BLOCK).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        let reason = receiver.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(["the disk is gone", "the handler panicked"].contains(&&*reason));
        // Those who come later are told too, and what was loaded is not trusted.
        for block in 0..4 {
            assert!(map.peek(block * BLOCK + 1).is_err(), "block {block}");
        }
        assert_eq!(memory.progress().failure, Some(reason));
    }
}

#[test]
fn stopping_early_leaves_no_zero_page_either() {
    if skip() {
        return;
    }
    let map = Map::new();
    let memory = map.start(Numbers, Prefetch::Off, |_| unreachable!());
    assert_eq!(map.peek(BLOCK).unwrap(), 1);
    drop(memory);
    assert!(map.peek(3 * BLOCK).is_err());
}

#[test]
fn many_threads_see_the_same_memory() {
    if skip() {
        return;
    }
    for _ in 0..20 {
        let map = Map::new();
        let memory = map.start(Numbers, Prefetch::Background, |_| unreachable!());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for page in 0..BYTES / 4096 {
                        let offset = page * 4096;
                        assert_eq!(map.peek(offset).unwrap(), (offset / BLOCK) as u8);
                    }
                });
            }
        });
        drop(memory);
    }
}
