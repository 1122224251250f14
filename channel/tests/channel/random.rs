//! Random traffic in random conditions, against the model. A failure names its seed: `SEED=n` reruns it.
//! `SEEDS=n` runs n seeds.

use crate::model::{Job, Setup, counts_of_seeds};
use transom_channel::Config;
use transom_channel::wire::{Rail, RailKind};

fn run(seed: u64) -> Result<Job, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut setup = Setup::random(&mut rng);
    match rng.u8(..4) {
        // All ranks on one host: values are published beside rings.
        0 => {
            setup.conditions.rails.truncate(1);
            setup.conditions.rails[0].kind = RailKind::Memory;
            // Without writes, the receiver reads rendezvous messages at once.
            setup.conditions.rails[0].write &= rng.bool();
            setup.conditions.host = setup.ranks;
        }
        // Several hosts, whose ranks share memory with a configuration of its own.
        1 => {
            let rail = setup.conditions.rails[0];
            let longest = *rng.choice(&[512, 2048, 20_000]).unwrap();
            setup.conditions.rails.push(Rail { kind: RailKind::Memory, mark_last: rng.bool(), longest, ..rail });
            setup.conditions.host = rng.u32(1..4);
            let floor = setup.configs[0].floor;
            setup.conditions.near = rng.bool().then(|| Config { floor, ..Setup::random(&mut rng).configs[0].clone() });
        }
        _ => {}
    }
    if std::env::var("SEED").is_ok() {
        println!("{} ranks, {} actions each, {:#?} {:#?}", setup.ranks, setup.actions, setup.conditions, setup.configs);
    }
    Job::new(seed, setup, |wire| wire).run()
}

#[test]
fn every_message_arrives_once_whole_and_in_order() {
    let (seeds, counts) = counts_of_seeds(2000, run);
    // Each path was taken.
    if seeds >= 1000 {
        for (name, count) in counts {
            // Nothing is lost here; `datagrams` and `connections` test losses. The simulator's adapters need
            // no registration cache.
            let of_loss = ["old", "resends", "acknowledgements", "spoiled", "rerouted"];
            let of_datagrams = [
                "datagram_packets",
                "datagram_bytes",
                "connects",
                "disconnects",
                "refusals",
                "datagram_windows",
                "datagram_windows_peak",
                "datagram_repairs",
            ];
            let of_teams = ["discarded"];
            let of_registering = ["registered_bytes", "registered", "found_registered", "missed_wakes"];
            let never = [&of_loss[..], &of_datagrams, &of_teams, &of_registering].concat().contains(&name);
            assert_eq!(count == 0, never, "{name}: {count}");
        }
    }
}

#[test]
fn same_seed_gives_the_same_run() {
    for seed in 0..20 {
        let twice = [run(seed), run(seed)].map(|job| {
            let mut job = job.unwrap();
            let counters: Vec<_> = (0..job.setup.ranks).map(|rank| job.sim.engine(rank).counters()).collect();
            (job.sim.now(), counters)
        });
        assert_eq!(twice[0], twice[1]);
    }
}
