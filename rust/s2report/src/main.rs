// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Command line of the report.

use clap::Parser;
use s2report::document::Document;
use s2report::limits::{self, Limit, Verdict};
use s2report::metric::Metric;
use s2report::{svg, table};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const PAST_LIMIT: u8 = 1;
const BAD_INPUT: u8 = 2;
// What `git bisect run` takes for "cannot tell".
const CANNOT_TELL: u8 = 125;

/// Print results of the stage-2 destroy bench as a table, draw them, and judge them.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Exit: 0 good, 1 past a limit, 2 bad usage or input, 125 nothing to judge (--max).

Examples:
  s2report rows.jsonl --kernel 7.3.4 --json destroy.json --svg destroy.svg
  s2report destroy.json --metric close_insns
  s2report destroy.json --limits limits.toml
  s2report rows.jsonl --case empty --metric close_insns --max 500000"
)]
struct Cli {
    /// Rows, one JSON object per line, or documents written by --json; `-` is stdin.
    #[arg(value_name = "FILE", default_value = "-")]
    files: Vec<PathBuf>,
    /// Release of the measured kernel, where the input does not say.
    #[arg(long, value_name = "RELEASE")]
    kernel: Option<String>,
    /// Something to remember about the measured machine (may be repeated).
    #[arg(long, value_name = "NAME=WORDS", value_parser = name_and_words)]
    host: Vec<(String, String)>,
    /// The compared figure.
    #[arg(long, value_enum, default_value_t = Metric::DestroyInsns)]
    metric: Metric,
    /// Write all rows as one document.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw upstream against ours.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Judge the rows by a file of limits.
    #[arg(long, value_name = "FILE")]
    limits: Option<PathBuf>,
    /// Judge --metric of every row: more than N is bad.
    #[arg(long, value_name = "N")]
    max: Option<f64>,
    /// The only cases that --max is about.
    #[arg(long, requires = "max")]
    case: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("s2report: {message}");
            ExitCode::from(BAD_INPUT)
        }
    }
}

fn run(cli: &Cli) -> Result<u8, String> {
    let document = read_all(cli)?;
    let limits = match &cli.limits {
        Some(path) => limits::parse(&read(path)?).map_err(|e| at(path, e))?,
        None => Vec::new(),
    };
    if let Some(path) = &cli.json {
        let json = serde_json::to_string_pretty(&document).map_err(|e| at(path, e))?;
        write(path, &(json + "\n"))?;
    }
    if let Some(path) = &cli.svg {
        write(path, &svg::render(&document, cli.metric))?;
    }
    print!("{}", table::render(&document, cli.metric));
    let code = judge(&limits, &document);
    match cli.max {
        Some(max) if code == 0 => Ok(bisect(cli, max, &document)),
        _ => Ok(code),
    }
}

fn read_all(cli: &Cli) -> Result<Document, String> {
    let mut kernel = cli.kernel.clone();
    let mut host: BTreeMap<String, String> = BTreeMap::new();
    let mut rows = Vec::new();
    for path in &cli.files {
        let document = Document::parse(&read(path)?).map_err(|e| at(path, e))?;
        kernel = kernel.or(document.kernel);
        host.extend(document.host);
        rows.extend(document.rows);
    }
    host.extend(cli.host.iter().cloned());
    Ok(Document {
        host,
        ..Document::new(kernel, rows)
    })
}

fn name_and_words(text: &str) -> Result<(String, String), String> {
    let (name, words) = text.split_once('=').ok_or("not NAME=WORDS")?;
    Ok((name.to_owned(), words.to_owned()))
}

fn judge(limits: &[Limit], document: &Document) -> u8 {
    let mut code = 0;
    if !limits.is_empty() {
        println!();
    }
    for limit in limits {
        let verdict = limit.judge(document);
        println!("{} {limit}, {verdict}", verdict.word());
        if verdict.is_failure() {
            code = PAST_LIMIT;
        }
    }
    code
}

fn bisect(cli: &Cli, max: f64, document: &Document) -> u8 {
    let limit = Limit::on_all(cli.metric, max, cli.case.clone());
    let verdict = limit.judge(document);
    let (word, code) = match verdict {
        Verdict::Good(_) => ("good", 0),
        Verdict::Past(_) => ("bad", PAST_LIMIT),
        Verdict::NotMeasured | Verdict::NotRun => ("cannot tell", CANNOT_TELL),
    };
    println!("\n{word}: {limit}, {verdict}");
    code
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path.to_str() {
        Some("-") => io::stdin().read_to_string(&mut text).map(|_| text),
        _ => fs::read_to_string(path),
    };
    read.map_err(|e| at(path, e))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| at(path, e))
}

fn at(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
