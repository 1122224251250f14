//! A ring: what its sender writes and its receiver looks for, in every order.

use super::every;
use std::collections::VecDeque;
use std::hash::Hash;
use transom_channel::ring::{Look, Marker, Receiver, Sender, Shape};
use transom_channel::sequence::Beyond;
use transom_channel::wire::{Key, Rail, RailKind};

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
