// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! How memory comes back through the API, and what is said about it.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{
    beats, kvm, need, payload, refusal, to_snapshot, wait_for, wait_touched, Dir, Mount, Vmm, MIB,
};
use crate::restricted::no_userfaultfd;
use sandbox::config::Afterwards;
use sandbox::restore::userfault_permitted;
use serde_json::{json, Value};

const MEMORY: u64 = 16 * MIB;

/// The snapshot of a guest that checks its memory for good.
fn snapshot(dir: &Dir, adjust: impl FnOnce(&mut sandbox::config::VmConfig)) -> PathBuf {
    let (vmm, console) = (
        Vmm::start(&dir.join("first"), &[]),
        dir.join("first.console"),
    );
    let mut config = payload(MEMORY, MEMORY / 2, Afterwards::Beat, &console);
    adjust(&mut config);
    vmm.boot(&config);
    wait_touched(&console);
    wait_for("a beat", || beats(&console) > 0);
    let place = dir.join("snapshot");
    vmm.client.put("vm.pause", &to_snapshot(&place)).unwrap();
    place
}

/// Body of a restore with a console of its own.
fn body(dir: &Dir, snapshot: &Path, extra: Value) -> String {
    let mut body = json!({
        "source_url": format!("file://{}", snapshot.display()),
        "resume": true,
        "overrides": { "serial": { "mode": "File", "file": dir.join("console") } },
    });
    let (Value::Object(all), Value::Object(extra)) = (&mut body, extra) else {
        unreachable!()
    };
    all.extend(extra);
    body.to_string()
}

fn as_clone(dir: &Dir, mode: &str) -> Value {
    json!({ "memory_mode": mode, "clone_directory": dir.join("clone") })
}

/// Restores, waits until the guest has been through its memory twice, and returns
/// what `vm.info` says about how it came.
fn runs(dir: &Dir, snapshot: &Path, extra: Value) -> Value {
    let _ = std::fs::remove_file(dir.join("console"));
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let plan = vmm.client.put("vm.restore", &body(dir, snapshot, extra));
    let plan: Value = serde_json::from_str(&plan.unwrap()).unwrap();
    wait_for("two beats", || beats(&dir.join("console")) > 1);
    let info = vmm.client.get("vm.info").unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["state"], "Running");
    let memory = info["memory_mode"].clone();
    for field in ["asked", "effective", "notes"] {
        assert_eq!(memory[field], plan[field]);
    }
    assert!(vmm.shutdown());
    memory
}

fn refused(dir: &Dir, snapshot: &Path, extra: Value) -> (u16, String) {
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let refusal = refusal(vmm.client.put("vm.restore", &body(dir, snapshot, extra)));
    assert!(vmm.state().contains("no VM"), "{}", vmm.state());
    refusal
}

#[test]
fn every_mode_brings_the_guest_back_and_says_which_it_was() {
    need!(kvm());
    let dir = Dir::new("modes");
    let place = snapshot(&dir, |_| ());
    let mut cases = vec![
        (json!({}), "auto", "copy"),
        (json!({ "memory_mode": "mmap" }), "mmap", "mmap"),
        (as_clone(&dir, "auto"), "auto", "mmap"),
        (as_clone(&dir, "copy"), "copy", "copy"),
    ];
    if userfault_permitted().is_ok() {
        cases.push((as_clone(&dir, "on-demand"), "on-demand", "on-demand"));
        let lazy = json!({ "memory_mode": "prefer-on-demand", "no_prefetch": true });
        cases.push((lazy, "prefer-on-demand", "on-demand"));
    }
    for (extra, asked, effective) in cases {
        let memory = runs(&dir, &place, extra);
        assert_eq!(
            (&memory["asked"], &memory["effective"]),
            (&json!(asked), &json!(effective))
        );
        assert_eq!(memory["notes"], json!([]));
        assert!(
            !dir.join("clone").exists(),
            "the clone's directory was left behind"
        );
        if effective == "on-demand" {
            // With a prefetch nobody may have had to wait.
            let figure = match asked {
                "on-demand" => "loaded",
                _ => "faults",
            };
            assert!(memory["on_demand"][figure].as_u64() > Some(0), "{memory}");
        }
    }
}

