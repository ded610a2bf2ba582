// SPDX-License-Identifier: GPL-2.0

//! Things that keep a VM alive although its descriptor is closed.

use crate::Result;
use crate::Stop;
use kvm_ioctls::VcpuFd;
use std::io;
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;
use std::os::fd::OwnedFd;
use std::ptr;
use std::ptr::NonNull;

/// A second descriptor of a vCPU.
///
/// # Errors
///
/// [`Stop::Fail`] when there are no more descriptors.
pub fn vcpu_fd(vcpu: &VcpuFd) -> Result<OwnedFd> {
    // SAFETY: `vcpu` is borrowed and keeps its descriptor open meanwhile.
    let fd = unsafe { BorrowedFd::borrow_raw(vcpu.as_raw_fd()) };
    fd.try_clone_to_owned().map_err(Stop::failed("dup"))
}

/// A second mapping of a vCPU's `kvm_run`, of its first page.
#[derive(Debug)]
pub struct KvmRunMap(NonNull<libc::c_void>);

/// One page is enough to hold the file.
const MAP_LEN: usize = 4096;

impl KvmRunMap {
    /// Maps it.
    ///
    /// # Errors
    ///
    /// [`Stop::Fail`] when the kernel refuses.
    pub fn new(vcpu: &VcpuFd) -> Result<Self> {
        // SAFETY: a new shared mapping of the vCPU's file, never accessed.
        let addr = unsafe {
            libc::mmap(
                ptr::null_mut(),
                MAP_LEN,
                libc::PROT_READ,
                libc::MAP_SHARED,
                vcpu.as_raw_fd(),
                0,
            )
        };
        match NonNull::new(addr) {
            Some(map) if addr != libc::MAP_FAILED => Ok(KvmRunMap(map)),
            _ => Err(Stop::failed("mmap of kvm_run")(io::Error::last_os_error())),
        }
    }
}

impl Drop for KvmRunMap {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nobody reads it.
        unsafe { libc::munmap(self.0.as_ptr(), MAP_LEN) };
    }
}
