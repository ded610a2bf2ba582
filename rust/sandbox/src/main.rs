// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The `sandbox` program: a VMM process and the commands that talk to one.

mod bench;
mod cli;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match cli::Arguments::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: {error}");
            ExitCode::FAILURE
        }
    }
}
