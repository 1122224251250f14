//! `transom bench`: the field's standard measurements, beside the machine's own limits and beside others.

mod catalog;
mod chart;
mod compare;
mod cores;
mod figures;
mod interrupt;
mod job;
mod limits;
mod peers;
mod plain;
mod progress;
mod protocol;
mod statistics;
mod targets;
mod text;
pub mod worker;

use catalog::CATALOG;
use clap::{Args, Subcommand};
use serde::Serialize;
use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measures latency, bandwidth, locks, barriers, LU, overlap, a pipeline and startup on this machine.
///
/// Each figure comes from short jobs of ranks of this program, bound to a core each where there are enough, and stands
/// beside the machine's own limit taken at the same time: an atomic instruction, memcpy of the same size, a cache line
/// crossing between the two cores. The crossing is measured before and after each job: jobs in which the cores moved
/// from near (below 70 ns one way) to far or back are dropped and repeated, and the two are reported apart.
///
/// Names and conditions are those of the OSU micro-benchmarks: rank 0 accesses rank 1, one operation and its
/// synchronisation at a time; by fence and pscw the two take turns.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER)]
pub struct Bench {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    plain: plain::Plain,
}

#[derive(Subcommand)]
enum Command {
    List(List),
    Compare(compare::Compare),
}

const AFTER: &str = "\
Columns:
  mode     how far apart the cores were: near, far, - where nothing crosses
  ns       the median, as min to max of the means of batches of operations, of 1 us or more: p99, p99.9 and max are
           percentiles of these means, not of single operations
  limit    what the machine itself needs for it, and x limit how many times as long it took (1 is the best there is)

Exit status: 0 if all was measured and every result was right, 2 for a wrong command line, else 1; so 1 too if
something was dropped because the cores moved in each of its jobs.

Examples:
  transom bench --quick                     a bit of everything, in seconds
  transom bench                             everything, 8 B to 4 MiB, in minutes
  transom bench put get --sync flush,fence --svg latency.svg
  transom bench put_bw --sizes 4KiB,1MiB --json bandwidth.json
  transom bench contended --ranks 2,4,8     more ranks than cores take turns
  transom bench lu --ranks 4 --lu-n 1024 --lu-block 16 --lock two-sided
  transom bench list                        what can be measured
  transom bench compare --quick             against Open MPI and MPICH";

/// Lists what can be measured, by which synchronisations.
#[derive(Args)]
struct List {}

/// What is written besides what is printed.
#[derive(Args, Clone, Debug, Default)]
struct Files {
    /// Write all figures here as JSON; percentiles (latency_ns) are of means of batches, as in the table
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw them here as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A command line that cannot be, beyond what its syntax says.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(String);

impl Bench {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        interrupt::handle()?;
        let result = match self.command {
            Some(Command::List(List {})) => list().map(|()| ExitCode::SUCCESS).map_err(Into::into),
            Some(Command::Compare(compare)) => compare.execute(),
            None => self.plain.execute(),
        };
        match result {
            // Nobody reads on, e.g. `| head`.
            Err(error) if is_closed(error.as_ref()) => Ok(ExitCode::SUCCESS),
            result => result,
        }
    }
}

fn is_closed(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn list() -> io::Result<()> {
    let mut table = text::Table::new(3, &["measurement", "ranks", "what", "--sync"]);
    for measurement in CATALOG {
        let ranks: Vec<_> = measurement.ranks.iter().map(ToString::to_string).collect();
        let cells = [measurement.name, &ranks.join(","), measurement.about, &measurement.syncs.join(",")];
        table.row(cells.map(str::to_owned).to_vec());
    }
    text::print(&table.to_string())
}

impl Files {
    /// Finds out whether they can be written before anything is measured.
    fn open(&self) -> Result<(Option<File>, Option<File>), Usage> {
        let open = |path: &Option<PathBuf>| match path {
            Some(path) => match File::create(path) {
                Ok(file) => Ok(Some(file)),
                Err(error) => Err(Usage(format!("`{}` cannot be written: {error}", path.display()))),
            },
            None => Ok(None),
        };
        Ok((open(&self.json)?, open(&self.svg)?))
    }
}

/// What the machine is, for whoever reads figures later.
#[derive(Serialize)]
struct Machine {
    cores: usize,
    processor: String,
    kernel: String,
    /// What else ran: the load average of the last minute, this program included.
    load: Option<f64>,
}

impl Machine {
    fn this() -> Self {
        let read = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        Machine {
            cores: cores::allowed().len(),
            processor: model.map_or("unknown", |(_, name)| name.trim()).to_owned(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            load: read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse().ok()),
        }
    }
}

/// Says on stderr what no ratio makes up for: that others use the machine, or that this is no release build.
fn warn_of_circumstances() {
    if cfg!(debug_assertions) {
        eprintln!("transom: this is a debug build, and so are its figures; cargo run --release has others");
    }
    let Machine { cores, load, .. } = Machine::this();
    if let Some(load) = load.filter(|&load| load > 0.5 * cores as f64) {
        eprintln!(
            "transom: this machine is busy (load {load} on {cores} cores): what ranks do together will seem slow"
        );
    }
}

/// Writes all figures, and what they were taken on.
fn write_json(mut file: File, millis: u64, rounds: usize, rows: &impl Serialize) -> io::Result<()> {
    let all = serde_json::json!({
        "transom": env!("CARGO_PKG_VERSION"),
        "machine": Machine::this(),
        "millis": millis,
        "rounds": rounds,
        "rows": rows,
    });
    serde_json::to_writer_pretty(&mut file, &all)?;
    file.write_all(b"\n")
}
