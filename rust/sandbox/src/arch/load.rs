// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What placing a kernel has in common everywhere.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

use crate::config::PAGE;

/// A kernel could not be placed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file could not be opened or read.
    #[error("cannot read {path:?}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: std::io::Error,
    },
    /// No loader knows the image.
    #[error("{path:?} is not a kernel image that boots here and fits in guest memory: {reason}")]
    NotBootable {
        /// The image.
        path: PathBuf,
        /// The loader's answer.
        reason: linux_loader::loader::Error,
    },
    /// The command line is too long or holds characters it may not.
    #[error("kernel command line: {0}")]
    Cmdline(#[from] linux_loader::cmdline::Error),
    /// The command line could not be written.
    #[error("kernel command line: {0}")]
    WriteCmdline(#[from] linux_loader::loader::Error),
    /// Guest memory has no room for the initial RAM disk.
    #[error("initial RAM disk of {0} bytes does not fit in guest memory")]
    InitrdSize(u64),
    /// Guest memory could not be written.
    #[error("guest memory: {0}")]
    Memory(#[from] vm_memory::GuestMemoryError),
    /// Boot parameters could not be written.
    #[error("boot parameters: {0}")]
    Parameters(#[from] linux_loader::configurator::Error),
    /// The device tree could not be made.
    #[error("device tree: {0}")]
    DeviceTree(String),
}

pub(super) fn open(path: &Path) -> Result<File, LoadError> {
    File::open(path).map_err(|source| LoadError::File {
        path: path.to_owned(),
        source,
    })
}

/// Places the initial RAM disk as high as `room` allows; where it is then.
pub(super) fn initrd(
    memory: &GuestMemoryMmap,
    path: &Path,
    room: Range<u64>,
) -> Result<Range<u64>, LoadError> {
    let bytes = std::fs::read(path).map_err(|source| LoadError::File {
        path: path.to_owned(),
        source,
    })?;
    let size = bytes.len() as u64;
    let start = room
        .end
        .checked_sub(size.next_multiple_of(PAGE))
        .filter(|&start| start >= room.start)
        .ok_or(LoadError::InitrdSize(size))?;
    memory.write_slice(&bytes, GuestAddress(start))?;
    Ok(start..start + size)
}
