//! A rank dies in every phase of its peers' operations. All operations that depend on it end with an error
//! that names it.

use std::collections::BTreeMap;
use transom_channel::sim::{Conditions, Sim, SimMemory};
use transom_channel::wire::{Data, Lane, Request};
use transom_channel::{Config, Error, Id, PeerFailure, Rank, RecvTarget, Select, Wire};

const LENGTHS: [usize; 5] = [0, 100, 2000, 9000, 200_000];

/// Rank 0 communicates with rank 1, which dies after `steps` steps, and with rank 2, which lives. Returns
/// whether rank 1 died before the end.
fn die_after(steps: usize, config: &Config, seed: u64) -> bool {
    let conditions = Conditions { depth: 4, slots: 8, ..Conditions::default() };
    let mut sim = Sim::new(seed, 3, conditions, config).unwrap();
    let mut open: BTreeMap<(Rank, Id), Option<Rank>> = BTreeMap::new();
    let from = |source, tag| Select { context: 0, source, tag };
    for (tag, length) in (0..).zip(LENGTHS) {
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            for (a, b) in [(a, b), (b, a)] {
                let send = sim.engine(a).send(b, 0, tag, SimMemory::pattern(9, length), length, tag == 1);
                let room = if seed.is_multiple_of(2) {
                    RecvTarget::Allocate
                } else {
                    RecvTarget::Into(SimMemory::zero(length), length)
                };
                let receive = sim.engine(b).receive(from(Some(a), Some(tag)), room);
                open.insert((a, send), Some(b));
                open.insert((b, receive), Some(a));
            }
        }
    }
    // Never matched while rank 1 lives.
    let any = sim.engine(0).receive(from(None, Some(99)), RecvTarget::Into(SimMemory::zero(5), 5));
    open.insert((0, any), None);
    let late = sim.engine(2).send(0, 0, 50, SimMemory::pattern(8, 100_000), 100_000, false);
    open.insert((2, late), Some(0));
    (0..3).for_each(|rank| sim.wake(rank, 0));
    let mut taken = 0;
    let mut over = false;
    loop {
        if taken == steps {
            sim.kill(1);
        }
        taken += 1;
        let Some(rank) = sim.step() else {
            if taken > steps {
                break;
            }
            over = true;
            continue;
        };
        while let Some(done) = sim.engine(rank).completed() {
            let peer = open.remove(&(rank, done.id)).expect("a request completed twice");
            match done.result {
                Ok(status) => {
                    let memory = done.memory.unwrap();
                    let length = status.length as usize;
                    let whose = if status.tag == 50 { 8 } else { 9 };
                    assert_eq!(memory.whose(length), (length > 0).then_some(whose), "{status:?}");
                    memory.spoil();
                }
                Err(Error::PeerFailure { rank: 1, lost: PeerFailure::Died }) => {
                    assert!(peer.is_none_or(|peer| peer == 1), "{peer:?}")
                }
                Err(other) => panic!("rank {rank} with {peer:?}: {other}"),
            }
        }
        // A message that waits for its receive survives the death of another rank.
        if taken == steps + 200 {
            let id = sim.engine(0).receive(from(Some(2), Some(50)), RecvTarget::Allocate);
            open.insert((0, id), Some(2));
            sim.wake(0, 0);
        }
    }
    open.retain(|(rank, id), _| *rank != 1 && !(*id == late && *rank == 2));
    assert!(open.is_empty(), "requests never completed: {open:?}");
    for rank in [0, 2] {
        let engine = sim.engine(rank);
        let lost = Error::PeerFailure { rank: 1, lost: PeerFailure::Died };
        let id = engine.send(1, 0, 0, SimMemory::zero(0), 0, false);
        let failed = engine.completed().unwrap();
        assert_eq!((failed.id, failed.result), (id, Err(lost.clone())));
        let id = engine.receive(from(Some(1), None), RecvTarget::Into(SimMemory::zero(3), 3));
        let failed = engine.completed().unwrap();
        assert_eq!((failed.id, failed.result), (id, Err(lost.clone())));
        assert_eq!(failed.memory.unwrap().len(), 3);
        assert_eq!(lost.to_string(), "rank 1 is lost: it died");
        // A rank without a posted receive from any source gets the error at its next one.
        if rank == 2 {
            engine.receive(from(None, None), RecvTarget::Allocate);
            assert_eq!(engine.completed().unwrap().result, Err(lost));
            engine.receive(from(None, None), RecvTarget::Allocate);
            assert!(engine.completed().is_none());
        }
    }
    !over
}

