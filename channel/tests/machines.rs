//! Each machine alone: every state that a small network can bring it to, or random events beside a plain model.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::Hash;
use transom_channel::credit::{Budget, Grant, HEADER, Purse};
use transom_channel::matching::{Label, Matching};
use transom_channel::polling::{Change, Order, PollingSet};
use transom_channel::rendezvous::{Facts, Mover, Receiving, Sending, movers};
use transom_channel::ring::{Look, Marker, Receiver, Sender, Shape};
use transom_channel::sequence::{Beyond, Incoming, Outgoing, Place};
use transom_channel::wire::{Key, Rail, RailKind};
use transom_channel::{Rank, Select};

/// Visits every state; `next` gives those that follow, and none for an end.
fn every<S: Clone + Eq + Hash>(first: S, next: impl Fn(&S) -> Vec<S>, end: impl Fn(&S)) -> usize {
    let (mut seen, mut waiting) = (HashSet::from([first.clone()]), vec![first]);
    while let Some(state) = waiting.pop() {
        let follow = next(&state);
        if follow.is_empty() {
            end(&state);
        }
        waiting.extend(follow.into_iter().filter(|state| seen.insert(state.clone())));
    }
    seen.len()
}

/// A ring, its memory, puts that are under way in pieces and credits that come late, twice or not at all.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ring {
    sender: Sender,
    receiver: Receiver,
    /// The first byte and the mark of each slot.
    memory: Vec<(u8, u64)>,
    /// Slot, and what is written: the byte, or the mark.
    flying: VecDeque<(usize, Result<u8, u64>)>,
    told: VecDeque<()>,
    /// The latest credit, and an old one.
    credits: [u32; 2],
    sent: u8,
    came: u8,
}

#[test]
fn a_ring_in_every_order() {
    for marker in [Marker::Last, Marker::Second, Marker::Immediate] {
        for slots in [2, 3] {
            let shape = Shape { slots, bytes: 64 };
            let first = Ring {
                sender: Sender::new(1, shape, Key { address: 0, key: 0 }),
                receiver: Receiver::new(1, shape, marker),
                memory: vec![(0, 0); slots as usize],
                flying: VecDeque::new(),
                told: VecDeque::new(),
                credits: [0; 2],
                sent: 0,
                came: 0,
            };
            let total = 7;
            let next = |state: &Ring| {
                let mut follow = Vec::new();
                let spot = state.sender.claim(10);
                if let Some(spot) = spot.filter(|_| state.sent < total) {
                    let mut new = state.clone();
                    new.sent += 1;
                    new.sender.sent();
                    let slot = spot.mark_at / 64;
                    assert_eq!((spot.at, spot.mark_at), (slot * 64 + 46, slot * 64 + 56));
                    // Under an immediate value nothing is promised of the order.
                    let pieces = [(slot, Ok(new.sent)), (slot, Err(spot.mark))];
                    new.flying.extend(pieces);
                    new.told.extend((marker == Marker::Immediate).then_some(()));
                    if marker == Marker::Immediate {
                        let mut turned = new.clone();
                        let last = turned.flying.len() - 1;
                        turned.flying.swap(last - 1, last);
                        follow.push(turned);
                    }
                    follow.push(new);
                }
                if let Some((slot, what)) = state.flying.front().copied() {
                    let mut new = state.clone();
                    new.flying.pop_front();
                    match what {
                        Ok(byte) => new.memory[slot].0 = byte,
                        Err(mark) => new.memory[slot].1 = mark,
                    }
                    // Whole, when as many pieces are under way as the other messages have.
                    if marker == Marker::Immediate && new.flying.len() == 2 * (new.told.len() - 1) {
                        new.told.pop_front();
                        new.receiver.told().unwrap();
                    }
                    follow.push(new);
                }
                if let Some(place) = state.receiver.place() {
                    let slot = place / 64;
                    match state.receiver.look(state.memory[slot].1) {
                        Look::Empty => {}
                        Look::Message { length, at } => {
                            assert_eq!((length, at), (10, slot * 64 + 46));
                            assert_eq!(state.memory[slot].0, state.came + 1, "in order, whole, not overwritten");
                            let mut new = state.clone();
                            new.came += 1;
                            new.credits = [new.receiver.free(), state.credits[0]];
                            follow.push(new);
                        }
                        Look::Broken => panic!("a mark that was not written"),
                    }
                }
                for credit in state.credits {
                    let mut new = state.clone();
                    new.sender.freed(credit).unwrap();
                    if new != *state {
                        follow.push(new);
                    }
                }
                follow
            };
            let states = every(first, next, |end| {
                assert_eq!((end.sent, end.came, end.sender.flying()), (total, total, 0));
            });
            assert!(states > 50, "{states}");
        }
    }
}

