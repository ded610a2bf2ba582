// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! What a reaper counts and tells.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// Figures of a reaper since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Bytes not yet given back.
    pub pending_bytes: u64,
    /// Releases not yet ended.
    pub pending: usize,
    /// The most bytes that were ever pending at once.
    pub peak_pending_bytes: u64,
    /// Releases that ran in the background and ended well.
    pub released: u64,
    /// Releases that ran on the caller's thread and ended well.
    pub inline: u64,
    /// Releases that ended in an error or a panic, wherever they ran.
    pub failed: u64,
    /// Bytes of the releases that ended well.
    pub released_bytes: u64,
    /// Time spent inside releases, in nanoseconds.
    pub busy_ns: u64,
}

/// Where a release ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// On a thread of its own; the caller went on.
    Deferred,
    /// On the caller's thread; it had ended when the call returned.
    Inline(WhyInline),
}

/// Why a release was not deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhyInline {
    /// The caller asked for it.
    Asked,
    /// Pending bytes would have passed their bound.
    Bytes,
    /// Pending releases would have passed their bound.
    Count,
    /// No thread could be started (a pids limit, no memory for a stack).
    NoThread,
    /// The reaper has been shut down.
    ShutDown,
}

/// One ended release.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the caller named it.
    pub label: String,
    /// Bytes it accounted for.
    pub bytes: u64,
    /// Where it ran.
    pub placement: Placement,
    /// How long it ran.
    pub time: Duration,
    /// Why it failed, if it did.
    pub failure: Option<Cause>,
}

/// A release that did not end well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// What the caller named it.
    pub label: String,
    /// Bytes that may not have come back.
    pub bytes: u64,
    /// What happened.
    pub cause: Cause,
}

/// How a release failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// It returned this error.
    Error(String),
    /// It panicked with this message.
    Panic(String),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Error(text) => f.write_str(text),
            Self::Panic(text) => write!(f, "panicked: {text}"),
        }
    }
}
