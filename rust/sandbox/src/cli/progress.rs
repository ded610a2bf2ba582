// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Signs of life for work that takes a while, on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A spinner with the time that has passed.
pub(crate) fn spinner(what: impl Into<String>) -> ProgressBar {
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}");
    let bar = ProgressBar::new_spinner().with_message(what.into());
    bar.enable_steady_tick(Duration::from_millis(100));
    // The template is a constant; a bad one only loses its looks.
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// A bar for `length` steps.
pub(crate) fn bar(length: u64, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(length).with_message(what.to_owned());
    match ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {elapsed} (left {eta})") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
