//! Each state machine alone: in every state that a small network can produce, or under random events against
//! a plain model.

mod matching;
mod rendezvous;
mod ring;
mod sequence;

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use transom_channel::Rank;
use transom_channel::credit::{Budget, CreditGrant, HEADER, SHORT, SendCredits};
use transom_channel::polling::{Change, Order, PollingSet};
use transom_channel::sequence::Beyond;

/// Visits every state. `next` returns the states that follow; `end` checks those that none follows.
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

#[test]
fn credit_grants_stay_bounded_and_return() {
    for seed in 0..500 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (floor, total, overdraft) = (128 + rng.u32(..300), rng.u32(..20_000), 64 + rng.u32(..2000));
        let mut budget = Budget::new(floor, total, overdraft);
        let mut peers: Vec<_> = (0..rng.u32(1..12))
            .map(|_| (SendCredits::new(floor), CreditGrant::new(floor), [floor; 2], false, VecDeque::new()))
            .collect();
        let mut most = 0;
        for step in 0..2000 {
            let count = peers.len();
            let (purse, grant, owed, joined, kept) = &mut peers[rng.usize(..count)];
            match rng.u32(..10) {
                0..4 => {
                    let length = if rng.bool() { rng.u32(..SHORT + 1) } else { rng.u32(..3000) };
                    let (cost, is_short) = (HEADER + length, length <= SHORT);
                    let affords = cost <= purse.room();
                    assert_eq!(purse.affords(cost.into()), affords);
                    if affords || is_short && purse.can_overdraw(cost, overdraft) {
                        purse.spend(cost);
                        if !*joined {
                            *joined = true;
                            budget.join(grant);
                        }
                        budget.arrived(grant, cost.into()).unwrap();
                        kept.push_back(cost);
                    }
                }
                4..8 => {
                    if let Some(cost) = kept.pop_front() {
                        budget.release(grant, cost);
                    }
                }
                // Sometimes two messages, the older one later.
                _ => {
                    let [told, value] = *owed;
                    *owed = [value; 2];
                    purse.granted(value);
                    purse.granted(told);
                }
            }
            assert!(grant.value().wrapping_sub(owed[1]) < 1 << 31, "a credit grant decreased");
            owed[1] = grant.value();
            assert_eq!(grant.kept(), kept.iter().sum::<u32>());
            // Data on credit alone; envelopes and short messages on overdraft too.
            assert!(grant.kept() <= grant.limit() + overdraft && grant.limit() >= floor, "step {step}");
            assert!(purse.room() <= grant.room() && purse.overdrawn() <= overdraft, "step {step}");
            assert!(purse.room() == 0 || purse.overdrawn() == 0);
            let limits: u32 = peers.iter().map(|peer| peer.1.limit()).sum();
            assert!(limits <= floor * peers.len() as u32 + total, "step {step}: {limits}");
            assert_eq!(limits - floor * peers.len() as u32, budget.outstanding());
            most = most.max(budget.outstanding());
            assert_eq!(budget.peak(), most);
        }
        for (purse, grant, _, _, kept) in &mut peers {
            kept.drain(..).for_each(|cost| budget.release(grant, cost));
            purse.granted(grant.value());
            assert!(purse.room() >= floor && purse.room() == grant.limit(), "seed {seed}");
        }
        peers.iter().for_each(|(_, grant, _, joined, _)| budget.leave(grant, *joined));
        assert_eq!(budget.outstanding(), 0);
        let (_, mut grant, ..) = peers.remove(0);
        assert_eq!(budget.arrived(&mut grant, u64::MAX), Err(Beyond));
        let limit = grant.limit();
        let too_long = u64::from(limit.max(HEADER + SHORT)) + 1;
        assert_eq!(budget.arrived(&mut grant, too_long), Err(Beyond));
        let most = (limit + overdraft) / HEADER;
        assert!((0..most).all(|_| budget.arrived(&mut grant, HEADER.into()).is_ok()));
        assert_eq!(budget.arrived(&mut grant, HEADER.into()), Err(Beyond));
    }
}

