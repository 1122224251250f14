//! Named figures of one job, computed from its report.

use super::catalog::{self, Kind};
use super::job::{JobError, Run};
use super::mode::Mode;
use super::protocol::Task;
use super::statistics::{Percentiles, jain, quartiles};

/// Figures of one job by name, in the order of the table's columns.
pub type Figures = Vec<(String, f64)>;

/// Nanoseconds per acquisition in the fastest quarter of the stretches of a contended lock in which each rank had its
/// share.
pub const FAIR_STRETCH: &str = "fair_stretch_ns";

/// The figures of a job. Fails with the missing value's name if the worker did not report it.
pub fn of(task: &Task, run: &Run) -> Result<Figures, String> {
    let values = &run.report.values;
    let value = |name: &str| values.get(name).copied().ok_or_else(|| format!("its output has no `value {name}`"));
    let each = |name: &str, ranks: &mut dyn Iterator<Item = usize>| -> Result<Vec<f64>, String> {
        ranks.map(|rank| value(&format!("{name}.{rank}"))).collect()
    };
    let samples = Percentiles::of(&run.report.samples);
    let samples = || samples.ok_or("it took no samples");
    let mut figures = Figures::new();
    let mut add = |name: &str, value: f64| figures.push((name.to_owned(), value));
    match task.worker() {
        "contended" => {
            let (seconds, acquired) = (value("seconds")?, each("acquired", &mut (0..task.ranks))?);
            let total: f64 = acquired.iter().sum();
            let (most, fewest) = extremes(&acquired);
            add("million/s", total / seconds / 1e6);
            add("handover_ns", seconds * 1e9 / total.max(1.0));
            add("most/fewest", most / fewest.max(1.0));
            add("jain", jain(&acquired));
            // Without a fair stretch there is no such figure.
            if !run.report.samples.is_empty() {
                add(FAIR_STRETCH, quartiles(&run.report.samples)[0]);
            }
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
        "kernel" => {
            let kernel = value("kernel")?;
            add("kernel_GFLOP/s", kernel);
            if let Ok(peak) = value("peak") {
                add("peak_GFLOP/s", peak);
                add("of_peak", kernel / peak);
            }
        }
        "lu" => {
            let (n, seconds) = (task.n as f64, value("seconds")?);
            add("factor_ms", seconds * 1e3);
            add("GFLOP/s", 2.0 / 3.0 * n * n * n / seconds / 1e9);
            add("process_ms", run.wall.as_secs_f64() * 1e3);
            add("kernel_GFLOP/s", value("kernel")?);
        }
        "lu_outside" => {
            add("factor_ms", value("seconds")? * 1e3);
            add("outside_kernel_ms", value("outside_kernel")? * 1e3);
            add("waiting_ms", value("waiting")? * 1e3);
            add("kernel_GFLOP/s", value("kernel")?);
        }
        "overlap_messages" | "overlap_collectives" => {
            let (compute, communication, both) = (value("compute")?, value("communication")?, value("both")?);
            add("hidden", hidden(compute, communication, both));
            add("communication_us", communication * 1e6);
            add("both_us", both * 1e6);
        }
        "overhead" => {
            for name in ["send", "recv", "one_way"] {
                add(&format!("{name}_ns"), value(name)?);
            }
            add("clock_step_ns", value("clock_step")?);
        }
        "registration" => {
            let (again, leased) = (value("again")?, value("leased")?);
            add("buffers", value("buffers")?);
            for name in ["first", "again", "taken", "leased"] {
                add(&format!("{name}_us"), value(name)? / 1e3);
            }
            add("again/leased", again / leased);
        }
        "poll_cost" => {
            add("ns", samples()?.median);
            add("turn_ns", value("turn")?);
        }
        "pipe" => {
            add("ns", samples()?.median);
            add("GB/s", task.bytes as f64 / value("stream")?);
            add("writes", value("writes")?);
        }
        "overlap" => {
            let (compute, communication, both) = (value("compute")?, value("communication")?, value("both")?);
            add("hidden", hidden(compute, communication, both));
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
        "connections" => {
            let mib = |name: &str| value(name).map(|bytes| bytes / f64::from(1 << 20));
            add("first_us_per_peer", value("seconds")? * 1e6 / (task.ranks - 1) as f64);
            add("memory_mib", mib("rss")?);
            add("growth_mib", mib("rss_growth")?);
            add("machine_mib_per_rank", mib("machine_growth")? / task.ranks as f64);
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

/// The fraction of the shorter activity that was hidden by the longer one.
fn hidden(compute: f64, communication: f64, both: f64) -> f64 {
    ((compute + communication - both) / compute.min(communication).max(1e-9)).clamp(0.0, 1.0)
}

fn extremes(values: &[f64]) -> (f64, f64) {
    values.iter().fold((0.0, f64::INFINITY), |(most, least), &value| (f64::max(most, value), f64::min(least, value)))
}

fn kind(task: &Task) -> Kind {
    catalog::find(task.measurement).map_or(Kind::Figures, |measurement| measurement.kind)
}

/// The figure called `name`.
pub fn named(figures: &[(String, f64)], name: &str) -> Option<f64> {
    figures.iter().find(|(figure, _)| figure == name).map(|(_, value)| *value)
}

/// A successful job: its output, its core placement, and its figures.
pub struct Done {
    pub run: Run,
    pub figures: Figures,
    pub mode: Mode,
}

impl Done {
    /// The result of a job of ours. A failed job is an error.
    pub fn of(task: &Task, run: Result<Run, JobError>) -> Result<Done, String> {
        let failed = |why: String| format!("{} --sync {}, {} ranks: {why}", task.measurement, task.sync, task.ranks);
        let run = run.map_err(|error| failed(error.to_string()))?;
        let figures = of(task, &run).map_err(failed)?;
        Ok(Done { mode: Mode::of(&run.report), run, figures })
    }
}
