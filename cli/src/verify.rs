//! `transom verify`: checks a mix of requests on the passive lock, under every schedule.

use clap::error::ErrorKind;
use clap::{Args, ValueEnum};
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use transom_locks::model::{Bound, Delivery, Explored, Mix, NotExported, Search, Stopped};

/// Checks a mix of requests on the passive lock under every schedule: FIFO order, exclusion, cost, deadlock.
///
/// The code under check is the code that ships, on a simulated network. Each rank has a row of requests; `|` separates
/// rows. `W` writes (acquires exclusively and releases), `R` reads. `TW` and `TR` are attempts, and `T` is short for `TW`.
/// `DW` and `DR` have a deadline that may pass at any step. `A` takes all locks in shared mode. `W1` is a request at the
/// lock of rank 1; without a number it is rank 0's. `W0+W1` acquires one lock within the other. A row that ends with `*`
/// repeats for ever: a call that never returns under a fair schedule is then a violation too.
///
/// `barrier` passes the barrier of all ranks. `post1,2` exposes memory to ranks 1 and 2, and `wait` waits until both have
/// completed; `start0` opens an access to rank 0 once that has posted, and `complete` ends it. `W+barrier` holds the lock
/// in the barrier.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Verify {
    /// The requests of each rank
    mix: String,
    /// Ranks that all run the one row of the mix
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=64))]
    ranks: Option<u8>,
    /// When puts, and additions that are not waited for, take effect
    #[arg(long, value_enum, default_value = "immediate")]
    delivery: When,
    /// Ranks that may die at any step. Deaths are not modelled yet, so only 0 is accepted
    #[arg(long, default_value_t = 0)]
    deaths: usize,
    /// Use counts of 3 bits in the lock word, which wrap soon, and go to the gate after one failed attempt; rows that
    /// repeat for ever always use them
    #[arg(long)]
    narrow: bool,
    /// Stop after this many states
    #[arg(long, default_value_t = 20_000_000)]
    max_states: usize,
    /// Stop when the search uses this much memory, in MiB
    #[arg(long, default_value_t = 2048)]
    max_memory: usize,
    /// Draw the schedule of a violation into this file
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Print only the table of bounds, in Markdown
    #[arg(long)]
    table: bool,
    /// Write the mix as a TLA+ module into this file, and the configuration of TLC beside it; then let TLC check it.
    /// The mix has no deadlines, barriers, epochs and rows that repeat; verbs take effect at once
    #[arg(long, conflicts_with_all = ["table", "svg", "narrow"])]
    tla: Option<PathBuf>,
    /// The program that runs TLC
    #[arg(long, default_value = "tlc")]
    tlc: PathBuf,
}

#[derive(Clone, Copy, ValueEnum)]
enum When {
    /// At once
    Immediate,
    /// In a step of their own, as on a network adapter
    Deferred,
    /// At once, in memory that ranks share and watch
    Watched,
    /// At once, but atomics take two steps, and a put in between is lost
    Torn,
}

const EXAMPLES: &str = "\
Examples:
  transom verify 'W W | R R | TW'                    two writes, two reads, an attempt
  transom verify 'W R' --ranks 3                     three ranks that each write, then read
  transom verify 'DW | W' --delivery deferred        a deadline, with puts in flight
  transom verify 'W W | R R' --table                 the table of bounds
  transom verify 'W * | W *'                         two writers for ever: none starves
  transom verify 'W R | R' --tla mix.tla             for TLC, which checks it if it is installed
  transom verify 'W0+W1 | W1+W0' --svg deadlock.svg  two locks in two orders: a deadlock, drawn
  transom verify 'W+barrier | W barrier'             a lock held in a barrier: a deadlock
  transom verify 'post1 wait | start0 complete'      an exposure and its access

Exit status: 0 without a violation, 1 with one (or a failed write), 2 for a wrong command line or mix, 3 if a bound ended the
search before.";

