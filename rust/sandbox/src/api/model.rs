// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Bodies of requests and replies.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::ApiError;
use crate::config::VmConfig;
use crate::reaper::{Counters, Failure};
use crate::restore::on_demand::Progress;
use crate::restore::{Asked, Plan};
use crate::vcpu::GuestExit;
use crate::vm::{Overrides, Release, RestoreOptions, TeardownReport};

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
    pub memory_mode: Asked,
    /// Leave memory that nobody touches where it is, when it is loaded on demand.
    #[serde(default)]
    pub no_prefetch: bool,
    /// Makes the VM a clone: a directory of its own for a link to the memory file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clone_directory: Option<PathBuf>,
    /// What differs from the VM that was saved.
    #[serde(default)]
    pub overrides: Overrides,
    /// Set it in motion too, instead of leaving it paused.
    #[serde(default)]
    pub resume: bool,
}

impl RestoreRequest {
    pub(super) fn options(&self) -> RestoreOptions {
        RestoreOptions {
            asked: self.memory_mode,
            no_prefetch: self.no_prefetch,
            clone_directory: self.clone_directory.clone(),
            overrides: self.overrides.clone(),
        }
    }
}

/// How the memory of a restored VM came.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryInfo {
    /// What was asked for, what happened, and why.
    #[serde(flatten)]
    pub plan: Plan,
    /// How far loading on demand is, if that is what happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_demand: Option<Progress>,
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
    pub memory_mode: Option<MemoryInfo>,
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
