// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The life of a VM through the library: run, pause, save, restore, tear down.

use std::path::Path;
use std::time::Duration;

use crate::common::{kvm, need, payload, wait_for, wait_touched, Dir, MIB};
use sandbox::config::Afterwards;
use sandbox::payload::COUNTER;
use sandbox::reaper::{Limits, Placement, Reaper};
use sandbox::restore::Asked;
use sandbox::vm::{restore, PausedVm, Release, RestoreOptions, RunningVm};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

fn reaper() -> Reaper {
    Reaper::new(Limits {
        bytes: 1 << 30,
        count: 8,
    })
}

fn restored(snapshot: &Path, asked: Asked) -> PausedVm {
    let options = RestoreOptions {
        asked,
        ..Default::default()
    };
    restore(snapshot, &options).unwrap().0
}

fn counter(memory: &GuestMemoryMmap) -> u64 {
    memory.read_obj(GuestAddress(COUNTER)).unwrap()
}

fn wait_counting(vm: &RunningVm) {
    let before = counter(vm.memory());
    wait_for("the guest to count", || counter(vm.memory()) > before);
}

#[test]
fn a_paused_guest_stands_still_and_a_resumed_one_goes_on() {
    need!(kvm());
    let dir = Dir::new("pause");
    let console = dir.join("console");
    let config = payload(16 * MIB, MIB, Afterwards::Count, &console);
    let vm = PausedVm::create(config).unwrap().resume().unwrap();
    wait_touched(&console);
    wait_counting(&vm);
    let vm = vm.pause();
    let stopped = counter(vm.memory());
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(counter(vm.memory()), stopped);
    let vm = vm.resume().unwrap();
    wait_counting(&vm);
    assert!(counter(vm.memory()) > stopped);
    assert_eq!(vm.exit(), None);
}

#[test]
fn a_restored_guest_goes_on_where_it_was() {
    need!(kvm());
    for asked in [Asked::Copy, Asked::Mmap, Asked::OnDemand] {
        let dir = Dir::new("restore");
        let console = dir.join("console");
        let config = payload(16 * MIB, 8 * MIB, Afterwards::Count, &console);
        let vm = PausedVm::create(config).unwrap().resume().unwrap();
        wait_touched(&console);
        wait_counting(&vm);
        let vm = vm.pause();
        let saved = counter(vm.memory());
        vm.snapshot(&dir.join("snapshot")).unwrap();
        let reaper = reaper();
        let report = vm.teardown(&reaper, "old", Release::Deferred);
        assert_eq!(report.release, Placement::Deferred);
        assert_eq!(report.bytes, 16 * MIB);

        let vm = restored(&dir.join("snapshot"), asked);
        assert_eq!(counter(vm.memory()), saved);
        let page: u64 = vm.memory().read_obj(GuestAddress(COUNTER + 4096)).unwrap();
        assert_eq!(page, COUNTER + 4096, "what the payload wrote is gone");
        let vm = vm.resume().unwrap();
        wait_counting(&vm);
        // The second pause writes over the first snapshot, which is mapped.
        let vm = vm.pause();
        vm.snapshot(&dir.join("snapshot")).unwrap();
        let _ = vm.teardown(&reaper, "new", Release::BeforeReply);
        reaper.wait_released(None).unwrap();
        let counters = reaper.counters();
        assert_eq!((counters.released, counters.inline), (1, 1));
        assert_eq!(reaper.failures(), []);
    }
}

#[test]
fn before_reply_is_a_barrier_and_the_bound_forces_one() {
    need!(kvm());
    let dir = Dir::new("barrier");
    let none = Reaper::new(Limits::INLINE);
    for release in [Release::BeforeReply, Release::Deferred] {
        let config = payload(64 * MIB, 32 * MIB, Afterwards::Halt, &dir.join("console"));
        let vm = PausedVm::create(config).unwrap().resume().unwrap();
        wait_touched(&dir.join("console"));
        let report = vm.pause().teardown(&none, "vm", release);
        assert!(matches!(report.release, Placement::Inline(_)));
    }
    assert_eq!(none.counters().inline, 2);
    assert_eq!(none.counters().pending, 0);
}

#[test]
fn several_vcpus_are_stopped_and_restored_together() {
    need!(kvm());
    let dir = Dir::new("smp");
    let console = dir.join("console");
    let mut config = payload(16 * MIB, MIB, Afterwards::Count, &console);
    config.cpus.boot_vcpus = 4;
    let vm = PausedVm::create(config).unwrap().resume().unwrap();
    wait_touched(&console);
    let vm = vm.pause();
    vm.snapshot(&dir.join("snapshot")).unwrap();
    drop(vm);
    let vm = restored(&dir.join("snapshot"), Asked::Auto);
    wait_counting(&vm.resume().unwrap());
}
