//! Figures of the papers that need more than a machine has: other adapters, several rails, hundreds of ranks, loss. The engines that ship
//! drive a simulated network (`transom_channel::sim`), so they are the same wherever and whenever they are made.

mod jobs;
mod paths;
mod programs;
mod rails;
mod scale;
mod sheet;

use super::usage::Usage;
use programs::Runs;
use serde::Serialize;
use sheet::Sheet;
use std::fmt;
use transom_channel::Rank;

/// A row of what can be simulated.
pub struct Simulated {
    pub name: &'static str,
    pub about: &'static str,
    /// Whose figure it is of.
    pub figure: &'static str,
    /// What the network is like.
    pub network: &'static str,
    /// Of ranks, sizes and configurations those that can be chosen.
    takes: [bool; 3],
    sheet: fn(&Options) -> Sheet,
}

/// What of it is asked for.
pub struct Options {
    quick: bool,
    ranks: Vec<Rank>,
    sizes: Vec<usize>,
    configs: Vec<String>,
    runs: Runs,
}

/// An adapter of SC 2004.
const RAILS: &str = "rails of 884 MB/s (or a quarter) each way, 5 us, no bus that they share";
/// One of Aptus and of Open MPI.
const CLUSTER: &str = "1.43 GB/s between any two ranks, 1.5 us, MTU 2,048, packets of 8 KiB by connections";
const HOSTS: &str = "1.43 GB/s between any two hosts, 1.5 us, MTU 2,048, packets of 8 KiB by connections; 8 ranks of a host share memory";
const NONE: [bool; 3] = [false; 3];

pub const SIMULATED: &[Simulated] = &[
    Simulated {
        name: "rails_uneven",
        about: "a long message, and 32 together, by two rails that are alike, or 4 to 1; by the first alone, even, weighted, adaptive, pull",
        figure: "SC 5, 7, 8, 17 to 19",
        network: RAILS,
        takes: [false, true, false],
        sheet: rails::uneven,
    },
    Simulated {
        name: "rails_disturbed",
        about: "MB/s over time, while another takes seven eighths of the second rail from 40 to 80 ms",
        figure: "SC 20",
        network: RAILS,
        takes: NONE,
        sheet: rails::disturbed,
    },
    Simulated {
        name: "reorder",
        about: "short messages by two rails, by policy: how many in a ms, and how many came early and were held",
        figure: "SC 6, §4.4, §5.2",
        network: RAILS,
        takes: [false, true, false],
        sheet: rails::reorder,
    },
    Simulated {
        name: "failover",
        about: "MB/s over time, while one of two rails is cut for the middle third; by datagrams it loses all, and nobody is told",
        figure: "SC's future work; DR of Open MPI",
        network: RAILS,
        takes: NONE,
        sheet: rails::failover,
    },
    Simulated {
        name: "channels",
        about: "peers of a rank by shared memory, datagrams, connections and rings, in programs by the rules of Aptus; in brackets the slides, of 512",
        figure: "Aptus, channels of a process",
        network: HOSTS,
        takes: [true, false, false],
        sheet: programs::channels,
    },
    Simulated {
        name: "mix",
        about: "virtual ms of these programs by connections, by datagrams and by aptus, and the last beside the better of the others",
        figure: "Aptus, NAS, NAMD and SMG2000",
        network: HOSTS,
        takes: [true, false, true],
        sheet: programs::mix,
    },
    Simulated {
        name: "volume",
        about: "which part of their packets and bytes went by which path, in aptus, in %",
        figure: "Aptus, volume of channels",
        network: HOSTS,
        takes: [true, false, false],
        sheet: programs::volume,
    },
    Simulated {
        name: "datagram",
        about: "a message one way, and many together, by size: connections, datagrams, and datagrams that nobody acknowledges",
        figure: "OMPI 3, 4",
        network: CLUSTER,
        takes: [false, true, true],
        sheet: paths::datagram,
    },
    Simulated {
        name: "ud_lanes",
        about: "messages together by 1 to 8 queues for datagrams, each of which works 4 us on one (which is assumed)",
        figure: "OMPI 2",
        network: CLUSTER,
        takes: [false, true, false],
        sheet: paths::lanes,
    },
    Simulated {
        name: "loss",
        about: "messages together where of a hundred datagrams so many are lost",
        figure: "ours",
        network: CLUSTER,
        takes: [false, true, false],
        sheet: paths::loss,
    },
    Simulated {
        name: "pool",
        about: "all others send 64 messages of 1 KiB to a rank that computes for 1 ms, by the number of its receive slots",
        figure: "OMPI §4.1",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: paths::pool,
    },
    Simulated {
        name: "allconn",
        about: "an empty message from each to each, one peer after the other; to make a connection each end works for 100 us (which is assumed)",
        figure: "OMPI 5, 6",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: scale::all_connect,
    },
    Simulated {
        name: "memory",
        about: "MiB of a rank that has exchanged 100 messages with each other: buffers, rings and at most 4 KiB for each peer; no memory of drivers",
        figure: "OMPI 6",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: scale::memory,
    },
    Simulated {
        name: "fanout",
        about: "one rank sends 64 B to each other, once and 40 times, and works 0.3 us on each; connections as in allconn (both are assumed)",
        figure: "OMPI 8 (SMG2000)",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: scale::fan_out,
    },
];

