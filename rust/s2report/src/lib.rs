// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Reads results of the stage-2 destroy bench, pairs upstream with ours, and turns the pairs into
//! a table, a picture and a verdict.
//!
//! Input is either one row per line (what `s2_destroy_time --json` prints) or a whole document
//! (what this program writes). A figure that was not measured is null on the way in and on the
//! way out, and never counts as zero.

pub mod document;
pub mod format;
pub mod limits;
pub mod metric;
pub mod pairs;
pub mod row;
pub mod svg;
pub mod table;
