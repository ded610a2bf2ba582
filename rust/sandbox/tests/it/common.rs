// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What the integration tests share.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox::config::{
    Afterwards, BuiltinConfig, MemoryConfig, PayloadConfig, SerialConfig, SerialMode, VmConfig,
};

pub(crate) const MIB: u64 = 1 << 20;

/// Ends the calling test, saying why, where it cannot run.
macro_rules! need {
    ($possible:expr) => {
        if let Err(reason) = $possible {
            // Not eprintln!, which the harness swallows when the test passes.
            let text = format!("SKIP {}: {reason}\n", module_path!());
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            return;
        }
    };
}
pub(crate) use need;

/// Whether VMs can be made here.
pub(crate) fn kvm() -> Result<(), String> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map(drop)
        .map_err(|error| format!("/dev/kvm: {error}"))
}

/// A directory that goes with the test.
pub(crate) struct Dir(PathBuf);

impl Dir {
    pub(crate) fn new(name: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("sandbox-{name}-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A VM with the built-in payload and its console in `console`.
pub(crate) fn payload(memory: u64, touch: u64, then: Afterwards, console: &Path) -> VmConfig {
    VmConfig {
        cpus: Default::default(),
        memory: MemoryConfig {
            size: memory,
            thp: false,
        },
        payload: PayloadConfig {
            builtin: Some(BuiltinConfig { touch, then }),
            ..Default::default()
        },
        disks: Vec::new(),
        net: Vec::new(),
        vsock: None,
        serial: SerialConfig {
            mode: SerialMode::File,
            file: Some(console.to_owned()),
        },
    }
}

/// Waits until `done` says so; panics after a generous while.
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for the payload's sign that all memory is touched.
pub(crate) fn wait_touched(console: &Path) {
    wait_for("the payload to touch memory", || {
        std::fs::read(console).is_ok_and(|text| text.contains(&b'T'))
    });
}
