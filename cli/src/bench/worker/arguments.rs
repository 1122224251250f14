//! What a worker is told.

use crate::bench::catalog;
use crate::bench::cores;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Measures one thing once, as a rank of a job, and prints what `transom bench` reads; not meant to be called by hand
#[derive(Args)]
pub struct Worker {
    /// What to measure
    #[arg(value_enum)]
    pub measurement: Measurement,
    /// By which synchronisation
    #[arg(long, value_enum)]
    pub sync: Sync,
    /// Bytes of an operation, in whole 8-byte integers
    #[arg(long, default_value_t = 8, value_parser = bytes)]
    pub bytes: usize,
    /// From and to which memory puts and gets go
    #[arg(long, value_enum, default_value_t = From::Borrowed)]
    pub from: From,
    /// Of what accumulate and get_accumulate make sums
    #[arg(long = "type", value_enum, default_value_t = Element::I64)]
    pub element: Element,
    /// How many ranks the job has, for information
    #[arg(long, default_value_t = 1)]
    pub ranks: usize,
    /// How long to measure
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub millis: u64,
    /// Which cores ranks may take, in their order [default: all, physical cores first]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Rows of the matrix of lu
    #[arg(long, default_value_t = 256, value_parser = positive)]
    pub n: usize,
    /// Rows of a block of lu
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub block: usize,
    /// Rows of the grid of pipeline
    #[arg(long, default_value_t = 1000, value_parser = positive)]
    pub grid: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Measurement {
    Put,
    Get,
    Accumulate,
    GetAccumulate,
    FetchAndOp,
    CompareAndSwap,
    PutBw,
    GetBw,
    Lock,
    Value,
    Random,
    ElementGet,
    ElementPut,
    ElementFetch,
    Contended,
    ReadersWriter,
    Barrier,
    Broadcast,
    Reduce,
    AllReduce,
    Scan,
    AllGather,
    AllToAll,
    Pingpong,
    Stream,
    Bidirectional,
    MessageRate,
    PollingSet,
    PollCost,
    Overhead,
    OverlapMessages,
    OverlapCollectives,
    Registration,
    Pipe,
    Kernel,
    Lu,
    LuOutside,
    Overlap,
    Pipeline,
    Startup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Sync {
    Lock,
    LockExclusive,
    LockAll,
    Flush,
    FlushLocal,
    Fence,
    Pscw,
    Barrier,
    Collective,
    Messages,
    Buffers,
    Gaps,
    OneSided,
    TwoSided,
    Shared,
    Mutex,
    Sum,
    Xor,
    Or,
    And,
    Replace,
    Scattered,
    Window,
    Cyclic,
    Tiles,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum From {
    /// Any of the program's: put, get
    Borrowed,
    /// A buffer of `World::buffer`'s: put, get
    Buffer,
    /// A vector that is handed over: rput, rget
    Owned,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Element {
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

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

impl Worker {
    /// Whether it can be measured so, on so many ranks.
    pub fn check(&self, ranks: usize) -> Result<(), String> {
        let (measurement, sync) = (name(self.measurement), name(self.sync));
        let Some(found) = catalog::find(&measurement).filter(|found| found.syncs.contains(&&*sync)) else {
            return Err(format!("{measurement} is not measured by {sync}; see `transom bench list`"));
        };
        let moves =
            matches!(self.measurement, Measurement::Put | Measurement::Get | Measurement::PutBw | Measurement::GetBw);
        if self.from != From::Borrowed && !(moves && self.sync == Sync::Flush) {
            return Err("memory other than borrowed is measured of puts and gets by flush".into());
        }
        let least = found.least;
        if ranks < least {
            return Err(format!("{measurement} takes {least} ranks or more"));
        }
        Ok(())
    }

    pub fn time(&self) -> Duration {
        Duration::from_millis(self.millis)
    }

    /// The cores that ranks may take, in their order.
    pub fn cores(&self) -> Vec<usize> {
        if self.cores.is_empty() { cores::choice() } else { self.cores.clone() }
    }
}
