// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A thread that serves one device until its kill eventfd says otherwise.

use std::io;
use std::os::fd::AsRawFd;
use std::thread::{Builder, JoinHandle};

use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

/// Stands for the kill eventfd in a worker's epoll set.
const KILL: u64 = u64::MAX;

/// A running worker; its thread returns `T`.
#[derive(Debug)]
pub(super) struct Worker<T> {
    kill: EventFd,
    thread: JoinHandle<T>,
}

impl<T: Send + 'static> Worker<T> {
    /// Starts a thread that waits for events until [`Worker::signal`].
    pub(super) fn spawn<F>(name: &str, serve: F) -> io::Result<Self>
    where
        F: FnOnce(&Events) -> T + Send + 'static,
    {
        let kill = EventFd::new(EFD_NONBLOCK)?;
        let events = Events::new(&kill)?;
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(&events))?;
        Ok(Self { kill, thread })
    }

    /// Tells the worker to end. Returns at once.
    pub(super) fn signal(&self) {
        // The counter can only be full if the worker has been told already.
        let _ = self.kill.write(1);
    }

    /// Waits for the worker; `None` if it panicked.
    pub(super) fn join(self) -> Option<T> {
        self.thread.join().ok()
    }
}

/// What a worker waits for.
pub(super) struct Events {
    epoll: Epoll,
    // Keeps the fd in the set alive while the worker is.
    _kill: EventFd,
}

impl Events {
    fn new(kill: &EventFd) -> io::Result<Self> {
        let events = Self {
            epoll: Epoll::new()?,
            _kill: kill.try_clone()?,
        };
        events.add(kill, KILL, EventSet::IN)?;
        Ok(events)
    }

    /// Waits for `set` on `fd` too, and calls it `token`.
    pub(super) fn add(&self, fd: &dyn AsRawFd, token: u64, set: EventSet) -> io::Result<()> {
        let event = EpollEvent::new(set, token);
        self.epoll.ctl(ControlOperation::Add, fd.as_raw_fd(), event)
    }

    /// Waits for something else on an fd in the set.
    pub(super) fn change(&self, fd: &dyn AsRawFd, token: u64, set: EventSet) -> io::Result<()> {
        let event = EpollEvent::new(set, token);
        self.epoll
            .ctl(ControlOperation::Modify, fd.as_raw_fd(), event)
    }

    /// Calls `handle` with each token until the kill eventfd is written or the
    /// set can no longer be waited for.
    pub(super) fn serve(&self, mut handle: impl FnMut(u64)) {
        let mut ready = [EpollEvent::default(); 16];
        loop {
            let count = match self.epoll.wait(-1, &mut ready) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
            for event in &ready[..count] {
                match event.data() {
                    KILL => return,
                    token => handle(token),
                }
            }
        }
    }
}
