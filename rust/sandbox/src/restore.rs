// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Bringing a VM back from its snapshot.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::memory::{Backing, GuestRam, MemoryError};
use crate::snapshot::{self, LoadError};
use crate::vm::{CreateError, PausedVm};

/// How guest memory comes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryMode {
    /// All of it is read before the guest runs.
    #[default]
    Copy,
    /// The file is mapped privately and read as the guest touches it.
    Mmap,
}

/// A VM could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The memory file could not be read.
    #[error("cannot read snapshot memory: {0}")]
    Read(io::Error),
    /// The VM.
    #[error(transparent)]
    Create(#[from] CreateError),
}

/// Makes a paused VM that goes on where the snapshot was taken.
pub fn restore(directory: &Path, mode: MemoryMode) -> Result<PausedVm, RestoreError> {
    let (state, file) = snapshot::load(directory)?;
    let memory = state.config.memory;
    state.config.validate().map_err(CreateError::from)?;
    let ram = match mode {
        MemoryMode::Copy => {
            let ram = GuestRam::new(memory.size, memory.thp, &Backing::Anonymous)?;
            read_memory(&file, ram.map()).map_err(RestoreError::Read)?;
            ram
        }
        MemoryMode::Mmap => GuestRam::new(memory.size, memory.thp, &Backing::File(Arc::new(file)))?,
    };
    Ok(PausedVm::restore(&state, ram)?)
}

/// Reads the file's data and leaves its holes alone: new memory is zero.
fn read_memory(file: &File, ram: &GuestMemoryMmap) -> io::Result<()> {
    let mut base = 0;
    for region in ram.iter() {
        let length = region.len();
        // SAFETY: the mapping was just made, lives as long as `ram`, and nobody
        // else knows of it yet.
        let bytes = unsafe { std::slice::from_raw_parts_mut(region.as_ptr(), length as usize) };
        let mut position = base;
        while let Some(data) = next_data(file, position, base + length)? {
            let inside = (data.start - base) as usize..(data.end - base) as usize;
            file.read_exact_at(&mut bytes[inside], data.start)?;
            position = data.end;
        }
        base += length;
    }
    Ok(())
}

/// The next run of data in `from..end`.
fn next_data(file: &File, from: u64, end: u64) -> io::Result<Option<std::ops::Range<u64>>> {
    let Some(start) = seek(file, from, libc::SEEK_DATA)?.filter(|&start| start < end) else {
        return Ok(None);
    };
    let stop = seek(file, start, libc::SEEK_HOLE)?.unwrap_or(end).min(end);
    Ok(Some(start..stop))
}

fn seek(file: &File, from: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    use std::os::fd::AsRawFd;
    let from = libc::off_t::try_from(from).map_err(io::Error::other)?;
    // SAFETY: plain system call on an open file; no memory is involved.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    if let Ok(found) = u64::try_from(found) {
        return Ok(Some(found));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        error => Err(error),
    }
}
