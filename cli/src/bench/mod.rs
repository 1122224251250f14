//! `transom bench`: the field's standard measurements, beside the machine's own limits and beside others.

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
use simulated::{SIMULATED, Simulated};
use std::error::Error;
use std::io;
use std::process::ExitCode;
pub use usage::Usage;

/// Measures latency, bandwidth, locks, barriers, messages, pipes, LU, overlap, a pipeline and startup on this machine.
///
/// Each figure comes from short jobs of ranks of this program, bound to a core each where there are enough, and stands
/// beside the machine's own limit taken at the same time: an atomic instruction, memcpy of the same size, a cache line
/// crossing between the two cores. The crossing, and how much the one core slows the other, are measured before and after each
/// job: two hardware threads of a core (siblings), cores near each other (a line crosses in less than 90 ns) and far cores are
/// reported apart, and jobs in which that changed are repeated. So are those that took less than the limit by more than 10 %: if
/// each does, the limit is wrong, and that is an error.
///
/// Names and conditions are those of the OSU micro-benchmarks: rank 0 accesses rank 1, one operation and its
/// synchronisation at a time; by fence and pscw the two take turns.
///
/// What `transom bench list` calls simulated runs only where it is named. It measures nothing of this machine: the library's engines drive
/// a simulated network of several adapters and up to a thousand ranks in virtual time, under the bandwidth, latency, MTU and loss that
/// stand above each table. The figures are the same everywhere.
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
}

const AFTER: &str = "\
Columns:
  mode     how the cores were to each other: siblings, near, far; - where nothing crosses, mixed if it changed in each job
  ns       the median, as min to max of the means of batches of operations, of 1 us or more: p99, p99.9 and max are
           percentiles of these means, not of single operations
  limit    what the machine itself needs for it, by whatever protocol (a lock: an atomic to take, one to give back), and
           x limit how many times as long it took (1 is the best there is); or why that cannot be said
  x first  where there are several configurations: how many times as long as in the first of them

Exit status: 0 if all was measured and every result was right, 2 for a wrong command line, else 1; so 1 too if a limit is wrong.

Examples:
  transom bench --quick                     a bit of everything, in seconds
  transom bench                             everything, 8 B to 4 MiB, in minutes
  transom bench put get --sync flush,fence --svg latency.svg
  transom bench put_bw --sizes 4KiB,1MiB --json bandwidth.json
  transom bench contended --ranks 2,4,8     more ranks than cores take turns
  transom bench lu --ranks 4 --lu-n 1024 --lu-block 16 --lock two-sided
  transom bench stream --config rings=0 --config rings=8 --sizes 8
                                            the same messages in two configurations, by turns
  transom bench channels mix --ranks 128    simulated: programs by the rules of MVAPICH-Aptus
  transom bench simulated --quick           all that is simulated: no measurement of this machine
  transom bench list                        what can be measured, and what is simulated
  transom bench compare --quick             against Open MPI and MPICH
  transom bench tune -n 4                   which algorithms collectives are to take, as rules";

/// Lists what can be measured, by which synchronisations, and what can be simulated.
#[derive(Args)]
struct List {}

impl Bench {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        // Those of tune are ranks of a job, or its launcher, which handles signals itself.
        if !matches!(self.command, Some(Command::Tune(_))) {
            interrupt::handle()?;
        }
        let result = match self.command {
            Some(Command::List(List {})) => list().map(|()| ExitCode::SUCCESS).map_err(Into::into),
            Some(Command::Compare(compare)) => compare.execute(),
            Some(Command::Tune(tune)) => tune.execute(),
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
    let mut simulated = text::Table::new(4, &["simulated", "of", "what", "network"]);
    for Simulated { name, figure, about, network, .. } in SIMULATED {
        simulated.row([name, figure, about, network].map(|&cell| cell.to_owned()).to_vec());
    }
    text::print(&format!(
        "{table}\nIn virtual time, on networks of these conditions, and not on this machine; `simulated` names all of them:\n{simulated}"
    ))
}
