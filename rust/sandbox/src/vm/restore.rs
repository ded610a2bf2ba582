// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Bringing a VM back from its snapshot, or one of many.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::paused::{CreateError, PausedVm};
use crate::config::{SerialConfig, VmConfig};
use crate::memory::{Backing, GuestRam, MemoryError};
use crate::restore::file::MemoryFile;
use crate::restore::link::Held;
use crate::restore::on_demand::Prefetch;
use crate::restore::{choose, userfault_permitted, Asked, Facts, Mode, Plan, Purpose, Refused};
use crate::snapshot::{self, LoadError, State, MEMORY_FILE};
use crate::vcpu::{ExitSlot, GuestExit};

/// How a VM should come back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// How its memory should.
    pub asked: Asked,
    /// Whether memory on demand is loaded only when it is touched.
    pub no_prefetch: bool,
    /// For a clone: its own directory, for the link that keeps the memory file.
    pub clone_directory: Option<PathBuf>,
    /// What differs from the VM that was saved.
    pub overrides: Overrides,
}

/// Things of the host that only one VM can have. What is empty stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overrides {
    /// Where the serial console goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<SerialConfig>,
    /// Names of the taps, one for each network interface.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taps: Vec<String>,
    /// Disk files, one for each disk.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<PathBuf>,
    /// Unix socket of the vsock device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vsock_socket: Option<PathBuf>,
}

/// A VM could not be restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The snapshot.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// What was asked for is impossible.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Another number of things than the VM has.
    #[error("{given} {what} were given and the VM has {has}")]
    Overrides {
        /// Taps, disks or vsock sockets.
        what: &'static str,
        /// In the request.
        given: usize,
        /// In the snapshot.
        has: usize,
    },
    /// Guest memory.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The VM.
    #[error(transparent)]
    Create(#[from] CreateError),
}

impl Overrides {
    fn apply(&self, config: &mut VmConfig) -> Result<(), RestoreError> {
        let check = |what, given: usize, has: usize| match given == 0 || given == has {
            true => Ok(()),
            false => Err(RestoreError::Overrides { what, given, has }),
        };
        check("taps", self.taps.len(), config.net.len())?;
        check("disks", self.disks.len(), config.disks.len())?;
        let sockets = usize::from(self.vsock_socket.is_some());
        check(
            "vsock sockets",
            sockets,
            usize::from(config.vsock.is_some()),
        )?;
        for (net, tap) in config.net.iter_mut().zip(&self.taps) {
            net.tap.clone_from(tap);
        }
        for (disk, path) in config.disks.iter_mut().zip(&self.disks) {
            disk.path.clone_from(path);
        }
        if let (Some(vsock), Some(socket)) = (&mut config.vsock, &self.vsock_socket) {
            vsock.socket.clone_from(socket);
        }
        if let Some(serial) = &self.serial {
            config.serial.clone_from(serial);
        }
        Ok(())
    }
}

/// Makes a paused VM that goes on where the snapshot was taken, and says how its
/// memory came.
pub fn restore(
    directory: &Path,
    options: &RestoreOptions,
) -> Result<(PausedVm, Plan), RestoreError> {
    let state = snapshot::load(directory)?;
    let mut config = state.config.clone();
    options.overrides.apply(&mut config)?;
    config.validate().map_err(CreateError::from)?;
    let (file, held, plan) = open(directory, &state, options)?;
    let exit = Arc::<ExitSlot>::default();
    let ram = match plan.mode {
        Mode::Copy => GuestRam::copied(&config.memory, &file)?,
        Mode::Mmap => {
            let backing = Backing::File(Arc::new(file.into_file()));
            GuestRam::new(&config.memory, &backing)?
        }
        Mode::OnDemand => {
            let prefetch = match options.no_prefetch {
                true => Prefetch::Off,
                false => Prefetch::Background,
            };
            let exit = exit.clone();
            GuestRam::on_demand(&config.memory, file, prefetch, move |reason| {
                let reason = format!("guest memory cannot be loaded: {reason}");
                // A thread of ours may touch the memory next, and nobody would know.
                let _ = writeln!(io::stderr(), "sandbox: {reason}");
                exit.set(GuestExit::Failed(reason));
            })?
        }
    };
    // Only a map needs the file by its name.
    let held = held.filter(|_| plan.mode == Mode::Mmap);
    let vm = PausedVm::from_state(config, &state, ram, exit, held)?;
    Ok((vm, plan))
}

/// Opens the memory file, for a clone by the name that nobody takes away from it,
/// and decides what to do with it.
fn open(
    directory: &Path,
    state: &State,
    options: &RestoreOptions,
) -> Result<(MemoryFile, Option<Held>, Plan), RestoreError> {
    let original = directory.join(MEMORY_FILE);
    let held = match &options.clone_directory {
        Some(own) => Held::new(&original, own),
        None => Err("it is not a clone".to_owned()),
    };
    let path = held.as_ref().map_or(&*original, Held::file);
    let file = snapshot::open_memory(path, state)?;
    let facts = Facts {
        held: held.as_ref().map(|_| ()).map_err(String::clone),
        unchanged: file.unchanged(),
        userfault: userfault_permitted(),
    };
    let purpose = match options.clone_directory {
        Some(_) => Purpose::Clone,
        None => Purpose::Resume,
    };
    let plan = choose(options.asked, state.config.memory.kind(), purpose, &facts)?;
    Ok((file, held.ok(), plan))
}
