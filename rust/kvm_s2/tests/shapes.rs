// SPDX-License-Identifier: GPL-2.0

//! Shapes and descriptors, against numbers from the architecture.

use kvm_s2::{
    Geometry, GeometryError,
    Granule::{
        self,
        K16,
        K4,
        K64, //
    },
    Ipa, IpaRange, Level,
    OutputAddress::{
        self,
        Lpa2,
        Standard, //
    },
    PhysAddr, Pte, PteKind,
};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn level(nr: i8) -> Level {
    Level::new(nr).expect("a level")
}

fn geometry(
    granule: Granule,
    ia_bits: u32,
    start: i8,
    output: OutputAddress,
) -> Result<Geometry, GeometryError> {
    Geometry::new(granule, ia_bits, level(start), output)
}

#[test]
fn levels_are_those_of_the_architecture() {
    assert_eq!(Level::new(-2), None);
    assert_eq!(Level::new(4), None);
    assert_eq!(Level::new(-1), Some(Level::FIRST));
    assert_eq!(Level::new(3), Some(Level::LAST));
    assert_eq!(Level::FIRST.child(), Some(level(0)));
    assert_eq!(Level::LAST.child(), None);
    assert!(Level::LAST.is_last() && !level(2).is_last());
    assert_eq!(level(2).get(), 2);
}

#[test]
fn granules_have_the_sizes_of_the_architecture() {
    let sizes = [
        (K4, 12, 512, [2 * MIB, GIB, 512 * GIB], GIB),
        (K16, 14, 2048, [32 * MIB, 64 * GIB, 128 * TIB], 32 * MIB),
        (K64, 16, 8192, [512 * MIB, 4 * TIB, 32768 * TIB], 512 * MIB),
    ];
    for (granule, shift, entries, above_pages, block) in sizes {
        assert_eq!(Granule::from_page_shift(shift), Some(granule));
        assert_eq!(granule.page_shift(), shift);
        assert_eq!(granule.ptrs_per_table(), entries);
        assert_eq!(granule.level_size(Level::LAST), 1 << shift);
        for (nr, size) in [2, 1, 0].into_iter().zip(above_pages) {
            assert_eq!(granule.level_size(level(nr)), size);
        }
        assert_eq!(granule.max_block_size(), block);
    }
    assert_eq!(Granule::from_page_shift(13), None);
}

#[test]
fn roots_are_as_wide_as_they_have_to_be() {
    let roots = [
        (K4, 39, 1, 1),
        (K4, 40, 1, 2),
        (K4, 43, 1, 16),
        (K4, 31, 2, 2),
        (K4, 48, 0, 1),
        (K4, 52, 0, 16),
        (K4, 52, -1, 1),
        (K16, 51, 1, 16),
        (K16, 52, 0, 1),
        (K64, 42, 2, 1),
        (K64, 46, 2, 16),
        (K64, 52, 1, 1),
    ];
    for (granule, ia_bits, start, tables) in roots {
        let geometry = geometry(granule, ia_bits, start, Standard).expect("a geometry");
        assert_eq!(geometry.nr_root_tables(), tables, "{geometry:?}");
        assert_eq!((geometry.granule(), geometry.ia_bits()), (granule, ia_bits));
        assert_eq!(
            (geometry.start_level(), geometry.output()),
            (level(start), Standard)
        );
        assert_eq!(geometry.range().end, Ipa(1 << ia_bits));
    }
}

#[test]
fn every_size_has_a_shape_for_every_granule() {
    for granule in [K4, K16, K64] {
        for ia_bits in 32..=52 {
            let geometry = Geometry::of_size(granule, ia_bits).expect("a geometry");
            assert_eq!((geometry.granule(), geometry.ia_bits()), (granule, ia_bits));
        }
        assert_eq!(Geometry::of_size(granule, granule.page_shift()), None);
        assert_eq!(Geometry::of_size(granule, 53), None);
    }
}

#[test]
fn shapes_that_do_not_exist_are_refused() {
    let error = |granule, ia_bits, start| geometry(granule, ia_bits, start, Standard).err();
    assert_eq!(error(K4, 12, 3), Some(GeometryError::IaBits));
    assert_eq!(error(K4, 13, 3), None);
    assert_eq!(error(K64, 16, 3), Some(GeometryError::IaBits));
    assert_eq!(error(K4, 53, -1), Some(GeometryError::IaBits));
    assert_eq!(error(K4, 44, 1), Some(GeometryError::RootTooWide));
    assert_eq!(error(K64, 47, 2), Some(GeometryError::RootTooWide));
    assert_eq!(error(K16, 52, -1), Some(GeometryError::StartLevel));
    assert_eq!(error(K64, 52, 0), Some(GeometryError::StartLevel));
}

