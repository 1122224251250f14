//! Rows that summarize the jobs of one task in one mode, beside the machine's limit.

use super::catalog::{self, Measurement};
use super::figures::{Done, named};
use super::limits::Limit;
use super::mode::Mode;
use super::protocol::Task;
use super::statistics::{Percentiles, median};
use super::text;
use serde::Serialize;
use std::collections::BTreeMap;

/// The jobs of one task in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub task: Task,
    pub mode: Mode,
    /// The number of jobs summarized.
    pub jobs: usize,
    /// The number of further jobs during which the mode changed, or that beat their limit.
    pub dropped: usize,
    /// The median of their crossings, in nanoseconds one way.
    pub crossing_ns: Option<f64>,
    /// For each job, before and after.
    pub crossings_ns: Vec<[f64; 2]>,
    pub slowdowns: Vec<[f64; 2]>,
    pub atomic_ns: f64,
    /// memcpy of the task's size.
    pub copy_ns: f64,
    /// Between hosts: a request of the task's size, and its answer, over a plain TCP stream whose other end sleeps until
    /// the request arrives.
    pub asleep_ns: Option<f64>,
    /// The machine's limit, or the reason why none is known; then its time, and the measured time as a multiple of it.
    pub limit: Option<String>,
    pub limit_ns: Option<f64>,
    pub times_limit: Option<f64>,
    /// Every job of the task, in any mode, beat the limit by more than 10 %, so the limit is wrong.
    pub limit_wrong: bool,
    /// Percentiles of all samples, in nanoseconds per operation. A sample is the mean of a batch.
    pub latency_ns: Option<Percentiles>,
    /// The median of each figure over the jobs.
    pub figures: BTreeMap<String, f64>,
    /// The names of the figures in the order of their columns.
    #[serde(skip)]
    pub order: Vec<String>,
}

/// A time below this multiple of the limit is not noise. (Mixed jobs have no valid crossing, so no limit.)
const LEAST: f64 = 1.0 / 1.1;

/// A row for each steady mode among the jobs. If there was none, one row for all jobs.
pub fn rows(task: &Task, jobs: &[Done]) -> Vec<Row> {
    let steady: Vec<Row> = Mode::STEADY.into_iter().filter_map(|mode| row(task, jobs, mode)).collect();
    if steady.is_empty() { row(task, jobs, Mode::Mixed).into_iter().collect() } else { steady }
}

