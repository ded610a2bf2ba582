// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Snapshots: a directory with a small checked state file and a sparse memory file.
//!
//! A snapshot is written beside its place under another name, made durable and
//! then renamed, so that it is there as a whole or not at all.

mod format;
mod memory;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vm_memory::GuestMemoryMmap;

use crate::arch::{VcpuState, VmState};
use crate::config::VmConfig;
use crate::devices::DevicesState;

pub use format::{decode, encode, DecodeError};

/// Name of the state file in a snapshot.
pub const STATE_FILE: &str = "state";
/// Name of the memory file in a snapshot: all RAM, region after region.
pub const MEMORY_FILE: &str = "memory";

/// Everything about a VM but its memory.
#[derive(Debug, Serialize, Deserialize)]
pub struct State {
    /// What the VM was made from.
    pub config: VmConfig,
    /// vCPUs, by number.
    pub vcpus: Vec<VcpuState>,
    /// Interrupt controllers and clocks.
    pub vm: VmState,
    /// Devices.
    pub devices: DevicesState,
}

/// A snapshot could not be written. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// KVM did not give the state of a vCPU.
    #[error("cannot read the state of a vCPU: {0}")]
    Vcpu(kvm_ioctls::Error),
    /// KVM did not give the state of the VM.
    #[error("cannot read the state of the VM: {0}")]
    Vm(kvm_ioctls::Error),
    /// The state could not be encoded.
    #[error("cannot encode the state: {0}")]
    Encode(#[from] serde_json::Error),
    /// Something else is where the snapshot should go.
    #[error("{0:?} exists and is no snapshot; choose another place")]
    Occupied(PathBuf),
    /// The host did not take it.
    #[error("cannot write snapshot {path:?}: {source}")]
    Write {
        /// What was being written.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
}

impl SaveError {
    /// The disk is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Write { source, .. }
            if matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)))
    }
}

/// A snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing or unreadable.
    #[error("cannot read snapshot file {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// The state file is not what it should be.
    #[error("snapshot state {path:?}: {source}")]
    Decode {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: DecodeError,
    },
    /// The memory file does not hold what the state says.
    #[error("snapshot memory {path:?} has {found} bytes, the state says {expected}")]
    MemorySize {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// What it should be.
        expected: u64,
    },
}

/// Writes a snapshot; one that is already at `directory` is replaced.
pub(crate) fn save(
    directory: &Path,
    state: &State,
    ram: &GuestMemoryMmap,
) -> Result<(), SaveError> {
    if directory.exists() && !is_replaceable(directory) {
        return Err(SaveError::Occupied(directory.to_owned()));
    }
    let partial = partial(directory);
    let bytes = encode(state)?;
    let written = write(&partial, &bytes, ram).and_then(|()| publish(&partial, directory));
    written.map_err(|source| {
        // The first error is the one to tell; the next snapshot cleans up too.
        let _ = fs::remove_dir_all(&partial);
        SaveError::Write {
            path: directory.to_owned(),
            source,
        }
    })
}

/// Reads the state of a snapshot and opens its memory file.
pub fn load(directory: &Path) -> Result<(State, File), LoadError> {
    let path = directory.join(STATE_FILE);
    let read = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Read { path, source }
    };
    let file = File::open(&path).map_err(read(&path))?;
    let bytes = format::read_bounded(file).map_err(read(&path))?;
    let state: State = decode(&bytes).map_err(|source| LoadError::Decode { path, source })?;
    let path = directory.join(MEMORY_FILE);
    let memory = File::open(&path).map_err(read(&path))?;
    let found = memory.metadata().map_err(read(&path))?.len();
    let expected = state.config.memory.size;
    if found != expected {
        return Err(LoadError::MemorySize {
            path,
            found,
            expected,
        });
    }
    Ok((state, memory))
}

/// Where an unfinished snapshot is written. The name is fixed, so that the next
/// one finds and removes what a killed process left.
pub fn partial(directory: &Path) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// A snapshot or an empty directory.
fn is_replaceable(directory: &Path) -> bool {
    directory.join(STATE_FILE).is_file()
        || fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

fn write(partial: &Path, state: &[u8], ram: &GuestMemoryMmap) -> io::Result<()> {
    match fs::remove_dir_all(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(partial)?,
    }
    let file = File::create_new(partial.join(MEMORY_FILE))?;
    memory::write(&file, ram)?;
    file.sync_all()?;
    let mut file = File::create_new(partial.join(STATE_FILE))?;
    io::Write::write_all(&mut file, state)?;
    file.sync_all()?;
    File::open(partial)?.sync_all()
}

/// Puts a finished snapshot in its place, exchanging it for an older one.
fn publish(partial: &Path, directory: &Path) -> io::Result<()> {
    if directory.exists() {
        exchange(partial, directory)?;
        fs::remove_dir_all(partial)?;
    } else {
        fs::rename(partial, directory)?;
    }
    let parent = directory.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let text =
        |path: &Path| std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other);
    let (one, other) = (text(one)?, text(other)?);
    // SAFETY: both are valid C strings that outlive the call.
    let result = unsafe {
        libc::renameat2(
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
