//! Simulations of measurements that need more than one machine: special adapters, several rails, hundreds of ranks,
//! loss. They execute the library's own engines on a simulated network (`transom_channel::sim`), so results are the
//! same on every machine.

mod adapters;
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

/// One simulation of the catalogue.
pub struct Simulated {
    pub name: &'static str,
    pub about: &'static str,
    /// The figures of the paper that it follows; `docs/papers.md` says which of them are reproduced.
    pub figure: &'static str,
    /// The properties of the simulated network.
    pub network: &'static str,
    /// The options that it accepts: --ranks, --sizes, --config.
    takes: [bool; 3],
    sheet: fn(&Options) -> Sheet,
}

/// The options of the command line.
pub struct Options {
    quick: bool,
    ranks: Vec<Rank>,
    sizes: Vec<usize>,
    configs: Vec<String>,
    runs: Runs,
}

/// An adapter as in SC 2004.
const RAILS: &str = "rails of 884 MB/s (or a quarter) in each direction, 5 us, no shared bus";
/// The same with the bus of SC 2004.
const BUS: &str = "rails of 884 MB/s (or a quarter) in each direction, 5 us, 943 MB/s by the bus of each adapter in both directions together";
/// Adapters and processors whose costs are assumed.
const PEERS: &str = "1.43 GB/s by each adapter, 1.5 us; assumed: 64 queue pairs in an adapter's cache and 1 us for a miss, 0.2 us of the processor to post, 0.3 us for a completion, 6 ns to look at a ring";
/// A cluster as in the papers on Aptus and Open MPI.
const CLUSTER: &str = "1.43 GB/s between any two ranks, 1.5 us, MTU 2,048, packets of 8 KiB by connections";
const HOSTS: &str = "1.43 GB/s between any two hosts, 1.5 us, MTU 2,048, packets of 8 KiB by connections; 8 ranks of a host share memory";
const NONE: [bool; 3] = [false; 3];

