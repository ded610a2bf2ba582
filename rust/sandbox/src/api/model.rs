// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Bodies of requests and replies.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ApiError;
use crate::config::VmConfig;
use crate::reaper::{Counters, Failure};
use crate::restore::MemoryMode;
use crate::vcpu::GuestExit;
use crate::vm::{Release, TeardownReport};

/// Body of `vm.pause`. Without one the VM stays in memory and can be resumed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseRequest {
    /// Where the snapshot goes, as `file:///path`; the VM is then torn down.
    pub destination_url: String,
    /// Whether the reply waits until the memory is back with the host.
    #[serde(default)]
    pub release: Release,
}

/// Reply of a `vm.pause` with a body.
#[derive(Clone, Debug, Serialize)]
pub struct PauseReply {
    /// Stopping vCPUs and workers, in nanoseconds.
    pub stop_ns: u64,
    /// Writing the snapshot.
    pub snapshot_ns: u64,
    /// Everything after that.
    pub teardown: TeardownReport,
}

/// Body of `vm.snapshot`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRequest {
    /// Where the snapshot goes, as `file:///path`.
    pub destination_url: String,
}

/// Body of `vm.restore`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RestoreRequest {
    /// Where the snapshot is, as `file:///path`.
    pub source_url: String,
    /// How its memory comes back.
    #[serde(default)]
    pub memory_mode: MemoryMode,
    /// Set it in motion too, instead of leaving it paused.
    #[serde(default)]
    pub resume: bool,
}

/// What a VM is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum VmStatus {
    /// Configured, not booted.
    Created,
    /// Its vCPUs run.
    Running,
    /// Its guest has stopped by itself.
    Shutdown,
    /// Its vCPUs stand still.
    Paused,
    /// An operation is going on.
    Busy,
}

/// Reply of `vm.info`.
#[derive(Clone, Debug, Serialize)]
pub struct InfoReply {
    /// What it was made from; unknown while an operation has it.
    pub config: Option<VmConfig>,
    /// What it is doing.
    pub state: VmStatus,
    /// The operation going on, if any.
    pub operation: Option<&'static str>,
    /// How its memory came, if it was restored.
    pub memory_mode: Option<MemoryMode>,
    /// Why the guest stopped by itself, if it has.
    pub exit: Option<GuestExit>,
}

/// Reply of `vm.counters`.
#[derive(Clone, Debug, Serialize)]
pub struct CountersReply {
    /// Releases of memory.
    pub reaper: Counters,
    /// The last ones that failed.
    pub failures: Vec<Failure>,
}

/// Reads a `file:///path`.
pub(super) fn file_url(url: &str) -> Result<PathBuf, ApiError> {
    match url.strip_prefix("file://") {
        Some(path) if path.starts_with('/') => Ok(path.into()),
        _ => Err(ApiError::Url(url.to_owned())),
    }
}
