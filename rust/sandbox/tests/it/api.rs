// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The control interface of a VMM process, as a client sees it.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::{
    from_snapshot, kvm, need, payload, program, refusal, to_snapshot, wait_touched, Dir, Vmm, MIB,
};
use sandbox::config::Afterwards;

/// Sends bytes as they are and returns the first line of the answer.
fn raw(socket: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    // A server that refuses early may close before it has read everything.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.lines().next().unwrap_or_default().to_owned()
}

fn put(name: &str, body: &str) -> Vec<u8> {
    format!(
        "PUT /api/v1/{name} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[test]
fn bad_requests_are_refused_with_a_4xx_and_the_vmm_lives_on() {
    let dir = Dir::new("bad");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let large = "x".repeat(2 << 20);
    let deep = "[".repeat(100_000);
    let wrong_memory = r#"{"memory":{"size":1},"payload":{"kernel":"k"}}"#;
    let unknown_field = r#"{"memory":{"size":16777216},"payload":{"kernel":"k"},"gpu":true}"#;
    let huge_memory = r#"{"memory":{"size":18446744073709551615},"payload":{"kernel":"k"}}"#;
    let cases: [(&str, Vec<u8>); 14] = [
        ("404", put("vm.fly", "")),
        (
            "404",
            b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".to_vec(),
        ),
        ("405", put("vm.info", "")),
        ("400", put("vm.create", "")),
        ("400", put("vm.create", "{")),
        ("400", put("vm.create", "\u{1F980}")),
        ("400", put("vm.create", &deep)),
        ("413", put("vm.create", &large)),
        ("400", put("vm.create", wrong_memory)),
        ("400", put("vm.create", unknown_field)),
        ("400", put("vm.create", huge_memory)),
        ("400", put("vm.pause", r#"{"destination_url":"http://x/"}"#)),
        (
            "400",
            put(
                "vm.pause",
                r#"{"destination_url":"file:///x","release":"never"}"#,
            ),
        ),
        ("400", b"\x16\x03\x01 not http at all\r\n\r\n".to_vec()),
    ];
    for (status, request) in cases {
        let answer = raw(&vmm.socket, &request);
        let shown = String::from_utf8_lossy(&request[..request.len().min(80)]).into_owned();
        assert!(answer.contains(status), "{shown:?}: {answer:?}");
    }
    for name in ["vm.boot", "vm.pause", "vm.resume"] {
        assert_eq!(refusal(vmm.client.put(name, "")).0, 404, "{name}");
    }
    assert!(vmm.shutdown());
}

#[test]
fn a_vm_goes_through_its_life() {
    need!(kvm());
    let dir = Dir::new("life");
    let snapshot = dir.join("snapshot");
    let console = dir.join("console");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    vmm.boot(&payload(16 * MIB, MIB, Afterwards::Count, &console));
    wait_touched(&console);
    assert_eq!(vmm.state(), "Running");
    let again = serde_json::to_string(&payload(16 * MIB, MIB, Afterwards::Count, &console));
    assert_eq!(refusal(vmm.client.put("vm.create", &again.unwrap())).0, 409);
    let running = vmm.client.put("vm.snapshot", &to_snapshot(&snapshot));
    assert_eq!(refusal(running).0, 409);

    vmm.client.put("vm.pause", "").unwrap();
    assert_eq!(vmm.state(), "Paused");
    vmm.client
        .put("vm.snapshot", &to_snapshot(&snapshot))
        .unwrap();
    vmm.client.put("vm.resume", "").unwrap();
    assert_eq!(vmm.state(), "Running");

    let reply = vmm.client.put("vm.pause", &to_snapshot(&snapshot)).unwrap();
    assert!(reply.contains(r#""release":"deferred""#), "{reply}");
    let (status, words) = refusal(vmm.client.put("vm.resume", ""));
    assert_eq!(status, 404);
    assert!(words.contains("vm.restore"), "{words}");
    vmm.client
        .put("vm.restore", &from_snapshot(&snapshot))
        .unwrap();
    assert_eq!(vmm.state(), "Running");
    vmm.client.put("vm.delete", "").unwrap();
    assert_eq!(refusal(vmm.client.get("vm.info")).0, 404);
    let counters = vmm.client.get("vm.counters").unwrap();
    assert!(counters.contains(r#""failed":0"#), "{counters}");
    assert!(vmm.shutdown());
    assert!(!dir.join("api").exists(), "the socket is left behind");
}

#[test]
fn what_cannot_be_restored_is_said() {
    let dir = Dir::new("unrestorable");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let place = dir.join("snapshot");
    let attempt = || refusal(vmm.client.put("vm.restore", &from_snapshot(&place)));
    assert_eq!(attempt().0, 422);
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("state"), b"PK\x03\x04 some archive").unwrap();
    let (status, words) = attempt();
    assert_eq!(status, 422);
    assert!(words.contains("not a snapshot"), "{words}");
}

#[test]
fn what_is_no_kernel_is_named() {
    need!(kvm());
    let dir = Dir::new("unbootable");
    let vmm = Vmm::start(&dir.join("api"), &[]);
    let file = dir.join("kernel");
    std::fs::write(&file, "#!/bin/sh\n".repeat(1000)).unwrap();
    let mut config = payload(16 * MIB, MIB, Afterwards::Halt, &dir.join("console"));
    config.payload.builtin = None;
    config.payload.kernel = Some(file.clone());
    let config = serde_json::to_string(&config).unwrap();
    vmm.client.put("vm.create", &config).unwrap();
    let (status, words) = refusal(vmm.client.put("vm.boot", ""));
    assert_eq!(status, 422);
    assert!(words.contains("/kernel\" is not a kernel image"), "{words}");
    assert!(vmm.shutdown());
}

#[test]
fn a_second_vmm_is_told_that_the_socket_is_in_use() {
    let dir = Dir::new("in-use");
    let _first = Vmm::start(&dir.join("api"), &[]);
    let output = std::process::Command::new(program())
        .args(["run", "--api-socket"])
        .arg(dir.join("api"))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let words = String::from_utf8(output.stderr).unwrap();
    assert!(words.contains("another sandbox answers there"), "{words}");
}
