// SPDX-License-Identifier: GPL-2.0

//! Whole destroys of three shapes, in our order and in upstream's.

use std::time::Duration;

use criterion::{
    criterion_group,
    BatchSize,
    Criterion,
    Throughput, //
};
use kvm_s2::{
    arena::{
        Arena,
        Entry, //
    },
    stage2_destroy, Geometry, Granule, Ipa, Level, OutputAddress, TableBackend,
};

use crate::{
    memory::Memory,
    upstream, //
};

const GIB: u64 = 1 << 30;
/// Tables in one step of the kernel's destroy.
const BUDGET: u32 = 128;

/// Destroys everything; returns the number of leaves.
type Way = fn(&mut Memory<'_>) -> u64;

/// A stage-2 with `nr` leaves of `level`, `step` bytes apart, in `tables` tables below its root.
fn build(root: (u32, i8), level: Level, step: u64, nr: u64, tables: usize) -> Arena {
    let (ia_bits, start) = root;
    let start = Level::new(start).expect("a level");
    let geometry = Geometry::new(Granule::K4, ia_bits, start, OutputAddress::Standard);
    let mut arena = Arena::new(geometry.expect("a geometry"), tables).expect("memory");
    for nr in 0..nr {
        assert!(arena.map(Ipa(nr * step), level, Entry::Leaf));
    }
    arena
}

fn ours(memory: &mut Memory<'_>) -> u64 {
    let geometry = memory.geometry();
    let root = memory.root();
    // SAFETY: The memory is a copy of whole tables that nobody else uses.
    let mut backend = unsafe { TableBackend::new(memory, geometry, root) };
    stage2_destroy(&mut backend, &geometry, geometry.range(), BUDGET, |_| ()).leaves
}

/// Measures one way to destroy; a way that forgets something does not count.
fn measure(c: &mut Criterion, shape: &str, arena: &Arena, leaves: u64) {
    let ways: [(&str, Way); 2] = [("ours", ours), ("upstream order", upstream::destroy)];
    let mut group = c.benchmark_group(format!("destroy/{shape}"));
    group.throughput(Throughput::Elements(leaves));
    group.sample_size(20);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    for (name, destroy) in ways {
        let run = |mut memory| {
            assert_eq!(destroy(&mut memory), leaves);
            assert_eq!(memory.freed, arena.nr_tables());
            memory
        };
        group.bench_function(name, |b| {
            b.iter_batched(|| Memory::new(arena), run, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// 1 GiB of pages.
fn dense(c: &mut Criterion) {
    let arena = build((40, 1), Level::LAST, 4096, GIB / 4096, 513);
    measure(c, "4k/dense", &arena, GIB / 4096);
}

/// A page in every 512 GiB of 48 bits.
fn sparse(c: &mut Criterion) {
    let arena = build((48, 0), Level::LAST, 512 * GIB, 512, 3 * 512);
    measure(c, "4k/sparse", &arena, 512);
}

/// 128 GiB of 2 MiB blocks.
fn blocks(c: &mut Criterion) {
    let level = Level::new(2).expect("a level");
    let arena = build((40, 1), level, GIB / 512, 128 * 512, 128);
    measure(c, "2m/dense", &arena, 128 * 512);
}

criterion_group!(benches, dense, sparse, blocks);