#[test]
fn a_ring_refuses_what_cannot_be() {
    let shape = Shape { slots: 2, bytes: 64 };
    let mut sender = Sender::new(1, shape, Key { address: 0, key: 0 });
    assert_eq!(sender.claim(57), None);
    assert!(sender.claim(56).is_some());
    assert_eq!(sender.freed(1), Err(Beyond));
    sender.sent();
    sender.sent();
    assert_eq!(sender.claim(1), None);
    assert_eq!(sender.freed(3), Err(Beyond));
    assert_eq!(sender.freed(u32::MAX), Ok(()), "old");
    assert_eq!(sender.flying(), 2);
    let receiver = Receiver::new(1, shape, Marker::Last);
    assert_eq!(receiver.look(57 << 32 | 1), Look::Broken);
    assert_eq!(receiver.look(u64::MAX << 32 | 1), Look::Broken);
    assert_eq!(receiver.look(5 << 32 | 2), Look::Empty);
    let mut receiver = Receiver::new(1, shape, Marker::Immediate);
    assert_eq!((receiver.told(), receiver.told(), receiver.told()), (Ok(()), Ok(()), Err(Beyond)));
    for (slots, bytes) in [(1, 64), (2, 56), (2, 65), (1025, 64), (2, 65_544), (0, 0)] {
        assert!(!Shape { slots, bytes }.is_sound());
    }
    let rail = |mark_last, immediate, whole_word| {
        Marker::of(&Rail {
            kind: RailKind::Connection,
            longest: 512,
            mark_last,
            immediate,
            whole_word,
            write: true,
            read: true,
            bandwidth: 0,
        })
    };
    assert_eq!(rail(true, true, true), Some(Marker::Last));
    assert_eq!(rail(false, true, true), Some(Marker::Immediate));
    assert_eq!(rail(false, false, true), Some(Marker::Second));
    assert_eq!(rail(false, false, false), None);
}

/// Packets by two lanes, any of which may bring one twice.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Lanes {
    out: Outgoing,
    incoming: Incoming<u32>,
    lanes: [VecDeque<u32>; 2],
    acks: [u32; 2],
    sent: u32,
    came: u32,
    twice: u32,
}

