//! A sequence over lanes that may duplicate packets, in every order.

use super::every;
use std::collections::VecDeque;
use std::hash::Hash;
use transom_channel::sequence::{Arrival, Beyond, Incoming, Outgoing};

/// Packets on two lanes, each of which may duplicate one.
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
fn packets_arrive_once_in_every_event_order() {
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
                    Arrival::Now => {
                        let mut packet = Some(packet);
                        while let Some(now) = packet {
                            assert_eq!(now, new.came, "a packet was delivered twice or out of order");
                            new.came += 1;
                            packet = new.incoming.advance();
                        }
                        new.acks = [new.incoming.expected(), state.acks[0]];
                    }
                    Arrival::Early => new.incoming.hold(packet, packet),
                    Arrival::Old => {
                        assert!(state.twice > 0, "a packet was taken as a duplicate, but none was sent twice")
                    }
                    Arrival::TooFar => panic!("a packet was refused as beyond the window"),
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
    assert_eq!(Incoming::<()>::new(3).place(3), Arrival::TooFar);
}
