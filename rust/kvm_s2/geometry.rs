// SPDX-License-Identifier: GPL-2.0

//! The shape of a stage-2 table: granule, levels, root.
//!
//! Rules: Arm ARM D8.2 (translation granules, concatenated tables), and KVM's own limits.
//!
//! C header: [`arch/arm64/include/asm/kvm_pgtable.h`](srctree/arch/arm64/include/asm/kvm_pgtable.h)

use crate::addr::{
    Ipa,
    IpaRange, //
};

/// A lookup level, -1 to 3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Level(i8);

impl Level {
    /// The level with the largest reach, used with 52-bit addresses and 4K pages only.
    pub const FIRST: Self = Self(-1);
    /// The level whose entries map single pages.
    pub const LAST: Self = Self(3);

    /// A level, or `None` outside -1 to 3.
    #[inline]
    pub const fn new(level: i8) -> Option<Self> {
        if level >= Self::FIRST.0 && level <= Self::LAST.0 {
            Some(Self(level))
        } else {
            None
        }
    }

    /// The level as KVM numbers it.
    #[inline]
    pub const fn get(self) -> i8 {
        self.0
    }

    /// Whether entries at this level can only be pages.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.0 == Self::LAST.0
    }

    /// The level that a table entry here leads to; the last level leads nowhere.
    #[inline]
    pub const fn child(self) -> Option<Self> {
        Self::new(self.0 + 1)
    }
}

/// Translation granule: the size of a page and of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Granule {
    /// 4 KiB, 512 entries in a table.
    K4,
    /// 16 KiB, 2048 entries in a table.
    K16,
    /// 64 KiB, 8192 entries in a table.
    K64,
}

impl Granule {
    /// The granule of a kernel with this `PAGE_SHIFT`.
    pub const fn from_page_shift(shift: u32) -> Option<Self> {
        match shift {
            12 => Some(Self::K4),
            14 => Some(Self::K16),
            16 => Some(Self::K64),
            _ => None,
        }
    }

    /// `PAGE_SHIFT`: 12, 14 or 16.
    #[inline]
    pub const fn page_shift(self) -> u32 {
        match self {
            Self::K4 => 12,
            Self::K16 => 14,
            Self::K64 => 16,
        }
    }

    /// Entries in one table.
    #[inline]
    pub const fn ptrs_per_table(self) -> usize {
        1 << (self.page_shift() - 3)
    }

    /// Bits of the address that one level resolves: 9, 11 or 13.
    #[inline]
    pub const fn table_shift(self) -> u32 {
        self.page_shift() - 3
    }

    /// Bits of the address below an entry at `level`: `ARM64_HW_PGTABLE_LEVEL_SHIFT`.
    #[inline]
    pub const fn level_shift(self, level: Level) -> u32 {
        // At most 68, for level -1 with 64K pages, which `Geometry` refuses.
        self.table_shift() * (4 - level.0) as u32 + 3
    }

    /// Bytes mapped by one entry at `level`.
    #[inline]
    pub const fn level_size(self, level: Level) -> u64 {
        1 << self.level_shift(level)
    }

    /// Bytes of the largest block that KVM maps: `KVM_PGTABLE_MIN_BLOCK_LEVEL`.
    #[inline]
    pub const fn max_block_size(self) -> u64 {
        match self {
            Self::K4 => self.level_size(Level(1)),
            Self::K16 | Self::K64 => self.level_size(Level(2)),
        }
    }
}

/// Where a descriptor keeps the address bits above 47.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutputAddress {
    /// Bits 51:48 in descriptor bits 15:12 with 64K pages (FEAT_LPA), else none.
    Standard,
    /// Bits 51:50 in descriptor bits 9:8, 49:48 in place (FEAT_LPA2).
    Lpa2,
}

/// Why three numbers do not make a stage-2 table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GeometryError {
    /// `ia_bits` is not in 1 to 52 or smaller than a page.
    IaBits,
    /// One entry at the start level would reach further than any address.
    StartLevel,
    /// The root would need more than 16 concatenated tables.
    RootTooWide,
}

/// Granule, input size and start level of one stage-2 table.
///
/// # Invariants
///
/// `ia_bits` is more than the page shift and at most 52; an entry at `start_level` reaches at most
/// 48 bits; the root is at most 16 tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    granule: Granule,
    ia_bits: u32,
    start_level: Level,
    output: OutputAddress,
}

impl Geometry {
    /// Most tables that may be concatenated as a root (Arm ARM D8.2.2).
    pub const MAX_ROOT_TABLES: usize = 16;

    /// The geometry with these parameters.
    ///
    /// # Errors
    ///
    /// [`GeometryError`] when the architecture has no such table.
    pub const fn new(
        granule: Granule,
        ia_bits: u32,
        start_level: Level,
        output: OutputAddress,
    ) -> Result<Self, GeometryError> {
        if ia_bits <= granule.page_shift() || ia_bits > 52 {
            return Err(GeometryError::IaBits);
        }
        if granule.level_shift(start_level) > 48 {
            return Err(GeometryError::StartLevel);
        }
        let geometry = Self {
            granule,
            ia_bits,
            start_level,
            output,
        };
        if geometry.nr_root_tables() > Self::MAX_ROOT_TABLES {
            return Err(GeometryError::RootTooWide);
        }
        // INVARIANT: All three were checked above.
        Ok(geometry)
    }

    /// A geometry of this size whose root is of no interest, because others walk the tables.
    ///
    /// Returns `None` where no root would reach as far, or if `ia_bits` is not a size.
    pub fn of_size(granule: Granule, ia_bits: u32) -> Option<Self> {
        (Level::FIRST.get()..=Level::LAST.get())
            .filter_map(Level::new)
            .find_map(|level| Self::new(granule, ia_bits, level, OutputAddress::Standard).ok())
    }

    /// The granule.
    #[inline]
    pub const fn granule(&self) -> Granule {
        self.granule
    }

    /// Size of the guest's address space in bits.
    #[inline]
    pub const fn ia_bits(&self) -> u32 {
        self.ia_bits
    }

    /// The level of the root.
    #[inline]
    pub const fn start_level(&self) -> Level {
        self.start_level
    }

    /// Where descriptors keep the high address bits.
    #[inline]
    pub const fn output(&self) -> OutputAddress {
        self.output
    }

    /// The whole of the guest's address space.
    #[inline]
    pub const fn range(&self) -> IpaRange {
        IpaRange {
            start: Ipa(0),
            end: Ipa(1 << self.ia_bits),
        }
    }

    /// Bits of the address below a root table.
    #[inline]
    const fn root_table_shift(&self) -> u32 {
        // Levels whose entries reach past 48 bits are refused, so this never passes 61.
        self.granule.level_shift(self.start_level) + self.granule.table_shift()
    }

    /// Bytes reached through one root table.
    #[inline]
    pub const fn root_table_size(&self) -> u64 {
        1 << self.root_table_shift()
    }

    /// Tables that are concatenated as the root: `kvm_pgd_pages()`.
    #[inline]
    pub const fn nr_root_tables(&self) -> usize {
        let last = (1u64 << self.ia_bits) - 1;
        (last >> self.root_table_shift()) as usize + 1
    }

    /// The end of the chunk that `addr` lies in, or `end` if that comes first.
    ///
    /// A chunk is the largest block that KVM maps, aligned: the function of the same name in
    /// `arch/arm64/kvm/mmu.c`.
    #[inline]
    pub fn stage2_range_addr_end(&self, addr: Ipa, end: Ipa) -> Ipa {
        let size = self.granule.max_block_size();
        addr.saturating_add(size).align_down(size).min(end)
    }
}
