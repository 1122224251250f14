//! Datagrams compared with connections: by size, by number of queue pairs, under loss, and with few receive slots.

use super::super::text::size;
use super::Options;
use super::adapters::CPU;
use super::jobs::{burst, on_cluster, one_way, together, unacknowledged};
use super::rails::speed;
use super::sheet::{Cell, Sheet, cells};
use transom_channel::Rank;
use transom_channel::sim::{Adapter, Faults};

const PAIR: &[(Rank, Rank)] = &[(0, 1)];

/// The number of messages that make up `bytes`, within limits.
fn count(bytes: usize, length: usize) -> usize {
    (bytes / length).clamp(4, 4096)
}

pub fn datagram(options: &Options) -> Sheet {
    by_size(options, &Adapter::default())
}

/// The same with processors that spend time on each packet.
pub fn datagram_cpu(options: &Options) -> Sheet {
    by_size(options, &CPU)
}

fn by_size(options: &Options, adapter: &Adapter) -> Sheet {
    let bytes = if options.quick { 1 << 20 } else { 8 << 20 };
    let full: Vec<usize> = (3..=22).map(|power| 1 << power).collect();
    let configs = options.configs(&["rc", "ud"]);
    let mut sheet = Sheet::new(&["config", "size", "us", "x first", "MB/s", "x first"]);
    for &length in options.sizes(&[8, 1024, 2048, 4096, 1 << 20], &full) {
        let count = count(bytes, length);
        let time = |config: &str| {
            let job = || on_cluster(1, 2, config, |conditions, _| conditions.adapter = adapter.clone());
            (one_way(&mut job(), length)[1], together(&mut job(), PAIR, length, count))
        };
        let mut times: Vec<_> = configs.iter().map(|&config| (config, time(config))).collect();
        if options.configs.is_empty() {
            let job = || unacknowledged(2, "ud", adapter.clone());
            let time = (one_way(&mut job(), length)[1], together(&mut job(), PAIR, length, count));
            times.push(("ud, unacknowledged", time));
        }
        let (_, (first, first_all)) = times[0];
        for (config, (one, all)) in times {
            let row = cells![config, size(length), one / 1e3, one / first, speed(length * count, all)];
            sheet.row([row, cells![first_all as f64 / all as f64]].concat());
        }
    }
    sheet
}

pub fn lanes(options: &Options) -> Sheet {
    let bytes = if options.quick { 1 << 20 } else { 16 << 20 };
    let mut sheet = Sheet::new(&["size", "lanes", "us", "MB/s", "x one"]);
    for &length in options.sizes(&[1024, 1 << 20], &[1024, 64 << 10, 1 << 20]) {
        let count = count(bytes, length);
        let mut first = None;
        for lanes in [1, 2, 4, 8_usize] {
            let job = || on_cluster(1, 2, "ud", |conditions, _| conditions.queues = (lanes, 4000));
            let all = together(&mut job(), PAIR, length, count);
            let times = *first.get_or_insert(all) as f64 / all as f64;
            let one = one_way(&mut job(), length)[1] / 1e3;
            sheet.row(cells![size(length), lanes.to_string(), one, speed(length * count, all), times]);
        }
    }
    sheet
}

pub fn loss(options: &Options) -> Sheet {
    let (bytes, seeds) = if options.quick { (4 << 20, 2) } else { (16 << 20, 5) };
    let mut sheet = Sheet::new(&["size", "lost", "MB/s", "x none lost", "sent again, of 1000 packets"]);
    for &length in options.sizes(&[1024, 1 << 20], &[1024, 16 << 10, 1 << 20]) {
        let count = count(bytes, length);
        let mut none = None;
        for lost in [0, 1, 10, 50, 100] {
            let (mut took, mut again, mut packets) = (0, 0, 0);
            for seed in 0..seeds {
                let faults = Faults { lost, doubled: 0, late: 0, delay: 0..1, flipped: 0 };
                let mut sim = on_cluster(seed, 2, "ud", |conditions, _| conditions.faults = Some(faults));
                took += together(&mut sim, PAIR, length, count);
                again += sim.engine(0).counters().resends;
                packets += sim.posts(0)[0];
            }
            let none = *none.get_or_insert(took) as f64 / took as f64;
            let per_cent = format!("{} %", f64::from(lost) / 10.0);
            let again = 1000.0 * again as f64 / packets as f64;
            sheet.row(cells![size(length), per_cent, speed(length * count * seeds as usize, took), none, again]);
        }
    }
    sheet
}

pub fn pool(options: &Options) -> Sheet {
    const COUNT: usize = 64;
    let mut sheet =
        Sheet::new(&["config", "ranks", "slots", "ms", "most taken", "found none", "sent again", "waited 2 us"]);
    for &ranks in options.ranks(&[8], &[33]) {
        let mut kinds: Vec<_> =
            options.configs(&["rc", "ud"]).into_iter().map(|config| (config, config, true)).collect();
        if options.configs.is_empty() {
            kinds.push(("ud, slots not told", "ud", false));
        }
        for (name, config, told) in kinds {
            for slots in [16, 64, 256, 1024, 8192] {
                let mut sim = on_cluster(1, ranks, config, |conditions, settings| {
                    conditions.slots = slots;
                    settings.room = if told { slots as u64 } else { u64::MAX };
                });
                let took = burst(&mut sim, ranks, 1024, COUNT, 1_000_000) as f64 / 1e6;
                let arrivals = sim.arrivals(0);
                let again: u64 = (1..ranks).map(|rank| sim.engine(rank).counters().resends).sum();
                let row = cells![name, ranks.to_string(), slots.to_string(), took, arrivals.most];
                sheet.row([row, cells![arrivals.lost, again, Cell::from(arrivals.waits)]].concat());
            }
        }
    }
    sheet
}
