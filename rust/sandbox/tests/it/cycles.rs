// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The same id again and again: sockets, taps, disks and memory must be free the
//! moment a pause has been answered.

use crate::common::{
    count, from_snapshot, full, interface_exists, need, refusal, tap, to_snapshot, wait_touched,
    Dir, Vmm,
};

/// Files that a process has open, by what they are.
fn open_files(pid: u32) -> Vec<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|path| path.display().to_string())
        .collect()
}

#[test]
fn a_reply_to_pause_means_that_everything_but_memory_is_free() {
    need!(tap());
    let dir = Dir::new("free");
    let name = "sbxfree0";
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let before = open_files(vmm.pid()).len();
    vmm.boot(&full(&dir, name));
    wait_touched(&dir.join("console"));
    assert!(interface_exists(name) && dir.join("vsock").exists());
    let body = to_snapshot(&dir.join("snapshot"));
    vmm.client.put("vm.pause", &body).unwrap();

    assert!(!interface_exists(name), "the tap is still there");
    assert!(
        !dir.join("vsock").exists(),
        "the vsock socket is still there"
    );
    let files = open_files(vmm.pid());
    for kind in ["kvm-vcpu", "eventfd", "/disk", "/dev/net/tun"] {
        // The event loop of the API has one eventfd of its own.
        let left = files.iter().filter(|file| file.contains(kind)).count();
        assert!(left <= usize::from(kind == "eventfd"), "{kind}: {files:?}");
    }
    vmm.client.put("vm.delete", "").unwrap();
    crate::common::wait_for("the VM fd to be closed", || {
        open_files(vmm.pid()).len() <= before
    });
}

/// 100 times; `SANDBOX_CYCLES=1000` for the full figure.
#[test]
fn the_same_id_comes_back_at_once_every_time() {
    need!(tap());
    let dir = Dir::new("cycles");
    let snapshot = dir.join("snapshot");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    vmm.boot(&full(&dir, "sbxcycle0"));
    wait_touched(&dir.join("console"));
    let cycles = count("SANDBOX_CYCLES", 100);
    for cycle in 0..cycles {
        let pause = vmm.client.put("vm.pause", &to_snapshot(&snapshot));
        pause.unwrap_or_else(|error| panic!("pause {cycle}: {error}"));
        // Somebody who is too early or too late is told so, and harms nobody.
        assert_eq!(refusal(vmm.client.put("vm.resume", "")).0, 404);
        let restore = vmm.client.put("vm.restore", &from_snapshot(&snapshot));
        restore.unwrap_or_else(|error| panic!("restore {cycle}: {error}"));
        assert_eq!(refusal(vmm.client.put("vm.boot", "")).0, 409);
    }
    let counters = vmm.client.get("vm.counters").unwrap();
    assert!(counters.contains(r#""failed":0"#), "{counters}");
    assert_eq!(vmm.state(), "Running");
    println!("{cycles} of {cycles} cycles");
}
