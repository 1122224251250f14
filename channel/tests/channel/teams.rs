//! Teams and requests dropped while messages for them are in flight: their credit is returned, and no
//! operation waits.

use std::collections::{BTreeMap, BTreeSet};
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::{Cancelled, Config, Error, Id, Rank, RecvTarget, Select};

/// Number of contexts of a team, as for a world.
const WIDTH: u32 = 7;

struct Job {
    sim: Sim,
    ranks: Rank,
    sends: BTreeSet<(Rank, Id)>,
    receives: BTreeMap<(Rank, Id), u32>,
    discarded: usize,
}

impl Job {
    fn run(&mut self, steps: usize) {
        (0..self.ranks).for_each(|rank| self.sim.wake(rank, 0));
        for _ in 0..steps {
            let Some(rank) = self.sim.step() else { return };
            self.take(rank);
        }
    }

    fn take(&mut self, rank: Rank) {
        while let Some(done) = self.sim.engine(rank).completed() {
            if self.sends.remove(&(rank, done.id)) {
                match done.result {
                    Ok(_) => {}
                    Err(Error::Discarded { .. }) => self.discarded += 1,
                    Err(error) => panic!("send of rank {rank} failed: {error}"),
                }
            } else if self.receives.remove(&(rank, done.id)).is_some() {
                done.result.unwrap();
            }
        }
    }

    /// Cancels the rank's receives in these contexts, and drops their team.
    fn drop_team(&mut self, rank: Rank, first: u32) {
        let contexts = first..=first + WIDTH - 1;
        self.take(rank);
        let mine = self.receives.iter().filter(|((at, _), context)| *at == rank && contexts.contains(context));
        let mine: Vec<Id> = mine.map(|((_, id), _)| *id).collect();
        for id in mine {
            if let Cancelled::Withdrawn(_) = self.sim.engine(rank).cancel(id) {
                self.receives.remove(&(rank, id));
            }
        }
        self.sim.engine(rank).disband(contexts);
    }
}

#[test]
fn credit_of_dropped_teams_and_requests_returns() {
    let mut discarded = 0;
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let ranks = rng.u32(2..6);
        let config = Config {
            budget: *rng.choice(&[0, 3000, 4 << 20]).unwrap(),
            eager: *rng.choice(&[0, 400, 8192]).unwrap(),
            rings: rng.usize(..3),
            ring_after: rng.u32(1..4),
            offer: rng.bool(),
            ..Config::default()
        };
        let sim = Sim::new(seed, ranks, Conditions::default(), &config).unwrap();
        let mut job = Job { sim, ranks, sends: BTreeSet::new(), receives: BTreeMap::new(), discarded: 0 };
        // Each rank has teams 1 to 4 until it drops them, in any order.
        let mut has: Vec<BTreeSet<u32>> = vec![(1..=4).map(|team| team * WIDTH).collect(); ranks as usize];
        for _ in 0..400 {
            let rank = rng.u32(..ranks);
            let team = rng.choice(&has[rank as usize]).copied();
            let tag = rng.u32(..3);
            match (rng.u32(..20), team) {
                (0..10, Some(first)) => {
                    let (to, context) = (rng.u32(..ranks), first + rng.u32(..WIDTH));
                    let length = *rng.choice(&[0, 8, 64, 65, 300, 5000, 40_000]).unwrap();
                    let memory = SimMemory::pattern(1, length);
                    let id = job.sim.engine(rank).send(to, context, tag, memory, length, rng.u8(..4) == 0);
                    job.sends.insert((rank, id));
                }
                (10..15, Some(first)) => {
                    let source = rng.bool().then(|| rng.u32(..ranks));
                    let select = Select { context: first + rng.u32(..WIDTH), source, tag: rng.bool().then_some(tag) };
                    let id = job.sim.engine(rank).receive(select, RecvTarget::Allocate);
                    job.receives.insert((rank, id), select.context);
                }
                (15, _) => {
                    let mine = job.receives.keys().filter(|(at, _)| *at == rank);
                    if let Some((_, id)) = mine.copied().next()
                        && let Cancelled::Withdrawn(_) = job.sim.engine(rank).cancel(id)
                    {
                        job.receives.remove(&(rank, id));
                    }
                }
                (16, Some(first)) if rng.u8(..5) == 0 => {
                    has[rank as usize].remove(&first);
                    job.drop_team(rank, first);
                }
                _ => job.run(rng.usize(..40)),
            }
        }
        for rank in 0..ranks {
            for first in std::mem::take(&mut has[rank as usize]) {
                job.run(rng.usize(..10));
                job.drop_team(rank, first);
            }
        }
        job.run(usize::MAX);
        assert!(job.sends.is_empty(), "seed {seed}: sends never completed: {:?}", job.sends);
        for rank in 0..ranks {
            let engine = job.sim.engine(rank);
            engine.at_rest().unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            assert_eq!((engine.kept(), engine.under_way()), (0, 0), "seed {seed}: rank {rank}");
            // All credit granted beyond the floors is at the peers, and unused.
            let granted = i64::from(engine.granted());
            let peers: Vec<i64> = (0..ranks).filter_map(|peer| job.sim.engine(peer).credit(rank)).collect();
            let beyond: i64 = peers.iter().map(|credit| credit - i64::from(config.floor)).sum();
            assert_eq!(
                beyond, granted,
                "seed {seed}: credit granted by rank {rank} differs from the peers' credit {peers:?}"
            );
        }
        discarded += job.discarded;
    }
    assert!(discarded > 1000, "only {discarded} messages were discarded for dropped teams");
}

/// A message for a dropped team is discarded, whenever it arrives and however it was sent.
#[test]
fn message_for_dropped_team_is_discarded() {
    for (length, sync, ends_well) in
        [(8, false, true), (8, true, false), (100_000, false, false), (100_000, true, false)]
    {
        for late in [false, true] {
            let mut sim = Sim::new(1, 2, Conditions::default(), &Config::default()).unwrap();
            let settle = |sim: &mut Sim| {
                (0..2).for_each(|rank| sim.wake(rank, 0));
                while sim.step().is_some() {}
            };
            sim.engine(1).team(7..=13, [0, 1]);
            if late {
                sim.engine(1).disband(7..=13);
            }
            let id = sim.engine(0).send(1, 9, 0, SimMemory::pattern(1, length), length, sync);
            settle(&mut sim);
            if !late {
                assert!(sim.engine(1).kept() > 0);
                sim.engine(1).disband(7..=13);
                settle(&mut sim);
            }
            let done = sim.engine(0).completed().expect("the send did not complete");
            assert_eq!(done.id, id);
            let expected = if ends_well { Ok(()) } else { Err(Error::Discarded { rank: 1 }) };
            assert_eq!(done.result.map(|_| ()), expected, "{length} B, late {late}");
            assert_eq!((sim.engine(1).kept(), sim.engine(1).counters().discarded), (0, 1));
            // Other contexts are unaffected.
            sim.engine(0).send(1, 14, 0, SimMemory::pattern(2, 8), 8, false);
            settle(&mut sim);
            assert_eq!(sim.engine(1).kept(), 72);
        }
    }
}
