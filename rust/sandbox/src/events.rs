// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The event log: one JSON object per line, as things happen.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use serde::Serialize;
use serde_json::{json, Value};

use crate::reaper::Report;

/// Where events go; by default nowhere.
#[derive(Debug)]
pub struct EventLog {
    start: Instant,
    file: Option<Mutex<File>>,
}

impl Default for EventLog {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            file: None,
        }
    }
}

impl EventLog {
    /// Appends events to a file.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self {
            file: Some(Mutex::new(file)),
            ..Self::default()
        })
    }

    /// Writes one event: when (since the log was opened), of what, which, and
    /// whatever belongs to it.
    pub fn emit(&self, source: &str, event: &str, properties: impl Serialize) {
        let Some(file) = &self.file else {
            return;
        };
        let line = json!({
            "timestamp_ns": u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX),
            "source": source,
            "event": event,
            "properties": serde_json::to_value(properties).unwrap_or(Value::Null),
        });
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        // A log on a full disk must not stop the VM. One write per line keeps
        // lines whole when several processes append.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }

    /// Writes how a release ended.
    pub fn release(&self, report: &Report) {
        let event = if report.failure.is_some() {
            "release-failed"
        } else {
            "released"
        };
        let properties = json!({
            "label": report.label,
            "bytes": report.bytes,
            "placement": report.placement,
            "time_ns": u64::try_from(report.time.as_nanos()).unwrap_or(u64::MAX),
            "failure": report.failure,
        });
        self.emit("reaper", event, properties);
    }
}