#[test]
fn rank_death_in_any_phase_ends_all_requests() {
    let base = Config { ring_after: 2, eager: 4096, zero_copy_from: 8192, ..Config::default() };
    let configs = [
        base.clone(),
        Config { offer: false, ..base.clone() },
        Config { zero_copy_from: u64::MAX, ..base.clone() },
        Config { eager: 0, budget: 0, floor: 128, window: 4, batch: 1, ..base },
    ];
    let mut phases = 0;
    for (seed, config) in (0..).zip(&configs) {
        let mut steps = 0;
        while die_after(steps, config, seed) {
            phases += 1;
            steps += 1;
        }
        assert!(steps > 100, "expected more than 100 phases, found {steps}");
    }
    println!("killed in {phases} phases");
}

/// A probe fails once its message can no longer arrive: always for a dead source, once for any source.
#[test]
fn probe_of_a_dead_source_fails() {
    let mut sim = Sim::new(1, 3, Conditions::default(), &Config::default()).unwrap();
    let from = |source, tag| Select { context: 0, source, tag: Some(tag) };
    for (to, tag) in [(0, 1), (2, 1)] {
        sim.engine(1).send(to, 0, tag, SimMemory::pattern(4, 10), 10, false);
    }
    sim.wake(1, 0);
    while sim.step().is_some() {}
    assert_eq!(sim.engine(0).peek(from(None, 2)), Ok(None));
    sim.kill(1);
    while sim.step().is_some() {}
    let lost = || Error::PeerFailure { rank: 1, lost: PeerFailure::Died };
    for rank in [0, 2] {
        let engine = sim.engine(rank);
        // A message that had arrived whole can be received.
        assert_eq!(engine.peek(from(Some(1), 1)).unwrap().unwrap().length, 10);
        assert_eq!((engine.peek(from(Some(1), 2)), engine.peek(from(Some(1), 2))), (Err(lost()), Err(lost())));
        assert!(engine.try_probe(from(Some(1), 1)).unwrap().is_some());
        assert_eq!(engine.try_probe(from(Some(1), 1)), Err(lost()));
        assert_eq!((engine.peek(from(None, 1)), engine.peek(from(None, 1))), (Err(lost()), Ok(None)), "once");
        let ranks = Error::NoSuchRank { rank: 7, ranks: 3 };
        assert_eq!(engine.peek(from(Some(7), 1)), Err(ranks));
    }
}

/// A probe fails even if all other ranks have left since; those departures alone do not fail it.
#[test]
fn death_is_reported_before_departures() {
    let mut sim = Sim::new(1, 6, Conditions::default(), &Config::default()).unwrap();
    for to in 1..6 {
        sim.engine(0).send(to, 0, 1, SimMemory::zero(0), 0, false);
    }
    sim.wake(0, 0);
    while sim.step().is_some() {}
    sim.kill(3);
    while sim.step().is_some() {}
    let engine = sim.engine(0);
    engine.shut();
    let any = Select { context: 0, source: None, tag: None };
    assert_eq!(engine.peek(any), Err(Error::PeerFailure { rank: 3, lost: PeerFailure::Died }));
    assert_eq!(engine.peek(any), Ok(None));
    assert!(matches!(engine.never(any), Some(Error::PeerFailure { .. })), "a receive waits for nobody");
}

/// A receive from any source fails only for deaths in its own team, in every context of the team, until it is
/// disbanded.
#[test]
fn death_fails_any_source_receives_of_its_teams() {
    let mut sim = Sim::new(1, 4, Conditions::default(), &Config::default()).unwrap();
    // A rank is notified of the deaths of ranks it has communicated with.
    for to in 1..4 {
        sim.engine(0).send(to, 0, 1, SimMemory::zero(0), 0, false);
    }
    sim.wake(0, 0);
    while sim.step().is_some() {}
    while sim.engine(0).completed().is_some() {}
    // Contexts 6 to 11 belong to ranks 0, 1 and 3, and 12 to 17 to ranks 0 and 2.
    sim.engine(0).team(6..=11, [0, 1, 3]);
    sim.engine(0).team(12..=17, [0, 2]);
    let any = |context| Select { context, source: None, tag: None };
    let ids =
        [5, 6, 11, 12, 17, 18].map(|context| (sim.engine(0).receive(any(context), RecvTarget::Allocate), context));
    assert_eq!(sim.engine(0).teams(), 2);
    let mut kill = |rank| {
        sim.kill(rank);
        while sim.step().is_some() {}
        let mut told = Vec::new();
        while let Some(done) = sim.engine(0).completed() {
            assert_eq!(done.result, Err(Error::PeerFailure { rank, lost: PeerFailure::Died }));
            told.push(ids.iter().find(|(id, _)| *id == done.id).unwrap().1);
        }
        told.sort();
        (told, sim.engine(0).teams())
    };
    assert_eq!(kill(3), (vec![5, 6, 11, 18], 2));
    assert_eq!(kill(2), (vec![12, 17], 2));
    let engine = sim.engine(0);
    engine.disband(12..=17);
    assert_eq!(engine.teams(), 1, "of one team nothing is kept any more");
    let id = engine.receive(any(12), RecvTarget::Allocate);
    assert_eq!(engine.completed().map(|done| done.id), Some(id), "it is of all ranks now, of whom one has died");
}

