//! Two rails: equal, unequal, disturbed, cut.

use super::super::text::size;
use super::Options;
use super::jobs::{Happens, Wires, by_rails, on_cluster, one_way, over_time, together};
use super::sheet::{Sheet, cells};
use transom_channel::Rank;
use transom_channel::sim::Sim;

const MIXES: [(&str, [u64; 2]); 2] = [("1:1", [1, 1]), ("4:1", [1, 4])];
const BOTH: &[(Rank, Rank)] = &[(0, 1), (1, 0)];

/// MB/s of `bytes` sent in `nanoseconds`.
pub fn speed(bytes: usize, nanoseconds: u64) -> f64 {
    bytes as f64 * 1e3 / nanoseconds as f64
}

pub fn uneven(options: &Options) -> Sheet {
    const COUNT: usize = 32;
    let mut sheet =
        Sheet::new(&["rails", "size", "stripe", "first us", "then us", "MB/s", "MB/s, both ways", "x even", "x first"]);
    for &length in options.sizes(&[1 << 20], &[64 << 10, 256 << 10, 1 << 20, 8 << 20]) {
        for (mix, slower) in MIXES {
            let mut beside: Vec<f64> = Vec::new();
            for stripe in ["first rail", "even", "weighted", "adaptive", "pull"] {
                let text = match stripe {
                    "first rail" => "rings=0,stripe_from=4294967295".to_owned(),
                    stripe => format!("rings=0,stripe={stripe},stripe_from=8192"),
                };
                let job = || by_rails(&slower, &text);
                let [first, then] = one_way(&mut job(), length);
                let of = |pairs: &[_]| {
                    let bytes = pairs.len() * COUNT * length;
                    speed(bytes, together(&mut job(), pairs, length, COUNT))
                };
                let (one, both) = (of(&BOTH[..1]), of(BOTH));
                beside.push(one);
                let [first_rail, even] = [0, 1].map(|at| beside.get(at).map_or(f64::NAN, |beside| one / beside));
                let even = if even.is_nan() { cells!["-"] } else { cells![even] };
                let row = cells![mix, size(length), stripe, first / 1e3, then / 1e3, one, both];
                sheet.row([row, even, cells![first_rail]].concat());
            }
        }
    }
    sheet
}

pub fn disturbed(_: &Options) -> Sheet {
    const EACH: f64 = 5.0;
    let of = |stripe: &str| {
        let mut sim = by_rails(&[1, 1], &format!("rings=0,stripe={stripe},stripe_from=8192"));
        over_time(&mut sim, EACH, 120.0, &[(40.0, &|sim| sim.slow_down(1, 8)), (80.0, &|sim| sim.slow_down(1, 1))])
    };
    Sheet::over_time(EACH, &["even", "adaptive", "pull"].map(|stripe| (stripe, of(stripe))))
}

pub fn reorder(options: &Options) -> Sheet {
    let count = if options.quick { 1000 } else { 10_000 };
    let mut sheet = Sheet::new(&["rails", "size", "spread", "messages/ms", "MB/s", "held %", "most held"]);
    for &length in options.sizes(&[1024], &[64, 1024, 4096]) {
        for (mix, slower) in MIXES {
            for spread in ["first", "binding", "round_robin", "weighted", "window:4", "window:16"] {
                let mut sim = by_rails(&slower, &format!("rings=0,spread={spread}"));
                let took = together(&mut sim, &BOTH[..1], length, count);
                let counters = sim.engine(1).counters();
                let held = 100.0 * counters.held as f64 / (count + 32) as f64;
                let rate = count as f64 * 1e6 / took as f64;
                let row = cells![mix, size(length), spread, rate, speed(count * length, took), held];
                sheet.row([row, cells![counters.held_peak]].concat());
            }
        }
    }
    sheet
}

pub fn failover(options: &Options) -> Sheet {
    let all = if options.quick { 60.0 } else { 600.0 };
    let (each, cut, restored) = (all / 30.0, all / 3.0, all / 1.5);
    let rails = |stripe: &str, rail| {
        let text = format!("rings=0,spread=round_robin,stripe={stripe},stripe_from=8192");
        let is = |cut| move |sim: &mut Sim| sim.cut(rail, cut);
        over_time(&mut by_rails(&[1, 1], &text), each, all, &[(cut, &is(true)), (restored, &is(false))])
    };
    let mut datagrams = on_cluster(1, 2, "ud,spread=round_robin", |conditions, _| {
        conditions.rails.push(conditions.rails[0]);
        (conditions.latency, conditions.picoseconds) = (5000..5001, 1131);
    });
    let mute: &[Happens<Wires>] = &[(cut, &|sim| sim.mute(1, true)), (restored, &|sim| sim.mute(1, false))];
    let curves = [
        ("adaptive, first cut", rails("adaptive", 0)),
        ("adaptive, second cut", rails("adaptive", 1)),
        ("pull, second cut", rails("pull", 1)),
        ("datagrams, second loses all", over_time(&mut datagrams, each, all, mute)),
    ];
    Sheet::over_time(each, &curves)
}
