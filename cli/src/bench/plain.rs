//! `transom bench`: measurements of our own library.

use super::catalog::{self, CATALOG, Measurement, sync};
use super::chart;
use super::cores;
use super::figures::Done;
use super::files::{Files, Outputs, json};
use super::job;
use super::machine::warn_of_circumstances;
use super::progress::Progress;
use super::protocol::Task;
use super::rows::{Row, describe, is_good, rows, wrong_limits};
use super::simulated::{self, Options, SIMULATED, Simulated, Simulation};
use super::tables;
use super::text::{parse_size, print};
use super::usage::Usage;
use clap::Args;
use std::error::Error;
use std::process::ExitCode;
use transom_channel::Changes;

#[derive(Args)]
pub struct Plain {
    /// Measurements or simulations to execute; `transom bench list` lists them [default: all measurements]
    #[arg(value_name = "MEASUREMENT", value_parser = selection)]
    measurements: Vec<Selection>,
    /// Synchronizations to measure with, e.g. flush,fence [default: all of each measurement]
    #[arg(long, visible_alias = "lock", value_name = "SYNC", value_delimiter = ',', value_parser = sync)]
    sync: Vec<&'static str>,
    /// Bytes of an operation, e.g. 8,4KiB,1MiB [default: the powers of two from 8 B to 4 MiB]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Numbers of ranks of a job, e.g. 2,4 [default: as `transom bench list` shows, mostly 2]
    #[arg(short = 'n', long, value_name = "RANKS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Vec<u16>,
    /// Measure between N host names of this machine, over TCP; beside each figure stands a plain TCP stream
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64))]
    hosts_local: Option<u16>,
    /// Value of TRANSOM_MESSAGES, e.g. eager=0,rings=8 (docs/configuration.md lists the fields); may be repeated, then
    /// jobs alternate between the values; '' means the default
    #[arg(long = "config", value_name = "FIELDS", value_parser = config)]
    configs: Vec<String>,
    /// Measuring time of a job in milliseconds; some measurements take two or four times as long [default: 50; quick:
    /// 10]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: Option<u64>,
    /// Number of jobs for each figure [default: 3; quick: 1]
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Measure fewer sizes, in shorter jobs and one round
    #[arg(long)]
    quick: bool,
    /// Rows and columns of the matrix of lu
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    lu_n: u32,
    /// Rows and columns of a block of lu
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1 << 15))]
    lu_block: u32,
    /// Rows and columns of the grid of pipeline
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1 << 15))]
    grid: u32,
    #[command(flatten)]
    files: Files,
}

