// SPDX-License-Identifier: GPL-2.0

//! How long a small VM takes to close while a large one dies.

mod big;
mod options;
mod small;

use clap::Parser;
use options::Options;
use s2_selftests::host;
use s2_selftests::host::Mode;
use s2_selftests::ktap::Ktap;
use s2_selftests::size;
use s2_selftests::spec::word;
use s2_selftests::stats;
use s2_selftests::stats::ImplGuard;
use s2_selftests::Result;
use s2_selftests::Stop;
use serde::Serialize;
use small::Closes;
use small::Pool;
use std::io;
use std::process::ExitCode;

/// One result, as programs read it. Times are in ns of the machine's clock.
#[derive(Debug, Serialize)]
struct Row {
    mode: Mode,
    r#impl: String,
    case: &'static str,
    order: String,
    guest: String,
    size_bytes: u64,
    closes: usize,
    idle_p50_ns: u64,
    idle_p99_ns: u64,
    close_p50_ns: u64,
    close_p99_ns: u64,
    close_max_ns: u64,
    /// p99 while the large VM dies, over p99 when nothing else happens.
    close_ratio: f64,
    death_ns: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let code = match options.die {
        true => big::die(&options).map(|()| 0),
        false => run(&options),
    };
    match code {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("s2_neighbour: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<u8> {
    let name = format!(
        "neighbour {} {} {}",
        size::format(options.size),
        word(options.order),
        word(options.guest)
    );
    if options.json {
        match measure(options) {
            Ok(row) => println!("{}", serde_json::to_string(&row)?),
            Err(stop) => eprintln!("# {name}: {stop}"),
        }
        return Ok(0);
    }
    let mut ktap = Ktap::start(io::stdout(), 1)?;
    let result = measure(options);
    if let Ok(row) = &result {
        ktap.note(&row.summary())?;
    }
    ktap.verdict(&name, &result.and_then(|row| row.judge(options)))?;
    ktap.finish()
}

fn measure(options: &Options) -> Result<Row> {
    let kvm = host::open_kvm()?;
    host::stay_on_cpu(0)?;
    let _chosen = match options.implementation.as_deref() {
        Some(name) => Some(ImplGuard::select(name)?),
        None => None,
    };
    // The first close still waits for what the boot left behind.
    Pool::build(&kvm, 1)?.close_while(|| true);
    let (mut idle, mut busy) = (Closes::default(), Closes::default());
    let mut death_ns = 0;
    // In turn, so that whatever else this machine does hits both alike.
    for _ in 0..options.deaths {
        idle.add(Pool::build(&kvm, options.closes)?.close_while(|| true));
        let pool = Pool::build(&kvm, options.closes)?;
        let (closes, ns) = big::with_dying(options, pool)?;
        busy.add(closes);
        death_ns += ns;
    }
    Row::new(options, &idle, &busy, death_ns / u64::from(options.deaths))
}

impl Row {
    fn new(options: &Options, idle: &Closes, busy: &Closes, death_ns: u64) -> Result<Self> {
        let none = || Stop::Fail("the large VM died before a small one could be closed".into());
        let at = |closes: &Closes, percent| closes.percentile(percent).ok_or_else(none);
        let (idle_p99_ns, close_p99_ns) = (at(idle, 99)?, at(busy, 99)?);
        Ok(Row {
            mode: host::mode(),
            r#impl: stats::current_impl(),
            case: "neighbour",
            order: word(options.order),
            guest: word(options.guest),
            size_bytes: options.size,
            closes: busy.len(),
            idle_p50_ns: at(idle, 50)?,
            idle_p99_ns,
            close_p50_ns: at(busy, 50)?,
            close_p99_ns,
            close_max_ns: at(busy, 100)?,
            close_ratio: (100.0 * close_p99_ns as f64 / idle_p99_ns as f64).round() / 100.0,
            death_ns,
        })
    }

    fn summary(&self) -> String {
        format!(
            "{}: {} closes while a large VM died ({} us): p50 {} us, p99 {} us, longest {} us; \
             idle: p50 {} us, p99 {} us; ratio of p99 {}",
            self.r#impl,
            self.closes,
            self.death_ns / 1000,
            self.close_p50_ns / 1000,
            self.close_p99_ns / 1000,
            self.close_max_ns / 1000,
            self.idle_p50_ns / 1000,
            self.idle_p99_ns / 1000,
            self.close_ratio
        )
    }

    fn judge(&self, options: &Options) -> Result<()> {
        let share = self.close_max_ns as f64 / self.death_ns as f64;
        match (options.max_ratio, options.max_share) {
            (Some(max), _) if self.close_ratio > max => Err(Stop::Fail(format!(
                "p99 is {} times that of an idle host, more than {max}",
                self.close_ratio
            ))),
            (_, Some(max)) if share > max => Err(Stop::Fail(format!(
                "a close took {share:.2} of the large VM's end, more than {max}"
            ))),
            _ => Ok(()),
        }
    }
}
