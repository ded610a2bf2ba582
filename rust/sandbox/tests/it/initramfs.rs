// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! An initial RAM disk with the example `guest_init` and the libraries it needs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::program;

/// Writes the archive (cpio, "newc").
pub(crate) fn write(path: &Path) -> io::Result<()> {
    let mut archive = Archive {
        bytes: Vec::new(),
        directories: Vec::new(),
    };
    let init = init_program();
    archive.file(Path::new("/init"), &std::fs::read(&init)?);
    for library in libraries(&init)? {
        archive.file(&library, &std::fs::read(&library)?);
    }
    archive.directory(Path::new("/dev"));
    archive.entry("TRAILER!!!", 0, &[]);
    std::fs::File::create(path)?.write_all(&archive.bytes)
}

/// Cargo builds examples along with tests, next to the programs.
pub(crate) fn init_program() -> PathBuf {
    program().with_file_name("examples").join("guest_init")
}

/// Shared objects that the loader will ask for, and the loader; none where there
/// is nothing to look with, which is where all programs are static.
fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let output = match Command::new("ldd").arg(program).output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        output => output?,
    };
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(paths.map(PathBuf::from).collect())
}

struct Archive {
    bytes: Vec<u8>,
    directories: Vec<PathBuf>,
}

impl Archive {
    fn file(&mut self, path: &Path, content: &[u8]) {
        if let Some(parent) = path.parent() {
            self.directory(parent);
        }
        self.entry(&name(path), 0o100_755, content);
    }

    /// A directory and those above it, once.
    fn directory(&mut self, path: &Path) {
        let Some(parent) = path.parent() else {
            return;
        };
        self.directory(parent);
        if !self.directories.iter().any(|known| known == path) {
            self.directories.push(path.to_owned());
            self.entry(&name(path), 0o040_755, &[]);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        let number = self.bytes.len();
        let mut fields = [0; 13];
        fields[0] = number;
        fields[1] = mode as usize;
        fields[4] = 1;
        fields[6] = content.len();
        fields[11] = name.len() + 1;
        self.bytes.extend(b"070701");
        for field in fields {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes().chain([0]));
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        let length = self.bytes.len().next_multiple_of(4);
        self.bytes.resize(length, 0);
    }
}

fn name(path: &Path) -> String {
    path.display()
        .to_string()
        .trim_start_matches('/')
        .to_owned()
}