#[test]
fn a_sequence_in_every_order() {
    let first = Lanes {
        out: Outgoing::new(3),
        incoming: Incoming::new(3),
        lanes: Default::default(),
        acks: [0; 2],
        sent: 0,
        came: 0,
        twice: 0,
    };
    let total = 5;
    let next = |state: &Lanes| {
        let mut follow = Vec::new();
        if state.sent < total && state.out.room() > 0 {
            for lane in 0..2 {
                let mut new = state.clone();
                new.lanes[lane].push_back(new.out.sequence());
                new.out.sent();
                new.sent += 1;
                follow.push(new);
            }
        }
        for lane in 0..2 {
            let Some(packet) = state.lanes[lane].front().copied() else { continue };
            for again in [false, true] {
                if again && state.twice == 2 {
                    continue;
                }
                let mut new = state.clone();
                if again {
                    new.twice += 1;
                } else {
                    new.lanes[lane].pop_front();
                }
                match new.incoming.place(packet) {
                    Place::Now => {
                        let mut packet = Some(packet);
                        while let Some(now) = packet {
                            assert_eq!(now, new.came, "once, and in order");
                            new.came += 1;
                            packet = new.incoming.advance();
                        }
                        new.acks = [new.incoming.expected(), state.acks[0]];
                    }
                    Place::Early => new.incoming.hold(packet, packet),
                    Place::Old => assert!(state.twice > 0, "nothing came twice"),
                    Place::TooFar => panic!("beyond the window"),
                }
                assert!(new.incoming.held() <= 2);
                follow.push(new);
            }
        }
        for ack in state.acks {
            let mut new = state.clone();
            new.out.acked(ack).unwrap();
            if new != *state {
                follow.push(new);
            }
        }
        follow
    };
    let states = every(first, next, |end| {
        assert_eq!((end.came, end.out.flying(), end.incoming.held()), (total, 0, 0));
    });
    assert!(states > 1000, "{states}");
    let mut out = Outgoing::new(3);
    assert_eq!(out.acked(1), Err(Beyond));
    out.sent();
    assert_eq!((out.acked(1), out.acked(0), out.flying()), (Ok(()), Ok(()), 0));
    assert_eq!(Incoming::<()>::new(3).place(3), Place::TooFar);
}

/// Both sides of a rendezvous, by up to three lanes that are in order each.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Meeting {
    sending: Sending,
    receiving: Option<Receiving>,
    refusals: u8,
    /// Stripes that were posted and are not done, by lane; whether the data has landed.
    stripes: Vec<Option<bool>>,
    landed: Vec<bool>,
    fins: Vec<bool>,
    reads: u8,
    cts: Option<Mover>,
    nak: bool,
    ack: bool,
    data: VecDeque<(u64, u64)>,
}

#[test]
fn a_rendezvous_in_every_order() {
    for lanes in 1..=3u8 {
        for mover in [Mover::Copy, Mover::Write, Mover::Read] {
            let length = 5u64;
            let first = Meeting {
                sending: Sending::Announced,
                receiving: None,
                refusals: u8::from(mover == Mover::Write),
                stripes: vec![None; lanes as usize],
                landed: vec![false; lanes as usize],
                fins: vec![false; lanes as usize],
                reads: 0,
                cts: None,
                nak: false,
                ack: false,
                data: VecDeque::new(),
            };
            let next = |state: &Meeting| {
                let mut follow = Vec::new();
                let mut step = |change: &dyn Fn(&mut Meeting)| {
                    let mut new = state.clone();
                    change(&mut new);
                    if new.receiving == Some(Receiving::Done)
                        && !matches!(new.sending, Sending::Announced)
                        && mover == Mover::Write
                    {
                        assert!(new.refusals == 0 || new.landed.iter().all(|landed| *landed), "before its data");
                    }
                    follow.push(new);
                };
                match state.receiving {
                    None => step(&|new| {
                        new.receiving = Some(Receiving::new(mover, length, lanes));
                        if mover == Mover::Read {
                            new.reads = lanes;
                        } else {
                            new.cts = Some(mover);
                        }
                    }),
                    Some(_) if state.reads > 0 => step(&|new| {
                        new.reads -= 1;
                        new.receiving.as_mut().unwrap().read().unwrap();
                        new.ack = new.receiving == Some(Receiving::Done);
                    }),
                    _ => {}
                }
                if let Some(cts) = state.cts {
                    step(&|new| {
                        new.cts = None;
                        match cts {
                            Mover::Write => {
                                new.sending.write(lanes).unwrap();
                                new.stripes.fill(Some(false));
                            }
                            _ => new.sending.copy(length).unwrap(),
                        }
                    });
                    if cts == Mover::Write && state.refusals > 0 {
                        step(&|new| (new.cts, new.nak, new.refusals) = (None, true, 0));
                    }
                }
                if state.nak {
                    step(&|new| {
                        new.nak = false;
                        new.receiving.as_mut().unwrap().refused(length).unwrap();
                        new.cts = Some(Mover::Copy);
                    });
                }
                for lane in 0..lanes as usize {
                    match state.stripes[lane] {
                        Some(false) => step(&|new| {
                            (new.landed[lane], new.fins[lane], new.stripes[lane]) = (true, true, Some(true));
                        }),
                        Some(true) => step(&|new| {
                            new.stripes[lane] = None;
                            new.sending.written().unwrap();
                        }),
                        None => {}
                    }
                    if state.fins[lane] {
                        step(&|new| {
                            new.fins[lane] = false;
                            new.receiving.as_mut().unwrap().fin(lanes).unwrap();
                        });
                    }
                }
                if let Sending::Copying(at, _) = state.sending {
                    for piece in 1..=length - at {
                        step(&|new| {
                            new.sending.posted(piece).unwrap();
                            new.data.push_back((at, piece));
                        });
                    }
                }
                if let Some((at, piece)) = state.data.front().copied() {
                    step(&|new| {
                        new.data.pop_front();
                        new.receiving.as_mut().unwrap().data(at, piece).unwrap();
                    });
                }
                if state.ack {
                    step(&|new| {
                        new.ack = false;
                        new.sending.acked().unwrap();
                    });
                }
                follow
            };
            every(first, next, |end| {
                assert_eq!(
                    (end.sending, end.receiving),
                    (Sending::Done, Some(Receiving::Done)),
                    "{mover:?} by {lanes}"
                );
            });
        }
    }
}

