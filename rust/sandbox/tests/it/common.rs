// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What the integration tests share.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox::api::{Client, ClientError};
use sandbox::config::{
    Afterwards, BuiltinConfig, DiskConfig, MemoryConfig, NetConfig, PayloadConfig, SerialConfig,
    SerialMode, VmConfig, VsockConfig,
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
            ..Default::default()
        },
        payload: PayloadConfig {
            builtin: Some(BuiltinConfig {
                touch,
                then,
                working_set: None,
            }),
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

/// Whether taps can be made here.
pub(crate) fn tap() -> Result<(), String> {
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
pub(crate) fn full(dir: &Dir, tap: &str) -> VmConfig {
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

/// Whether the host has a network interface of this name.
pub(crate) fn interface_exists(name: &str) -> bool {
    Path::new("/sys/class/net").join(name).exists()
}

/// A tmpfs of its own, where mounting is possible.
pub(crate) struct Mount(pub(crate) PathBuf);

impl Mount {
    pub(crate) fn new(path: &Path, options: &str) -> Result<Self, String> {
        kvm()?;
        std::fs::create_dir_all(path).unwrap();
        match mount(&["-t", "tmpfs", "-o", options, "none"], path) {
            true => Ok(Self(path.to_owned())),
            false => Err("mounting a tmpfs needs CAP_SYS_ADMIN".to_owned()),
        }
    }

    pub(crate) fn remount(&self, options: &str) {
        assert!(mount(&["-o", &format!("remount,{options}")], &self.0));
    }
}

fn mount(arguments: &[&str], path: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(arguments).arg(path).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
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

/// How often the payload has been round its working set. Panics when it has found
/// that a page lost its word.
pub(crate) fn beats(console: &Path) -> usize {
    let text = std::fs::read(console).unwrap_or_default();
    assert!(!text.contains(&b'!'), "the guest has lost memory");
    text.iter().filter(|&&byte| byte == b'B').count()
}

/// The program under test; `SANDBOX_PROGRAM` names it on a machine where cargo has
/// not built it.
pub(crate) fn program() -> PathBuf {
    let named = std::env::var_os("SANDBOX_PROGRAM");
    named.map_or_else(|| env!("CARGO_BIN_EXE_sandbox").into(), PathBuf::from)
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

    /// Starts one that first forgoes something: `restrict` runs between fork and
    /// exec, where only system calls are safe.
    pub(crate) fn start_restricted(socket: &Path, restrict: fn() -> std::io::Result<()>) -> Self {
        let mut command = Self::command(socket, &[]);
        // SAFETY: what is passed makes a few system calls and does nothing else.
        unsafe { std::os::unix::process::CommandExt::pre_exec(&mut command, restrict) };
        let vmm = Self::from_command(socket, command);
        wait_for("the VMM to answer", || vmm.client.get("vmm.ping").is_ok());
        vmm
    }

    /// Starts one and waits for nothing.
    pub(crate) fn spawn(socket: &Path, arguments: &[&str]) -> Self {
        Self::from_command(socket, Self::command(socket, arguments))
    }

    fn command(socket: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command
            .args(["run", "--api-socket"])
            .arg(socket)
            .args(arguments);
        command.stdin(Stdio::null());
        command
    }

    fn from_command(socket: &Path, mut command: Command) -> Self {
        let child = command.spawn().unwrap();
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
