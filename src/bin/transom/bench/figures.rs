//! What a report means: named figures of one job, and rows that sum up the jobs of one task in one mode.

use super::catalog::{self, Kind, Measurement};
use super::job::Run;
use super::protocol::Task;
use super::statistics::{Mode, Percentiles, jain, median};
use serde::Serialize;
use std::collections::BTreeMap;

/// A figure of one job; the order is that of a table's columns.
pub type Figures = Vec<(String, f64)>;

/// The figures of a job, none if the worker did not say what they are made of, which is then named.
pub fn of(task: &Task, run: &Run) -> Result<Figures, String> {
    let values = &run.report.values;
    let value = |name: &str| values.get(name).copied().ok_or_else(|| format!("it did not say `value {name}`"));
    let each = |name: &str, ranks: &mut dyn Iterator<Item = usize>| -> Result<Vec<f64>, String> {
        ranks.map(|rank| value(&format!("{name}.{rank}"))).collect()
    };
    let samples = Percentiles::of(&run.report.samples);
    let samples = || samples.ok_or("it took no samples");
    let mut figures = Figures::new();
    let mut add = |name: &str, value: f64| figures.push((name.to_owned(), value));
    match task.measurement {
        "contended" => {
            let (seconds, acquired) = (value("seconds")?, each("acquired", &mut (0..task.ranks))?);
            let total: f64 = acquired.iter().sum();
            let (most, fewest) = extremes(&acquired);
            add("million/s", total / seconds / 1e6);
            add("handover_ns", seconds * 1e9 / total.max(1.0));
            add("most/fewest", most / fewest.max(1.0));
            add("jain", jain(&acquired));
            add("longest_wait_us", value("longest_wait")? / 1e3);
            for (rank, acquired) in acquired.iter().enumerate() {
                add(&format!("share.{rank}"), acquired / total.max(1.0));
            }
        }
        "readers_writer" => {
            let reads = each("reads", &mut (0..task.ranks).filter(|&rank| rank != 1))?;
            add("writes/1000", 1000.0 * value("writes")? / value("wanted")?.max(1.0));
            add("longest_write_wait_us", value("longest_write_wait")? / 1e3);
            add("million_reads/s", reads.iter().sum::<f64>() / value("seconds")? / 1e6);
            add("jain_of_readers", jain(&reads));
        }
        "lu" => {
            let (n, seconds) = (task.n as f64, value("seconds")?);
            add("factor_ms", seconds * 1e3);
            add("GFLOP/s", 2.0 / 3.0 * n * n * n / seconds / 1e9);
            add("process_ms", run.wall.as_secs_f64() * 1e3);
            // The twin's kernel is the same.
            if let (Ok(kernel), Ok(peak)) = (value("kernel"), value("peak")) {
                add("kernel_GFLOP/s", kernel);
                add("peak_GFLOP/s", peak);
                add("of_peak", kernel / peak);
            }
        }
        "lu_outside" => {
            add("factor_ms", value("seconds")? * 1e3);
            add("outside_kernel_ms", value("outside_kernel")? * 1e3);
            add("waiting_ms", value("waiting")? * 1e3);
        }
        "overlap" => {
            let (compute, communication, both) = (value("compute")?, value("communication")?, value("both")?);
            let hidden = (compute + communication - both) / compute.min(communication).max(1e-9);
            add("hidden", hidden.clamp(0.0, 1.0));
            add("get_us", samples()?.median / 1e3);
            add("compute_ms", compute * 1e3);
            add("communication_ms", communication * 1e3);
            add("both_ms", both * 1e3);
        }
        "pipeline" => {
            let mflops = value("mflops")?;
            add("MFLOP/s", mflops);
            if let Ok(limit) = value("limit") {
                add("of_limit", mflops / limit);
            }
        }
        "startup" => {
            add("process_ms", run.wall.as_secs_f64() * 1e3);
            add("memory_mib", value("rss")? / f64::from(1 << 20));
        }
        _ => {
            let ns = samples()?.median;
            add("ns", ns);
            if kind(task) == Kind::Bandwidth {
                add("GB/s", task.bytes as f64 / ns);
                add("million/s", 1e3 / ns);
            }
        }
    }
    Ok(figures)
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((0.0, f64::INFINITY), |(most, least), &value| (f64::max(most, value), f64::min(least, value)))
}

