// SPDX-License-Identifier: GPL-2.0

//! Benches of the destroy on host memory: `cargo bench -p kvm_s2`.

mod destroy;
mod memory;
mod upstream;

criterion::criterion_main!(destroy::benches);