fn row(task: &Task, all: &[Done], mode: Mode) -> Option<Row> {
    let mut jobs: Vec<_> = all.iter().filter(|job| job.mode == mode).collect();
    // Jobs that beat their limit were repeated.
    if jobs.iter().any(|job| is_good(task, job)) {
        jobs.retain(|job| is_good(task, job));
    }
    let first = *jobs.first()?;
    let of = |value: &dyn Fn(&Done) -> Option<f64>| {
        let values: Vec<f64> = jobs.iter().filter_map(|job| value(job)).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    let limit = catalog::limit(task, task.cores.len());
    let known = limit.as_ref().and_then(|limit| limit.as_ref().ok());
    let figures =
        first.figures.iter().filter_map(|(name, _)| Some((name.clone(), of(&|job| named(&job.figures, name))?)));
    let moved = if mode == Mode::Mixed { 0 } else { all.iter().filter(|job| job.mode == Mode::Mixed).count() };
    let dropped = moved + all.iter().filter(|job| job.mode == mode).count() - jobs.len();
    Some(Row {
        task: task.clone(),
        mode,
        jobs: jobs.len(),
        dropped,
        crossing_ns: of(&|job| job.run.report.crossing.map(|crossing| median(&crossing))),
        crossings_ns: jobs.iter().filter_map(|job| job.run.report.crossing).collect(),
        slowdowns: jobs.iter().filter_map(|job| job.run.report.slowdown).collect(),
        atomic_ns: of(&|job| Some(job.run.bare.atomic))?,
        copy_ns: of(&|job| Some(job.run.bare.copy))?,
        asleep_ns: of(&|job| Some(job.run.bare.asleep).filter(|&ns| ns > 0.0)),
        limit: limit.as_ref().map(|limit| limit.as_ref().map_or_else(|why| (*why).to_owned(), Limit::describe)),
        limit_ns: of(&|job| Some(limit_of(known?, job))),
        times_limit: of(&|job| times_limit(known?, job)),
        limit_wrong: all.iter().filter(|job| job.mode != Mode::Mixed).all(|job| beats(known, job))
            && mode != Mode::Mixed,
        latency_ns: Percentiles::of(jobs.iter().flat_map(|job| &job.run.report.samples)),
        figures: figures.collect(),
        order: first.figures.iter().map(|(name, _)| name.clone()).collect(),
    })
}

fn limit_of(limit: &Limit, job: &Done) -> f64 {
    limit.nanoseconds(job.run.bare, job.run.report.crossing.map_or(0.0, |crossing| median(&crossing)))
}

fn times_limit(limit: &Limit, job: &Done) -> Option<f64> {
    let named = |name| named(&job.figures, name);
    // The figure that the limit applies to.
    let measured = named("ns").or_else(|| named("handover_ns")).or_else(|| Some(named("get_us")? * 1e3))?;
    Some(measured / limit_of(limit, job)).filter(|times| times.is_finite())
}

fn beats(limit: Option<&Limit>, job: &Done) -> bool {
    limit.and_then(|limit| times_limit(limit, job)).is_some_and(|times| times < LEAST)
}

/// True if a job may contribute to a row: its core placement did not change, and it did not beat its limit.
pub fn is_good(task: &Task, job: &Done) -> bool {
    let limit = catalog::limit(task, task.cores.len()).and_then(Result::ok);
    job.mode != Mode::Mixed && !beats(limit.as_ref(), job)
}

/// Messages about the wrong limits among the rows.
pub fn wrong_limits(rows: &[Row]) -> Vec<String> {
    let of = |row: &Row| {
        let (limit, times) = (row.limit.as_deref().unwrap_or_default(), row.times_limit.unwrap_or_default());
        let what = describe(&row.task);
        format!(
            "{what}: the limit ({limit}) is wrong: every job beat it, taking {} times the limit",
            text::number(times)
        )
    };
    rows.iter().filter(|row| row.limit_wrong).map(of).collect()
}

/// A task for messages: `put --sync flush, 8 B, 2 ranks`.
pub fn describe(task: &Task) -> String {
    let sized = catalog::find(task.measurement).is_some_and(|Measurement { sized, .. }| *sized);
    let size = if sized { format!(", {}", text::size(task.bytes)) } else { String::new() };
    let config = if task.config.is_empty() { String::new() } else { format!(" --config {}", task.config) };
    format!("{} --sync {}{config}{size}, {} ranks", task.measurement, task.sync, task.ranks)
}

#[cfg(test)]
mod tests {
    use super::super::job::Run;
    use super::super::limits::Bare;
    use super::super::protocol::Report;
    use super::*;
    use std::time::Duration;

    /// A job of `put --sync flush` of 4 KiB, whose limit is an atomic of 5 ns and a memcpy of 1 ns.
    fn job(ns: f64, crossing: [f64; 2]) -> Done {
        let report =
            Report { crossing: Some(crossing), slowdown: Some([1.0; 2]), samples: vec![ns], ..Report::default() };
        let run = Run { report, wall: Duration::ZERO, bare: Bare { atomic: 5.0, copy: 1.0, ..Bare::default() } };
        Done { mode: Mode::of(&run.report), run, figures: vec![("ns".into(), ns)] }
    }

    fn task() -> Task {
        Task { measurement: "put", sync: "flush", bytes: 4096, ranks: 2, cores: vec![0, 1], ..Task::default() }
    }

    #[test]
    fn limit_is_wrong_if_every_job_beats_it() {
        let [near, moved] = [[24.0, 25.0], [24.0, 190.0]];
        let of = |jobs: &[Done]| rows(&task(), jobs);
        let beaten = of(&[job(5.0, near), job(5.4, near)]);
        assert!(beaten[0].limit_wrong && (beaten[0].times_limit.unwrap() - 5.2 / 6.0).abs() < 1e-9);
        assert!(
            wrong_limits(&beaten)[0].contains("put --sync flush, 4 KiB, 2 ranks: the limit (atomic + memcpy) is wrong")
        );
        // A deviation of 10 %, or of one job, is noise. Mixed jobs prove nothing.
        for jobs in [
            [job(5.5, near), job(5.5, near)],
            [job(5.0, near), job(7.0, near)],
            [job(5.0, near), job(7.0, [190.0, 190.0])],
            [job(5.0, moved), job(5.0, moved)],
        ] {
            assert!(wrong_limits(&of(&jobs)).is_empty());
        }
        assert!(is_good(&task(), &job(5.5, near)) && !is_good(&task(), &job(5.4, near)));
    }

    #[test]
    fn mixed_mode_has_a_row_only_without_others() {
        let rows = rows(&task(), &[job(6.0, [24.0, 25.0]), job(9.0, [24.0, 190.0]), job(8.0, [190.0, 191.0])]);
        let of = |row: &Row| (row.mode, row.jobs, row.dropped, row.crossings_ns.clone());
        assert_eq!(of(&rows[0]), (Mode::Near, 1, 1, vec![[24.0, 25.0]]));
        assert_eq!(of(&rows[1]), (Mode::Far, 1, 1, vec![[190.0, 191.0]]));
        assert_eq!(rows.len(), 2);
        // A job that beat its limit was repeated.
        let again = super::rows(&task(), &[job(6.0, [24.0, 25.0]), job(5.0, [24.0, 26.0]), job(8.0, [24.0, 27.0])]);
        assert_eq!(of(&again[0]), (Mode::Near, 2, 1, vec![[24.0, 25.0], [24.0, 27.0]]));
        let mixed = super::rows(&task(), &[job(9.0, [24.0, 190.0])]);
        assert_eq!(of(&mixed[0]), (Mode::Mixed, 1, 0, vec![[24.0, 190.0]]));
        assert_eq!(mixed.len(), 1);
    }
}
