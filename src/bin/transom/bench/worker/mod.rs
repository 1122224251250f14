//! `transom bench-worker`: one rank of a job that measures one thing once. See [`protocol`](super::protocol).

mod applications;
mod crossing;
mod kernel;
mod locks;
mod lu;
mod operations;
mod pipeline;
mod sampling;

use clap::{Args, ValueEnum};
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use transom::provider::Provider;
use transom::{Rank, World};

use super::cores::{allowed, bind as bind_to, on as on_core};

/// Measures one thing once, as a rank of a job, and prints what `transom bench` reads; not meant to be called by hand
#[derive(Args)]
pub struct Worker {
    /// What to measure
    #[arg(value_enum)]
    measurement: Measurement,
    /// By which synchronisation
    #[arg(long, value_enum)]
    sync: Sync,
    /// Bytes of an operation, in whole 8-byte integers
    #[arg(long, default_value_t = 8, value_parser = bytes)]
    bytes: usize,
    /// Of what accumulate and get_accumulate make sums
    #[arg(long = "type", value_enum, default_value_t = Element::I64)]
    element: Element,
    /// How many ranks the job has, for information
    #[arg(long, default_value_t = 1)]
    ranks: usize,
    /// How long to measure
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    millis: u64,
    /// Rows of the matrix of lu
    #[arg(long, default_value_t = 256, value_parser = positive)]
    n: usize,
    /// Rows of a block of lu
    #[arg(long, default_value_t = 16, value_parser = positive)]
    block: usize,
    /// Rows of the grid of pipeline
    #[arg(long, default_value_t = 1000, value_parser = positive)]
    grid: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Measurement {
    Put,
    Get,
    Accumulate,
    GetAccumulate,
    FetchAndOp,
    CompareAndSwap,
    PutBw,
    GetBw,
    Lock,
    Contended,
    ReadersWriter,
    Barrier,
    Lu,
    LuOutside,
    Overlap,
    Pipeline,
    Startup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Sync {
    Lock,
    LockExclusive,
    LockAll,
    Flush,
    FlushLocal,
    Fence,
    Pscw,
    Barrier,
    OneSided,
    TwoSided,
    Shared,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Element {
    I64,
    F64,
}

fn bytes(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(bytes) if bytes > 0 && bytes.is_multiple_of(8) && bytes <= 1 << 30 => Ok(bytes),
        _ => Err("a multiple of 8, up to 1 GiB, is expected".into()),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1 << 20).contains(&number) => Ok(number),
        _ => Err("a whole number from 1 to 1048576 is expected".into()),
    }
}

type Outcome<R = ()> = Result<R, Box<dyn Error>>;
type Target<'e, T = u64> = transom::windows::Target<'e, T, Provider>;

impl Worker {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let world = transom::init()?;
        // Only now: a rank that is on one core already would take the machine for one of a single core.
        bind(&world);
        let mut facts = Facts::default();
        if self.measurement == Measurement::Startup {
            applications::startup(&world, &mut facts)?;
        } else {
            // Before and after, so that samples during which the system moved the ranks can be told.
            crossing::take(&world, &mut facts)?;
            self.measure(&world, &mut facts)?;
            crossing::take(&world, &mut facts)?;
        }
        if world.rank() == 0 {
            std::io::stdout().write_all(facts.text()?.as_bytes())?;
        }
        // Nobody leaves while others may still need it.
        world.barrier()?;
        Ok(ExitCode::SUCCESS)
    }

    fn measure(&self, world: &World, facts: &mut Facts) -> Outcome {
        use Measurement::*;
        let fits = match self.measurement {
            Lock => matches!(self.sync, Sync::Lock | Sync::LockExclusive),
            PutBw | GetBw => self.sync == Sync::Flush,
            Contended => self.sync == Sync::LockExclusive,
            ReadersWriter | Overlap => self.sync == Sync::Lock,
            Barrier => self.sync == Sync::Barrier,
            Lu | LuOutside => matches!(self.sync, Sync::Lock | Sync::TwoSided | Sync::Shared),
            Pipeline => self.sync == Sync::OneSided,
            Startup => self.sync == Sync::None,
            Put | Get | Accumulate | GetAccumulate | FetchAndOp | CompareAndSwap => {
                !matches!(self.sync, Sync::Barrier | Sync::OneSided | Sync::TwoSided | Sync::Shared | Sync::None)
            }
        };
        let least = match self.measurement {
            ReadersWriter => 3,
            Overlap => 2,
            _ => 1,
        };
        if !fits {
            return Err(
                format!("{:?} is not measured by {:?}; see `transom bench list`", self.measurement, self.sync).into()
            );
        }
        if world.size() < least {
            return Err(format!("{:?} takes {least} ranks or more", self.measurement).into());
        }
        match self.measurement {
            Accumulate | GetAccumulate if self.element == Element::F64 => self.sums::<f64>(world, facts),
            Accumulate | GetAccumulate => self.sums::<i64>(world, facts),
            Put | Get | FetchAndOp | CompareAndSwap => self.latency(world, facts),
            PutBw | GetBw => self.bandwidth(world, facts),
            Lock => self.lock(world, facts),
            Contended => locks::contended(world, self.time(), facts),
            ReadersWriter => locks::readers_writer(world, self.time(), facts),
            Barrier => applications::barrier(world, self.time(), facts),
            Lu | LuOutside => self.lu(world, facts),
            Overlap => applications::overlap(world, self.bytes, self.time(), facts),
            Pipeline => pipeline::measure(world, self.grid, self.time(), facts),
            Startup => Ok(()),
        }
    }

    fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }
}

/// Each rank on a core of its own, if there are enough of them.
fn bind(world: &World) {
    let cores = allowed();
    if let Some(&core) = cores.get(world.rank()).filter(|_| world.size() <= cores.len()) {
        bind_to(core);
    }
}

/// The target of operations: the next rank, or oneself where there is none.
fn partner(world: &World) -> Rank {
    (world.rank() + 1) % world.size().min(2)
}

/// What rank 0 will print.
#[derive(Default)]
struct Facts {
    text: String,
    wrong: Option<String>,
}

impl Facts {
    fn crossing(&mut self, ns: f64) {
        let _ = writeln!(self.text, "crossing {ns:.2}");
    }

    fn samples(&mut self, samples: &[f64]) {
        for ns in samples {
            let _ = writeln!(self.text, "sample {ns:.3}");
        }
    }

    fn value(&mut self, name: &str, value: f64) {
        let _ = writeln!(self.text, "value {name} {value}");
    }

    /// Notes what was wrong, if it was.
    fn check(&mut self, right: bool, wrong: impl FnOnce() -> String) {
        if !right && self.wrong.is_none() {
            self.wrong = Some(wrong());
        }
    }

    fn text(mut self) -> Result<String, std::fmt::Error> {
        match self.wrong {
            None => writeln!(self.text, "check ok")?,
            Some(why) => writeln!(self.text, "check bad {why}")?,
        }
        Ok(self.text)
    }
}

/// Collective: what every rank has, at rank 0; nothing at the others.
fn gather(world: &World, mine: &[f64]) -> Result<Vec<Vec<f64>>, transom::Error> {
    let all = if world.rank() == 0 { mine.len() * world.size() } else { 0 };
    let mut window = world.allocate::<f64>(all)?;
    window.lock_shared(0)?.put(mine.len() * world.rank(), mine)?;
    window.fence()?;
    let rows = window.local().read(0, all)?.chunks_exact(mine.len()).map(<[f64]>::to_vec).collect();
    Ok(rows)
}
