// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Guests whose memory has been touched, ready to be measured.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use sandbox::config::{
    Afterwards, BuiltinConfig, MemoryConfig, PayloadConfig, SerialConfig, SerialMode, VmConfig,
};
use sandbox::vm::{PausedVm, RunningVm};

/// Memory below the payload's range, and a bit.
const UNTOUCHED: u64 = 4 << 20;
const PATIENCE: Duration = Duration::from_secs(300);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A directory for consoles, sockets and snapshots that goes with the bench.
pub(super) struct WorkDir(PathBuf);

impl WorkDir {
    /// Makes one below `base`.
    pub(super) fn new(base: &Path) -> Result<Self, Failure> {
        let path = base.join(format!("sandbox-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("{path:?}: {e}"))?;
        Ok(Self(path))
    }

    /// A name in it that nobody has had yet.
    pub(super) fn fresh(&self, kind: &str) -> PathBuf {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        self.0.join(format!("{kind}-{number}"))
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A VM that touches all but its first megabytes and then sleeps.
pub(super) fn config(bytes: u64, thp: bool, console: &Path) -> VmConfig {
    VmConfig {
        cpus: Default::default(),
        memory: MemoryConfig {
            size: bytes,
            thp,
            ..Default::default()
        },
        payload: PayloadConfig {
            builtin: Some(BuiltinConfig {
                touch: bytes.saturating_sub(UNTOUCHED).max(4096),
                then: Afterwards::Halt,
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

/// Starts such a VM here and waits until its memory is touched.
pub(super) fn touched(
    dir: &WorkDir,
    bytes: u64,
    thp: bool,
    release_threads: usize,
) -> Result<RunningVm, Failure> {
    let console = dir.fresh("console");
    let mut vm = PausedVm::create(config(bytes, thp, &console))?;
    vm.release_threads(release_threads);
    let vm = vm.resume()?;
    wait_touched(&console)?;
    Ok(vm)
}

/// Waits for the payload's sign.
pub(super) fn wait_touched(console: &Path) -> Result<(), Failure> {
    let deadline = Instant::now() + PATIENCE;
    while !std::fs::read(console).is_ok_and(|text| text.contains(&b'T')) {
        if Instant::now() > deadline {
            return Err("the guest does not get through its memory".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
