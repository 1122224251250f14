//! `transom bench`: our own measurements.

use super::catalog::{CATALOG, Kind, Measurement, measurement, sync};
use super::chart;
use super::cores;
use super::figures::Done;
use super::files::{Files, write_json};
use super::job;
use super::machine::warn_of_circumstances;
use super::progress::Progress;
use super::protocol::Task;
use super::rows::{Row, describe, is_good, rows, wrong_limits};
use super::text::{Table, number, parse_size, print, size};
use super::usage::Usage;
use clap::Args;
use std::error::Error;
use std::process::ExitCode;

#[derive(Args)]
pub struct Plain {
    /// What to measure; see `transom bench list` [default: everything]
    #[arg(value_name = "MEASUREMENT", value_parser = measurement)]
    measurements: Vec<&'static Measurement>,
    /// By which synchronisations, e.g. flush,fence [default: all that a measurement has]
    #[arg(long, visible_alias = "lock", value_name = "SYNC", value_delimiter = ',', value_parser = sync)]
    sync: Vec<&'static str>,
    /// Of which sizes, e.g. 8,4KiB,1MiB [default: the powers of two from 8 B to 4 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// With how many ranks, e.g. 2,4 [default: 2; 2,3,4,8 for contended, 3 for readers_writer, 1 for kernel]
    #[arg(short = 'n', long, value_name = "RANKS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Vec<u16>,
    /// How long a job measures, in milliseconds; some take twice or four times as long [default: 50; quick: 10]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: Option<u64>,
    /// How many jobs for each figure [default: 3; quick: 1]
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Fewer sizes, short jobs, one round
    #[arg(long)]
    quick: bool,
    /// Rows of the matrix of lu
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    lu_n: u32,
    /// Rows of its blocks
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    lu_block: u32,
    /// Rows and columns of the grid of pipeline
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1 << 15))]
    grid: u32,
    #[command(flatten)]
    files: Files,
}

/// What is below the tables.
const BATCHES: &str = "ns to max: of the means of batches of operations, of 1 us or more; p99, p99.9 and max are not of single operations\n";

/// How often more than asked for a job is tried, if the mode changes during it, or it takes less than its limit.
const AGAIN: usize = 3;

impl Plain {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let millis = self.millis.unwrap_or(if self.quick { 10 } else { 50 });
        let rounds = usize::from(self.rounds.unwrap_or(if self.quick { 1 } else { 3 }));
        let groups = self.groups(millis)?;
        let files = self.files.open()?;
        warn_of_circumstances();
        let progress = Progress::new(rounds * groups.iter().map(|(_, tasks)| tasks.len()).sum::<usize>());
        let (mut all, mut wrong) = (Vec::new(), Vec::new());
        for (measurement, tasks) in groups {
            let mut found = Vec::new();
            for task in tasks {
                progress.now(describe(&task));
                found.extend(rows(&task, &jobs(&task, rounds, &progress)?));
            }
            for why in wrong_limits(&found) {
                progress.warn(&why);
                wrong.push(why);
            }
            progress.print(&show(measurement, &found))?;
            all.extend(found);
        }
        drop(progress);
        if all.iter().any(|row| row.latency_ns.is_some()) {
            print(BATCHES)?;
        }
        if let Some(file) = files.json {
            write_json(file, millis, rounds, &all)?;
        }
        if let Some(file) = files.svg {
            chart::by_size(file, &all)?;
        }
        Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The tasks, by measurement.
    fn groups(&self, millis: u64) -> Result<Vec<(&'static Measurement, Vec<Task>)>, Usage> {
        if self.lu_block > self.lu_n {
            return Err(Usage(format!("--lu-block {}: larger than the matrix of {}", self.lu_block, self.lu_n)));
        }
        let chosen: Vec<_> = if self.measurements.is_empty() {
            CATALOG.iter().filter(|measurement| self.fits(measurement)).collect()
        } else {
            self.measurements.clone()
        };
        let sizes: Vec<usize> = match (&self.sizes[..], self.quick) {
            ([], true) => vec![8, 4 << 10, 1 << 20],
            ([], false) => (3..=22).map(|power| 1 << power).collect(),
            (sizes, _) => sizes.to_vec(),
        };
        let mut groups = Vec::new();
        let cores = cores::choice();
        for measurement in chosen {
            let syncs = measurement.syncs.iter().filter(|sync| self.sync.is_empty() || self.sync.contains(sync));
            let ranks: Vec<usize> = match &self.ranks[..] {
                [] => measurement.ranks.to_vec(),
                ranks => ranks.iter().map(|&ranks| ranks.into()).collect(),
            };
            if let Some(&few) = ranks.iter().find(|&&ranks| ranks < measurement.least) {
                let (name, least) = (measurement.name, measurement.least);
                return Err(Usage(format!("{name} takes {least} ranks or more, not {few}; use --ranks {least}")));
            }
            if let Some(&many) =
                ranks.iter().find(|&&ranks| measurement.name == "pipeline" && 2 * ranks > self.grid as usize)
            {
                let need = 2 * many;
                return Err(Usage(format!(
                    "pipeline takes two columns for each of {many} ranks; use --grid {need} or more"
                )));
            }
            let mut tasks = Vec::new();
            for &sync in syncs {
                for &ranks in &ranks {
                    for &bytes in if measurement.sized { &sizes[..] } else { &[8] } {
                        tasks.push(Task {
                            measurement: measurement.name,
                            sync,
                            bytes,
                            element: "i64",
                            ranks,
                            millis: millis * measurement.patience,
                            cores: cores.clone(),
                            n: self.lu_n as usize,
                            block: self.lu_block as usize,
                            grid: self.grid as usize,
                        });
                    }
                }
            }
            if tasks.is_empty() {
                let (name, syncs) = (measurement.name, measurement.syncs.join(", "));
                return Err(Usage(format!("{name} is not measured by {}; it is by {syncs}", self.sync.join(", "))));
            }
            groups.push((measurement, tasks));
        }
        match groups.is_empty() {
            true => Err(Usage(
                "nothing is measured by all that with these --ranks and --sync; see `transom bench list`".into(),
            )),
            false => Ok(groups),
        }
    }

