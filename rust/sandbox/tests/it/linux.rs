// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A Linux guest with every device: boot, traffic, pause, restore.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{from_snapshot, kvm, need, tap, to_snapshot, wait_for, Dir, Vmm, MIB};
use crate::initramfs;
use sandbox::config::{
    CpusConfig, DiskConfig, MemoryConfig, NetConfig, PayloadConfig, SerialConfig, SerialMode,
    VmConfig, VsockConfig,
};

const TAP: &str = "sbxlinux0";

/// The kernel of `guest/build.sh`, or the one that `SANDBOX_GUEST_KERNEL` names.
fn kernel() -> Result<PathBuf, String> {
    kvm()?;
    if Path::new("/sys/module/kvm_pvm").exists() {
        let reason = "kvm_pvm stops at the int3 that Linux runs while it boots";
        return Err(format!("{reason}; see Documentation/sandbox/index.rst"));
    }
    if !initramfs::init_program().is_file() {
        return Err("no example guest_init: run cargo test without --test, or build it".into());
    }
    let path = match std::env::var_os("SANDBOX_GUEST_KERNEL") {
        Some(path) => PathBuf::from(path),
        None => {
            let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
            let base = std::env::var_os("XDG_CACHE_HOME")
                .map(PathBuf::from)
                .or_else(home);
            std::env::var_os("KVM_S2_CACHE")
                .map(PathBuf::from)
                .or_else(|| base.map(|base| base.join("kvm_s2")))
                .unwrap_or_default()
                .join("build/sandbox-x86_64/arch/x86/boot/bzImage")
        }
    };
    if path.is_file() {
        return Ok(path);
    }
    Err(format!(
        "no guest kernel at {path:?}: run guest/build.sh or set SANDBOX_GUEST_KERNEL"
    ))
}

/// Gives the tap an address; the guest's end has 10.213.0.2.
fn tap_up() {
    for arguments in [
        vec!["addr", "replace", "10.213.0.1/24", "dev", TAP],
        vec!["link", "set", TAP, "up"],
    ] {
        let status = Command::new("ip").args(&arguments).status().unwrap();
        assert!(status.success(), "ip {arguments:?}");
    }
}

fn config(dir: &Dir, kernel: PathBuf, net: bool) -> VmConfig {
    let initramfs = dir.join("initramfs");
    initramfs::write(&initramfs).unwrap();
    std::fs::write(dir.join("disk"), vec![7; 64 << 10]).unwrap();
    VmConfig {
        cpus: CpusConfig {
            boot_vcpus: 2,
            max_vcpus: None,
        },
        memory: MemoryConfig {
            size: 128 * MIB,
            ..Default::default()
        },
        payload: PayloadConfig {
            kernel: Some(kernel),
            initramfs: Some(initramfs),
            cmdline: Some("console=ttyS0 quiet reboot=k panic=-1".to_owned()),
            builtin: None,
        },
        disks: vec![DiskConfig {
            path: dir.join("disk"),
            readonly: false,
        }],
        net: net
            .then(|| NetConfig {
                tap: TAP.to_owned(),
                mac: "02:00:00:00:00:09".to_owned(),
            })
            .into_iter()
            .collect(),
        vsock: Some(VsockConfig {
            cid: 3,
            socket: dir.join("vsock"),
        }),
        serial: SerialConfig {
            mode: SerialMode::File,
            file: Some(dir.join("console")),
        },
    }
}

fn console(dir: &Dir) -> String {
    String::from_utf8_lossy(&std::fs::read(dir.join("console")).unwrap_or_default()).into_owned()
}

fn wait_console(dir: &Dir, text: &str) {
    wait_for(text, || {
        let console = console(dir);
        assert!(!console.contains("failed"), "{console}");
        console.contains(text)
    });
}

/// The last number the guest has counted to.
fn tick(dir: &Dir) -> u64 {
    let console = console(dir);
    let whole = console.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let last = whole.lines().rev().find_map(|l| l.strip_prefix("tick "));
    last.map_or(0, |number| number.trim().parse().unwrap())
}

/// Sends back whatever comes, for one connection.
fn echo_once(listener: UnixListener) {
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 10_000];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..length]).unwrap();
        }
    });
}

/// Connects to the guest's echo port.
#[track_caller]
fn connect(dir: &Dir) -> UnixStream {
    let mut stream = UnixStream::connect(dir.join("vsock")).unwrap();
    stream.write_all(b"CONNECT 52\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream.try_clone().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.starts_with("OK "), "{line:?}: {}", console(dir));
    stream
}

#[track_caller]
fn ask(dir: &Dir, words: &str) -> String {
    let mut stream = connect(dir);
    stream.write_all(words.as_bytes()).unwrap();
    let mut answer = vec![0; words.len()];
    stream.read_exact(&mut answer).unwrap();
    String::from_utf8(answer).unwrap()
}

#[test]
fn a_linux_guest_uses_its_devices_and_survives_pause_and_restore() {
    need!(kernel());
    let dir = Dir::new("linux");
    let net = tap();
    if let Err(reason) = &net {
        let _ = writeln!(std::io::stderr(), "SKIP net part: {reason}");
    }
    let mut port = dir.join("vsock").into_os_string();
    port.push("_1234");
    echo_once(UnixListener::bind(port).unwrap());

    let vmm = Vmm::start(&dir.join("api"), &["--keep"]);
    vmm.boot(&config(&dir, kernel().unwrap(), net.is_ok()));
    if net.is_ok() {
        tap_up();
        let socket = UdpSocket::bind("10.213.0.1:7").unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(&buffer[..length], from);
            }
        });
        wait_console(&dir, "net ok");
    }
    wait_console(&dir, "guest: up, 2 cpus");
    for device in ["disk ok", "vsock ok", "listening"] {
        wait_console(&dir, device);
    }
    assert_eq!(std::fs::read(dir.join("disk")).unwrap()[0], 8);
    assert_eq!(ask(&dir, "before"), "before");
    println!("guest to host and host to guest on vsock, net: {net:?}");

    let old = connect(&dir);
    let snapshot = dir.join("snapshot");
    vmm.client.put("vm.pause", &to_snapshot(&snapshot)).unwrap();
    let stopped = tick(&dir);
    let mut end = Vec::new();
    (&old).read_to_end(&mut end).unwrap();
    assert_eq!(end, b"", "a stream outlived its guest");
    vmm.client
        .put("vm.restore", &from_snapshot(&snapshot))
        .unwrap();
    wait_for("the guest to count on", || tick(&dir) > stopped + 2);
    assert_eq!(console(&dir).matches("guest: up").count(), 1);
    assert_eq!(ask(&dir, "after"), "after");

    connect(&dir).write_all(b"reboot").unwrap();
    wait_for("the guest to end", || vmm.state() == "Shutdown");
    assert!(vmm.shutdown());
}
