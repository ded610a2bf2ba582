// SPDX-License-Identifier: GPL-2.0

//! The guest: a few arm64 instructions that write one word per page.
//!
//! The same code runs as an ordinary and as a protected guest. It needs no
//! stage-1 tables, no stack and no interrupt controller, so every stage-2
//! mapping there is comes from the pages it was told to touch. It shares its
//! first page with the first word it writes, which keeps that count exact.

/// Guest memory starts here.
pub const RAM_BASE: u64 = 1 << 30;

/// A write here ends the run; the data is the number of words written.
pub const DONE_DOORBELL: u64 = 0x0900_0000;

/// A write here reports an exception inside the guest; the data is its ESR.
pub const FAULT_DOORBELL: u64 = 0x0900_1000;

/// Offset of the first instruction in the guest's first page.
pub const CODE_OFFSET: u64 = 0x100;

/// Offset of the exception vectors; VBAR_EL1 wants 2 KiB of alignment.
pub const VECTORS_OFFSET: u64 = 0x800;

const VECTORS: usize = 16;
const VECTOR_BYTES: usize = 0x80;

/// x0 address, x1 end, x2 stride, x3 [`DONE_DOORBELL`], x5 count (starts at 0).
const TOUCH: [u32; 7] = [
    0xf900_0000, // touch: str x0, [x0]      the word is its own address
    0x9100_04a5, //        add x5, x5, #1
    0x8b02_0000, //        add x0, x0, x2
    0xeb01_001f, //        cmp x0, x1
    0x54ff_ff83, //        b.lo touch
    0xf900_0065, // done:  str x5, [x3]
    0x17ff_ffff, //        b done
];

/// x4 [`FAULT_DOORBELL`].
const VECTOR: [u32; 3] = [
    0xd538_5206, //        mrs x6, esr_el1
    0xf900_0086, //        str x6, [x4]
    0x1400_0000, //        b .
];

/// What one vCPU starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers {
    /// Values of x0 to x5.
    pub x: [u64; 6],
    /// Program counter.
    pub pc: u64,
    /// Vector base.
    pub vbar_el1: u64,
}

/// Addresses one guest touches: `pages` words, `stride` bytes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Touch {
    /// Bytes from one touched word to the next.
    pub stride: u64,
    /// Number of words.
    pub pages: u64,
}

impl Touch {
    /// First address behind the last stride.
    pub fn end(&self) -> u64 {
        RAM_BASE + self.pages * self.stride
    }

    /// Registers of vCPU `index` of `count`, and how many words are its share.
    ///
    /// The shares are contiguous, differ by at most one and cover all words.
    pub fn share(&self, index: u64, count: u64) -> (Registers, u64) {
        let edge = |i: u64| self.pages * i / count;
        let at = |page: u64| RAM_BASE + page * self.stride;
        let (first, last) = (edge(index), edge(index + 1));
        let registers = Registers {
            x: [
                at(first),
                at(last),
                self.stride,
                DONE_DOORBELL,
                FAULT_DOORBELL,
                0,
            ],
            pc: RAM_BASE + CODE_OFFSET,
            vbar_el1: RAM_BASE + VECTORS_OFFSET,
        };
        (registers, last - first)
    }
}

/// The first page of guest memory: code and vectors.
pub fn first_page() -> [u8; 4096] {
    let mut page = [0; 4096];
    put(&mut page, CODE_OFFSET as usize, &TOUCH);
    for vector in 0..VECTORS {
        put(
            &mut page,
            VECTORS_OFFSET as usize + vector * VECTOR_BYTES,
            &VECTOR,
        );
    }
    page
}

fn put(page: &mut [u8], offset: usize, code: &[u32]) {
    let bytes = code.iter().flat_map(|word| word.to_le_bytes());
    for (byte, slot) in bytes.zip(&mut page[offset..]) {
        *slot = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_every_page_once() {
        let touch = Touch {
            stride: 4096,
            pages: 1000,
        };
        for count in 1..=7 {
            let mut next = RAM_BASE;
            let mut pages = 0;
            for index in 0..count {
                let (registers, share) = touch.share(index, count);
                assert_eq!(registers.x[0], next);
                assert_eq!(registers.x[1], next + share * 4096);
                next = registers.x[1];
                pages += share;
            }
            assert_eq!((next, pages), (touch.end(), 1000));
        }
    }

    #[test]
    fn code_and_vectors_leave_the_touched_word_alone() {
        let page = first_page();
        assert!(page[..8].iter().all(|&b| b == 0));
        assert_eq!(page[0x100..0x104], [0x00, 0x00, 0x00, 0xf9]);
        assert_eq!(page[0xf80..0xf84], VECTOR[0].to_le_bytes());
    }
}
