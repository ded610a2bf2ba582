// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The few userfaultfd calls that loading on demand needs (`userfaultfd(2)`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use linux_raw_sys::general::{
    uffd_msg, uffdio_api, uffdio_copy, uffdio_range, uffdio_register, uffdio_zeropage,
    UFFDIO_REGISTER_MODE_MISSING, UFFD_API, UFFD_EVENT_PAGEFAULT, USERFAULTFD_IOC,
};
use linux_raw_sys::ioctl::{
    UFFDIO_API, UFFDIO_COPY, UFFDIO_REGISTER, UFFDIO_UNREGISTER, UFFDIO_WAKE, UFFDIO_ZEROPAGE,
};

/// Makes a userfaultfd from its device node; a request without an argument.
const USERFAULTFD_IOC_NEW: u32 = USERFAULTFD_IOC << 8;

/// Whether this process may have faults of a guest delivered to it; the error says
/// why not and what to do. KVM touches memory from inside the kernel, so a
/// userfaultfd for user-mode faults alone is not enough.
pub fn permitted() -> Result<(), String> {
    Userfault::open().map(drop).map_err(|error| {
        let hint = match error.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => {
                " (give this user access to /dev/userfaultfd, or CAP_SYS_PTRACE, or set \
                 vm.unprivileged_userfaultfd=1)"
            }
            Some(libc::ENOSYS) => " (this kernel was built without it)",
            _ => "",
        };
        format!("userfaultfd: {error}{hint}")
    })
}

/// An open userfaultfd. Closing it lets pages that are still missing read as zero:
/// see [`super::on_demand`] for what must come first.
#[derive(Debug)]
pub(super) struct Userfault(OwnedFd);

/// What became of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// All or part of it was new.
    New,
    /// Every page was there already.
    Before,
}

impl Userfault {
    pub(super) fn open() -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        let result = match File::options()
            .read(true)
            .write(true)
            .open("/dev/userfaultfd")
        {
            // SAFETY: this request takes the flags as its argument and gives an fd.
            Ok(device) => unsafe {
                libc::ioctl(
                    device.as_raw_fd(),
                    libc::c_ulong::from(USERFAULTFD_IOC_NEW),
                    flags,
                )
            },
            // SAFETY: a system call without pointers.
            Err(_) => unsafe { libc::syscall(libc::SYS_userfaultfd, flags) as libc::c_int },
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new fd that nobody else has.
        let this = Self(unsafe { OwnedFd::from_raw_fd(result) });
        let mut api = uffdio_api {
            api: u64::from(UFFD_API),
            features: 0,
            ioctls: 0,
        };
        this.call(UFFDIO_API, &mut api)?;
        Ok(this)
    }

    /// Has missing pages in `range` reported. The kernel refuses what it cannot map.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let mut register = uffdio_register {
            range: to_range(range),
            mode: u64::from(UFFDIO_REGISTER_MODE_MISSING),
            ioctls: 0,
        };
        self.call(UFFDIO_REGISTER, &mut register)
    }

    /// From now on missing pages in `range` are zero. Wakes whoever waits for one.
    pub(super) fn unregister(&self, range: &Range<usize>) -> io::Result<()> {
        self.call(UFFDIO_UNREGISTER, &mut to_range(range))
    }

    /// Lets whoever waits for a page in `range` try again.
    pub(super) fn wake(&self, range: &Range<usize>) -> io::Result<()> {
        self.call(UFFDIO_WAKE, &mut to_range(range))
    }

    /// Fills the missing pages from `address` on and wakes their waiters.
    pub(super) fn copy(&self, address: usize, bytes: &[u8], page: usize) -> io::Result<Filled> {
        self.fill(address, bytes.len(), page, |done, left| {
            let mut copy = uffdio_copy {
                dst: (address + done) as u64,
                src: bytes[done..].as_ptr() as u64,
                len: left as u64,
                mode: 0,
                copy: 0,
            };
            (self.call(UFFDIO_COPY, &mut copy), copy.copy)
        })
    }

    /// Fills the missing pages from `address` on with zeroes. Not for huge pages.
    pub(super) fn zero(&self, address: usize, bytes: usize, page: usize) -> io::Result<Filled> {
        self.fill(address, bytes, page, |done, left| {
            let start = address + done;
            let mut zero = uffdio_zeropage {
                range: to_range(&(start..start + left)),
                mode: 0,
                zeropage: 0,
            };
            (self.call(UFFDIO_ZEROPAGE, &mut zero), zero.zeropage)
        })
    }

    /// Repeats `step` until all is filled: the kernel stops at a page that is there
    /// already, and when somebody else changes mappings.
    fn fill(
        &self,
        address: usize,
        bytes: usize,
        page: usize,
        mut step: impl FnMut(usize, usize) -> (io::Result<()>, i64),
    ) -> io::Result<Filled> {
        let (mut done, mut skipped) = (0, 0);
        while done < bytes {
            let (result, filled) = step(done, bytes - done);
            let Err(error) = result else { break };
            match error.raw_os_error() {
                Some(libc::EAGAIN) => done += usize::try_from(filled).unwrap_or(0),
                Some(libc::EEXIST) => {
                    done += page;
                    skipped += page;
                }
                _ => return Err(error),
            }
        }
        if skipped > 0 {
            self.wake(&(address..address + bytes))?;
        }
        Ok(match skipped >= bytes {
            true => Filled::Before,
            false => Filled::New,
        })
    }

    /// The address of the next fault, if one is waiting.
    pub(super) fn next_fault(&self) -> io::Result<Option<usize>> {
        let mut message = std::mem::MaybeUninit::<uffd_msg>::uninit();
        let size = size_of::<uffd_msg>();
        // SAFETY: the buffer has `size` bytes.
        let read = unsafe { libc::read(self.0.as_raw_fd(), message.as_mut_ptr().cast(), size) };
        if read < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        if read as usize != size {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
        }
        // SAFETY: the kernel has written all of it, and any bits are valid.
        let message = unsafe { message.assume_init() };
        if u32::from(message.event) != UFFD_EVENT_PAGEFAULT {
            return Err(io::Error::other(format!(
                "userfaultfd event {}",
                message.event
            )));
        }
        // SAFETY: this kind of event has this argument.
        Ok(Some(unsafe { message.arg.pagefault.address } as usize))
    }

    fn call<T>(&self, request: u32, argument: &mut T) -> io::Result<()> {
        // SAFETY: every request above is called with the structure it is defined for.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), libc::c_ulong::from(request), argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsRawFd for Userfault {
    fn as_raw_fd(&self) -> libc::c_int {
        self.0.as_raw_fd()
    }
}

fn to_range(range: &Range<usize>) -> uffdio_range {
    uffdio_range {
        start: range.start as u64,
        len: range.len() as u64,
    }
}
