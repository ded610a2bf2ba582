// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A hard link that keeps a memory file for as long as a clone maps it.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A clone's own name for a memory file. Its directory goes with it.
#[derive(Debug)]
pub struct Held {
    directory: PathBuf,
    file: PathBuf,
}

impl Held {
    /// Links `file` into `directory`, which belongs to the clone alone and is made,
    /// or taken over from a dead owner. The error says, in words, why that cannot
    /// be done.
    pub fn new(file: &Path, directory: &Path) -> Result<Self, String> {
        let explain = |error: io::Error| explain(&error, file, directory);
        std::fs::create_dir_all(directory).map_err(explain)?;
        let held = Self {
            directory: directory.to_owned(),
            file: directory.join(file.file_name().unwrap_or("memory".as_ref())),
        };
        match std::fs::remove_file(&held.file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(explain(error)),
            _ => std::fs::hard_link(file, &held.file).map_err(explain)?,
        }
        Ok(held)
    }

    /// The clone's name of the file.
    pub fn file(&self) -> &Path {
        &self.file
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
        // Only if nothing else is in it.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

fn explain(error: &io::Error, file: &Path, directory: &Path) -> String {
    let device = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
    if error.kind() == io::ErrorKind::CrossesDevices || device(file) != device(directory) {
        return format!(
            "{directory:?} is on another file system than {file:?}; name a directory beside \
             the snapshot"
        );
    }
    format!("no hard link to {file:?} in {directory:?}: {error}")
}
