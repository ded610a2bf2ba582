// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Unix sockets that survive a killed predecessor.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A listening socket whose file goes with it.
#[derive(Debug)]
pub struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl BoundSocket {
    /// Binds `path`. A file left by a process that is gone is replaced; one that
    /// somebody listens on is an error.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            path: path.to_owned(),
        })
    }

    /// The listener, which does not block.
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // Somebody else may have removed it already; then there is nothing to do.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A socket that refuses connections has no listener any more.
fn is_stale(path: &Path) -> bool {
    matches!(UnixStream::connect(path), Err(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_file_is_replaced_and_a_live_one_is_not() {
        let dir = std::env::temp_dir().join(format!("socket-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("s");
        // A std listener leaves its file behind, as a killed process does.
        drop(UnixListener::bind(&path).unwrap());
        let bound = BoundSocket::bind(&path).unwrap();
        let error = BoundSocket::bind(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(bound);
        assert!(!path.exists());
        std::fs::remove_dir(&dir).unwrap();
    }
}