/// A name on the command line.
#[derive(Clone, Copy)]
enum Selection {
    Measured(&'static Measurement),
    Simulated(&'static [Simulated]),
}

fn selection(name: &str) -> Result<Selection, String> {
    let name = name.replace('-', "_");
    match simulated::find(&name) {
        _ if name == "simulated" => Ok(Selection::Simulated(SIMULATED)),
        Some(row) => Ok(Selection::Simulated(std::slice::from_ref(row))),
        None => catalog::measurement(&name).map(Selection::Measured).map_err(|why| {
            let names: Vec<_> = SIMULATED.iter().map(|row| row.name).collect();
            format!("{why}; or one of the simulations {}", names.join(", "))
        }),
    }
}

/// Tasks that differ only in their configurations; their jobs alternate.
type Turns = Vec<Task>;

/// A measurement and its tasks.
type Group = (&'static Measurement, Vec<Turns>);

/// A note below the tables.
const BATCHES: &str =
    "ns to max: statistics of the means of batches of operations, which take 1 us or more; not of single operations\n";

/// The largest number of jobs that may be dropped, because the core placement changed or the job beat its
/// limit.
const AGAIN: usize = 3;

impl Plain {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let millis = self.millis.unwrap_or(if self.quick { 10 } else { 50 });
        let rounds = usize::from(self.rounds.unwrap_or(if self.quick { 1 } else { 3 }));
        let groups = self.groups(millis)?;
        let (rows, options) = self.simulated()?;
        let outputs = self.files.check()?;
        if !groups.is_empty() {
            warn_of_circumstances();
        }
        let (mut all, mut sheets) = (Vec::new(), Vec::new());
        let measured = measure(groups, rounds, &outputs, &mut all)
            .and_then(|right| Ok(simulate(&rows, &options, &outputs, &mut sheets).map(|()| right)?));
        // After an error, the results until then.
        let written = match &measured {
            Err(_) if all.is_empty() && sheets.is_empty() => Ok(()),
            _ => outputs.write(
                || json(millis, rounds, &all, &sheets, measured.as_ref().err().map(ToString::to_string)),
                || chart::by_size(&all, &sheets),
            ),
        };
        let right = measured?;
        written?;
        Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The simulations to execute, each once, and their options.
    fn simulated(&self) -> Result<(Vec<&'static Simulated>, Options), Usage> {
        let of = |what: &Selection| if let Selection::Simulated(rows) = what { rows } else { &[][..] };
        let mut rows: Vec<&Simulated> = Vec::new();
        for row in self.measurements.iter().flat_map(of) {
            if rows.iter().all(|known| known.name != row.name) {
                rows.push(row);
            }
        }
        let ranks = self.ranks.iter().map(|&ranks| ranks.into()).collect();
        let options = Options::new(self.quick, ranks, self.sizes.clone(), self.configs.clone());
        rows.iter().try_for_each(|row| row.check(&options))?;
        Ok((rows, options))
    }

    /// The tasks, grouped by measurement.
    fn groups(&self, millis: u64) -> Result<Vec<Group>, Usage> {
        let chosen: Vec<_> = if self.measurements.is_empty() {
            CATALOG.iter().filter(|measurement| self.fits(measurement)).collect()
        } else {
            let measured = self.measurements.iter().filter_map(|what| match what {
                Selection::Measured(measurement) => Some(*measurement),
                Selection::Simulated(_) => None,
            });
            measured.collect()
        };
        if chosen.is_empty() && self.sync.is_empty() && !self.measurements.is_empty() {
            return Ok(Vec::new());
        }
        let factors = chosen.iter().any(|measurement| matches!(measurement.name, "lu" | "lu_outside"));
        if factors && self.lu_block > self.lu_n {
            return Err(Usage(format!("--lu-block {}: larger than the matrix of {}", self.lu_block, self.lu_n)));
        }
        let unused = self.sync.iter().find(|sync| !chosen.iter().any(|measurement| measurement.syncs.contains(sync)));
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
            let configs = self.configs_of(measurement)?;
            let mut turns = Vec::new();
            for &sync in syncs {
                for &ranks in &ranks {
                    for &bytes in if measurement.sized { &sizes[..] } else { &[8] } {
                        let task = |config: &String| Task {
                            measurement: measurement.name,
                            sync,
                            config: config.clone(),
                            by_itself: !self.configs.is_empty(),
                            bytes,
                            element: "i64",
                            ranks,
                            hosts: usize::from(self.hosts_local.unwrap_or(1)).min(ranks),
                            millis: millis * measurement.patience,
                            cores: cores.clone(),
                            n: self.lu_n as usize,
                            block: self.lu_block as usize,
                            grid: self.grid as usize,
                        };
                        turns.push(configs.iter().map(task).collect());
                    }
                }
            }
            if turns.is_empty() {
                let (name, syncs) = (measurement.name, measurement.syncs.join(", "));
                return Err(Usage(format!(
                    "{name} is not measured by {}; expected one of {syncs}",
                    self.sync.join(", ")
                )));
            }
            groups.push((measurement, turns));
        }
        match unused {
            _ if groups.is_empty() => Err(Usage(
                "no measurement fits these --ranks, --sync and --config together; see `transom bench list`".into(),
            )),
            Some(sync) => Err(Usage(format!("--sync {sync}: no chosen measurement has this synchronization"))),
            None => Ok(groups),
        }
    }

    /// The configurations to measure: each of the measurement's own, combined with each requested one.
    fn configs_of(&self, measurement: &Measurement) -> Result<Vec<String>, Usage> {
        let name = measurement.name;
        if self.configs.is_empty() {
            return Ok(measurement.configs.iter().map(|&own| own.to_owned()).collect());
        }
        if !measurement.is_of_messages() {
            return Err(Usage(format!(
                "{name} --config: it sends no messages; choose a measurement that does (`transom bench list`)"
            )));
        }
        let mut all = Vec::new();
        for &own in measurement.configs {
            for asked in &self.configs {
                let both =
                    if own.is_empty() || asked.is_empty() { [own, asked].concat() } else { [own, asked].join(",") };
                let wrong = |why| Usage(format!("{name} --config {asked}: combined with its own {own}, {why}"));
                both.parse::<Changes>().map_err(wrong)?;
                all.push(both);
            }
        }
        Ok(all)
    }

    /// True if it can be measured with these options. Measurements that were not named are omitted if they do not fit.
    fn fits(&self, measurement: &Measurement) -> bool {
        (self.sync.is_empty() || measurement.syncs.iter().any(|sync| self.sync.contains(sync)))
            && (self.configs.is_empty() || self.configs_of(measurement).is_ok())
            && self.ranks.iter().all(|&ranks| usize::from(ranks) >= measurement.least)
    }
}

/// Executes all tasks, prints each table when complete, and collects the rows. Returns whether all limits were right.
fn measure(groups: Vec<Group>, rounds: usize, outputs: &Outputs, all: &mut Vec<Row>) -> Result<bool, Box<dyn Error>> {
    let tasks = groups.iter().flat_map(|(_, turns)| turns).map(Vec::len).sum::<usize>();
    let progress = Progress::new(rounds * tasks);
    let mut right = true;
    for (measurement, turns) in groups {
        let before = all.len();
        for tasks in turns {
            for (task, jobs) in tasks.iter().zip(jobs(&tasks, rounds, &progress)?) {
                all.extend(rows(task, &jobs));
            }
        }
        let found = &all[before..];
        for why in wrong_limits(found) {
            progress.warn(&why);
            right = false;
        }
        outputs.or_unread(progress.print(&tables::show(measurement, found)))?;
    }
    drop(progress);
    if all.iter().any(|row| row.latency_ns.is_some()) {
        outputs.or_unread(print(BATCHES))?;
    }
    Ok(right)
}

/// Executes all simulations, prints each when complete, and collects the results.
fn simulate(
    rows: &[&'static Simulated],
    options: &Options,
    outputs: &Outputs,
    sheets: &mut Vec<Simulation>,
) -> std::io::Result<()> {
    for row in rows {
        let simulation = row.run(options);
        outputs.or_unread(print(&simulation.to_string()))?;
        sheets.push(simulation);
    }
    Ok(())
}

/// Reports a configuration that the messages library would reject as a wrong command line.
pub fn config(text: &str) -> Result<String, String> {
    text.parse::<Changes>().map_or_else(|why| Err(why.to_string()), |_| Ok(text.to_owned()))
}

/// Executes the requested number of jobs of each task, alternating between the tasks. Repeats jobs during which the
/// core placement changed, or that beat their limit.
fn jobs(tasks: &[Task], rounds: usize, progress: &Progress) -> Result<Vec<Vec<Done>>, Box<dyn Error>> {
    let mut all: Vec<(Vec<Done>, usize)> = tasks.iter().map(|_| (Vec::new(), 0)).collect();
    for _ in 0..rounds + AGAIN {
        for (task, (jobs, good)) in tasks.iter().zip(&mut all).filter(|(_, (_, good))| *good < rounds) {
            progress.now(describe(task));
            let done = Done::of(task, job::run(job::ours(task)?, task))?;
            if is_good(task, &done) {
                *good += 1;
                progress.step(1);
            }
            jobs.push(done);
        }
    }
    progress.step(all.iter().map(|(_, good)| rounds - good).sum());
    Ok(all.into_iter().map(|(jobs, _)| jobs).collect())
}
