// SPDX-License-Identifier: GPL-2.0

//! Why a test ended before its verdict.

use std::fmt;

/// A test that cannot be judged, or one that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stop {
    /// The machine lacks what the test needs.
    Skip(String),
    /// The kernel did not behave as it must.
    Fail(String),
}

/// Result of a step of a test.
pub type Result<T> = std::result::Result<T, Stop>;

impl Stop {
    /// A closure for `map_err`: the step failed, and the error says how.
    pub fn failed<E: fmt::Display>(step: &str) -> impl FnOnce(E) -> Stop + '_ {
        move |error| Stop::Fail(format!("{step}: {error}"))
    }

    /// A closure for `map_err`: the machine does not offer this.
    pub fn missing<E: fmt::Display>(what: &str) -> impl FnOnce(E) -> Stop + '_ {
        move |error| Stop::Skip(format!("{what}: {error}"))
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Skip(reason) | Stop::Fail(reason) => f.write_str(reason),
        }
    }
}
