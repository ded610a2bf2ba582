// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The same id again and again: sockets, taps, disks and memory must be free the
//! moment a pause has been answered.

use std::path::Path;

use crate::common::{
    count, from_snapshot, kvm, need, payload, refusal, to_snapshot, wait_touched, Dir, Vmm, MIB,
};
use sandbox::config::{Afterwards, DiskConfig, NetConfig, VmConfig, VsockConfig};

/// Whether taps can be made here.
fn tap() -> Result<(), String> {
    kvm()?;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .map_err(|error| format!("/dev/net/tun: {error}"))?;
    // SAFETY: a system call without arguments.
    match unsafe { libc::geteuid() } {
        0 => Ok(()),
        _ => Err("making a tap needs CAP_NET_ADMIN".to_owned()),
    }
}

/// A guest with every device there is.
fn full(dir: &Dir, tap: &str) -> VmConfig {
    let mut config = payload(16 * MIB, 4 * MIB, Afterwards::Halt, &dir.join("console"));
    std::fs::write(dir.join("disk"), vec![0; 1 << 20]).unwrap();
    config.disks = vec![DiskConfig {
        path: dir.join("disk"),
        readonly: false,
    }];
    config.net = vec![NetConfig {
        tap: tap.to_owned(),
        mac: "02:00:00:00:00:07".to_owned(),
    }];
    config.vsock = Some(VsockConfig {
        cid: 3,
        socket: dir.join("vsock"),
    });
    config
}

/// Files that a process has open, by what they are.
fn open_files(pid: u32) -> Vec<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .map(|path| path.display().to_string())
        .collect()
}

fn interface_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
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