#[test]
fn shared_memory_is_copied_with_the_remedy_named() {
    need!(kvm());
    let dir = Dir::new("shared");
    let place = snapshot(&dir, |config| config.memory.shared = true);
    for extra in [json!({}), as_clone(&dir, "auto"), as_clone(&dir, "mmap")] {
        let memory = runs(&dir, &place, extra);
        assert_eq!(memory["effective"], "copy");
        let note = memory["notes"][0].as_str().unwrap();
        assert!(
            note.contains("shared memory") && note.contains("ask for on-demand"),
            "{note}"
        );
    }
    need!(userfault_permitted());
    let memory = runs(&dir, &place, json!({ "memory_mode": "on-demand" }));
    assert_eq!(memory["effective"], "on-demand");
}

#[test]
fn an_unknown_mode_is_an_error_that_lists_the_known_ones() {
    need!(kvm());
    let dir = Dir::new("word");
    let place = snapshot(&dir, |_| ());
    let (status, words) = refused(&dir, &place, json!({ "memory_mode": "lazy" }));
    assert_eq!(status, 400);
    assert!(
        words.contains("lazy") && words.contains("prefer-on-demand"),
        "{words}"
    );
}

#[test]
fn a_snapshot_that_is_not_one_is_refused_with_what_is_wrong() {
    need!(kvm());
    let dir = Dir::new("state");
    let place = snapshot(&dir, |_| ());
    let state = std::fs::read(place.join("state")).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = state.clone();
        bytes[at] = to;
        bytes
    };
    let cases = [
        (changed(100, state[100] ^ 4), "corrupt"),
        (state[..state.len() - 9].to_vec(), "truncated"),
        (changed(8, 99), "version 99"),
        (changed(0, b'X'), "not a snapshot"),
        (Vec::new(), "truncated"),
    ];
    for (bytes, word) in cases {
        std::fs::write(place.join("state"), bytes).unwrap();
        let (status, words) = refused(&dir, &place, json!({}));
        assert_eq!(status, 422, "{words}");
        assert!(words.contains(word) && words.contains("/state"), "{words}");
    }
}

