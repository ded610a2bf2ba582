// SPDX-License-Identifier: GPL-2.0

//! Memory that outlives the guests on it.

use s2_selftests::payload::RAM_BASE;
use s2_selftests::ram::GuestRam;
use s2_selftests::spec::page;
use s2_selftests::spec::Guest;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// A file in memory, and a mapping of it that no guest has.
pub(crate) struct Memory {
    file: File,
    view: GuestRam,
    frames: Vec<u64>,
}

impl Memory {
    /// `size` bytes, all of them there.
    pub(crate) fn new(size: u64) -> Result<Self> {
        // SAFETY: the name is a string; the descriptor is new and nobody else's.
        let fd = unsafe { libc::memfd_create(c"s2_reuse".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(Stop::missing("memfd_create")(io::Error::last_os_error()));
        }
        // SAFETY: as above.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(size).map_err(Stop::failed("ftruncate"))?;
        let mut view = GuestRam::shared(&file, size)?;
        view.fill_start(&vec![0xff; size as usize]);
        let frames = view.frames()?;
        Ok(Memory { file, view, frames })
    }

    /// The file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// A mapping for a guest.
    pub(crate) fn map(&self) -> Result<GuestRam> {
        GuestRam::shared(&self.file, self.view.len())
    }

    /// Checks that all pages are the same as at the start, and show what a guest of
    /// that kind leaves behind: what it wrote, or nothing.
    pub(crate) fn check(&self, last: Guest) -> Result<()> {
        for (index, word) in (0..).zip(self.view.first_words()) {
            let expected = match last {
                Guest::Protected => 0,
                Guest::Normal | Guest::None => RAM_BASE + index * page(),
            };
            if word != expected {
                let text = format!("page {index} reads {word:#x} instead of {expected:#x}");
                return Err(Stop::Fail(text));
            }
        }
        match self.view.frames()? == self.frames {
            true => Ok(()),
            false => Err(Stop::Fail("the file has other pages than before".into())),
        }
    }
}
