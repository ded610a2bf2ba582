// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The state file: magic, version, length, JSON, checksum.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use serde::Serialize;

const MAGIC: &[u8; 8] = b"KVMS2SNP";
/// Grows when an older reader would misunderstand the file.
const VERSION: u32 = 2;
const HEADER: usize = 16;
const CHECKSUM: usize = 4;
/// A larger file is refused unread. The checksums of [`crate::config::MAX_MEMORY`]
/// need most of it.
const MAX_BYTES: usize = 64 << 20;

/// A state file that is not one.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Shorter than any state file, or than it says itself.
    #[error("truncated: {0} bytes")]
    Truncated(usize),
    /// Larger than any state file.
    #[error("more than {MAX_BYTES} bytes")]
    TooLarge,
    /// Not a snapshot of this program.
    #[error("not a snapshot")]
    Foreign,
    /// Written by a newer or older version.
    #[error("format version {0}; this program reads version {VERSION}")]
    Version(u32),
    /// Changed since it was written.
    #[error("checksum mismatch: the file is corrupt")]
    Checksum,
    /// Sound, but not what this program expects.
    #[error("contents: {0}")]
    Contents(#[from] serde_json::Error),
}

/// Makes a state file.
pub fn encode<T: Serialize>(state: &T) -> Result<Vec<u8>, serde_json::Error> {
    Ok(seal(&serde_json::to_vec(state)?))
}

/// Puts header and checksum around the contents, whatever they are.
pub fn seal(contents: &[u8]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    // The reader's bound is far below 4 GiB.
    bytes.extend((contents.len() as u32).to_le_bytes());
    bytes.extend(contents);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

/// Reads a state file. The checksum covers everything, and comes before any
/// of the contents is looked at.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError::TooLarge);
    }
    let truncated = DecodeError::Truncated(bytes.len());
    let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(truncated);
    };
    if !header.starts_with(MAGIC) {
        return Err(DecodeError::Foreign);
    }
    let [.., v0, v1, v2, v3, l0, l1, l2, l3] = *header;
    let version = u32::from_le_bytes([v0, v1, v2, v3]);
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    let end = HEADER + u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if bytes.len() != end + CHECKSUM {
        return Err(truncated);
    }
    let (content, checksum) = bytes.split_at(end);
    if checksum != crc32fast::hash(content).to_le_bytes() {
        return Err(DecodeError::Checksum);
    }
    Ok(serde_json::from_slice(&content[HEADER..])?)
}

/// Reads at most what [`decode`] would look at.
pub(super) fn read_bounded(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        encode(&vec![1u64, 2, 3]).unwrap()
    }

    #[test]
    fn what_was_encoded_is_decoded() {
        assert_eq!(decode::<Vec<u64>>(&sample()).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let good = sample();
        for length in 0..good.len() {
            assert!(
                decode::<Vec<u64>>(&good[..length]).is_err(),
                "cut at {length}"
            );
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode::<Vec<u64>>(&bad).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_error_says_what_is_wrong() {
        let mut newer = sample();
        newer[8] = 9;
        assert!(matches!(decode::<()>(&newer), Err(DecodeError::Version(9))));
        assert!(matches!(
            decode::<()>(b"\x7fELF............"),
            Err(DecodeError::Foreign)
        ));
        assert!(matches!(
            decode::<()>(&sample()),
            Err(DecodeError::Contents(_))
        ));
    }
}
