// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The memory file: guest RAM, region after region, with holes where it is zero.
//!
//! Its [`Index`] belongs in the snapshot's state. It has a checksum for every block,
//! so that whoever reads the file notices a change, and the time of its last
//! change, for those who map it instead.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::on_demand::{Content, Source};

/// Bytes of a block, except for the last one, which may be shorter.
pub const BLOCK: usize = 64 << 10;
/// Holes are made of this.
const PAGE: usize = 4096;
/// The checksum of a block that is all zero.
const ZERO: u32 = 0;

/// What a memory file holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Index {
    /// Bytes of the file.
    bytes: u64,
    /// Seconds and nanoseconds of its last change.
    modified: (i64, i64),
    /// A checksum for each block; 0 for one that is all zero.
    blocks: Vec<u32>,
}

/// A memory file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The host does not give it.
    #[error("cannot read memory file {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The host's answer.
        source: io::Error,
    },
    /// It is shorter or longer than the state says.
    #[error("memory file {path:?} has {found} bytes, the state says {expected}")]
    Size {
        /// The file.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// What it should be.
        expected: u64,
    },
    /// The index contradicts itself.
    #[error("the state has {found} checksums for a memory file of {bytes} bytes")]
    Index {
        /// Checksums there are.
        found: usize,
        /// Bytes they are for.
        bytes: u64,
    },
    /// The content is not what was written.
    #[error("memory file {path:?} has changed since the snapshot: block at {offset:#x}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// First byte of the block.
        offset: u64,
    },
    /// Only whole blocks can be checked.
    #[error("{bytes} bytes at {offset:#x} are no whole blocks of the memory file")]
    Unaligned {
        /// First byte.
        offset: u64,
        /// How many.
        bytes: usize,
    },
}

impl Index {
    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn check(&self) -> Result<(), FileError> {
        if self.blocks.len() as u64 == self.bytes.div_ceil(BLOCK as u64) {
            return Ok(());
        }
        Err(FileError::Index {
            found: self.blocks.len(),
            bytes: self.bytes,
        })
    }
}

/// Writes memory to an empty file and makes it durable and read-only. Each region
/// but the last must be a multiple of [`BLOCK`].
pub fn write<'a>(file: &File, regions: impl IntoIterator<Item = &'a [u8]>) -> io::Result<Index> {
    let (mut bytes, mut blocks) = (0u64, Vec::new());
    for region in regions {
        if bytes % BLOCK as u64 != 0 {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        for (block, offset) in region.chunks(BLOCK).zip((bytes..).step_by(BLOCK)) {
            blocks.push(checksum(block));
            write_block(file, block, offset)?;
        }
        bytes += region.len() as u64;
    }
    file.set_len(bytes)?;
    // Nobody has a reason to write it any more; clones may be mapping it.
    let mode = file.metadata()?.permissions().mode();
    file.set_permissions(PermissionsExt::from_mode(mode & !0o222))?;
    file.sync_all()?;
    Ok(Index {
        bytes,
        modified: modified(file)?,
        blocks,
    })
}

/// Writes each run of pages that are not zero.
fn write_block(file: &File, block: &[u8], base: u64) -> io::Result<()> {
    let page = |number: usize| &block[number * PAGE..block.len().min((number + 1) * PAGE)];
    let pages = block.len().div_ceil(PAGE);
    let mut first = 0;
    while first < pages {
        let run = (first..pages).take_while(|&p| !is_zero(page(p))).count();
        let (from, to) = (first * PAGE, block.len().min((first + run) * PAGE));
        if run > 0 {
            file.write_all_at(&block[from..to], base + from as u64)?;
        }
        first += run + 1;
    }
    Ok(())
}

fn checksum(block: &[u8]) -> u32 {
    if is_zero(block) {
        return ZERO;
    }
    crc32fast::hash(block).max(ZERO + 1)
}

fn is_zero(bytes: &[u8]) -> bool {
    // SAFETY: any bit pattern is a valid integer.
    let (head, words, tail) = unsafe { bytes.align_to::<u128>() };
    head.iter().chain(tail).all(|&byte| byte == 0) && words.iter().all(|&word| word == 0)
}

fn modified(file: &File) -> io::Result<(i64, i64)> {
    let metadata = file.metadata()?;
    Ok((metadata.mtime(), metadata.mtime_nsec()))
}

/// A memory file that is open for reading.
#[derive(Debug)]
pub struct MemoryFile {
    file: File,
    path: PathBuf,
    index: Index,
}

impl MemoryFile {
    /// Opens a file that must have the size that the index says.
    pub fn open(path: &Path, index: Index) -> Result<Self, FileError> {
        index.check()?;
        let read = |source| FileError::Read {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(read)?;
        let found = file.metadata().map_err(read)?.len();
        if found != index.bytes {
            return Err(FileError::Size {
                path: path.to_owned(),
                found,
                expected: index.bytes,
            });
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            index,
        })
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes in it.
    pub fn bytes(&self) -> u64 {
        self.index.bytes
    }

    /// The file, to map it.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Whether nobody has written to it since the snapshot, as far as its time of
    /// last change tells; the error says what was found.
    pub fn unchanged(&self) -> Result<(), String> {
        match modified(&self.file) {
            Ok(time) if time == self.index.modified => Ok(()),
            Ok(_) => Err(format!(
                "the time of last change of {:?} is not that of the snapshot",
                self.path
            )),
            Err(error) => Err(format!("{:?}: {error}", self.path)),
        }
    }

    /// Fills `memory`, which must be all zero, from `offset` on. Every block is checked.
    pub fn copy_to(&self, offset: u64, memory: &mut [u8]) -> Result<(), FileError> {
        for (block, offset) in memory.chunks_mut(BLOCK).zip((offset..).step_by(BLOCK)) {
            self.read_block(offset, block)?;
        }
        Ok(())
    }

    /// Reads one block; one that is all zero is left alone.
    fn read_block(&self, offset: u64, block: &mut [u8]) -> Result<Content, FileError> {
        let rest = self.index.bytes.saturating_sub(offset);
        if offset % BLOCK as u64 != 0 || block.len() as u64 != rest.min(BLOCK as u64) {
            return Err(FileError::Unaligned {
                offset,
                bytes: block.len(),
            });
        }
        let expected = self.index.blocks[(offset / BLOCK as u64) as usize];
        if expected == ZERO {
            return Ok(Content::Zero);
        }
        let read = self.file.read_exact_at(block, offset);
        read.map_err(|source| FileError::Read {
            path: self.path.clone(),
            source,
        })?;
        if checksum(block) != expected {
            return Err(FileError::Corrupt {
                path: self.path.clone(),
                offset,
            });
        }
        Ok(Content::Data)
    }
}

impl Source for MemoryFile {
    type Error = FileError;

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<Content, FileError> {
        let mut all = Content::Zero;
        for (block, offset) in buffer.chunks_mut(BLOCK).zip((offset..).step_by(BLOCK)) {
            match self.read_block(offset, block)? {
                Content::Data => all = Content::Data,
                Content::Zero => block.fill(0),
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
