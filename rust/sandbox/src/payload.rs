// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The built-in guest: a few instructions that touch memory and say so.
//!
//! It writes one word to every page of its range, `T` to the console, and then
//! halts, counts, or goes round part of its pages. Each architecture brings the instructions; the numbers they
//! need are in registers, which [`crate::arch`] sets from a [`Program`].

use vm_memory::{Bytes, GuestAddress, GuestMemoryError, GuestMemoryMmap};

use crate::arch;
use crate::config::{Afterwards, BuiltinConfig, PAGE};

/// The code, and after it the counter, lie here.
const CODE: u64 = arch::RAM_START + 0x20_0000;
/// Where the counter is, so that tests can watch it.
pub const COUNTER: u64 = CODE + PAGE;
/// First page that is touched.
const FIRST: u64 = CODE + 2 * PAGE;

/// What the first vCPU starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// First instruction.
    pub entry: u64,
    /// First page to touch.
    pub first: u64,
    /// Pages to touch, at least one.
    pub pages: u64,
    /// Word to count in.
    pub counter: u64,
    /// Pages to go round afterwards, at least one.
    pub working_set: u64,
}

/// Bytes that the payload can touch in a VM with `memory` bytes.
pub fn room(memory: u64) -> u64 {
    arch::ram_ranges(memory)
        .first()
        .map_or(0, |low| low.end.saturating_sub(FIRST))
}

/// Places the payload in guest memory.
pub fn load(memory: &GuestMemoryMmap, config: &BuiltinConfig) -> Result<Program, GuestMemoryError> {
    let code = match config.then {
        Afterwards::Halt => arch::TOUCH_THEN_HALT,
        Afterwards::Count => arch::TOUCH_THEN_COUNT,
        Afterwards::Beat => arch::TOUCH_THEN_BEAT,
    };
    memory.write_slice(code, GuestAddress(CODE))?;
    Ok(Program {
        entry: CODE,
        first: FIRST,
        pages: config.touch / PAGE,
        counter: COUNTER,
        working_set: config.working_set.unwrap_or(config.touch) / PAGE,
    })
}
