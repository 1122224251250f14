//! Networks of which puts and atomics of one word may meet: an atomic takes two steps, and a put in between is lost. The
//! lock mixes puts and atomics on no word at one time, so every property holds.

use super::{attempt, check, check_all, exclusive, mixes, shared, until, with_deadlines};
use std::time::Instant;
use transom_locks::Mode::{Exclusive, Shared};
use transom_locks::model::{Call, Deliver, Mix};
use transom_locks::{At, Rank};

/// An adapter between hosts: atomics in two steps, and puts in flight.
#[derive(Clone, Copy, Debug)]
struct Adapter;

impl Deliver for Adapter {
    fn queue(&self, from: Rank, at: At) -> Option<usize> {
        (from != at.rank).then_some(0)
    }

    fn is_torn(&self, _: Rank, _: At) -> bool {
        true
    }
}

/// Ranks of one host whose atomics an adapter executes: atomics in two steps, puts at once, and ranks that watch each
/// other.
#[derive(Clone, Copy, Debug)]
struct Host;

impl Deliver for Host {
    fn queue(&self, _: Rank, _: At) -> Option<usize> {
        None
    }

    fn is_torn(&self, _: Rank, _: At) -> bool {
        true
    }

    fn watches(&self, _: Rank, _: Rank) -> bool {
        true
    }
}

/// Ranks 0 and 1 share a host; an adapter connects rank 2.
#[derive(Clone, Copy, Debug)]
struct TwoHosts;

impl Deliver for TwoHosts {
    fn queue(&self, from: Rank, at: At) -> Option<usize> {
        ((from < 2) != (at.rank < 2)).then_some(0)
    }

    fn is_torn(&self, _: Rank, _: At) -> bool {
        true
    }

    fn watches(&self, rank: Rank, other: Rank) -> bool {
        rank < 2 && other < 2
    }
}

fn check_mixes(
    what: &str,
    delivery: impl Deliver + Copy + Send + Sync + 'static,
    mixes: impl IntoIterator<Item = Vec<Vec<Call>>>,
) {
    let (begun, mut states) = (Instant::now(), 0);
    for mix in mixes {
        let verdict = check(Mix::<16>::new(mix.clone()).sim().with_delivery(delivery));
        assert_eq!(verdict.wrong, None, "{mix:?}");
        states += verdict.states;
    }
    println!("{what}, {delivery:?}: {states} states, {:.1?}", begun.elapsed());
}

fn check_network(delivery: impl Deliver + Copy + Send + Sync + 'static) {
    check_all::<16>("2 ranks x 2", delivery, mixes(2, 2));
    check_all::<16>("3 ranks x 1", delivery, mixes(3, 1));
    check_all::<3>("2 ranks x 2, counts of 3 bits", delivery, mixes(2, 2));
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive), attempt(Shared), attempt(Exclusive)];
    let twice = rows.iter().flat_map(|first| rows.iter().map(|second| [first.clone(), second.clone()].concat()));
    check_mixes("deadlines and attempts, 2 and 1", delivery, twice.map(|twice| vec![twice, exclusive(0)]));
    let three = rows[2..4].iter().map(|row| vec![exclusive(0), row.clone(), exclusive(0)]);
    check_mixes("deadlines, 3 ranks x 1", delivery, three);
}

#[test]
fn torn_atomics_with_puts_in_flight_hold() {
    check_network(Adapter);
}

#[test]
fn torn_atomics_with_watching_ranks_hold() {
    check_network(Host);
}

#[test]
fn torn_atomics_between_hosts_hold() {
    check_all::<16>("3 ranks x 1", TwoHosts, mixes(3, 1));
    check_all::<3>("3 ranks x 1, counts of 3 bits", TwoHosts, mixes(3, 1));
}

#[test]
#[ignore = "long: `tests/full` runs it"]
fn torn_atomics_hold_properties_at_length() {
    let rows = [shared(0), exclusive(0), until(Shared), until(Exclusive)];
    let again = |first: &[Call], second: &[Call]| [&first[..2], second].concat();
    let twice: Vec<_> = rows.iter().flat_map(|first| rows.iter().map(|second| again(first, second))).collect();
    for requests in 1..=3 {
        check_all::<16>(format!("2 ranks x {requests}"), Adapter, mixes(2, requests));
        check_all::<16>(format!("2 ranks x {requests}"), Host, mixes(2, requests));
    }
    check_mixes("deadlines, 2 ranks x 2", Host, with_deadlines(&twice, 2));
    check_mixes("deadlines, 3 ranks x 1", Host, with_deadlines(&rows, 3));
    check_mixes("deadlines, 3 ranks x 1", TwoHosts, with_deadlines(&rows, 3));
}
