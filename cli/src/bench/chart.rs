//! Charts: latency and bandwidth over size, and ratios to other libraries.

use super::catalog::{self, Kind};
use super::mode::Mode;
use super::pairs::Pairs;
use super::rows::Row;
use super::simulated::Simulation;
use super::text::size;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::error::Error;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const PANEL: (u32, u32) = (640, 400);
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(23, 190, 207),
    RGBColor(140, 86, 75),
    RGBColor(127, 127, 127),
];

/// A curve: its name and its points.
type Curve = (String, Vec<(f64, f64)>);

/// Draws a panel of latency and one of bandwidth for each measurement that has sizes, with a curve per synchronization,
/// and below them the simulated values over time.
pub fn by_size(rows: &[Row], simulated: &[Simulation]) -> Result<String> {
    let simulated: Vec<_> = simulated.iter().filter(|simulation| simulation.sheet.over_time).collect();
    let mut names: Vec<&str> = rows.iter().map(|row| row.task.measurement).collect();
    names.dedup();
    names.retain(|name| catalog::find(name).is_some_and(|measurement| measurement.sized));
    let measured = PANEL.1 * names.len() as u32;
    let height = (measured + PANEL.1 * simulated.len() as u32).max(PANEL.1);
    draw((2 * PANEL.0, height), |root| {
        let (root, below) = root.split_vertically(measured);
        for (area, simulation) in below.split_evenly((simulated.len().max(1), 1)).iter().zip(&simulated) {
            over_time(area, &format!("{} (simulated): MB/s", simulation.name), &simulation.sheet.curves())?;
        }
        if names.is_empty() && !simulated.is_empty() {
            return Ok(());
        }
        if names.is_empty() {
            let note = "no measurement with sizes was chosen (put and get_bw have sizes, for example)";
            return Ok(below.draw(&Text::new(note, (20, 20), ("sans-serif", 16)))?);
        }
        for (panels, name) in root.split_evenly((names.len(), 2)).chunks(2).zip(names) {
            let rows: Vec<_> = rows.iter().filter(|row| row.task.measurement == name).collect();
            if catalog::find(name).is_some_and(|measurement| measurement.kind == Kind::Figures) {
                // The first two figures.
                let figures = rows.first().map_or(&[][..], |row| &row.order).iter();
                for (area, figure) in panels.iter().zip(figures) {
                    let of = |row: &Row| row.figures.get(figure).copied();
                    panel(area, &format!("{name}: {}", figure.replace('_', " ")), figure, &curves(&rows, of))?;
                }
                continue;
            }
            let latency = |row: &Row| Some(row.latency_ns?.median / 1e3);
            let bandwidth = |row: &Row| Some(row.task.bytes as f64 / row.latency_ns?.median);
            panel(&panels[0], &format!("{name}: latency, us"), "us", &curves(&rows, latency))?;
            panel(&panels[1], &format!("{name}: bandwidth, GB/s"), "GB/s", &curves(&rows, bandwidth))?;
        }
        Ok(())
    })
}

/// Draws a line per comparison, from the smallest to the largest ratio, with the median and the target marked.
pub fn ratios(all: &[Pairs]) -> Result<String> {
    let all: Vec<_> = all.iter().filter_map(|pairs| Some((pairs, pairs.ratio?))).collect();
    let lines = all.len().max(1);
    draw((1000, 90 + 20 * lines as u32), |root| {
        let ends = all.iter().flat_map(|(_, ratio)| [ratio.min, ratio.max]);
        let (least, most) = range(ends.chain([0.5, 2.0]));
        let mut chart = ChartBuilder::on(root)
            .caption("ours relative to theirs, above 1 is better (line: min to max, ring: target)", ("sans-serif", 16))
            .margin(10)
            .x_label_area_size(30)
            .y_label_area_size(420)
            .build_cartesian_2d((least..most).log_scale(), 0.0..lines as f64)?;
        chart.configure_mesh().disable_y_mesh().y_labels(0).x_desc("ratio").draw()?;
        let mut peers: Vec<&str> = all.iter().map(|(pairs, _)| pairs.peer.as_str()).collect();
        peers.sort_unstable();
        peers.dedup();
        for (at, (pairs, ratio)) in all.iter().rev().enumerate() {
            let peer = peers.iter().position(|known| *known == pairs.peer).unwrap_or(0);
            let (y, colour) = (at as f64 + 0.5, COLOURS[peer % COLOURS.len()]);
            // A ratio to an operation that took no time, or failed, is infinite or NaN.
            let within = |ratio: f64| ratio.clamp(least, most);
            let line = vec![(within(ratio.min), y), (within(ratio.max), y)];
            chart.draw_series([PathElement::new(line, colour.stroke_width(3))])?;
            chart.draw_series([Circle::new((within(ratio.median), y), 5, colour.filled())])?;
            if let Some(target) = pairs.target.filter(|target| (least..most).contains(target)) {
                chart.draw_series([Circle::new((target, y), 7, BLACK.stroke_width(1))])?;
            }
            let (_, pixel) = chart.backend_coord(&(1.0, y));
            let text = Text::new(title(pairs), (14, pixel - 6), ("sans-serif", 12));
            root.draw(&text)?;
        }
        chart.draw_series([PathElement::new(vec![(1.0, 0.0), (1.0, lines as f64)], BLACK.stroke_width(1))])?;
        Ok(())
    })
}