#[test]
fn a_memory_file_that_has_changed_never_reaches_a_guest() {
    need!(kvm());
    let dir = Dir::new("changed");
    let place = snapshot(&dir, |_| ());
    let path = place.join("memory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();

    // Touched only: its content is checked, so copying it is safe.
    let byte = &mut [0];
    file.read_exact_at(byte, 4 * MIB).unwrap();
    file.write_all_at(byte, 4 * MIB).unwrap();
    let memory = runs(&dir, &place, as_clone(&dir, "auto"));
    assert_eq!(memory["effective"], "copy");
    assert!(memory["notes"][0]
        .as_str()
        .unwrap()
        .contains("time of last change"));
    let (status, words) = refused(&dir, &place, json!({ "memory_mode": "mmap" }));
    assert_eq!(status, 422);
    assert!(
        words.contains("time of last change") && words.contains("copy"),
        "{words}"
    );

    file.write_all_at(&[byte[0] ^ 1], 4 * MIB).unwrap();
    let (status, words) = refused(&dir, &place, json!({}));
    assert_eq!(status, 422);
    assert!(
        words.contains("changed since the snapshot: block at 0x400000"),
        "{words}"
    );

    file.set_len(MEMORY - 4096).unwrap();
    for mode in ["auto", "copy", "mmap", "on-demand"] {
        let (status, words) = refused(&dir, &place, json!({ "memory_mode": mode }));
        assert_eq!(status, 422);
        assert!(
            words.contains("has 16773120 bytes, the state says 16777216"),
            "{words}"
        );
    }
}

#[test]
fn a_snapshot_on_another_or_a_read_only_file_system_is_copied_or_mapped_as_asked() {
    let dir = Dir::new("elsewhere");
    need!(Mount::new(&dir.join("mount"), "size=64m").map(drop));
    let disk = Mount::new(&dir.join("mount"), "size=64m").unwrap();
    let place = disk.0.join("snapshot");
    let copied = Command::new("cp")
        .arg("-a")
        .arg(snapshot(&dir, |_| ()))
        .arg(&place)
        .status();
    assert!(copied.unwrap().success());
    disk.remount("ro");
    let memory = runs(&dir, &place, as_clone(&dir, "auto"));
    assert_eq!(memory["effective"], "copy");
    assert!(memory["notes"][0]
        .as_str()
        .unwrap()
        .contains("another file system"));
    for mode in ["copy", "mmap"] {
        assert_eq!(runs(&dir, &place, as_clone(&dir, mode))["effective"], mode);
    }
}

#[test]
fn memory_that_cannot_be_loaded_any_more_stops_the_guest_with_an_error() {
    need!(kvm().and_then(|()| userfault_permitted()));
    let dir = Dir::new("lost");
    let place = snapshot(&dir, |_| ());
    let vmm = Vmm::start(&dir.join("api"), &["--keep"]);
    let extra = json!({ "memory_mode": "on-demand", "no_prefetch": true, "resume": false });
    vmm.client
        .put("vm.restore", &body(&dir, &place, extra))
        .unwrap();
    let path = place.join("memory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.write_all_at(&[0; 4096], 6 * MIB).unwrap();
    vmm.client.put("vm.resume", "").unwrap();

    wait_for("the guest to stop", || vmm.state() == "Shutdown");
    let info: Value = serde_json::from_str(&vmm.client.get("vm.info").unwrap()).unwrap();
    let exit = info["exit"]["failed"].as_str().unwrap();
    assert!(
        exit.contains("cannot be loaded") && exit.contains("block at 0x600000"),
        "{exit}"
    );
    let failure = info["memory_mode"]["on_demand"]["failure"]
        .as_str()
        .unwrap();
    assert!(failure.contains("block at 0x600000"), "{failure}");
    // It may have ended the round it was in; at a zero page it would have said so.
    assert!(beats(&dir.join("console")) <= 1);

    let pause = vmm
        .client
        .put("vm.pause", &to_snapshot(&dir.join("second")));
    let (status, words) = refusal(pause);
    assert_eq!(status, 500);
    assert!(words.contains("block at 0x600000"), "{words}");
    assert!(!dir.join("second").exists() && !dir.join("second.partial").exists());
    vmm.client.put("vm.delete", "").unwrap();
    assert!(vmm.shutdown());
}

#[test]
fn a_guest_that_is_loaded_on_demand_can_be_saved_again() {
    need!(kvm().and_then(|()| userfault_permitted()));
    let dir = Dir::new("again");
    let place = snapshot(&dir, |_| ());
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let extra = json!({ "memory_mode": "on-demand", "no_prefetch": true });
    vmm.client
        .put("vm.restore", &body(&dir, &place, extra))
        .unwrap();
    vmm.client
        .put("vm.pause", &to_snapshot(&dir.join("second")))
        .unwrap();
    assert!(vmm.shutdown());
    std::fs::remove_dir_all(&place).unwrap();
    runs(&dir, &dir.join("second"), json!({}));
}

#[test]
fn without_userfaultfd_it_is_refused_or_falls_back_with_the_reason() {
    need!(kvm());
    let dir = Dir::new("forbidden");
    let place = snapshot(&dir, |_| ());
    let vmm = Vmm::start_restricted(&dir.join("api"), no_userfaultfd);
    let on_demand = body(&dir, &place, json!({ "memory_mode": "on-demand" }));
    let (status, words) = refusal(vmm.client.put("vm.restore", &on_demand));
    assert_eq!(status, 422);
    assert!(
        words.contains("userfaultfd") && words.contains("/dev/userfaultfd"),
        "{words}"
    );
    let prefer = body(&dir, &place, as_clone(&dir, "prefer-on-demand"));
    let plan: Value =
        serde_json::from_str(&vmm.client.put("vm.restore", &prefer).unwrap()).unwrap();
    assert_eq!(plan["effective"], "mmap");
    assert!(
        plan["notes"][0]
            .as_str()
            .unwrap()
            .contains("not loaded on demand"),
        "{plan}"
    );
    wait_for("a beat", || beats(&dir.join("console")) > 0);
}

#[test]
fn a_second_restore_into_the_same_process_is_refused() {
    need!(kvm());
    let dir = Dir::new("twice");
    let place = snapshot(&dir, |_| ());
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let request = body(&dir, &place, as_clone(&dir, "auto"));
    vmm.client.put("vm.restore", &request).unwrap();
    assert_eq!(refusal(vmm.client.put("vm.restore", &request)).0, 409);
    let before = beats(&dir.join("console"));
    wait_for("the first to go on", || {
        beats(&dir.join("console")) > before
    });
}