#[test]
fn a_rendezvous_refuses_what_does_not_fit() {
    let mut sending = Sending::Queued;
    assert!(
        sending.copy(1).is_err() && sending.write(1).is_err() && sending.acked().is_err() && sending.written().is_err()
    );
    sending.announce().unwrap();
    sending.copy(10).unwrap();
    assert!(sending.acked().is_err() && sending.posted(11).is_err() && sending.posted(0).is_err());
    let mut receiving = Receiving::new(Mover::Copy, 10, 0);
    assert!(receiving.data(1, 9).is_err() && receiving.data(0, 11).is_err() && receiving.fin(1).is_err());
    receiving.data(0, 4).unwrap();
    assert!(receiving.data(0, 4).is_err() && receiving.refused(10).is_err());
    let mut receiving = Receiving::new(Mover::Write, 10, 0);
    receiving.fin(2).unwrap();
    assert!(receiving.refused(10).is_err() && receiving.fin(1).is_err());
}

#[test]
fn the_table_of_movers() {
    let facts = Facts { in_place: true, receiver_first: true, readable: true, writable: true };
    let best = |facts| movers(facts).next().unwrap();
    assert_eq!(best(facts), Mover::Write);
    assert_eq!(best(Facts { receiver_first: false, ..facts }), Mover::Read);
    assert_eq!(best(Facts { receiver_first: false, readable: false, ..facts }), Mover::Write);
    assert_eq!(best(Facts { writable: false, ..facts }), Mover::Read);
    assert_eq!(best(Facts { writable: false, readable: false, ..facts }), Mover::Copy);
    assert_eq!(best(Facts { in_place: false, ..facts }), Mover::Copy);
}

/// Matching as the standard says it, by rows that are searched from the front.
#[derive(Default)]
struct Plain {
    posted: Vec<(Select, u64)>,
    unexpected: Vec<(Label, u64)>,
}

fn fits(select: Select, label: Label) -> bool {
    select.context == label.context
        && select.source.is_none_or(|source| source == label.source)
        && select.tag.is_none_or(|tag| tag == label.tag)
}