fn title(pairs: &Pairs) -> String {
    let sized = catalog::find(pairs.measurement).is_some_and(|measurement| measurement.sized);
    let size = if sized { format!(" {}", size(pairs.bytes)) } else { String::new() };
    let element = if pairs.element == "i64" { String::new() } else { format!(" {}", pairs.element) };
    let Pairs { measurement, their_sync, ranks, mode, peer, .. } = pairs;
    let mode = if *mode == Mode::Alone { String::new() } else { format!(", {mode}") };
    format!("{measurement}{element} {their_sync}{size}, {ranks} ranks{mode}: {peer}")
}

fn draw(pixels: (u32, u32), picture: impl FnOnce(&Area) -> Result) -> Result<String> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, pixels).into_drawing_area();
        root.fill(&WHITE)?;
        picture(&root)?;
        root.present()?;
    }
    Ok(text)
}

/// One curve per synchronization, configuration, number of ranks and mode. The name mentions the latter three only if
/// they vary.
fn curves(rows: &[&Row], value: impl Fn(&Row) -> Option<f64>) -> Vec<Curve> {
    let mut curves: Vec<Curve> = Vec::new();
    let several = |differs: &dyn Fn(&Row) -> bool| rows.iter().any(|row| differs(row));
    for row in rows {
        let mut name = row.task.sync.to_owned();
        if several(&|other| other.task.config != row.task.config) {
            name.push_str(&format!(", {}", if row.task.config.is_empty() { "as it is" } else { &row.task.config }));
        }
        if several(&|other| other.task.ranks != row.task.ranks) {
            name.push_str(&format!(", {} ranks", row.task.ranks));
        }
        if several(&|other| other.mode != row.mode) {
            name.push_str(&format!(", {}", row.mode));
        }
        // A logarithmic axis has no place for 0.
        let value = value(row).filter(|value| *value > 0.0);
        let Some(point) = value.map(|value| (row.task.bytes as f64, value)) else { continue };
        match curves.iter_mut().find(|(known, _)| *known == name) {
            Some((_, points)) => points.push(point),
            None => curves.push((name, vec![point])),
        }
    }
    curves
}

/// The bounds of an axis: the smallest and largest value, with a margin.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values = values.filter(|value| value.is_finite() && *value > 0.0);
    let (least, most) =
        values.fold((f64::INFINITY, 0.0f64), |(least, most), value| (least.min(value), most.max(value)));
    if least > most { (0.1, 10.0) } else { (least / 1.5, most * 1.5) }
}

fn panel(area: &Area, caption: &str, unit: &str, curves: &[Curve]) -> Result {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let (left, right) = range(points().map(|point| point.0));
    let (bottom, top) = range(points().map(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d((left..right).log_scale().base(2.0), (bottom..top).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("bytes")
        .y_desc(unit)
        .x_label_formatter(&|bytes| size(bytes.round() as usize))
        .y_label_formatter(&|value| super::text::number(*value))
        .light_line_style(WHITE)
        .draw()?;
    for (at, (name, points)) in curves.iter().enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        // From the ninth curve on, the colours repeat with thinner lines.
        let style = colour.stroke_width(if at < COLOURS.len() { 2 } else { 1 });
        chart
            .draw_series([PathElement::new(points.clone(), style)])?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
        chart.draw_series(points.iter().map(|&point| Circle::new(point, 2, colour.filled())))?;
    }
    // Latency curves rise from the lower left; bandwidth curves level off at the top. The legend goes to the free
    // corner.
    let bandwidth = unit == "GB/s";
    chart
        .configure_series_labels()
        .position(if bandwidth { SeriesLabelPosition::LowerRight } else { SeriesLabelPosition::UpperLeft })
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Curves against milliseconds, from 0 on.
fn over_time(area: &Area, caption: &str, curves: &[Curve]) -> Result {
    let points = || curves.iter().flat_map(|(_, points)| points);
    let last = points().map(|point| point.0).fold(1.0, f64::max);
    let top = points().map(|point| point.1).fold(1.0, f64::max) * 1.3;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(64)
        .build_cartesian_2d(0.0..last, 0.0..top)?;
    chart.configure_mesh().x_desc("ms").y_desc("MB/s").light_line_style(WHITE).draw()?;
    for ((name, points), colour) in curves.iter().zip(COLOURS) {
        chart
            .draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?
            .label(name.as_str())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}
