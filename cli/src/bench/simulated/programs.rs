//! Programs described by their communication patterns: channels, times, volumes.

use super::Options;
use super::sheet::{Cell, Sheet, cells};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use transom_channel::Rank;
use transom_channel::sim::skeletons::{ALL, Outcome, Skeleton, run};
use transom_channel::sim::{Traffic, Volume};
use transom_channel::wire::RailKind;

/// Cached outcomes, shared by several simulations.
pub type Runs = RefCell<BTreeMap<(&'static str, Rank, String), Rc<Outcome>>>;

const APTUS: &str = "aptus";

impl Options {
    fn run(&self, skeleton: &Skeleton, ranks: Rank, config: &str) -> Rc<Outcome> {
        let key = (skeleton.name, ranks, config.to_owned());
        self.runs.borrow_mut().entry(key).or_insert_with(|| Rc::new(run(skeleton, ranks, config))).clone()
    }

    fn programs(&self) -> impl Iterator<Item = (Rank, &'static Skeleton)> {
        self.ranks(&[16], &[64]).iter().flat_map(|&ranks| ALL.iter().map(move |skeleton| (ranks, skeleton)))
    }
}

pub fn channels(options: &Options) -> Sheet {
    let mut sheet = Sheet::new(&[
        "program",
        "ranks",
        "shared memory",
        "datagrams",
        "connections",
        "rings",
        "most connections",
        "most rings",
    ]);
    for (ranks, skeleton) in options.programs() {
        let outcome = options.run(skeleton, ranks, APTUS);
        let counts = [
            outcome.average(|channels| channels.near),
            outcome.average(|channels| channels.datagrams),
            outcome.average(|channels| channels.connections),
            outcome.average(|channels| channels.rings),
        ];
        let beside = counts.iter().zip(skeleton.slides).map(|(ours, theirs)| format!("{ours:.2} ({theirs:.2})"));
        let most = |of: fn(&_) -> usize| outcome.channels.iter().map(of).max().unwrap_or(0);
        let most = cells![most(|channels| channels.connections), most(|channels| channels.rings)];
        let row = cells![skeleton.name, outcome.channels.len().to_string()];
        sheet.row(row.into_iter().chain(beside.map(Cell::from)).chain(most).collect());
    }
    sheet
}

pub fn mix(options: &Options) -> Sheet {
    let configs = options.configs(&["rc", "ud", APTUS]);
    let head = ["program", "ranks"].iter().chain(&configs).chain(&["last / best of the others"]);
    let mut sheet = Sheet::new(&head.copied().collect::<Vec<_>>());
    for (ranks, skeleton) in options.programs() {
        let outcomes: Vec<_> = configs.iter().map(|config| options.run(skeleton, ranks, config)).collect();
        let times: Vec<f64> = outcomes.iter().map(|outcome| outcome.took as f64 / 1e6).collect();
        let (last, others) = times.split_last().expect("one at least");
        let beside = match others.iter().copied().reduce(f64::min) {
            Some(best) => format!("{:.3}", last / best).into(),
            None => Cell::from("-"),
        };
        let row = cells![skeleton.name, outcomes[0].channels.len().to_string()];
        sheet.row(row.into_iter().chain(times.iter().map(|&time| time.into())).chain([beside]).collect());
    }
    sheet
}

pub fn volume(options: &Options) -> Sheet {
    let paths = ["shm", "ud", "rc", "ring", "in place"];
    let head: Vec<_> =
        paths.iter().flat_map(|path| ["packets", "bytes"].map(|what| format!("{path} {what} %"))).collect();
    let head = ["program", "ranks"].into_iter().chain(head.iter().map(String::as_str)).chain(["packets", "MB"]);
    let mut sheet = Sheet::new(&head.collect::<Vec<_>>());
    for (ranks, skeleton) in options.programs() {
        let outcome = options.run(skeleton, ranks, APTUS);
        let of = |kind: RailKind| {
            let mut all = Traffic::default();
            outcome.traffic.iter().filter(|(of, _)| *of == kind).for_each(|(_, traffic)| all += *traffic);
            all
        };
        let (near, datagrams, connections) = (of(RailKind::Memory), of(RailKind::Datagram), of(RailKind::Connection));
        let mut in_place = connections.moves;
        in_place += datagrams.moves;
        let volumes = [near.all(), datagrams.sends, connections.sends, connections.puts, in_place];
        let mut all = Volume::default();
        volumes.iter().for_each(|volume| all += *volume);
        let share = |part: u64, all: u64| 100.0 * part as f64 / all.max(1) as f64;
        let shares = volumes.iter().flat_map(|volume| {
            [share(volume.requests, all.requests).into(), Cell::from(share(volume.bytes, all.bytes))]
        });
        let row = cells![skeleton.name, outcome.channels.len().to_string()];
        let whole = cells![all.requests, all.bytes as f64 / 1e6];
        sheet.row(row.into_iter().chain(shares).chain(whole).collect());
    }
    sheet
}
