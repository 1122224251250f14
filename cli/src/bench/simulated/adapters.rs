//! Costs of adapters: a bus that a host's ranks share, rails of different latency, a cache of queue pairs, and the
//! processor's time for each packet.

use super::super::text::size;
use super::Options;
use super::jobs::{by_adapters, in_turn, on_cluster, together};
use super::rails::speed;
use super::sheet::{Sheet, cells};
use transom_channel::Rank;
use transom_channel::sim::Adapter;

/// A processor that spends 0.2 us to post a request and 0.3 us on a completion.
pub const CPU: Adapter =
    Adapter { latency: Vec::new(), bus: 0, queue_pairs: 0, miss: 0, post: 200, completion: 300, look: 0 };

const EVEN: [&str; 4] = ["first rail", "binding", "even", "adaptive"];
const UNEVEN: [&str; 4] = ["even", "weights:4:1", "adaptive", "pull"];

/// A test of SC 2004.
struct Test {
    figure: &'static str,
    what: &'static str,
    /// Number of ranks on each of the two hosts.
    host: Rank,
    slower: [u64; 2],
    pairs: &'static [(Rank, Rank)],
    stripes: [&'static str; 4],
}

const TESTS: [Test; 6] = [
    Test { figure: "7", what: "one way", host: 1, slower: [1, 1], pairs: &[(0, 1)], stripes: EVEN },
    Test { figure: "8", what: "both ways", host: 1, slower: [1, 1], pairs: &[(0, 1), (1, 0)], stripes: EVEN },
    Test {
        figure: "9",
        what: "2 ranks, senders apart",
        host: 2,
        slower: [1, 1],
        pairs: &[(0, 2), (3, 1)],
        stripes: EVEN,
    },
    Test {
        figure: "10",
        what: "2 ranks, both ways",
        host: 2,
        slower: [1, 1],
        pairs: &[(0, 2), (2, 0), (1, 3), (3, 1)],
        stripes: EVEN,
    },
    Test { figure: "18", what: "one way", host: 1, slower: [1, 4], pairs: &[(0, 1)], stripes: UNEVEN },
    Test { figure: "19", what: "both ways", host: 1, slower: [1, 4], pairs: &[(0, 1), (1, 0)], stripes: UNEVEN },
];

/// Bandwidth where each adapter's bus passes 943 MB/s in both directions together.
pub fn bus(options: &Options) -> Sheet {
    const COUNT: usize = 32;
    let mut sheet = Sheet::new(&["SC", "ranks", "rails", "stripe", "size", "MB/s", "x first"]);
    for &length in options.sizes(&[1 << 20], &[64 << 10, 1 << 20]) {
        for Test { figure, what, host, slower, pairs, stripes } in TESTS {
            let mut first = None;
            for stripe in stripes {
                let text = match stripe {
                    "first rail" => "rings=0,offer=no,stripe_from=4294967295".to_owned(),
                    stripe => format!("rings=0,offer=no,stripe={stripe},stripe_from=8192"),
                };
                let bus = Adapter { bus: 1060, ..Adapter::default() };
                let took = together(&mut by_adapters(&slower, &text, host, bus), pairs, length, COUNT);
                let rate = speed(pairs.len() * COUNT * length, took);
                let rails = format!("{}:1", slower[1] / slower[0]);
                let beside = rate / *first.get_or_insert(rate);
                sheet.row(cells![figure, what, rails, stripe, size(length), rate, beside]);
            }
        }
    }
    sheet
}

/// Packets that overtake others where the second rail has 5 us more, and the processor paces packets.
pub fn latency(options: &Options) -> Sheet {
    let count = if options.quick { 1000 } else { 10_000 };
    let mut sheet = Sheet::new(&["second rail", "size", "spread", "messages/ms", "held %", "most held"]);
    for &length in options.sizes(&[64], &[8, 64, 1024]) {
        for more in [0, 5000] {
            for spread in ["round_robin", "window:4", "window:16", "window:64"] {
                let adapter = Adapter { latency: vec![0, more], post: 1000, ..Adapter::default() };
                let mut sim = by_adapters(&[1, 1], &format!("rings=0,spread={spread}"), 1, adapter);
                let took = together(&mut sim, &[(0, 1)], length, count);
                let counters = sim.engine(1).counters();
                let held = 100.0 * counters.held as f64 / (count + 32) as f64;
                let rate = count as f64 * 1e6 / took as f64;
                let second = format!("{} us", 5 + more / 1000);
                sheet.row(cells![second, size(length), spread, rate, held, counters.held_peak]);
            }
        }
    }
    sheet
}

/// One rank with many peers: short messages with each in turn, and 1 KiB to all at once.
pub fn peers(options: &Options) -> Sheet {
    const LENGTH: usize = 1024;
    let paths = [("rings", "rings=1024,ring_after=1"), ("connections", "rings=0"), ("datagrams", "ud")];
    let mut sheet = Sheet::new(&["path", "peers", "us", "x 1 peer", "MB/s", "x 1 peer (MB/s)"]);
    for (path, config) in paths {
        let mut first = None;
        for &ranks in options.ranks(&[2, 17, 65, 129], &[2, 5, 9, 17, 33, 65, 129, 257]) {
            let adapter = Adapter { bus: 700, queue_pairs: 64, miss: 1000, look: 6, ..CPU };
            let mut sim = on_cluster(1, ranks, config, |conditions, _| conditions.adapter = adapter);
            let both: Vec<(Rank, Rank)> = (1..ranks).flat_map(|peer| [(0, peer), (peer, 0)]).collect();
            together(&mut sim, &both, 8, 8);
            let us = in_turn(&mut sim, ranks, 8) / 1e3;
            let times = 512_usize.div_ceil(ranks as usize - 1).max(4);
            // The messages to all peers alternate.
            let all: Vec<(Rank, Rank)> = (0..times).flat_map(|_| (1..ranks).map(|peer| (0, peer))).collect();
            let rate = speed(all.len() * LENGTH, together(&mut sim, &all, LENGTH, 1));
            let (one, one_rate) = *first.get_or_insert((us, rate));
            sheet.row(cells![path, (ranks - 1).to_string(), us, us / one, rate, rate / one_rate]);
        }
    }
    sheet
}