/// A rank whose answers wait for the packet window must not leave: sends of its peer depend on them.
#[test]
fn rank_with_queued_answers_is_still_needed() {
    let config = Config { window: 4, rings: 0, ..Config::default() };
    for (length, sync) in [(100, true), (200_000, false)] {
        let mut sim = Sim::new(1, 2, Conditions::default(), &config).unwrap();
        let sends: Vec<Id> =
            (0..40).map(|tag| sim.engine(0).send(1, 0, tag, SimMemory::zero(length), length, sync)).collect();
        (0..2).for_each(|rank| sim.wake(rank, 0));
        while sim.step().is_some() {}
        (0..40).for_each(|tag| {
            let room = RecvTarget::Into(SimMemory::zero(length), length);
            sim.engine(1).receive(Select { context: 0, source: Some(0), tag: Some(tag) }, room);
        });
        // Rank 0 makes no progress meanwhile.
        sim.stop(0, true);
        sim.wake(1, 0);
        while sim.step().is_some() {}
        let received = std::iter::from_fn(|| sim.engine(1).completed()).count();
        assert!(received > 4, "expected more than 4 receives, found {received}");
        assert!(sim.engine(1).is_needed(), "{length} bytes: rank 1 is not needed, but rank 0 waits for its answers");
        sim.stop(0, false);
        let mut ended = 0;
        while sim.step().is_some() {
            ended += std::iter::from_fn(|| sim.engine(0).completed()).filter(|done| done.result.is_ok()).count();
        }
        assert_eq!(ended, sends.len());
        assert!((0..2).all(|rank| !sim.engine(rank).is_needed()));
    }
}

/// Allocation fails for a message, whole or in pieces: its sender is lost, and the matched receive ends like
/// all others from there.
#[test]
fn receive_fails_if_allocation_fails() {
    for (longest, probes) in [(16 << 10, false), (16 << 10, true), (1000, false), (1000, true)] {
        let mut conditions = Conditions { memory: 2000, ..Conditions::default() };
        conditions.rails[0].longest = longest;
        let mut sim = Sim::new(1, 2, conditions, &Config::default()).unwrap();
        let select = Select { context: 0, source: Some(0), tag: Some(1) };
        let id = sim.engine(1).receive(select, if probes { RecvTarget::Probe } else { RecvTarget::Allocate });
        // The first message makes rank 1 grant more credit to rank 0.
        for (tag, length) in [(0, 0), (1, 4000)] {
            sim.engine(0).send(1, 0, tag, SimMemory::zero(length), length, false);
            (0..2).for_each(|rank| sim.wake(rank, 0));
            while sim.step().is_some() {}
        }
        let lost = Err(Error::PeerFailure { rank: 0, lost: PeerFailure::NoMemory });
        assert_eq!(sim.engine(1).completed().map(|done| (done.id, done.result)), Some((id, lost)));
        assert_eq!(
            (sim.engine(1).kept(), sim.engine(1).under_way()),
            (64, 0),
            "expected only the earlier message to be kept"
        );
    }
}

/// Rank 0 breaks the protocol while rank 1 writes to it. Rank 1 cuts it off, and its adapter no longer reads
/// memory returned to the program.
#[test]
fn disconnected_peers_memory_is_not_accessed() {
    let length = 1 << 20;
    let config = Config { offer: false, ..Config::default() };
    let mut sim = Sim::new(1, 2, Conditions::default(), &config).unwrap();
    let into = SimMemory::pattern(7, length);
    let select = Select { context: 0, source: Some(1), tag: None };
    sim.engine(0).receive(select, RecvTarget::Into(into.clone(), length));
    let send = sim.engine(1).send(0, 0, 0, SimMemory::pattern(9, length), length, false);
    (0..2).for_each(|rank| sim.wake(rank, 0));
    while sim.engine(1).counters().written_bytes == 0 {
        sim.step().expect("it is written");
    }
    let lane = Lane { peer: 1, rail: 0 };
    sim.engine(0).wire().post(lane, Request::Send { head: &[0xff; 9], body: Data::None }).unwrap();
    sim.stop(0, true);
    let mut ended = None;
    while sim.step().is_some() {
        if let Some(done) = sim.engine(1).completed() {
            done.memory.unwrap().spoil();
            ended = Some((done.id, done.result.map_err(|error| matches!(error, Error::PeerFailure { rank: 0, .. }))));
        }
    }
    assert_eq!((ended, into.whose(length)), (Some((send, Err(true))), Some(7)));
}
