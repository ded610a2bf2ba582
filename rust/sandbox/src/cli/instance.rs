// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Ids: a directory each, a lock in it that a dead process cannot hold, and the
//! control socket.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use sandbox::api::Client;

/// A killed process can take this long to let go of its id, when it has much memory.
const DYING: Duration = Duration::from_secs(5);

/// Which VMM process a command means.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct Target {
    /// Id of the sandbox
    #[arg(long)]
    id: Option<String>,
    /// Its control socket, for one without an id
    #[arg(long, value_name = "PATH")]
    api_socket: Option<PathBuf>,
}

impl Target {
    /// Its control socket.
    pub(crate) fn socket(&self) -> PathBuf {
        match (&self.api_socket, &self.id) {
            (Some(path), _) => path.clone(),
            (None, id) => socket_of(id.as_deref().unwrap_or_default()),
        }
    }

    /// What to call it.
    pub(crate) fn name(&self) -> String {
        self.id
            .clone()
            .unwrap_or_else(|| self.socket().display().to_string())
    }

    /// Makes sure that no other process has this id or socket.
    pub(super) fn claim(&self) -> Result<Claim, ClaimError> {
        match &self.id {
            Some(id) => Claim::new(id),
            // Binding the socket is the claim.
            None => Ok(Claim { lock: None }),
        }
    }
}

/// An id that this process has. Its directory goes with it.
#[derive(Debug)]
pub(super) struct Claim {
    lock: Option<(File, PathBuf)>,
}

/// An id cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClaimError {
    /// Not fit for a file name.
    #[error(
        "id {0:?} may only have letters, digits, '-', '_' and '.', and must not start with '.'"
    )]
    Name(String),
    /// Somebody has it.
    #[error("id {0:?} is in use by a running sandbox")]
    InUse(String),
    /// The directory cannot be used.
    #[error("{path:?}: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
}

impl Claim {
    fn new(id: &str) -> Result<Self, ClaimError> {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if id.is_empty() || id.starts_with('.') || !id.chars().all(fits) {
            return Err(ClaimError::Name(id.to_owned()));
        }
        let path = directory(id);
        let failed = |source| ClaimError::Directory {
            path: path.clone(),
            source,
        };
        let deadline = Instant::now() + DYING;
        loop {
            fs::create_dir_all(&path).map_err(failed)?;
            let lock = match File::create(path.join("lock")) {
                // Its last owner removed the directory just now: once more.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(failed)?,
            };
            match try_lock(&lock) {
                Ok(()) => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    // A dying process may still be connected to, but no longer answers.
                    let answers = || Client::new(&socket_of(id)).get("vmm.ping").is_ok();
                    if Instant::now() > deadline || answers() {
                        return Err(ClaimError::InUse(id.to_owned()));
                    }
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            if is_same(&lock, &path.join("lock")) {
                return Ok(Self {
                    lock: Some((lock, path)),
                });
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((_lock, path)) = self.lock.take() {
            // While the lock is still held: nobody else can be in there.
            let _ = fs::remove_dir_all(path);
        }
    }
}

/// Locks the file until it is closed, also by the death of the process.
fn try_lock(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    // SAFETY: plain system call on an open file.
    match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the locked file is still the one that others would lock.
fn is_same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), fs::metadata(path)) {
        (Ok(ours), Ok(theirs)) => ours.ino() == theirs.ino(),
        _ => false,
    }
}

/// The control socket of an id.
pub(super) fn socket_of(id: &str) -> PathBuf {
    directory(id).join("api.sock")
}

/// Where the id's files are.
fn directory(id: &str) -> PathBuf {
    let base = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(|| "/run".into(), PathBuf::from);
    base.join("kvm_s2").join(id)
}
