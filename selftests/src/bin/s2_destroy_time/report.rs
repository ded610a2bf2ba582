// SPDX-License-Identifier: GPL-2.0

//! Verdicts and figures on their way out: KTAP, or JSON lines.

use s2_selftests::ktap::Ktap;
use s2_selftests::row::Row;
use s2_selftests::Result;
use s2_selftests::Stop;
use std::io;
use std::io::Stderr;
use std::io::Stdout;
use std::io::Write;

/// Where results go.
pub(crate) enum Report {
    /// KTAP on stdout.
    Ktap(Ktap<Stdout>),
    /// Rows on stdout, verdicts as KTAP on stderr.
    Json(Ktap<Stderr>),
}

impl Report {
    pub(crate) fn start(json: bool, tests: usize) -> io::Result<Self> {
        Ok(if json {
            Report::Json(Ktap::start(io::stderr(), tests)?)
        } else {
            Report::Ktap(Ktap::start(io::stdout(), tests)?)
        })
    }

    pub(crate) fn note(&mut self, text: &str) -> io::Result<()> {
        match self {
            Report::Ktap(ktap) => ktap.note(text),
            Report::Json(ktap) => ktap.note(text),
        }
    }

    /// The outcome of one test; a test that only checks has no row.
    pub(crate) fn test(&mut self, name: &str, result: &Result<Option<Row>>) -> io::Result<()> {
        if let Ok(Some(row)) = result {
            self.row(row)?;
        }
        match self {
            Report::Ktap(ktap) => ktap.verdict(name, result),
            Report::Json(ktap) => ktap.verdict(name, result),
        }
    }

    fn row(&mut self, row: &Row) -> io::Result<()> {
        if let Some(remark) = &row.remark {
            self.note(remark)?;
        }
        match self {
            Report::Ktap(ktap) => ktap.note(&row.summary()),
            Report::Json(_) => {
                let line = serde_json::to_string(row)?;
                writeln!(io::stdout(), "{line}")
            }
        }
    }

    /// Writes the totals and returns the exit code.
    pub(crate) fn finish(self) -> io::Result<u8> {
        match self {
            Report::Ktap(ktap) => ktap.finish(),
            Report::Json(ktap) => ktap.finish(),
        }
    }

    /// All tests end the same way, for a reason that has nothing to do with
    /// any of them.
    pub(crate) fn all(mut self, names: &[String], stop: &Stop) -> io::Result<u8> {
        for name in names {
            self.test(name, &Err(stop.clone()))?;
        }
        self.finish()
    }
}
