// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What must not happen when things go wrong.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::{
    count, from_snapshot, full, interface_exists, kvm, need, payload, refusal, tap, to_snapshot,
    wait_for, wait_touched, Dir, Mount, Vmm, MIB,
};
use sandbox::config::Afterwards;

fn booted(dir: &Dir, memory: u64) -> Vmm {
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let console = dir.join("console");
    vmm.boot(&payload(memory, memory / 2, Afterwards::Halt, &console));
    wait_touched(&console);
    vmm
}

#[test]
fn a_second_pause_is_refused_and_a_delete_waits() {
    need!(kvm());
    let dir = Dir::new("second");
    let vmm = booted(&dir, 256 * MIB);
    let snapshot = dir.join("snapshot");
    std::thread::scope(|scope| {
        let first = scope.spawn(|| vmm.client.put("vm.pause", &to_snapshot(&snapshot)));
        wait_for("the first pause to begin", || vmm.state() == "Busy");
        let (status, words) = refusal(vmm.client.put("vm.pause", ""));
        assert_eq!(status, 409);
        assert!(words.contains("vm.pause is going on"), "{words}");
        vmm.client.put("vm.delete", "").unwrap();
        first.join().unwrap().unwrap();
    });
    assert_eq!(refusal(vmm.client.get("vm.info")).0, 404);
    vmm.client
        .put("vm.restore", &from_snapshot(&snapshot))
        .unwrap();
    assert_eq!(vmm.state(), "Running");
}

#[test]
fn a_resume_while_memory_is_going_is_refused_and_all_of_it_comes_back() {
    need!(kvm());
    let dir = Dir::new("going");
    let vmm = booted(&dir, 512 * MIB);
    assert!(resident(&vmm) > 256 * MIB);
    vmm.client
        .put("vm.pause", &to_snapshot(&dir.join("snapshot")))
        .unwrap();
    let (status, words) = refusal(vmm.client.put("vm.resume", ""));
    assert_eq!(status, 404);
    assert!(words.contains("vm.restore"), "{words}");
    wait_for("the release to end", || {
        let counters = vmm.client.get("vm.counters").unwrap();
        assert!(counters.contains(r#""inline":0,"failed":0"#), "{counters}");
        counters.contains(r#""pending":0"#) && counters.contains(r#""released":1"#)
    });
    assert!(resident(&vmm) < 64 * MIB, "memory is not back");
}

/// Resident bytes of the VMM process.
fn resident(vmm: &Vmm) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", vmm.pid())).unwrap();
    let kib = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    kib.unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .unwrap()
        << 10
}

#[test]
fn a_client_that_never_ends_its_request_holds_up_nobody() {
    let dir = Dir::new("half");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let half = b"PUT /api/v1/vm.create HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{";
    let clients: Vec<_> = [&half[..], &half[..30], b""]
        .iter()
        .map(|start| {
            let mut client = UnixStream::connect(&vmm.socket).unwrap();
            client.write_all(start).unwrap();
            client
        })
        .collect();
    assert!(vmm.client.get("vm.counters").is_ok());
    assert_eq!(refusal(vmm.client.get("vm.info")).0, 404);
    let start = std::time::Instant::now();
    assert!(vmm.shutdown());
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    drop(clients);
}

#[test]
fn a_pause_ends_well_without_its_client() {
    need!(kvm());
    let dir = Dir::new("gone");
    let vmm = booted(&dir, 128 * MIB);
    let body = to_snapshot(&dir.join("snapshot"));
    let mut client = UnixStream::connect(&vmm.socket).unwrap();
    let length = body.len();
    let request = format!(
        "PUT /api/v1/vm.pause HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    client.write_all(request.as_bytes()).unwrap();
    wait_for("the pause to begin", || vmm.state() != "Running");
    drop(client);
    wait_for("the pause to end", || vmm.state().contains("snapshot"));
    let restore = from_snapshot(&dir.join("snapshot"));
    vmm.client.put("vm.restore", &restore).unwrap();
}

#[test]
fn a_full_disk_leaves_the_vm_running_and_no_partial_file() {
    let dir = Dir::new("full");
    need!(Mount::new(&dir.join("small"), "size=4m").map(drop));
    let disk = Mount::new(&dir.join("small"), "size=4m").unwrap();
    let vmm = booted(&dir, 64 * MIB);
    let place = disk.0.join("snapshot");
    let (status, words) = refusal(vmm.client.put("vm.pause", &to_snapshot(&place)));
    assert_eq!(status, 507, "{words}");
    assert_eq!(vmm.state(), "Running");
    assert_eq!(std::fs::read_dir(&disk.0).unwrap().count(), 0);
    // With room the same VM can still be saved.
    let elsewhere = to_snapshot(&dir.join("snapshot"));
    vmm.client.put("vm.pause", &elsewhere).unwrap();
}

/// 50 times; `SANDBOX_KILLS=1000` for the full figure.
#[test]
fn after_a_kill_at_any_moment_the_id_works_again() {
    need!(tap());
    let dir = Dir::new("kill");
    let (api, snapshot, name) = (dir.join("api"), dir.join("snapshot"), "sbxkill0");
    let vmm = Vmm::start(&api, &[]);
    vmm.boot(&full(&dir, name));
    wait_touched(&dir.join("console"));
    vmm.client.put("vm.pause", &to_snapshot(&snapshot)).unwrap();
    assert!(vmm.shutdown());
    let kills = count("SANDBOX_KILLS", 50);
    let path = snapshot.display().to_string();
    let arguments = ["--restore", path.as_str()];
    // A fixed sequence that spreads the kills over a whole life.
    let mut random = 0x2545_f491u32;
    for _ in 0..kills {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let delay = Duration::from_micros(u64::from(random >> 8) % 40_000);
        let mut vmm = Vmm::spawn(&api, &arguments);
        let client = vmm.client.clone();
        let body = to_snapshot(&snapshot);
        let pausing = std::thread::spawn(move || {
            // Usually there is nobody to answer, or no longer.
            let deadline = std::time::Instant::now() + Duration::from_millis(50);
            while std::time::Instant::now() < deadline && client.put("vm.pause", &body).is_err() {}
        });
        std::thread::sleep(delay);
        vmm.kill();
        assert!(!interface_exists(name), "a tap outlived its process");
        pausing.join().unwrap();
    }
    let vmm = Vmm::start(&api, &arguments);
    assert_eq!(vmm.state(), "Running");
    assert!(interface_exists(name) && dir.join("vsock").exists());
    vmm.client.put("vm.pause", &to_snapshot(&snapshot)).unwrap();
    assert!(vmm.shutdown());
    assert!(!interface_exists(name));
    let mut left: Vec<_> = std::fs::read_dir(dir.join(""))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["console", "disk", "snapshot"]);
    println!("{kills} of {kills} kills");
}
