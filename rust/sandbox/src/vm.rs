// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A VM, whose type says what may be done with it.
//!
//! A [`PausedVm`] has no threads: its vCPUs stand still and its device workers
//! have ended. Only it can be saved or torn down. A [`RunningVm`] owns the
//! threads; pausing it joins them all.

mod core;
mod paused;
mod restore;
mod running;

pub use paused::{CreateError, PausedVm, Release, TeardownReport};
pub use restore::{restore, Overrides, RestoreError, RestoreOptions};
pub use running::{ResumeError, RunningVm};
