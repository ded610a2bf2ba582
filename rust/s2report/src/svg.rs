// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A picture of upstream against ours: one pair of bars per case on a logarithmic scale.

use crate::document::Document;
use crate::format::{count, ratio};
use crate::metric::Metric;
use crate::pairs::{pair, Pair};
use crate::row::{Impl, Mode};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 250.0;
const RIGHT: f64 = 90.0;
const TOP: f64 = 92.0;
const HEADING: f64 = 38.0;
const BAR: f64 = 11.0;
const CASE: f64 = 2.0 * BAR + 10.0;
const BOTTOM: f64 = 34.0;

const SIDES: [Side; 2] = [
    Side {
        implementation: Impl::C,
        name: "upstream",
        fill: "#c9783f",
    },
    Side {
        implementation: Impl::Rust,
        name: "ours",
        fill: "#2f6fab",
    },
];

struct Side {
    implementation: Impl,
    name: &'static str,
    fill: &'static str,
}

const STYLE: &str = "\
text { font: 12px system-ui, 'DejaVu Sans', Arial, sans-serif; fill: #24292f }
.title { font-size: 17px; font-weight: 600 }
.mode { font-size: 14px; font-weight: 600 }
.quiet { fill: #6b7280; font-size: 11px }
.value { font-size: 10px }
.end { text-anchor: end }
.mid { text-anchor: middle }
line { stroke: #e3e6ea }
";

/// Renders `document` as an SVG picture of `metric`.
pub fn render(document: &Document, metric: Metric) -> String {
    let pairs = pair(&document.rows);
    let scale = Scale::over(&pairs, metric);
    let sides = measured_sides(&pairs, metric);
    let height = TOP + body_height(&pairs) + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         width=\"{WIDTH}\" height=\"{height}\" role=\"img\">\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
    );
    header(&mut svg, document, metric, &sides);
    scale.draw(&mut svg, height);
    let mut y = TOP;
    let mut mode = None;
    for pair in &pairs {
        if mode != Some(pair.key.mode) {
            mode = Some(pair.key.mode);
            text(&mut svg, 20.0, y + 26.0, "mode", heading(pair.key.mode));
            y += HEADING;
        }
        label(&mut svg, y, pair);
        bars(&mut svg, y, pair, metric, &scale, &sides);
        y += CASE;
    }
    svg + "</svg>\n"
}

// A kernel without the component has one side only: no word about the other then.
fn measured_sides(pairs: &[Pair<'_>], metric: Metric) -> Vec<Side> {
    let measured = |side: &Side| {
        let mut figures = pairs.iter().map(|p| p.figure(side.implementation, metric));
        figures.any(|figure| figure.is_some())
    };
    SIDES.into_iter().filter(measured).collect()
}

fn heading(mode: Mode) -> &'static str {
    match mode {
        Mode::Vhe => "VHE",
        Mode::Nvhe => "nVHE",
        Mode::Protected => "protected (pKVM)",
    }
}

fn body_height(pairs: &[Pair<'_>]) -> f64 {
    let changes = pairs.windows(2).filter(|w| w[0].key.mode != w[1].key.mode);
    let headings = changes.count() + usize::from(!pairs.is_empty());
    headings as f64 * HEADING + pairs.len() as f64 * CASE
}

fn header(svg: &mut String, document: &Document, metric: Metric, sides: &[Side]) {
    let kernel = document.kernel.as_deref().unwrap_or("(release not given)");
    let title = format!("Destroying a KVM guest's stage-2 tables, Linux {kernel}");
    text(svg, 20.0, 28.0, "title", &title);
    let unit = format!(
        "{metric}: {}, logarithmic scale; shorter is better",
        metric.unit()
    );
    text(svg, 20.0, 48.0, "quiet", &unit);
    for (i, side) in sides.iter().enumerate() {
        let x = 20.0 + 90.0 * i as f64;
        bar(svg, x, 60.0, 12.0, side.fill);
        text(svg, x + 18.0, 70.0, "", side.name);
    }
    if sides.len() == SIDES.len() {
        text(svg, WIDTH - 16.0, 70.0, "quiet end", "upstream / ours");
    }
}

fn label(svg: &mut String, y: f64, pair: &Pair<'_>) {
    let x = LEFT - 12.0;
    let how = format!("{}, IPA {}", pair.key.how(), pair.key.ipa_bits);
    text(svg, x, y + 10.0, "end", &pair.key.what());
    text(svg, x, y + 22.0, "quiet end", &how);
}

fn bars(svg: &mut String, y: f64, pair: &Pair<'_>, metric: Metric, scale: &Scale, sides: &[Side]) {
    // One bar alone stands in the middle of the two lines of its label.
    let mut top = y + if sides.len() == 1 { 6.0 } else { 0.0 };
    for side in sides {
        scale.bar(
            svg,
            top,
            pair.figure(side.implementation, metric),
            side.fill,
        );
        top += BAR + 1.0;
    }
    if sides.len() == SIDES.len() {
        let [upstream, ours] = SIDES.map(|side| pair.figure(side.implementation, metric));
        text(svg, WIDTH - 16.0, y + 16.0, "end", &ratio(upstream, ours));
    }
}

/// Whole decades that hold every figure.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn over(pairs: &[Pair<'_>], metric: Metric) -> Scale {
        let both = |pair: &Pair<'_>| [Impl::C, Impl::Rust].map(|side| pair.figure(side, metric));
        let logs = pairs.iter().flat_map(both).flatten();
        let logs: Vec<f64> = logs.filter(|x| *x > 0.0).map(f64::log10).collect();
        if logs.is_empty() {
            return Scale { low: 0, high: 1 };
        }
        // A little below the lowest figure, so that its bar can still be seen.
        let low = logs.iter().copied().fold(f64::MAX, f64::min) - 0.1;
        let high = logs.iter().copied().fold(f64::MIN, f64::max) + 0.1;
        Scale {
            low: low.floor() as i32,
            high: high.ceil() as i32,
        }
    }

    fn x(&self, log: f64) -> f64 {
        // The label of the longest bar still needs room.
        let room = WIDTH - RIGHT - LEFT - 45.0;
        LEFT + room * (log - f64::from(self.low)) / f64::from(self.high - self.low)
    }

    fn draw(&self, svg: &mut String, height: f64) {
        let bottom = height - BOTTOM + 4.0;
        for decade in self.low..=self.high {
            let x = self.x(f64::from(decade));
            let _ = writeln!(
                svg,
                r#"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom}"/>"#
            );
            let label = decade_label(decade);
            text(svg, x, TOP - 6.0, "quiet mid", &label);
            text(svg, x, bottom + 14.0, "quiet mid", &label);
        }
    }

    fn bar(&self, svg: &mut String, y: f64, value: Option<f64>, fill: &str) {
        let (end, label) = match value {
            Some(value) if value > 0.0 => (self.x(value.log10()), count(value)),
            Some(_) => (LEFT, "0".into()),
            None => (LEFT, "not measured".into()),
        };
        bar(svg, LEFT, y, end - LEFT, fill);
        let class = if value.is_some() {
            "value"
        } else {
            "value quiet"
        };
        text(svg, end + 5.0, y + BAR - 1.5, class, &label);
    }
}

fn decade_label(decade: i32) -> String {
    match decade {
        ..0 => format!("{:.*}", decade.unsigned_abs() as usize, 10f64.powi(decade)),
        // Written "10 k", not "10.0 k": a decade is exact.
        _ => count(10f64.powi(decade))
            .replace(".00", "")
            .replace(".0", ""),
    }
}

fn bar(svg: &mut String, x: f64, y: f64, width: f64, fill: &str) {
    let _ = writeln!(
        svg,
        r#"<rect x="{x}" y="{y}" width="{width:.1}" height="{BAR}" rx="1.5" fill="{fill}"/>"#
    );
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        r#"<text x="{x:.1}" y="{y:.1}" class="{class}">{words}</text>"#
    );
}
