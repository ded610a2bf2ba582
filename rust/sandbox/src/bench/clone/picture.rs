// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! A picture: the share of clones that had answered, over time.

use std::path::Path;

use plotters::prelude::*;

use super::report::Report;
use super::{Failure, Times, MODES};

/// Told apart by people who see colours differently, too.
const COLOURS: [RGBColor; 5] = [
    RGBColor(201, 120, 63),
    RGBColor(47, 111, 171),
    RGBColor(0, 130, 100),
    RGBColor(200, 80, 160),
    RGBColor(107, 114, 128),
];

/// Draws it.
pub(super) fn draw(report: &Report, path: &Path) -> Result<(), Failure> {
    let names = MODES
        .iter()
        .map(|mode| mode.name)
        .chain(["cp of the memory file"]);
    let times = report
        .seen
        .iter()
        .map(|seen| &seen.first)
        .chain([&report.floor]);
    let lines: Vec<_> = names.zip(times.map(steps)).zip(COLOURS).collect();
    let all = lines
        .iter()
        .flat_map(|((_, steps), _)| steps)
        .map(|&(time, _)| time);
    let (low, high) = all.fold((f64::MAX, 1.0f64), |(low, high), time| {
        (low.min(time), high.max(time))
    });

    let canvas = SVGBackend::new(path, (860, 460)).into_drawing_area();
    canvas.fill(&WHITE)?;
    let title = format!("{} clones at once: first guest output", report.count);
    let mut chart = ChartBuilder::on(&canvas)
        .caption(title, ("sans-serif", 18))
        .margin(16)
        .x_label_area_size(42)
        .y_label_area_size(52)
        .build_cartesian_2d((low.min(high) * 0.8..high * 1.1).log_scale(), 0.0..100.0)?;
    chart
        .configure_mesh()
        .x_desc("milliseconds since the start of the burst, logarithmic")
        .y_desc("% have answered")
        .light_line_style(WHITE)
        .draw()?;
    for ((name, steps), colour) in lines {
        chart
            .draw_series(LineSeries::new(steps, colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    canvas.present()?;
    Ok(())
}

/// Milliseconds and the share that had answered by then, as stairs.
fn steps(times: &Times) -> Vec<(f64, f64)> {
    let sorted = times.sorted();
    let share = |answered: usize| answered as f64 / sorted.len() as f64 * 100.0;
    let each = sorted.iter().enumerate();
    each.flat_map(|(index, &time)| {
        let time = (time as f64 / 1e6).max(0.1);
        [(time, share(index)), (time, share(index + 1))]
    })
    .collect()
}