    /// Whether it can be measured as the options say; of what was not named, the others are left out.
    fn fits(&self, measurement: &Measurement) -> bool {
        (self.sync.is_empty() || measurement.syncs.iter().any(|sync| self.sync.contains(sync)))
            && self.ranks.iter().all(|&ranks| usize::from(ranks) >= measurement.least)
    }
}

/// As many jobs of a task as asked for, and more in place of those in which the cores moved or that beat their limit.
fn jobs(task: &Task, rounds: usize, progress: &Progress) -> Result<Vec<Done>, Box<dyn Error>> {
    let mut jobs: Vec<Done> = Vec::new();
    let mut good = 0;
    while good < rounds && jobs.len() < rounds + AGAIN {
        let done = Done::of(task, job::run(job::ours(task)?, task))?;
        if is_good(task, &done) {
            good += 1;
            progress.step(1);
        }
        jobs.push(done);
    }
    progress.step(rounds - good);
    Ok(jobs)
}

fn show(measurement: &Measurement, rows: &[Row]) -> String {
    let table =
        if measurement.kind == Kind::Figures { figures(measurement, rows) } else { latencies(measurement, rows) };
    let dropped: usize = rows
        .iter()
        .map(|row| (&row.task, row.dropped))
        .fold((None, 0), |(last, sum), (task, dropped)| {
            // Rows of one task all name the same dropped jobs.
            (Some(task), if last == Some(task) { sum } else { sum + dropped })
        })
        .1;
    let dropped =
        if dropped > 0 { format!("  ({dropped} jobs dropped, in which the cores moved)\n") } else { String::new() };
    format!("{}: {}\n{table}{dropped}\n", measurement.name, measurement.about)
}

fn latencies(measurement: &Measurement, rows: &[Row]) -> Table {
    let mut head = vec!["sync", "ranks", "mode"];
    let bandwidth = measurement.kind == Kind::Bandwidth;
    if measurement.sized {
        head.push("size");
    }
    head.extend(["ns", "min", "p90", "p99", "p99.9", "max"]);
    if bandwidth {
        head.extend(["GB/s", "million/s"]);
    }
    head.extend(["limit ns", "x limit", "limit"]);
    let mut table = Table::new(3, &head);
    for row in rows {
        let Some(ns) = row.latency_ns else { continue };
        let mut cells = vec![row.task.sync.to_owned(), row.task.ranks.to_string(), row.mode.to_string()];
        if measurement.sized {
            cells.push(size(row.task.bytes));
        }
        cells.extend([ns.median, ns.min, ns.p90, ns.p99, ns.p99_9, ns.max].map(number));
        if bandwidth {
            cells.extend(
                ["GB/s", "million/s"].map(|name| row.figures.get(name).map_or("-".into(), |&value| number(value))),
            );
        }
        let known = |value: Option<f64>| value.map_or("-".into(), number);
        cells.extend([known(row.limit_ns), known(row.times_limit), row.limit.clone().unwrap_or_default()]);
        table.row(cells);
    }
    table
}

fn figures(measurement: &Measurement, rows: &[Row]) -> Table {
    // Shares of ranks are many, and stand in one column.
    let names: Vec<String> = rows.first().map_or(Vec::new(), |row| row.order.clone());
    let names: Vec<_> = names.into_iter().filter(|name| !name.starts_with("share.")).collect();
    let shares = measurement.name == "contended";
    let limited = rows.iter().any(|row| row.limit.is_some());
    let titles: Vec<_> = names.iter().map(|name| name.replace('_', " ")).collect();
    let mut head = vec!["sync", "ranks", "mode"];
    head.extend(titles.iter().map(String::as_str));
    if limited {
        head.extend(["x limit", "limit"]);
    }
    if shares {
        head.push("share of each rank, %");
    }
    let mut table = Table::new(3, &head);
    for row in rows {
        let mut cells = vec![row.task.sync.to_owned(), row.task.ranks.to_string(), row.mode.to_string()];
        cells.extend(names.iter().map(|name| row.figures.get(name).map_or("-".into(), |&value| number(value))));
        if limited {
            cells.extend([row.times_limit.map_or("-".into(), number), row.limit.clone().unwrap_or_default()]);
        }
        if shares {
            let share = |rank: usize| row.figures.get(&format!("share.{rank}")).map(|share| number(share * 100.0));
            cells.push((0..row.task.ranks).filter_map(share).collect::<Vec<_>>().join(" "));
        }
        table.row(cells);
    }
    table
}
