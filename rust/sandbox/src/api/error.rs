// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What can go wrong with a request, and the HTTP status that says so.

use crate::hugepages::PoolError;
use crate::memory::MemoryError;
use crate::snapshot::SaveError;
use crate::vm::{CreateError, RestoreError};

/// A request that was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body cannot be read.
    #[error("request body: {0}")]
    Body(String),
    /// The body is too large.
    #[error("request body has more than {0} bytes")]
    TooLarge(usize),
    /// No such path.
    #[error("unknown path {0:?}; known are {list}", list = super::http::PATHS.join(", "))]
    Path(String),
    /// Wrong verb.
    #[error("use {0} for this path")]
    Method(&'static str),
    /// A place that is not a file URL.
    #[error("{0:?} is not of the form file:///path")]
    Url(String),
    /// There is no VM.
    #[error("there is no VM; use vm.create or vm.restore")]
    NoVm,
    /// There was a VM, and its memory is still going.
    #[error("the VM has been paused to its snapshot; use vm.restore")]
    PausedOut,
    /// There is a VM already.
    #[error("there is a VM already; delete it first")]
    Exists,
    /// Another operation has the VM.
    #[error("the VM is busy: {0} is going on")]
    Busy(&'static str),
    /// The VM is not in the state that the operation needs.
    #[error("the VM is {found}; {operation} needs it {needed}")]
    State {
        /// What was asked.
        operation: &'static str,
        /// What the VM is.
        found: &'static str,
        /// What it should be.
        needed: &'static str,
    },
    /// Restoring now could exhaust the host.
    #[error("restoring needs {needed} bytes, the host has {available} available and nothing more is being released")]
    NoMemory {
        /// Bytes of the guest.
        needed: u64,
        /// Bytes there are.
        available: u64,
    },
    /// The VM could not be made.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// The snapshot could not be written.
    #[error(transparent)]
    Save(#[from] SaveError),
    /// The snapshot could not be restored.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// Threads could not be started.
    #[error("{0}")]
    Resume(String),
    /// The operation panicked.
    #[error("internal error; see the log of the VMM")]
    Panicked,
}

impl ApiError {
    /// The HTTP status for it.
    pub fn status(&self) -> u16 {
        match self {
            Self::Body(_) | Self::Url(_) => 400,
            Self::Create(error) | Self::Restore(RestoreError::Create(error)) => create(error),
            Self::Restore(RestoreError::Overrides { .. }) => 400,
            Self::Path(_) | Self::NoVm | Self::PausedOut => 404,
            Self::Method(_) => 405,
            Self::Exists | Self::Busy(_) | Self::State { .. } => 409,
            Self::TooLarge(_) => 413,
            // What the request names is not fit for it: the client's to change.
            Self::Restore(RestoreError::Load(_) | RestoreError::Refused(_)) => 422,
            Self::Restore(RestoreError::Memory(error)) => memory(error),
            Self::Save(SaveError::Occupied(_)) => 422,
            Self::Save(error) if error.is_no_space() => 507,
            Self::NoMemory { .. } => 503,
            _ => 500,
        }
    }
}

fn create(error: &CreateError) -> u16 {
    match error {
        CreateError::Config(_) => 400,
        CreateError::Kernel(_) | CreateError::Device(_) => 422,
        CreateError::Memory(error) => memory(error),
        _ => 500,
    }
}

fn memory(error: &MemoryError) -> u16 {
    match error {
        MemoryError::Pool(PoolError::Short { .. }) => 503,
        MemoryError::Pool(_) | MemoryError::File(_) => 422,
        _ => 500,
    }
}
