//! `transom bench`: the standard measurements of the field, compared with the machine's own limits and with other MPI
//! libraries.

mod alone;
mod buffer;
mod catalog;
mod chart;
mod compare;
mod cores;
mod figures;
mod files;
mod interrupt;
mod job;
mod limits;
mod machine;
mod mode;
mod nas;
mod pairs;
mod peers;
mod plain;
mod progress;
mod protocol;
mod rows;
mod simulated;
mod statistics;
mod tables;
mod targets;
mod text;
mod tune;
mod usage;
pub mod worker;

use catalog::CATALOG;
use clap::{Args, Subcommand};
pub use job::LocalShell;
use simulated::{SIMULATED, Simulated};
use std::error::Error;
use std::io;
use std::process::ExitCode;
pub use usage::Usage;

/// Measures latency, bandwidth, locks, barriers, messages, pipes, LU, overlap, a pipeline and startup on this machine.
///
/// Each figure comes from short jobs of this program, with each rank bound to a core if there are enough cores. It is
/// shown beside the machine's own limit, measured at the same time: an atomic instruction, memcpy of the same size, and
/// a cache line crossing between the two cores. The crossing, and the slowdown of one core by the other, are measured
/// before and after each job. Three core placements are reported separately: two hardware threads of a core (siblings),
/// near cores (a line crosses in less than 90 ns) and far cores. A job during which the placement changed is repeated.
/// So is a job that beats its limit by more than 10 %: if every job does, the limit is wrong, which is an error.
///
/// Names and conditions are those of the OSU micro-benchmarks: rank 0 accesses rank 1, one operation with its
/// synchronization at a time; by fence and pscw the two alternate.
///
/// A simulation (see `transom bench list`) is executed only when named. It measures nothing of this machine: the
/// library's engines drive a simulated network of several adapters and up to a thousand ranks in virtual time, with the
/// bandwidth, latency, MTU and loss shown above each table. The figures are the same on every machine.
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
    Tune(tune::Tune),
    Nas(nas::Nas),
}

const AFTER: &str = "\
Columns:
  mode     core placement: siblings, near or far; mixed if it changed in every job; - if nothing crosses cores
  ns       the median time of an operation. Like min to max, it is taken from the means of batches of operations, which
           take 1 us or more: p99, p99.9 and max are percentiles of these means, not of single operations
  limit    time that the hardware needs for any protocol (a lock: an atomic to acquire, one to release), and
           x limit the measured time as a multiple of it (1 is the best possible); or the reason why no limit is known
  x asleep between hosts: the time as a multiple of a request and its answer over a plain TCP stream whose other end sleeps
           until the request arrives, like the thread that serves a rank; the limit is such a stream whose ends poll
  x first  with several configurations: the time as a multiple of the first configuration's

Exit status: 0 if everything was measured and every result was right, 2 for a wrong command line, else 1 (also if a limit is
wrong).

Examples:
  transom bench --quick                     all measurements, with few sizes, in seconds
  transom bench                             all measurements, 8 B to 4 MiB, in minutes
  transom bench put get --sync flush,fence --svg latency.svg
  transom bench put_bw --sizes 4KiB,1MiB --json bandwidth.json
  transom bench contended --ranks 2,4,8     ranks beyond the number of cores share cores
  transom bench lu --ranks 4 --lu-n 1024 --lu-block 16 --lock two-sided
  transom bench stream --config rings=0 --config rings=8 --sizes 8
                                            the same messages, alternating between two configurations
  transom bench channels mix --ranks 128    simulated: programs with the rules of MVAPICH-Aptus
  transom bench simulated --quick           all simulations; measures nothing of this machine
  transom bench put pingpong --hosts-local 2  between two host names of this machine, over TCP
  transom bench list                        lists measurements and simulations
  transom bench compare --quick             compares with Open MPI and MPICH
  transom bench tune -n 4                   prints rules for the algorithms of collectives
  transom bench nas --config rings=0 --config rings=8
                                            NAS kernels, alternating between two configurations";

/// Lists the measurements, their synchronizations, and the simulations.
#[derive(Args)]
struct List {}

impl Bench {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        // The ranks of tune are ranks of a job, or become its launcher, which handles signals itself.
        if !matches!(self.command, Some(Command::Tune(_))) {
            interrupt::handle()?;
        }
        let result = match self.command {
            Some(Command::List(List {})) => list().map(|()| ExitCode::SUCCESS).map_err(Into::into),
            Some(Command::Compare(compare)) => compare.execute(),
            Some(Command::Tune(tune)) => tune.execute(),
            Some(Command::Nas(nas)) => nas.execute(),
            None => self.plain.execute(),
        };
        match result {
            // The reader of stdout has ended, e.g. `| head`.
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
    let mut simulated = text::Table::new(4, &["simulated", "of", "what", "network"]);
    for Simulated { name, figure, about, network, .. } in SIMULATED {
        simulated.row([name, figure, about, network].map(|&cell| cell.to_owned()).to_vec());
    }
    text::print(&format!(
        "{table}\nSimulations in virtual time, on networks with these conditions, not on this machine; `simulated` \
         names them all:\n{simulated}"
    ))
}
