// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Reading rows from text, and the document that keeps them.

use crate::row::Row;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use thiserror::Error;

/// Version of the document's layout.
pub const SCHEMA: u32 = 1;

/// Why rows could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The text is not JSON, or a row is not as it should be.
    #[error("line {line}: {what}")]
    Line {
        /// Line of the input, from 1.
        line: usize,
        /// What is wrong there.
        what: String,
    },
    /// A row of a document is not as it should be.
    #[error("row {row}: {what}")]
    Row {
        /// Row of the document, from 1.
        row: usize,
        /// What is wrong there.
        what: String,
    },
    /// `host` is no object of words.
    #[error("host: {0}")]
    Host(String),
    /// The document is of another layout.
    #[error("schema {0} is not known here (this program knows {SCHEMA})")]
    Schema(Value),
}

/// All rows of one run of the bench.
#[derive(Debug, Default, PartialEq, Serialize)]
pub struct Document {
    /// Layout of the document, [`SCHEMA`].
    pub schema: u32,
    /// Release of the measured kernel; null when nobody said.
    pub kernel: Option<String>,
    /// What else is known of the machine, such as its CPU: words by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub host: BTreeMap<String, String>,
    /// The rows in the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Document {
    /// A document of `rows` measured on `kernel`.
    pub fn new(kernel: Option<String>, rows: Vec<Row>) -> Document {
        Document {
            schema: SCHEMA,
            kernel,
            host: BTreeMap::new(),
            rows,
        }
    }

    /// Reads a document, or one row per line; empty lines are skipped.
    ///
    /// # Errors
    ///
    /// Names the line or row at fault. Nothing is dropped in silence.
    pub fn parse(text: &str) -> Result<Document, ReadError> {
        match serde_json::from_str::<Value>(text) {
            Ok(value) if value.get("schema").is_some() => Document::from_value(value),
            _ => Ok(Document::new(None, parse_lines(text)?)),
        }
    }

    fn from_value(mut value: Value) -> Result<Document, ReadError> {
        if value["schema"] != SCHEMA {
            return Err(ReadError::Schema(value["schema"].take()));
        }
        let kernel = value["kernel"].as_str().map(str::to_owned);
        let Value::Array(rows) = value["rows"].take() else {
            return Err(ReadError::Row {
                row: 1,
                what: "`rows` is not an array".into(),
            });
        };
        let rows = rows.into_iter().enumerate().map(|(i, value)| {
            Row::from_value(value).map_err(|what| ReadError::Row { row: i + 1, what })
        });
        let host = match value["host"].take() {
            Value::Null => BTreeMap::new(),
            host => serde_json::from_value(host).map_err(|e| ReadError::Host(e.to_string()))?,
        };
        Ok(Document {
            host,
            ..Document::new(kernel, rows.collect::<Result<_, _>>()?)
        })
    }
}

fn parse_lines(text: &str) -> Result<Vec<Row>, ReadError> {
    text.lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(i, line)| {
            serde_json::from_str(line)
                .map_err(|e| e.to_string())
                .and_then(Row::from_value)
                .map_err(|what| ReadError::Line { line: i + 1, what })
        })
        .collect()
}