pub const SIMULATED: &[Simulated] = &[
    Simulated {
        name: "rails_uneven",
        about: "one long message, and 32 concurrent ones, by two rails with bandwidths 1:1 or 4:1; first rail only, even, weighted, adaptive, pull",
        figure: "SC 5, 7, 17, 18; 8 and 19 without the bus of rails_bus",
        network: RAILS,
        takes: [false, true, false],
        sheet: rails::uneven,
    },
    Simulated {
        name: "rails_disturbed",
        about: "MB/s over time, with other traffic taking seven eighths of the second rail from 40 to 80 ms",
        figure: "SC 20",
        network: RAILS,
        takes: NONE,
        sheet: rails::disturbed,
    },
    Simulated {
        name: "reorder",
        about: "short messages by two rails, by policy: messages per ms, and messages that arrived early and were held",
        figure: "SC 6, §5.2",
        network: RAILS,
        takes: [false, true, false],
        sheet: rails::reorder,
    },
    Simulated {
        name: "rails_bus",
        about: "32 concurrent messages by two rails whose adapters have a bus each: MB/s of all pairs, by the number of ranks on each of two hosts, the direction and the stripes",
        figure: "SC 7, 8, 9, 10, 18, 19",
        network: BUS,
        takes: [false, true, false],
        sheet: adapters::bus,
    },
    Simulated {
        name: "rails_latency",
        about: "short messages by two rails of equal or different latency, by policy: messages that arrived early and were held",
        figure: "SC §4.4",
        network: "rails of 884 MB/s, the first of 5 us; 1 us of the processor for each packet, which paces them",
        takes: [false, true, false],
        sheet: adapters::latency,
    },
    Simulated {
        name: "failover",
        about: "MB/s over time, with one of two rails cut during the middle third; for datagrams it loses everything without notice",
        figure: "SC's future work; DR of Open MPI",
        network: RAILS,
        takes: NONE,
        sheet: rails::failover,
    },
    Simulated {
        name: "channels",
        about: "peers of a rank by shared memory, datagrams, connections and rings, in programs with the rules of Aptus and 64 KiB of credit; in brackets the slides' values for 512 ranks",
        figure: "Aptus, channels of a process",
        network: HOSTS,
        takes: [true, false, false],
        sheet: programs::channels,
    },
    Simulated {
        name: "mix",
        about: "virtual ms of these programs by connections, by datagrams and by aptus, with 64 KiB of credit, and aptus relative to the better of the others",
        figure: "Aptus, NAS, NAMD and SMG2000",
        network: HOSTS,
        takes: [true, false, true],
        sheet: programs::mix,
    },
    Simulated {
        name: "volume",
        about: "packets and bytes by each path, with aptus and 64 KiB of credit, in %",
        figure: "Aptus, volume of channels",
        network: HOSTS,
        takes: [true, false, false],
        sheet: programs::volume,
    },
    Simulated {
        name: "datagram",
        about: "a message one way, and many concurrent ones, by size: connections, datagrams, and unacknowledged datagrams",
        figure: "OMPI 3, 4",
        network: CLUSTER,
        takes: [false, true, true],
        sheet: paths::datagram,
    },
    Simulated {
        name: "datagram_cpu",
        about: "the same with processors that take an assumed 0.2 us to post a packet and 0.3 us for each that arrives",
        figure: "OMPI 3, 4",
        network: CLUSTER,
        takes: [false, true, true],
        sheet: paths::datagram_cpu,
    },
    Simulated {
        name: "many_peers",
        about: "8 B between one rank and each peer in turn, and 1 KiB to all of them at once, by rings, connections and datagrams",
        figure: "Aptus, bandwidth by pairs and latency by channels",
        network: PEERS,
        takes: [true, false, false],
        sheet: adapters::peers,
    },
    Simulated {
        name: "ud_lanes",
        about: "concurrent messages by 1 to 8 datagram queue pairs, each with an assumed 4 us per datagram",
        figure: "OMPI 2, whose bend follows from the assumption",
        network: CLUSTER,
        takes: [false, true, false],
        sheet: paths::lanes,
    },
    Simulated {
        name: "loss",
        about: "concurrent messages, by the percentage of lost datagrams",
        figure: "ours",
        network: CLUSTER,
        takes: [false, true, false],
        sheet: paths::loss,
    },
    Simulated {
        name: "pool",
        about: "each other rank sends 64 messages of 1 KiB to a rank that computes for 1 ms, by the number of its receive slots",
        figure: "OMPI §4.1",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: paths::pool,
    },
    Simulated {
        name: "allconn",
        about: "an empty message between each two ranks, one peer after the other; each end of a connection takes an assumed 100 us",
        figure: "OMPI 5, 6",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: scale::all_connect,
    },
    Simulated {
        name: "memory",
        about: "MiB per rank after 100 messages with each other rank: buffers, rings, at most 4 KiB per peer, and queues with the driver mlx5",
        figure: "OMPI 6",
        network: CLUSTER,
        takes: [true, false, true],
        sheet: scale::memory,
    },
    Simulated {
        name: "fanout",
        about: "one rank sends 64 B to each other rank, once and 40 times, and takes an assumed 0.3 us for each; connections as in allconn",
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
    /// Fails if the simulation does not accept the options.
    pub fn check(&self, options: &Options) -> Result<(), Usage> {
        let given = [!options.ranks.is_empty(), !options.sizes.is_empty(), !options.configs.is_empty()];
        let names = ["--ranks", "--sizes", "--config"];
        let wrong = (0..3).find(|&at| given[at] && !self.takes[at]);
        wrong
            .map_or(Ok(()), |at| Err(Usage(format!("{} is simulated without a choice of {}", self.name, names[at]))))?;
        if let Some(few) = options.ranks.iter().find(|&&ranks| ranks < 2) {
            return Err(Usage(format!("{} takes 2 ranks or more, not {few}; use --ranks 2", self.name)));
        }
        // The programs halve their grids.
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

/// The result of a simulation.
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