#[test]
fn matching_beside_plain_rows() {
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (mut matching, mut plain) = (Matching::default(), Plain::default());
        let mut numbers = BTreeMap::new();
        for step in 0..400u64 {
            let select = Select {
                context: rng.u32(..2),
                source: rng.bool().then(|| rng.u32(..3)),
                tag: rng.bool().then(|| rng.u32(..3)),
            };
            let label = Label { context: rng.u32(..2), source: rng.u32(..3), tag: rng.u32(..3) };
            let waiting = |plain: &Plain| plain.unexpected.iter().position(|(label, _)| fits(select, *label));
            match rng.u32(..20) {
                0..8 => {
                    assert_eq!(
                        matching.peek(select).map(|found| *found.1),
                        waiting(&plain).map(|at| plain.unexpected[at].1)
                    );
                    let took = matching.take(select);
                    assert_eq!(took, waiting(&plain).map(|at| plain.unexpected.remove(at)));
                    if took.is_none() && rng.u8(..4) > 0 {
                        numbers.insert(step, matching.post(select, step));
                        plain.posted.push((select, step));
                    }
                }
                8..17 => {
                    let at = plain.posted.iter().position(|(select, _)| fits(*select, label));
                    assert_eq!(matching.is_wanted(label), at.is_some());
                    let found = matching.arrived(label);
                    assert_eq!(found, at.map(|at| plain.posted.remove(at).1));
                    if found.is_none() {
                        matching.keep(label, step);
                        plain.unexpected.push((label, step));
                    }
                }
                17 => {
                    let keys: Vec<_> = numbers.keys().copied().collect();
                    let Some(step) = rng.choice(keys) else { continue };
                    let at = plain.posted.iter().position(|(_, is)| *is == step);
                    assert_eq!(matching.cancel(numbers[&step]), at.map(|at| plain.posted.remove(at).1));
                }
                18 if step % 5 == 0 => {
                    let gone = matching.withdraw(|select| select.source == Some(1));
                    let (out, rest) = plain.posted.iter().partition(|(select, _)| select.source == Some(1));
                    plain.posted = rest;
                    let out: Vec<(Select, u64)> = out;
                    assert_eq!(gone, out.into_iter().map(|(_, is)| is).collect::<Vec<_>>());
                }
                19 if step % 5 == 0 => {
                    let gone = matching.discard(|label, _| label.source == 2);
                    let (out, rest) = plain.unexpected.iter().partition(|(label, _)| label.source == 2);
                    plain.unexpected = rest;
                    let out: Vec<(Label, u64)> = out;
                    assert_eq!(gone, out.into_iter().map(|(_, is)| is).collect::<Vec<_>>());
                }
                _ => {}
            }
            for source in 0..3 {
                let wanted = plain.posted.iter().any(|(select, _)| select.source.is_none_or(|is| is == source));
                assert_eq!(matching.wants(source), wanted);
            }
            assert_eq!((matching.posted(), matching.unexpected()), (plain.posted.len(), plain.unexpected.len()));
        }
    }
}

#[test]
fn grants_are_bounded_and_come_back() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (floor, total, spill) = (128 + rng.u32(..300), rng.u32(..20_000), 64 + rng.u32(..2000));
        let mut budget = Budget::new(floor, total, spill);
        let mut peers: Vec<_> = (0..rng.u32(1..12))
            .map(|_| (Purse::new(floor), Grant::new(floor), [floor; 2], false, VecDeque::new()))
            .collect();
        for step in 0..2000 {
            let count = peers.len();
            let (purse, grant, owed, joined, kept) = &mut peers[rng.usize(..count)];
            match rng.u32(..10) {
                0..4 => {
                    let cost = HEADER + if rng.bool() { 0 } else { rng.u32(..3000) };
                    if cost <= purse.room() {
                        purse.spend(cost);
                        if !*joined {
                            *joined = true;
                            budget.join(grant);
                        }
                        grant.arrived(cost.into()).unwrap();
                        kept.push_back(cost);
                    }
                }
                4..7 => {
                    if let Some(cost) = kept.pop_front() {
                        budget.release(grant, cost);
                    }
                }
                7 => _ = budget.spill(grant),
                // Now and then two, the older one later.
                _ => {
                    let [told, value] = *owed;
                    *owed = [value; 2];
                    purse.granted(value);
                    purse.granted(told);
                }
            }
            assert!(grant.value().wrapping_sub(owed[1]) < 1 << 31, "a credit is never taken back");
            owed[1] = grant.value();
            assert_eq!(grant.kept(), kept.iter().sum::<u32>());
            assert!(grant.kept() <= grant.limit() && grant.limit() >= floor, "step {step}");
            assert!(purse.room() <= grant.limit() - grant.kept());
            let limits: u32 = peers.iter().map(|peer| peer.1.limit()).sum();
            assert!(limits <= floor * peers.len() as u32 + total + spill, "step {step}: {limits}");
            assert_eq!(limits - floor * peers.len() as u32, budget.outstanding(spill));
        }
        for (purse, grant, _, _, kept) in &mut peers {
            kept.drain(..).for_each(|cost| budget.release(grant, cost));
            purse.granted(grant.value());
            assert!(purse.room() >= floor && purse.room() == grant.limit(), "seed {seed}");
        }
        peers.iter().for_each(|(_, grant, _, joined, _)| budget.leave(grant, *joined));
        assert_eq!(budget.outstanding(spill), 0);
        let (_, mut grant, ..) = peers.remove(0);
        assert_eq!(grant.arrived(u64::MAX), Err(Beyond));
    }
}