pub fn find(name: &str) -> Option<&'static Simulated> {
    SIMULATED.iter().find(|row| row.name == name)
}

impl Simulated {
    /// Whether it has what the options choose.
    pub fn check(&self, options: &Options) -> Result<(), Usage> {
        let given = [!options.ranks.is_empty(), !options.sizes.is_empty(), !options.configs.is_empty()];
        let names = ["--ranks", "--sizes", "--config"];
        let wrong = (0..3).find(|&at| given[at] && !self.takes[at]);
        wrong
            .map_or(Ok(()), |at| Err(Usage(format!("{} is simulated without a choice of {}", self.name, names[at]))))?;
        if let Some(few) = options.ranks.iter().find(|&&ranks| ranks < 2) {
            return Err(Usage(format!("{} takes 2 ranks or more, not {few}; use --ranks 2", self.name)));
        }
        // Programs cut their grids by two.
        match options.ranks.iter().find(|ranks| !ranks.is_power_of_two() || **ranks < 16) {
            Some(odd) if self.network == HOSTS => {
                let name = self.name;
                Err(Usage(format!("{name} takes a power of two of ranks from 16 on, not {odd}; use --ranks 64")))
            }
            _ => Ok(()),
        }
    }

    pub fn run(&'static self, options: &Options) -> Simulation {
        let Simulated { name, figure, network, .. } = self;
        Simulation { name, figure, network, about: self.about, sheet: (self.sheet)(options) }
    }
}

/// What came of a row.
#[derive(Serialize)]
pub struct Simulation {
    pub name: &'static str,
    about: &'static str,
    figure: &'static str,
    network: &'static str,
    #[serde(flatten)]
    pub sheet: Sheet,
}

impl fmt::Display for Simulation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Simulation { name, about, figure, network, sheet } = self;
        writeln!(f, "{name} (simulated, in virtual time): {about}\n  of: {figure}; network: {network}\n{sheet}")
    }
}

impl Options {
    pub fn new(quick: bool, ranks: Vec<Rank>, sizes: Vec<usize>, configs: Vec<String>) -> Options {
        Options { quick, ranks, sizes, configs, runs: Runs::default() }
    }

    fn ranks<'a>(&'a self, quick: &'a [Rank], full: &'a [Rank]) -> &'a [Rank] {
        chosen(&self.ranks, if self.quick { quick } else { full })
    }

    fn sizes<'a>(&'a self, quick: &'a [usize], full: &'a [usize]) -> &'a [usize] {
        chosen(&self.sizes, if self.quick { quick } else { full })
    }

    fn configs<'a>(&'a self, usual: &[&'a str]) -> Vec<&'a str> {
        let asked: Vec<_> = self.configs.iter().map(String::as_str).collect();
        if asked.is_empty() { usual.to_vec() } else { asked }
    }
}

fn chosen<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}
