//! The command line of a worker.

use crate::bench::catalog;
use crate::bench::cores;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Measures one thing once, as a rank of a job, and prints a report for `transom bench`; not meant to be called by hand
#[derive(Args)]
pub struct Worker {
    /// Measurement, as in `transom bench list`
    #[arg(value_enum)]
    pub measurement: Measurement,
    /// Synchronization, as in `transom bench list`
    #[arg(long, value_enum)]
    pub sync: Sync,
    /// Bytes of an operation, a multiple of 8
    #[arg(long, default_value_t = 8, value_parser = bytes)]
    pub bytes: usize,
    /// Memory of the origin of puts and gets
    #[arg(long, value_enum, default_value_t = From::Borrowed)]
    pub from: From,
    /// Element type of accumulate and get_accumulate
    #[arg(long = "type", value_enum, default_value_t = Element::I64)]
    pub element: Element,
    /// Number of ranks of the job, for information
    #[arg(long, default_value_t = 1)]
    pub ranks: usize,
    /// Number of hosts of the job, for information
    #[arg(long, default_value_t = 1)]
    pub hosts: usize,
    /// Measuring time in milliseconds
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    pub millis: u64,
    /// Cores for ranks, in this order [default: all, physical cores first]
    #[arg(long, value_delimiter = ',')]
    cores: Vec<usize>,
    /// Rows and columns of the matrix of lu
    #[arg(long, default_value_t = 256, value_parser = positive)]
    pub n: usize,
    /// Rows and columns of a block of lu
    #[arg(long, default_value_t = 16, value_parser = positive)]
    pub block: usize,
    /// Rows of pipeline's grid
    #[arg(long, default_value_t = 1000, value_parser = positive)]
    pub grid: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Measurement {
    Put,
    Get,
    EightGets,
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
    Connections,
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
    /// Any memory of the program: put, get
    Borrowed,
    /// A buffer of `World::buffer`: put, get
    Buffer,
    /// A vector that is moved into the call: rput, rget
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
        _ => Err("expected a multiple of 8, up to 1 GiB".into()),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=1 << 20).contains(&number) => Ok(number),
        _ => Err("expected a whole number from 1 to 1048576".into()),
    }
}

fn name(value: impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

impl Worker {
    /// Fails if the measurement does not have this synchronization, or needs more ranks.
    pub fn check(&self, ranks: usize) -> Result<(), String> {
        let (measurement, sync) = (name(self.measurement), name(self.sync));
        let Some(found) = catalog::find(&measurement).filter(|found| found.syncs.contains(&&*sync)) else {
            return Err(format!("{measurement} is not measured by {sync}; see `transom bench list`"));
        };
        let moves =
            matches!(self.measurement, Measurement::Put | Measurement::Get | Measurement::PutBw | Measurement::GetBw);
        if self.from != From::Borrowed && !(moves && self.sync == Sync::Flush) {
            return Err("--from other than borrowed needs a put or get with --sync flush".into());
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

    /// The cores for ranks, in the order in which ranks take them.
    pub fn cores(&self) -> Vec<usize> {
        if self.cores.is_empty() { cores::choice() } else { self.cores.clone() }
    }
}