#[test]
fn the_polling_set() {
    for order in [Order::Sequential, Order::Circular, Order::RecentFirst] {
        let mut set = PollingSet::new(2, 3, order);
        let mut say = |peer: Rank, times: u32| (0..times).filter_map(|_| set.packet(peer)).collect::<Vec<_>>();
        assert_eq!(say(5, 2), []);
        assert_eq!(say(5, 1), [Change::Join(5)]);
        assert_eq!(say(6, 3), [Change::Join(6)]);
        // Full: who speaks as little stays outside; who speaks more than twice as much replaces the least.
        assert_eq!(say(7, 3), []);
        assert_eq!(say(6, 10), []);
        assert_eq!(say(7, 5), [Change::Leave(5)]);
        // One at a time; it is polled until it has left.
        assert_eq!(say(8, 20), []);
        assert_eq!(set.len(), 2);
        set.left(5);
        assert_eq!(set.packet(7), Some(Change::Join(7)));
        assert_eq!(set.len(), 2);
        set.packet(7);
        let expected: &[Rank] = match order {
            Order::Sequential => &[6, 7],
            // From behind the last that had a message.
            Order::Circular => &[6, 7],
            Order::RecentFirst => &[7, 6],
        };
        assert_eq!(set.turn().collect::<Vec<_>>(), expected);
        set.packet(6);
        let expected: &[Rank] = if order == Order::Circular { &[7, 6] } else { &[6, 7] };
        assert_eq!(set.turn().collect::<Vec<_>>(), expected);
    }
    let mut none = PollingSet::new(0, 1, Order::Circular);
    assert_eq!(none.packet(1), None);
    assert!(none.is_empty());
}

#[test]
fn a_polling_set_keeps_its_cap() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cap = rng.usize(1..5);
        let order = *rng.choice(&[Order::Sequential, Order::Circular, Order::RecentFirst]).unwrap();
        let mut set = PollingSet::new(cap, rng.u32(1..5), order);
        let (mut rings, mut leaving) = (HashSet::new(), None);
        for nth in 0..3000 {
            // Who speaks most changes slowly.
            let peer = (nth / 500 + rng.u32(..4) * rng.u32(..4)) % 12;
            match set.packet(peer) {
                Some(Change::Join(peer)) => assert!(rings.insert(peer), "two rings"),
                Some(Change::Leave(peer)) => {
                    assert!(rings.contains(&peer) && leaving.replace(peer).is_none());
                }
                None => {}
            }
            if rng.u8(..10) == 0
                && let Some(peer) = leaving.take()
            {
                rings.remove(&peer);
                set.left(peer);
            }
            let polled: Vec<_> = set.turn().collect();
            assert_eq!(polled.len(), polled.iter().collect::<HashSet<_>>().len());
            assert_eq!(polled.iter().copied().collect::<HashSet<_>>(), rings, "all rings are polled");
            assert!(rings.len() <= cap);
        }
    }
}
