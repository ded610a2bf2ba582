// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Any bytes as the state of a snapshot: decoding and checking must end, in an error
//! or in a state that could be restored.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox::snapshot::{decode, encode, seal, State};

fuzz_target!(|bytes: &[u8]| {
    // As they are: header, length and checksum are in the way.
    check(bytes);
    // With those in order the contents are reached.
    check(&seal(bytes));
});

fn check(bytes: &[u8]) {
    let Ok(state) = decode::<State>(bytes) else {
        return;
    };
    if state.config.validate().is_err() {
        return;
    }
    let ranges = sandbox::arch::ram_ranges(state.config.memory.size);
    let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
    assert_eq!(bytes, state.config.memory.size);
    // What was read once is read again.
    let again = encode(&state).expect("what was decoded can be encoded");
    decode::<State>(&again).expect("what was encoded can be decoded");
}