#[test]
fn chunks_end_at_multiples_of_their_size() {
    let geometry = geometry(K4, 40, 1, Standard).expect("a geometry");
    let end = Ipa(TIB);
    let chunk_end = |ipa| geometry.stage2_range_addr_end(Ipa(ipa), end);
    assert_eq!(chunk_end(0), Ipa(GIB));
    assert_eq!(chunk_end(GIB - 4 * KIB), Ipa(GIB));
    assert_eq!(chunk_end(GIB), Ipa(2 * GIB));
    assert_eq!(chunk_end(TIB - 4 * KIB), end);
    assert_eq!(geometry.stage2_range_addr_end(Ipa(0), Ipa(MIB)), Ipa(MIB));
}

#[test]
fn ranges_are_half_open() {
    let range = |start, end| IpaRange {
        start: Ipa(start),
        end: Ipa(end),
    };
    assert!(range(4096, 4096).is_empty() && range(4096, 0).is_empty());
    assert!(!range(0, 1).is_empty());
}

#[test]
fn addresses_print_as_wide_as_they_can_be() {
    assert_eq!(format!("{:?}", Ipa(0x1000)), "Ipa(0x0000000001000)");
    let highest = PhysAddr((1 << 52) - 1);
    assert_eq!(format!("{highest:?}"), "PhysAddr(0xfffffffffffff)");
}

/// One descriptor with all address bits set, and every attribute that is not one of them.
#[test]
fn descriptors_keep_their_address_where_the_layout_has_it() {
    let all = |granule, ia_bits, output| {
        let geometry = geometry(granule, ia_bits, 1, output).expect("a geometry");
        Pte(!0).phys(&geometry).0
    };
    assert_eq!(all(K4, 40, Standard), 0x0000_ffff_ffff_f000);
    assert_eq!(all(K16, 47, Standard), 0x0000_ffff_ffff_c000);
    assert_eq!(all(K64, 52, Standard), 0x000f_ffff_ffff_0000);
    assert_eq!(all(K4, 40, Lpa2), 0x000f_ffff_ffff_f000);
    assert_eq!(all(K16, 47, Lpa2), 0x000f_ffff_ffff_c000);

    // Each of the bits that moved, alone.
    let one = |granule, output, pte| {
        let geometry = geometry(granule, 40, 1, output).expect("a geometry");
        Pte(pte).phys(&geometry).0
    };
    assert_eq!(one(K4, Lpa2, 1 << 8), 1 << 50);
    assert_eq!(one(K4, Lpa2, 1 << 9), 1 << 51);
    assert_eq!(one(K4, Lpa2, 1 << 49), 1 << 49);
    assert_eq!(one(K64, Standard, 1 << 12), 1 << 48);
    assert_eq!(one(K64, Standard, 1 << 15), 1 << 51);
    assert_eq!(one(K4, Standard, 1 << 12), 1 << 12);
}

#[test]
fn descriptors_mean_what_their_level_makes_of_them() {
    let geometry = geometry(K4, 40, 1, Standard).expect("a geometry");
    let at = |nr, pte| Pte(pte).decode(level(nr), &geometry);
    let pa = PhysAddr(0x8000_0000);
    for nr in [1, 2] {
        assert_eq!(at(nr, 0x8000_0003), PteKind::Table(pa));
        assert_eq!(at(nr, 0x8000_07fd), PteKind::Block(pa));
    }
    assert_eq!(at(3, 0x8000_07ff), PteKind::Page(pa));
    assert_eq!(at(3, 0x8000_0001), PteKind::Page(pa));
    for nr in [1, 2, 3] {
        assert_eq!(at(nr, 0), PteKind::Empty);
        assert_eq!(at(nr, 1 << 60), PteKind::Locked);
        assert_eq!(at(nr, 2 << 60 | 0x8000_0002), PteKind::Annotated);
        assert_eq!(at(nr, 3 << 60), PteKind::Annotated);
    }
}
