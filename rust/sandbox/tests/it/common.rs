// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What the integration tests share.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox::api::{Client, ClientError};
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

/// Waits until `done` says so; panics after a generous while, which an emulated
/// machine may need more of (`SANDBOX_PATIENCE`, in seconds).
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let seconds = count("SANDBOX_PATIENCE", 60) as u64;
    let deadline = Instant::now() + Duration::from_secs(seconds);
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

/// A VMM process; killed when the test is over.
pub(crate) struct Vmm {
    child: Child,
    pub(crate) client: Client,
    pub(crate) socket: PathBuf,
}

impl Vmm {
    /// Starts one and waits until it answers.
    pub(crate) fn start(socket: &Path, arguments: &[&str]) -> Self {
        let vmm = Self::spawn(socket, arguments);
        wait_for("the VMM to answer", || vmm.client.get("vmm.ping").is_ok());
        vmm
    }

    /// Starts one and waits for nothing.
    pub(crate) fn spawn(socket: &Path, arguments: &[&str]) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_sandbox"))
            .args(["run", "--api-socket"])
            .arg(socket)
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            child,
            client: Client::new(socket),
            socket: socket.to_owned(),
        }
    }

    /// Creates and boots.
    pub(crate) fn boot(&self, config: &VmConfig) {
        let body = serde_json::to_string(config).unwrap();
        self.client.put("vm.create", &body).unwrap();
        self.client.put("vm.boot", "").unwrap();
    }

    /// What `vm.info` says of the VM.
    pub(crate) fn state(&self) -> String {
        match self.client.get("vm.info") {
            Ok(reply) => {
                let reply: serde_json::Value = serde_json::from_str(&reply).unwrap();
                reply["state"].as_str().unwrap().to_owned()
            }
            Err(error) => error.to_string(),
        }
    }

    /// The sudden end.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The orderly end, and whether it was one.
    pub(crate) fn shutdown(mut self) -> bool {
        self.client.put("vmm.shutdown", "").unwrap();
        self.child.wait().unwrap().success()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Body of a pause to a snapshot, or of a restore from one.
pub(crate) fn to_snapshot(directory: &Path) -> String {
    format!(r#"{{"destination_url":"file://{}"}}"#, directory.display())
}

/// Body of a restore that sets the VM in motion.
pub(crate) fn from_snapshot(directory: &Path) -> String {
    format!(
        r#"{{"source_url":"file://{}","resume":true}}"#,
        directory.display()
    )
}

/// Status and words of a refusal.
pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, ClientError>) -> (u16, String) {
    match result {
        Err(ClientError::Refused { status, message }) => (status, message),
        other => panic!("no refusal: {other:?}"),
    }
}

/// A number from the environment, to make a test longer than usual.
pub(crate) fn count(variable: &str, usual: usize) -> usize {
    std::env::var(variable)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(usual)
}
