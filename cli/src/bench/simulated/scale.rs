//! Costs that grow with the number of ranks: the time until all pairs have communicated, memory, and one rank that
//! sends to all.

use super::Options;
use super::jobs::config;
use super::sheet::{Sheet, cells};
use transom_channel::sim::skeletons::{Outcome, Skeleton, Step, run_on};
use transom_channel::{Channels, Paths, Rank};

const CONFIGS: &[&str] = &["rc", "ud", "aptus"];
const MIB: f64 = 1024.0 * 1024.0;

fn program(iterations: u32, iteration: fn(Rank, Rank) -> Vec<Step>) -> Skeleton {
    Skeleton { name: "program", square: false, iterations, iteration, reductions: 0, slides: [0.0; 4] }
}

/// Executes a program with each rank on its own host, whose adapter takes 0.1 ms per end of a connection.
fn run(program: &Skeleton, ranks: Rank, config: &str) -> Outcome {
    run_on(program, ranks, config, |conditions| (conditions.host, conditions.connecting) = (1, 100_000))
}

fn ring(rank: Rank, ranks: Rank) -> Vec<Step> {
    let step =
        |by| Step { sends: vec![((rank + by) % ranks, 0)], receives: vec![(rank + ranks - by) % ranks], compute: 0 };
    (1..ranks).map(step).collect()
}

/// Rank 0 sends to all others at once, and they reply.
fn with_all(rank: Rank, ranks: Rank) -> Vec<Step> {
    let peers: Vec<Rank> = if rank == 0 { (1..ranks).collect() } else { vec![0] };
    vec![Step { sends: peers.iter().map(|peer| (*peer, 64)).collect(), receives: peers, compute: 0 }]
}

/// Rank 0 sends to all others, one after the other.
fn to_all(rank: Rank, ranks: Rank) -> Vec<Step> {
    match rank {
        0 => (1..ranks).map(|to| Step { sends: vec![(to, 64)], compute: 300, ..Step::default() }).collect(),
        _ => vec![Step { receives: vec![0], ..Step::default() }],
    }
}

/// Bytes of a rank's buffers, of its rings, of its records of peers, and of its queues.
fn bytes(text: &str, peers: usize, channels: &Channels) -> [usize; 4] {
    let config = config(text);
    // The bound that `channel/tests/memory.rs` asserts.
    const PEER: usize = 4096;
    let datagrams = 1024 * (2048 + 64) + 4 * 64 * 2048;
    let shared = 16 * 8384;
    let buffers = match config.paths {
        Paths::Connections => shared,
        Paths::Datagrams => datagrams,
        Paths::Both => shared + datagrams,
    };
    [buffers, channels.rings * config.ring.size(), PEER * peers, queues(config.paths, channels.connections)]
}

/// Bytes of queue pairs and completion queues by the defaults of the provider `verbs`, as the driver mlx5 lays them out
/// (rdma-core, providers/mlx5/verbs.c), and of our records of requests. Drivers, and the adapter, keep further records
/// of a queue pair, which are not counted.
fn queues(paths: Paths, connections: usize) -> usize {
    const DEPTH: usize = 128;
    // A request takes blocks of 64 bytes: 192 bytes of control segments, and 144 for 128 inline bytes. A queue is
    // rounded up to a power of two.
    const RELIABLE: usize = (DEPTH * 384).next_power_of_two();
    const RECORDS: usize = 24 << 10;
    const COMPLETION: usize = 64;
    // Four queues of 64 requests for sending, one of 1,024 receives, and completions of both.
    const DATAGRAMS: usize = 4 * 64 * 128 + 1024 * 16 + (4 * 64 + 1024) * COMPLETION;
    // Completion queues serve 8, 16, 32.. connections.
    let mut served = 0;
    let mut next = 8;
    while served < connections {
        served += next;
        next *= 2;
    }
    let datagrams = if paths == Paths::Connections { 0 } else { DATAGRAMS };
    connections * (RELIABLE + RECORDS) + served * DEPTH * COMPLETION + datagrams
}

pub fn all_connect(options: &Options) -> Sheet {
    let mut sheet = Sheet::new(&["config", "ranks", "ms", "us for each peer", "connections", "MiB of a rank"]);
    for config in options.configs(CONFIGS) {
        for &ranks in options.ranks(&[4, 16, 32], &[4, 16, 64, 256]) {
            let outcome = run(&program(1, ring), ranks, config);
            let peers = ranks as usize - 1;
            let memory: usize = bytes(config, peers, &outcome.channels[0]).iter().sum();
            let (took, connections) = (outcome.took as f64, outcome.channels[0].connections);
            let row = cells![config, ranks.to_string(), took / 1e6, took / 1e3 / peers as f64, connections];
            sheet.row([row, cells![memory as f64 / MIB]].concat());
        }
    }
    sheet
}

pub fn memory(options: &Options) -> Sheet {
    let full: Vec<Rank> = (1..=10).map(|power| 1 << power).collect();
    let mut sheet = Sheet::new(&[
        "config",
        "ranks",
        "connections",
        "rings",
        "buffers",
        "of rings",
        "of peers",
        "of queues",
        "MiB",
        "OMPI",
    ]);
    for config in options.configs(CONFIGS) {
        for &ranks in options.ranks(&[2, 16, 128], &full) {
            let outcome = run_on(&program(100, with_all), ranks, config, |conditions| conditions.host = 1);
            let channels = &outcome.channels[0];
            let parts = bytes(config, ranks as usize - 1, channels).map(|bytes| bytes as f64 / MIB);
            let theirs = match (config, ranks) {
                ("rc", 1024) => "25.0, with SRQ 14.75",
                ("ud", 1024) => "8.8",
                _ => "-",
            };
            let row = cells![config, ranks.to_string(), channels.connections, channels.rings];
            let all = cells![parts[0], parts[1], parts[2], parts[3], parts.iter().sum::<f64>(), theirs];
            sheet.row([row, all].concat());
        }
    }
    sheet
}

pub fn fan_out(options: &Options) -> Sheet {
    const TIMES: u32 = 40;
    let mut sheet = Sheet::new(&["config", "ranks", "ms, once", "messages/ms, once", "messages/ms, 40 times"]);
    for config in options.configs(CONFIGS) {
        for &ranks in options.ranks(&[16, 64], &[16, 64, 256]) {
            let of = |times| run(&program(times, to_all), ranks, config).took as f64 / 1e6;
            let (once, all) = (of(1), of(TIMES));
            let messages = f64::from(ranks - 1);
            let row = cells![config, ranks.to_string(), once, messages / once, messages * f64::from(TIMES) / all];
            sheet.row(row);
        }
    }
    sheet
}