impl Verify {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        if self.deaths > 0 {
            refuse(&format!("--deaths {}: the model has no deaths yet; leave the option out or write 0", self.deaths));
        }
        if self.narrow || self.mix.contains('*') { self.check::<3>() } else { self.check::<16>() }
    }

    fn check<const C: u32>(&self) -> Result<ExitCode, Box<dyn Error>> {
        let text = match self.ranks {
            None => self.mix.clone(),
            Some(ranks) if !self.mix.contains('|') => vec![self.mix.trim(); ranks.into()].join(" | "),
            Some(ranks) => refuse(&format!("--ranks {ranks} repeats one row; the mix {:?} has several", self.mix)),
        };
        let mix = Mix::<C>::parse(&text).unwrap_or_else(|wrong| refuse(&format!("mix {text:?}: {wrong}")));
        let (delivery, how) = match self.delivery {
            When::Immediate => (Delivery::Immediate, "immediate"),
            When::Deferred => (Delivery::Deferred, "deferred"),
            When::Watched => (Delivery::Watched, "watched"),
            When::Torn => (Delivery::Torn, "torn"),
        };
        let search = Search {
            max_states: self.max_states,
            max_bytes: self.max_memory.saturating_mul(1 << 20),
            count_schedules: !mix.is_endless(),
            starvation: mix.is_endless(),
            progress: io::stderr().is_terminal().then_some(show_progress),
            ..Search::default()
        };
        if let Some(path) = &self.tla {
            return self.export(mix, path, delivery);
        }
        let (ranks, endless) = (mix.ranks(), mix.is_endless());
        let sync = if mix.is_on_locks() { "" } else { ", barriers and epochs in order" };
        if endless && self.table {
            refuse("--table: rows that repeat for ever have no table; leave the * out");
        }
        let net = mix.sim().with_delivery(delivery);
        // The counters of the bounds would multiply the states of rows that repeat.
        let outcome = match endless {
            true => net.explore_with(&search, (), |(), _| Ok(())).map(|explored| (explored, Vec::new())),
            false => net.bounds(&search),
        };
        let mut out = String::new();
        if !self.table {
            writeln!(out, "mix         {text}")?;
            let counts = if C < 16 { ", counts of 3 bits" } else { "" };
            writeln!(out, "network     {ranks} ranks, verbs in one order, delivery {how}, no deaths{counts}")?;
        }
        let status = match outcome {
            Ok((_, bounds)) if self.table => {
                out += &table(&bounds);
                0
            }
            Ok((explored, bounds)) => {
                writeln!(
                    out,
                    "states      {}, by {} steps, depth {}",
                    explored.states, explored.steps, explored.depth
                )?;
                let schedules = explored.schedules.map_or("endless".into(), |schedules| schedules.to_string());
                writeln!(out, "schedules   {schedules}")?;
                let fair = if endless { ", no starvation" } else { "" };
                writeln!(
                    out,
                    "verdict     no violation: exclusion, first come first served, cost, no deadlock{fair}{sync}"
                )?;
                writeln!(out, "complete    every schedule; ranks with the same calls begin in order\n")?;
                if !endless {
                    out += &table(&bounds);
                }
                out += "\nNo request was overtaken after its place by one in conflict.\n";
                if let Some(path) = &self.svg {
                    writeln!(out, "{} not written: there is no violation to draw", path.display())?;
                }
                0
            }
            Err(Stopped::Bound(explored)) => {
                writeln!(out, "verdict     no violation so far")?;
                writeln!(out, "INCOMPLETE  {explored}; raise --max-states or --max-memory")?;
                3
            }
            Err(Stopped::Violation(failure)) => {
                writeln!(out, "verdict     VIOLATION\n\n{failure}")?;
                if let Some(path) = &self.svg {
                    std::fs::write(path, failure.trace.svg())
                        .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
                    writeln!(out, "drawn in {}", path.display())?;
                }
                1
            }
        };
        print(&out, status)
    }
}

impl Verify {
    /// Writes the TLA+ module, and checks it by TLC where that is found.
    fn export<const C: u32>(&self, mix: Mix<C>, path: &Path, delivery: Delivery) -> Result<ExitCode, Box<dyn Error>> {
        let module = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let is_name = |name: &str| {
            name.starts_with(|letter: char| letter.is_ascii_alphabetic())
                && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        if !is_name(module) || path.extension().is_none_or(|extension| extension != "tla") {
            refuse(&format!(
                "--tla {}: the file name is no module name; write letters and digits, then .tla",
                path.display()
            ));
        }
        if delivery != Delivery::Immediate {
            refuse("--tla exports --delivery immediate only");
        }
        let (text, config) = match mix.sim().tla(module, self.max_states) {
            Ok(exported) => exported,
            Err(NotExported::Unsupported(what)) => refuse(&format!("--tla: {what}")),
            Err(NotExported::Stopped(Stopped::Violation(failure))) => {
                return print(&format!("not written: VIOLATION\n\n{failure}\n"), 1);
            }
            Err(NotExported::Stopped(Stopped::Bound(explored))) => {
                return print(&format!("not written: INCOMPLETE  {explored}; raise --max-states\n"), 3);
            }
        };
        let beside = path.with_extension("cfg");
        for (path, text) in [(path, text), (&beside, config)] {
            std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        }
        let written = format!("written     {} and {}\n", path.display(), beside.display());
        let states = std::env::temp_dir().join(format!("transom-tlc-{}", std::process::id()));
        let mut tlc = Command::new(&self.tlc);
        tlc.args(["-cleanup", "-metadir"]).arg(&states).arg("-config").arg(&beside).arg(path);
        let output = match tlc.output() {
            Ok(output) => output,
            Err(error) => {
                let program = self.tlc.display();
                return print(
                    &format!("{written}TLC         not run: cannot start {program}: {error}; name it by --tlc\n"),
                    0,
                );
            }
        };
        let _ = std::fs::remove_dir_all(&states); // TLC removes it unless it fails
        let said = String::from_utf8_lossy(&output.stdout);
        if output.status.success() {
            let states = said.lines().rev().find(|line| line.contains("distinct states found")).unwrap_or_default();
            return print(&format!("{written}TLC         no error: {states}\n"), 0);
        }
        let errors = String::from_utf8_lossy(&output.stderr);
        print(&format!("{written}TLC         failed ({})\n{said}{errors}", output.status), 1)
    }
}

/// Prints the text, and returns the exit status.
fn print(text: &str, status: u8) -> Result<ExitCode, Box<dyn Error>> {
    match io::stdout().write_all(text.as_bytes()) {
        // The reader closed stdout, e.g. `| head`.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::from(status)),
    }
}

/// Ends the program as any other mistake on the command line does.
fn refuse(why: &str) -> ! {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{why}\n")).exit()
}

fn table(bounds: &[Bound]) -> String {
    let rows = bounds.iter().map(|bound| format!("{bound}\n")).collect::<String>();
    format!("| call | verbs until placed | overtaken before its place | operations |\n|---|---|---|---|\n{rows}")
}

fn show_progress(explored: &Explored) {
    // Ignores write errors: the reader of stderr may be gone.
    let _ = writeln!(io::stderr(), "{explored}");
}
