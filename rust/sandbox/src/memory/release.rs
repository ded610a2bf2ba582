// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Giving the pages of guest memory back, piece by piece and thread by thread.

use vm_memory::GuestRegionMmap;

use super::UnmapError;

/// Memory is handed to the kernel in pieces of this many bytes when it goes, so
/// that no other mapping call of this process waits for all of it.
const PIECE: usize = 64 << 20;

/// Host address and length; an integer, because it crosses threads.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    address: usize,
    bytes: usize,
}

pub(super) fn pieces(region: &GuestRegionMmap) -> impl Iterator<Item = Piece> {
    let base = region.as_ptr() as usize;
    let size = region.size();
    (0..size).step_by(PIECE).map(move |offset| Piece {
        address: base + offset,
        bytes: PIECE.min(size - offset),
    })
}

/// Gives the pages back; the first error wins, but every piece is tried.
pub(super) fn drop_pages(pieces: &[Piece], threads: usize) -> Result<(), UnmapError> {
    let share = pieces.len().div_ceil(threads).max(1);
    let mut shares = pieces.chunks(share);
    let own = shares.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| {
                std::thread::Builder::new()
                    .spawn_scoped(scope, move || drop_share(share))
                    .map_err(|_| share)
            })
            .collect();
        let mut result = drop_share(own);
        for other in others {
            let ended = match other {
                Ok(thread) => thread
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // No thread to be had: do its share here.
                Err(share) => drop_share(share),
            };
            result = result.and(ended);
        }
        result
    })
}

fn drop_share(pieces: &[Piece]) -> Result<(), UnmapError> {
    let mut result = Ok(());
    for piece in pieces {
        let address = piece.address as *mut libc::c_void;
        // SAFETY: the piece lies inside a mapping that the caller owns alone, so
        // nobody sees its bytes turn to zero.
        if unsafe { libc::madvise(address, piece.bytes, libc::MADV_DONTNEED) } != 0 {
            result = result.and(Err(UnmapError::Drop {
                bytes: piece.bytes,
                source: std::io::Error::last_os_error(),
            }));
        }
    }
    result
}
