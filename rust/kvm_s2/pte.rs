// SPDX-License-Identifier: GPL-2.0

//! One stage-2 entry: its bits are looked at here and nowhere else.
//!
//! C header:
//! [`arch/arm64/include/asm/kvm_pgtable.h`](srctree/arch/arm64/include/asm/kvm_pgtable.h);
//! layout in Arm ARM D8.3.1.

use crate::{
    addr::PhysAddr,
    geometry::{
        Geometry,
        Granule,
        Level,
        OutputAddress, //
    },
};

const VALID: u64 = 1 << 0;
/// Table above the last level, page at it.
const TYPE: u64 = 1 << 1;
const INVALID_TYPE_SHIFT: u32 = 60;
const INVALID_TYPE_LOCKED: u64 = 1;

/// The descriptor in one slot of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct Pte(pub u64);

/// What a descriptor says, given its level.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PteKind {
    /// All zero: nothing here, and the only kind that holds no reference on the table.
    Empty,
    /// Break-before-make in progress (`KVM_INVALID_PTE_TYPE_LOCKED`).
    Locked,
    /// Not valid, but says who owns the page (donated, poisoned).
    Annotated,
    /// A block above the last level.
    Block(PhysAddr),
    /// A page at the last level.
    Page(PhysAddr),
    /// Leads to a table of the next level.
    Table(PhysAddr),
}

impl Pte {
    /// The entry that maps nothing.
    pub const EMPTY: Self = Self(0);

    /// Whether hardware would follow the entry.
    #[inline]
    pub const fn is_valid(self) -> bool {
        self.0 & VALID != 0
    }

    /// Whether the entry holds a reference on the table it is in: `stage2_pte_is_counted()`.
    #[inline]
    pub const fn is_counted(self) -> bool {
        self.0 != 0
    }

    /// Whether the entry leads to another table, for levels above the last.
    #[inline]
    pub const fn is_table_bits(self) -> bool {
        self.0 & (VALID | TYPE) == VALID | TYPE
    }

    /// Whether the bit that makes a valid entry a table is set.
    #[inline]
    pub(crate) const fn has_table_type(self) -> bool {
        self.0 & TYPE != 0
    }

    /// The address in the entry: `kvm_pte_to_phys()`.
    #[inline]
    pub const fn phys(self, geometry: &Geometry) -> PhysAddr {
        let below_page = (1u64 << geometry.granule().page_shift()) - 1;
        let pa = match geometry.output() {
            OutputAddress::Lpa2 => {
                self.0 & (((1 << 50) - 1) & !below_page) | (self.0 >> 8 & 0x3) << 50
            }
            OutputAddress::Standard => {
                let low = self.0 & (((1 << 48) - 1) & !below_page);
                match geometry.granule() {
                    Granule::K64 => low | (self.0 >> 12 & 0xf) << 48,
                    Granule::K4 | Granule::K16 => low,
                }
            }
        };
        PhysAddr(pa)
    }

    /// Decodes the entry as one found at `level`.
    #[inline]
    pub const fn decode(self, level: Level, geometry: &Geometry) -> PteKind {
        if !self.is_counted() {
            PteKind::Empty
        } else if !self.is_valid() {
            match self.0 >> INVALID_TYPE_SHIFT {
                INVALID_TYPE_LOCKED => PteKind::Locked,
                _ => PteKind::Annotated,
            }
        } else if level.is_last() {
            PteKind::Page(self.phys(geometry))
        } else if self.is_table_bits() {
            PteKind::Table(self.phys(geometry))
        } else {
            PteKind::Block(self.phys(geometry))
        }
    }
}