fn kind(task: &Task) -> Kind {
    catalog::find(task.measurement).map_or(Kind::Figures, |measurement| measurement.kind)
}

/// A figure by name.
pub fn named(figures: &[(String, f64)], name: &str) -> Option<f64> {
    figures.iter().find(|(figure, _)| figure == name).map(|(_, value)| *value)
}

/// The jobs of one task in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub task: Task,
    pub mode: Mode,
    /// How many jobs this is made of.
    pub jobs: usize,
    /// How many more there were, in which the mode changed.
    pub dropped: usize,
    /// The median of their crossings, in nanoseconds one way.
    pub crossing_ns: Option<f64>,
    pub atomic_ns: f64,
    /// memcpy of the size.
    pub copy_ns: f64,
    /// What the machine needs at least, and how many times as long it took.
    pub limit: Option<String>,
    pub limit_ns: Option<f64>,
    pub times_limit: Option<f64>,
    /// Of all samples, in nanoseconds per operation; a sample is the mean of a batch.
    pub latency_ns: Option<Percentiles>,
    /// The medians of the jobs.
    pub figures: BTreeMap<String, f64>,
    /// The names of the figures in their order.
    #[serde(skip)]
    pub order: Vec<String>,
}

/// A job that ended well: its mode if it did not change, and what came out.
pub struct Done {
    pub run: Run,
    pub figures: Figures,
    pub mode: Option<Mode>,
}

/// A row for each mode that there was.
pub fn rows(task: &Task, jobs: &[Done]) -> Vec<Row> {
    let dropped = jobs.iter().filter(|job| job.mode.is_none()).count();
    let row = |mode| {
        let jobs: Vec<_> = jobs.iter().filter(|job| job.mode == Some(mode)).collect();
        let first = *jobs.first()?;
        let of = |value: &dyn Fn(&Done) -> Option<f64>| {
            let values: Vec<f64> = jobs.iter().filter_map(|job| value(job)).collect();
            (!values.is_empty()).then(|| median(&values))
        };
        let limit = catalog::limit(task);
        let limit_of = |job: &Done| Some(limit?.nanoseconds(job.run.bare, median(&job.run.report.crossing)));
        let figures =
            first.figures.iter().filter_map(|(name, _)| Some((name.clone(), of(&|job| named(&job.figures, name))?)));
        // Of the figures, the one that the limit is a limit of.
        let measured = |job: &Done| {
            named(&job.figures, "ns")
                .or_else(|| named(&job.figures, "handover_ns"))
                .or_else(|| Some(named(&job.figures, "get_us")? * 1e3))
        };
        Some(Row {
            task: task.clone(),
            mode,
            jobs: jobs.len(),
            dropped,
            crossing_ns: of(&|job| (mode != Mode::Alone).then(|| median(&job.run.report.crossing))),
            atomic_ns: of(&|job| Some(job.run.bare.atomic))?,
            copy_ns: of(&|job| Some(job.run.bare.copy))?,
            limit: limit.map(|limit| limit.describe()),
            limit_ns: of(&limit_of),
            times_limit: of(&|job| Some(measured(job)? / limit_of(job).filter(|&ns| ns > 0.0)?)),
            latency_ns: Percentiles::of(jobs.iter().flat_map(|job| &job.run.report.samples)),
            figures: figures.collect(),
            order: first.figures.iter().map(|(name, _)| name.clone()).collect(),
        })
    };
    [Mode::Near, Mode::Far, Mode::Alone].into_iter().filter_map(row).collect()
}

/// What is measured by a task, for messages: `put --sync flush, 8 B, 2 ranks`.
pub fn describe(task: &Task, measurement: &Measurement) -> String {
    let size = if measurement.sized { format!(", {}", super::text::size(task.bytes)) } else { String::new() };
    format!("{} --sync {}{size}, {} ranks", task.measurement, task.sync, task.ranks)
}