#[test]
fn full_polling_set_replaces_its_idlest_member() {
    for order in [Order::Sequential, Order::Circular, Order::RecentFirst] {
        let mut set = PollingSet::new(2, 3, order);
        let mut say = |peer: Rank, times: u32| (0..times).filter_map(|_| set.packet(peer)).collect::<Vec<_>>();
        assert_eq!(say(5, 2), []);
        assert_eq!(say(5, 1), [Change::Join(5)]);
        assert_eq!(say(6, 3), [Change::Join(6)]);
        // The set is full: a peer with equal traffic stays outside; one with more than twice the least
        // replaces it.
        assert_eq!(say(7, 3), []);
        assert_eq!(say(6, 10), []);
        assert_eq!(say(7, 5), [Change::Leave(5)]);
        // One member leaves at a time, and is polled until it has left.
        assert_eq!(say(8, 20), []);
        assert_eq!(set.len(), 2);
        set.left(5);
        assert_eq!(set.packet(7), Some(Change::Join(7)));
        assert_eq!(set.len(), 2);
        set.packet(7);
        let expected: &[Rank] = match order {
            Order::Sequential => &[6, 7],
            // From the ring behind the last that had a message.
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
fn polling_set_follows_traffic_with_hysteresis() {
    let mut set = PollingSet::new(1, 2, Order::Circular);
    let mut say = |peers: &[Rank], times: u32| {
        (0..times).flat_map(|_| peers).filter_map(|peer| set.packet(*peer)).collect::<Vec<_>>()
    };
    // A peer with half as much traffic again is not worth a new ring.
    assert_eq!(say(&[5, 5, 6, 6, 6], 1000), [Change::Join(5)]);
    assert_eq!(say(&[5], 10_000), []);
    // A member with much past traffic is forgotten once it is silent.
    assert_eq!(say(&[6], 400), [Change::Leave(5)]);
}

#[test]
fn hinted_peer_joins_at_its_first_packet() {
    let mut set = PollingSet::new(2, 10, Order::Circular);
    set.hint(5);
    set.hint(7);
    assert_eq!(set.turn().count(), 0, "a silent peer is polled");
    assert_eq!((set.packet(6), set.packet(5), set.packet(5)), (None, Some(Change::Join(5)), None));
    set.admit(8);
    assert_eq!(set.packet(7), Some(Change::Leave(8)), "expected the silent member to be replaced");
    set.stay(8);
    // A hint takes no ring that is in use.
    (0..9).for_each(|_| _ = set.packet(8));
    assert_eq!(set.packet(7), None);
    // A hint is forgotten if no packet arrives.
    let mut set = PollingSet::new(1, 10, Order::Circular);
    set.hint(5);
    (0..1000).for_each(|_| _ = set.packet(6));
    set.left(6);
    assert_eq!(set.packet(5), None);
    let mut none = PollingSet::new(0, 10, Order::Circular);
    none.hint(5);
    assert_eq!(none.packet(5), None);
}

#[test]
fn polling_set_stays_within_its_cap() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let cap = rng.usize(1..5);
        let order = *rng.choice(&[Order::Sequential, Order::Circular, Order::RecentFirst]).unwrap();
        let mut set = PollingSet::new(cap, rng.u32(1..5), order);
        let (mut rings, mut leaving) = (HashSet::new(), None);
        for nth in 0..3000 {
            // The peer with most traffic changes slowly.
            let peer = (nth / 500 + rng.u32(..4) * rng.u32(..4)) % 12;
            match set.packet(peer) {
                Some(Change::Join(peer)) => assert!(rings.insert(peer), "a peer joined twice"),
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
            assert_eq!(
                polled.iter().copied().collect::<HashSet<_>>(),
                rings,
                "the polled rings differ from the joined rings"
            );
            assert!(rings.len() <= cap);
        }
    }
}
