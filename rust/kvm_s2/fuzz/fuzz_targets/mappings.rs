// SPDX-License-Identifier: GPL-2.0

//! Any tree of mappings, any budget and any refusal, against the reference of the tests.
//!
//! `cargo +nightly fuzz run mappings`

#![no_main]

use arbitrary::{
    Result,
    Unstructured, //
};
use kvm_s2::{
    Geometry,
    Granule,
    Level,
    OutputAddress, //
};
use libfuzzer_sys::fuzz_target;

#[path = "../../tests/drain/mod.rs"]
mod drain;

use drain::{
    Drain,
    Item, //
};

fn item(u: &mut Unstructured<'_>, chunk: u64) -> Result<Item> {
    let slot = u64::from(u.arbitrary::<u8>()?);
    // Half of them on both sides of the end of a chunk.
    let gfn = match slot {
        128.. => chunk - 192 + slot,
        _ => slot,
    };
    let nr_pages = match u.int_in_range(0..=7)? {
        0 => 512,
        1 => 3,
        _ => 1,
    };
    let willing = match u.int_in_range(0..=7)? {
        whole @ 3.. => u64::MAX - whole,
        part => part,
    };
    Ok(Item {
        gfn,
        nr_pages,
        willing,
    })
}

fn drain(u: &mut Unstructured<'_>) -> Result<Drain> {
    let level = Level::new(1).ok_or(arbitrary::Error::IncorrectFormat)?;
    let geometry = Geometry::new(Granule::K4, 40, level, OutputAddress::Standard)
        .map_err(|_| arbitrary::Error::IncorrectFormat)?;
    let max_run = *u.choose(&[1, 2, 7, 512])?;
    let per_call = *u.choose(&[u64::MAX, 1, 3])?;
    let budget = u.int_in_range(0..=20)?;
    let mut items = Vec::new();
    while !u.is_empty() && items.len() < 64 {
        items.push(item(u, geometry.granule().max_block_size() / 4096)?);
    }
    Ok(Drain {
        geometry,
        items,
        max_run,
        per_call,
        budget,
    })
}

fuzz_target!(|data: &[u8]| {
    if let Ok(drain) = drain(&mut Unstructured::new(data)) {
        drain.check();
    }
});
