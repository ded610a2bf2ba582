// SPDX-License-Identifier: GPL-2.0

//! Writes stage-2 entries the way KVM does, apart from the code that reads them.
//!
//! Tables are spread over the whole physical address space, so that each bit of an output
//! address, wherever the layout keeps it, is needed to find one of them.

use crate::{
    addr::PhysAddr,
    geometry::{
        Geometry,
        Granule,
        Level,
        OutputAddress, //
    },
    pte::Pte,
};

/// What is put into a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A page at the last level, a block above it.
    Leaf,
    /// Not valid: break-before-make in progress.
    Locked,
    /// Not valid: the page was given away. Other bits say to whom, and may be any.
    Donated,
    /// Not valid: the page was taken back by force.
    Poisoned,
    /// A table with nothing in it.
    Table,
    /// Leads to a table where no memory is.
    Stray,
}

/// Number of top bits of an address that take turns from one table to the next.
const SPREAD: u32 = 4;

const VALID: u64 = 1 << 0;
const TABLE_OR_PAGE: u64 = 1 << 1;
/// Normal memory, read and write, accessed, execute-never, and the bits left to software.
const ATTRIBUTES: u64 = 0xf << 2 | 0x3 << 6 | 1 << 10 | 1 << 54 | 0xf << 55;
/// Says nothing, but would say "table" in a valid entry.
const OWNER: u64 = 0x00ab_cdef_0123_4560 | TABLE_OR_PAGE;

impl Entry {
    /// The descriptor, or `None` for one that does not exist at this level.
    pub(super) fn encode(self, level: Level, geometry: &Geometry) -> Option<Pte> {
        let bits = match self {
            Self::Leaf => {
                let size = geometry.granule().level_size(level);
                let highest = (1u64 << pa_bits(geometry)) - 1;
                let kind = if level.is_last() { TABLE_OR_PAGE } else { 0 };
                VALID | kind | ATTRIBUTES | output_address(highest & !(size - 1), geometry)
            }
            Self::Locked => 1 << 60,
            Self::Donated => 2 << 60 | OWNER,
            Self::Poisoned => 3 << 60,
            Self::Stray if !level.is_last() => {
                // The lowest page frame belongs to no table.
                let pa = 1u64 << (pa_bits(geometry) - 1);
                VALID | TABLE_OR_PAGE | output_address(pa, geometry)
            }
            Self::Stray | Self::Table => return None,
        };
        Some(Pte(bits))
    }
}

/// The entry that leads to table `number`.
pub(super) fn table_entry(number: usize, geometry: &Geometry) -> Pte {
    let pa = table_address(number, geometry);
    Pte(VALID | TABLE_OR_PAGE | output_address(pa, geometry))
}

/// The number of the table at an address, if one may be there.
pub(super) fn table_number(pa: PhysAddr, geometry: &Geometry) -> Option<usize> {
    let top = pa.0 >> (pa_bits(geometry) - SPREAD);
    let frame =
        (pa.0 & ((1 << (pa_bits(geometry) - SPREAD)) - 1)) >> geometry.granule().page_shift();
    let number = (frame.checked_sub(1)? << SPREAD | top) as usize;
    (table_address(number, geometry) == pa.0).then_some(number)
}

fn table_address(number: usize, geometry: &Geometry) -> u64 {
    let frame = (number as u64 >> SPREAD) + 1;
    let top = number as u64 & ((1 << SPREAD) - 1);
    top << (pa_bits(geometry) - SPREAD) | frame << geometry.granule().page_shift()
}

fn pa_bits(geometry: &Geometry) -> u32 {
    match (geometry.granule(), geometry.output()) {
        (Granule::K4 | Granule::K16, OutputAddress::Standard) => 48,
        (Granule::K64, _) | (_, OutputAddress::Lpa2) => 52,
    }
}

/// Spreads an address over the bits of a descriptor.
fn output_address(pa: u64, geometry: &Geometry) -> u64 {
    match (geometry.granule(), geometry.output()) {
        (_, OutputAddress::Lpa2) => (pa & !(0x3 << 50)) | (pa >> 50 & 0x3) << 8,
        (Granule::K64, OutputAddress::Standard) => (pa & !(0xf << 48)) | (pa >> 48 & 0xf) << 12,
        (Granule::K4 | Granule::K16, OutputAddress::Standard) => pa,
    }
}
