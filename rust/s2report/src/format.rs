// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Numbers for human eyes.

/// Three significant digits and a suffix, `7_340_000` is `7.34 M`; four digits below 0.1.
pub fn count(value: f64) -> String {
    const SUFFIXES: [&str; 5] = ["", " k", " M", " G", " T"];
    let mut scaled = value;
    let mut step = 0;
    // 999.5 would be written with four digits.
    while scaled >= 999.5 && step + 1 < SUFFIXES.len() {
        scaled /= 1000.0;
        step += 1;
    }
    let digits = match step {
        0 if value.fract() == 0.0 => 0,
        _ => digits(scaled),
    };
    format!("{scaled:.digits$}{}", SUFFIXES[step])
}

// After the point, for three significant ones in all.
fn digits(value: f64) -> usize {
    match value {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.0995 || v == 0.0 => 2,
        _ => 4,
    }
}

/// A count, or `-` when there is none.
pub fn count_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), count)
}

/// Bytes in the largest binary unit that leaves a whole number.
pub fn size(bytes: u64) -> String {
    const SUFFIXES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = bytes;
    let mut step = 0;
    while scaled != 0 && scaled % 1024 == 0 && step + 1 < SUFFIXES.len() {
        scaled /= 1024;
        step += 1;
    }
    match bytes {
        0 => "0".into(),
        _ => format!("{scaled} {}", SUFFIXES[step]),
    }
}

/// How often `ours` fits into `upstream`, or `-` when that has no answer.
pub fn ratio(upstream: Option<f64>, ours: Option<f64>) -> String {
    match (upstream, ours) {
        (Some(c), Some(rust)) if rust > 0.0 => {
            let times = c / rust;
            let digits = digits(times);
            format!("{times:.digits$}x")
        }
        _ => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_keep_three_digits() {
        let shown = [
            (0.0, "0"),
            (2.0, "2"),
            (4.234, "4.23"),
            (109.4, "109"),
            (999.0, "999"),
            (999.6, "1.00 k"),
            (1000.0, "1.00 k"),
            (50_941_118.0, "50.9 M"),
            (211_000_000.0, "211 M"),
            (1.5e15, "1500 T"),
        ];
        for (value, text) in shown {
            assert_eq!(count(value), text);
        }
    }

    #[test]
    fn sizes_are_whole() {
        assert_eq!(size(0), "0");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(256 << 20), "256 MiB");
        assert_eq!(size((1 << 30) + 4096), "1048580 KiB");
        assert_eq!(size(128 << 30), "128 GiB");
    }

    #[test]
    fn ratio_needs_both_and_something_to_divide_by() {
        assert_eq!(ratio(Some(109.0), Some(4.0)), "27.2x");
        assert_eq!(ratio(Some(52.0), Some(2.0)), "26.0x");
        assert_eq!(ratio(Some(50_800_000.0), Some(3_100.0)), "16387x");
        assert_eq!(ratio(Some(109.0), Some(0.0)), "-");
        assert_eq!(ratio(None, Some(4.0)), "-");
    }
}
