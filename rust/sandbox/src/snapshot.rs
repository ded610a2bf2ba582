// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Snapshots: a directory with a small checked state file and a sparse memory file.
//!
//! A snapshot is written beside its place under another name, made durable and
//! then renamed, so that it is there as a whole or not at all.

mod format;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::arch::{VcpuState, VmState};
use crate::config::VmConfig;
use crate::devices::DevicesState;
use crate::restore::file::{self, FileError, Index, MemoryFile};

pub use format::{decode, encode, seal, DecodeError};

/// Name of the state file in a snapshot.
pub const STATE_FILE: &str = "state";
/// Name of the memory file in a snapshot, see [`crate::restore::file`].
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
    /// What the memory file holds.
    pub memory: Index,
}

/// Everything about a VM that stands still but its memory.
pub(crate) struct Standing {
    pub(crate) config: VmConfig,
    pub(crate) vcpus: Vec<VcpuState>,
    pub(crate) vm: VmState,
    pub(crate) devices: DevicesState,
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
    /// Memory that was to be loaded on demand cannot be had any more.
    #[error("cannot read guest memory: {0}")]
    Memory(io::Error),
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
    /// The state is sound, but the memory file is not what it says.
    #[error(transparent)]
    Memory(#[from] FileError),
    /// The state contradicts itself.
    #[error("the state is for {memory} bytes of memory and the memory file has {file}")]
    Contradiction {
        /// By the configuration.
        memory: u64,
        /// By the index.
        file: u64,
    },
}

/// Writes a snapshot; one that is already at `directory` is replaced.
pub(crate) fn save(
    directory: &Path,
    standing: Standing,
    ram: &GuestMemoryMmap,
) -> Result<(), SaveError> {
    if directory.exists() && !is_replaceable(directory) {
        return Err(SaveError::Occupied(directory.to_owned()));
    }
    let partial = partial(directory);
    let failed = |source| SaveError::Write {
        path: directory.to_owned(),
        source,
    };
    let write = || {
        let memory = write_memory(&partial, ram).map_err(failed)?;
        let Standing {
            config,
            vcpus,
            vm,
            devices,
        } = standing;
        let state = encode(&State {
            config,
            vcpus,
            vm,
            devices,
            memory,
        })?;
        write_state(&partial, &state).map_err(failed)?;
        publish(&partial, directory).map_err(failed)
    };
    write().inspect_err(|_| {
        // The first error is the one to tell; the next snapshot cleans up too.
        let _ = fs::remove_dir_all(&partial);
    })
}

/// Reads the state of a snapshot.
pub fn load(directory: &Path) -> Result<State, LoadError> {
    let path = directory.join(STATE_FILE);
    let read = |source| LoadError::Read {
        path: path.clone(),
        source,
    };
    let file = File::open(&path).map_err(read)?;
    let bytes = format::read_bounded(file).map_err(read)?;
    let state: State = decode(&bytes).map_err(|source| LoadError::Decode { path, source })?;
    let (memory, file) = (state.config.memory.size, state.memory.bytes());
    if memory != file {
        return Err(LoadError::Contradiction { memory, file });
    }
    Ok(state)
}

/// Opens the memory file that belongs to a state, by whichever name it has.
pub fn open_memory(path: &Path, state: &State) -> Result<MemoryFile, LoadError> {
    Ok(MemoryFile::open(path, state.memory.clone())?)
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

fn write_memory(partial: &Path, ram: &GuestMemoryMmap) -> io::Result<Index> {
    match fs::remove_dir_all(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(partial)?,
    }
    let regions = ram.iter().map(|region| {
        // SAFETY: the mapping lives as long as `ram`, and no thread of the VM runs,
        // so nobody writes to it.
        unsafe { std::slice::from_raw_parts(region.as_ptr(), region.len() as usize) }
    });
    file::write(&File::create_new(partial.join(MEMORY_FILE))?, regions)
}

fn write_state(partial: &Path, state: &[u8]) -> io::Result<()> {
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
