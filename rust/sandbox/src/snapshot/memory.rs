// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The memory file: guest RAM with holes where it is zero.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vm_memory::{GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::config::PAGE;

/// Most bytes written by one call.
const RUN: usize = 4 << 20;

/// Writes all of RAM to an empty file. The VM must stand still.
pub(super) fn write(file: &File, ram: &GuestMemoryMmap) -> io::Result<()> {
    let mut offset = 0;
    for region in ram.iter() {
        let length = region.len();
        file.set_len(offset + length)?;
        // SAFETY: the mapping lives as long as `ram`, and no thread of the VM
        // runs, so nobody writes to it.
        let bytes = unsafe { std::slice::from_raw_parts(region.as_ptr(), length as usize) };
        write_region(file, bytes, offset)?;
        offset += length;
    }
    Ok(())
}

/// Writes each run of pages that are not zero.
fn write_region(file: &File, bytes: &[u8], base: u64) -> io::Result<()> {
    let page = PAGE as usize;
    let mut run = 0..0;
    for start in (0..bytes.len()).step_by(page) {
        let is_zero = is_zero(&bytes[start..start + page]);
        if !is_zero && run.is_empty() {
            run = start..start;
        }
        if !is_zero {
            run.end = start + page;
        }
        if is_zero || run.len() >= RUN {
            flush(file, bytes, base, &mut run)?;
        }
    }
    flush(file, bytes, base, &mut run)
}

fn flush(file: &File, bytes: &[u8], base: u64, run: &mut std::ops::Range<usize>) -> io::Result<()> {
    if run.start < run.end {
        file.write_all_at(&bytes[run.clone()], base + run.start as u64)?;
        *run = 0..0;
    }
    Ok(())
}

fn is_zero(page: &[u8]) -> bool {
    // SAFETY: any bit pattern is a valid integer.
    let (head, words, tail) = unsafe { page.align_to::<u128>() };
    head.iter().chain(tail).all(|&byte| byte == 0) && words.iter().all(|&word| word == 0)
}
