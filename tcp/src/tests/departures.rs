//! Messages of a rank that leaves: all that it sent arrives, then its departure is reported.

use super::messages::{LONG, received, send, until_up, wire};
use super::route::{Gate, Rerouted, Route};
use super::{on_hosts, on_hosts_by};
use crate::greet::{ANSWER, CODE, HELLO};
use std::sync::Arc;
use std::time::Instant;
use transom_channel::wire::{Event, Lane, Why};
use transom_locks::Awaited;
use transom_windows::OobExchange;

/// Rank 1 sends to rank 0 and leaves, over a route that holds what it sent.
fn leaves_over(route: &Route) {
    let connects = route.from;
    let wrap = |job| Arc::new(Rerouted { job, routes: vec![route.clone()] }) as _;
    on_hosts_by(&[0, 1], wrap, |world| {
        let mut wire = wire(&world);
        let me = world.rank();
        if me == connects {
            wire.connect(Lane { peer: 1 - me as u32, rail: 0 });
        }
        if me == 1 {
            until_up(&mut wire);
            assert!(send(&mut wire, 0, b"the last"));
            wire.close();
            return;
        }
        while world.check_peers(Awaited::Rank(1)).is_ok() {
            wire.look_for_the_gone();
            assert!(matches!(wire.poll(), None | Some(Event::Worked | Event::Up(_))));
        }
        for _ in 0..1000 {
            wire.look_for_the_gone();
            assert!(matches!(wire.poll(), None | Some(Event::Worked | Event::Up(_))), "its packet is in flight");
        }
        route.gate.open();
        assert_eq!(received(&mut wire), Ok(b"the last".to_vec()));
        assert_eq!(received(&mut wire), Err(Why::Left));
    });
}

/// The handshake, the packet, or the rest of the packet is in flight, on a connection that the leaving rank made.
#[test]
fn packet_of_a_rank_that_connected_precedes_its_end() {
    for held in [HELLO, HELLO + CODE - 1, HELLO + CODE, HELLO + CODE + 5] {
        leaves_over(&Route { from: 1, to: 0, passing: [usize::MAX, held], gate: Gate::default() });
    }
}

#[test]
fn packet_on_an_accepted_connection_precedes_the_end() {
    for held in [ANSWER, ANSWER + 5] {
        leaves_over(&Route { from: 0, to: 1, passing: [held, usize::MAX], gate: Gate::default() });
    }
}

/// The leaving rank has not taken the connection, has no wire, or leaves before rank 0 connects; or there is none.
#[test]
fn departure_is_reported_whatever_became_of_links() {
    for (has_wire, connects) in [(true, Some(false)), (false, Some(false)), (true, Some(true)), (true, None)] {
        on_hosts(&[0, 1], |world| {
            if world.rank() == 1 {
                let wire = has_wire.then(|| wire(&world));
                world.barrier().unwrap();
                drop(wire);
                return;
            }
            let mut wire = wire(&world);
            if connects == Some(false) {
                wire.connect(Lane { peer: 1, rail: 0 });
                until_up(&mut wire);
            }
            world.barrier().unwrap();
            if connects == Some(true) {
                while world.check_peers(Awaited::Rank(1)).is_ok() {}
                wire.connect(Lane { peer: 1, rail: 0 });
            }
            assert_eq!(received(&mut wire), Err(Why::Left), "wire {has_wire}, connects {connects:?}");
        });
    }
}

/// A rank that ends its messages, and stays in the job, has left as far as messages go.
#[test]
fn rank_without_messages_counts_as_having_left() {
    for takes in [false, true] {
        on_hosts(&[0, 1], |world| {
            let mut wire = wire(&world);
            if world.rank() == 0 {
                wire.connect(Lane { peer: 1, rail: 0 });
                until_up(&mut wire);
            } else if takes {
                until_up(&mut wire);
            }
            world.barrier().unwrap();
            if world.rank() == 0 {
                assert_eq!(received(&mut wire), Err(Why::Left), "taken: {takes}");
            } else {
                wire.close();
                drop(wire);
            }
            world.barrier().unwrap();
        });
    }
}

/// A connection is reset, and a send finds that before what the peer sent is received.
#[test]
fn failed_send_leaves_received_packets() {
    let route = Route { from: 0, to: 1, passing: [usize::MAX; 2], gate: Gate::default() };
    let wrap = |job| Arc::new(Rerouted { job, routes: vec![route.clone()] }) as _;
    on_hosts_by(&[0, 1], wrap, |world| {
        let mut wire = wire(&world);
        if world.rank() == 1 {
            until_up(&mut wire);
            assert!(send(&mut wire, 0, b"before"));
            world.barrier().unwrap();
            return world.barrier().unwrap();
        }
        wire.connect(Lane { peer: 1, rail: 0 });
        until_up(&mut wire);
        world.barrier().unwrap();
        // A packet has a head of 12 bytes.
        route.gate.reset_after(ANSWER + 12 + b"before".len());
        let since = Instant::now();
        while send(&mut wire, 1, b"in vain") {
            assert!(since.elapsed() < LONG, "the connection was not reset");
        }
        assert_eq!(received(&mut wire), Ok(b"before".to_vec()));
        assert_eq!(received(&mut wire), Err(Why::Unreachable));
        world.barrier().unwrap();
    });
}
