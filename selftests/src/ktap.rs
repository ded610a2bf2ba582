// SPDX-License-Identifier: GPL-2.0

//! KTAP, the kernel's test protocol.

use crate::Result;
use crate::Stop;
use std::io;
use std::io::Write;

/// Exit code of a run whose tests were all skipped.
pub const EXIT_SKIP: u8 = 4;

/// Writes numbered results and remembers the totals.
#[derive(Debug)]
pub struct Ktap<W> {
    out: W,
    total: usize,
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl<W: Write> Ktap<W> {
    /// Starts a report of `total` tests.
    ///
    /// # Errors
    ///
    /// When `out` cannot be written; so for all methods here.
    pub fn start(mut out: W, total: usize) -> io::Result<Self> {
        writeln!(out, "TAP version 13\n1..{total}")?;
        Ok(Ktap {
            out,
            total,
            passed: 0,
            failed: 0,
            skipped: 0,
        })
    }

    /// A diagnostic: figures and remarks that are no verdict.
    pub fn note(&mut self, text: &str) -> io::Result<()> {
        text.lines().try_for_each(|l| writeln!(self.out, "# {l}"))?;
        self.out.flush()
    }

    /// The verdict on the next test.
    pub fn verdict<T>(&mut self, name: &str, result: &Result<T>) -> io::Result<()> {
        let number = self.passed + self.failed + self.skipped + 1;
        match result {
            Ok(_) => {
                self.passed += 1;
                writeln!(self.out, "ok {number} {name}")?;
            }
            Err(Stop::Skip(reason)) => {
                self.skipped += 1;
                writeln!(self.out, "ok {number} {name} # SKIP {reason}")?;
            }
            Err(Stop::Fail(reason)) => {
                self.failed += 1;
                writeln!(self.out, "# {reason}\nnot ok {number} {name}")?;
            }
        }
        self.out.flush()
    }

    /// Writes the totals and returns the exit code: 0, 1, or [`EXIT_SKIP`].
    pub fn finish(mut self) -> io::Result<u8> {
        writeln!(
            self.out,
            "# Totals: pass:{} fail:{} xfail:0 xpass:0 skip:{} error:0",
            self.passed, self.failed, self.skipped
        )?;
        self.out.flush()?;
        Ok(self.exit_code())
    }

    fn exit_code(&self) -> u8 {
        let seen = self.passed + self.failed + self.skipped;
        if self.failed > 0 || seen != self.total {
            1
        } else if self.passed == 0 {
            EXIT_SKIP
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(results: &[Result<()>]) -> (String, u8) {
        let mut out = Vec::new();
        let mut ktap = Ktap::start(&mut out, results.len()).unwrap();
        for result in results {
            ktap.verdict("name", result).unwrap();
        }
        let code = ktap.finish().unwrap();
        (String::from_utf8(out).unwrap(), code)
    }

    #[test]
    fn a_failure_shows_its_reason_and_fails_the_run() {
        let (text, code) = report(&[Ok(()), Err(Stop::Fail("leaked 3 pages".into()))]);
        assert!(text.starts_with("TAP version 13\n1..2\nok 1 name\n"));
        assert!(text.contains("# leaked 3 pages\nnot ok 2 name\n"));
        assert!(text.ends_with("# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:0 error:0\n"));
        assert_eq!(code, 1);
    }

    #[test]
    fn only_a_run_of_skips_is_a_skip() {
        let skip = Err(Stop::Skip("no /dev/kvm".into()));
        let (text, code) = report(std::slice::from_ref(&skip));
        assert!(text.contains("ok 1 name # SKIP no /dev/kvm\n"));
        assert_eq!(code, EXIT_SKIP);
        assert_eq!(report(&[skip, Ok(())]).1, 0);
    }

    #[test]
    fn a_test_that_never_reported_fails_the_run() {
        let mut out = Vec::new();
        let mut ktap = Ktap::start(&mut out, 2).unwrap();
        ktap.verdict("name", &Ok(())).unwrap();
        assert_eq!(ktap.finish().unwrap(), 1);
    }
}
