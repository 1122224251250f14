//! A ring: writes of its sender and reads of its receiver, in every order.

use super::every;
use std::cell::Cell;
use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use transom_channel::ring::{CompletionFlag, Look, Receiver, RingConfig, Sender};
use transom_channel::sequence::Beyond;
use transom_channel::wire::{Key, Rail, RailKind};

/// A ring and its memory, with puts in flight in pieces, and credits that are late, duplicated or lost.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Ring {
    sender: Sender,
    receiver: Receiver,
    /// First byte and mark of each slot.
    memory: Vec<(u8, u64)>,
    /// Slot and content of each write: the byte, or the mark.
    flying: VecDeque<(usize, Result<u8, u64>)>,
    told: VecDeque<()>,
    /// The latest credit, and an old one.
    credits: [u32; 2],
    sent: u8,
    came: u8,
}

#[test]
fn a_ring_in_every_order() {
    for marker in [CompletionFlag::Last, CompletionFlag::Second, CompletionFlag::Immediate] {
        for (slots, lap) in [(2, 2), (3, 3), (3, 2), (4, 2), (4, 3)] {
            let shape = RingConfig { slots, bytes: 64 };
            let first = Ring {
                sender: Sender::new(1, shape, Key { address: 0, key: 0 }).turning(lap),
                receiver: Receiver::new(1, shape, marker).turning(lap),
                memory: vec![(0, 0); slots as usize],
                flying: VecDeque::new(),
                told: VecDeque::new(),
                credits: [0; 2],
                sent: 0,
                came: 0,
            };
            let total = if lap < slots { 9 } else { 7 };
            let (turns, most) = (Cell::new(0), Cell::new(0));
            let next = |state: &Ring| {
                most.set(state.sender.flying().max(most.get()));
                let mut follow = Vec::new();
                let spot = state.sender.claim(10);
                if let Some(spot) = spot.filter(|_| state.sent < total) {
                    let mut new = state.clone();
                    new.sent += 1;
                    new.sender.sent(spot);
                    let slot = spot.mark_at / 64;
                    let turn = spot.mark >> 63 == 1;
                    turns.set(turns.get() + usize::from(turn));
                    assert!(
                        !turn || slot as u32 >= lap - 1 && state.sender.flying() == 0,
                        "the ring turned before the lap was free"
                    );
                    assert_eq!((spot.at, spot.mark_at), (slot * 64 + 46, slot * 64 + 56));
                    // With an immediate value the order of the pieces is not guaranteed.
                    let pieces = [(slot, Ok(new.sent)), (slot, Err(spot.mark))];
                    new.flying.extend(pieces);
                    new.told.extend((marker == CompletionFlag::Immediate).then_some(()));
                    if marker == CompletionFlag::Immediate {
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
                    // The message is whole once the pieces in flight are exactly those of the other messages.
                    if marker == CompletionFlag::Immediate && new.flying.len() == 2 * (new.told.len() - 1) {
                        new.told.pop_front();
                        new.receiver.told().unwrap();
                    }
                    follow.push(new);
                }
                if let Some(place) = state.receiver.place() {
                    let slot = place / 64;
                    let mut new = state.clone();
                    match new.receiver.look(state.memory[slot].1) {
                        Look::Empty => {}
                        Look::Message { length, at } => {
                            assert_eq!((length, at), (10, slot * 64 + 46));
                            assert_eq!(
                                state.memory[slot].0,
                                state.came + 1,
                                "a message was reordered, torn or overwritten"
                            );
                            new.came += 1;
                            new.credits = [new.receiver.free(), state.credits[0]];
                            follow.push(new);
                        }
                        Look::Broken => panic!("the receiver found a mark that the sender did not write"),
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
            assert_eq!((turns.get() > 0, most.get()), (lap < slots, slots - u32::from(lap < slots)));
        }
    }
}

/// Messages longer than a cache line use all slots.
#[test]
fn a_ring_turns_behind_short_messages_alone() {
    let shape = RingConfig { slots: 32, bytes: 128 };
    let slots = |length: usize| {
        let mut sender = Sender::new(1, shape, Key { address: 0, key: 0 }).turning(shape.lap(31));
        let mut used = HashSet::new();
        for freed in 1..=100 {
            let spot = sender.claim(length).unwrap();
            sender.sent(spot);
            sender.freed(freed).unwrap();
            used.insert(spot.mark_at);
        }
        used.len()
    };
    assert_eq!([1, 48, 56, 57, 120].map(slots), [9, 9, 9, 32, 32]);
    // Nor if as many messages may be in flight as there are slots, or if slots are few.
    assert_eq!((shape.lap(32), RingConfig { slots: 31, ..shape }.lap(2)), (32, 31));
}

#[test]
fn a_ring_refuses_what_cannot_be() {
    let shape = RingConfig { slots: 2, bytes: 64 };
    let mut sender = Sender::new(1, shape, Key { address: 0, key: 0 });
    assert_eq!(sender.claim(57), None);
    assert!(sender.claim(56).is_some());
    assert_eq!(sender.freed(1), Err(Beyond));
    let spot = sender.claim(56).unwrap();
    sender.sent(spot);
    sender.sent(spot);
    assert_eq!(sender.claim(1), None);
    assert_eq!(sender.freed(3), Err(Beyond));
    assert_eq!(sender.freed(u32::MAX), Ok(()), "old");
    assert_eq!(sender.flying(), 2);
    let mut receiver = Receiver::new(1, shape, CompletionFlag::Last);
    assert_eq!(receiver.look(57 << 32 | 1), Look::Broken);
    assert_eq!(receiver.look(u64::MAX << 32 | 1), Look::Broken);
    assert_eq!(receiver.look(5 << 32 | 2), Look::Empty);
    assert_eq!(receiver.look(1 << 63 | 5 << 32 | 1), Look::Broken, "a ring that does not turn");
    let mut receiver = Receiver::new(1, RingConfig { slots: 4, bytes: 64 }, CompletionFlag::Last).turning(2);
    assert_eq!(receiver.look(1 << 63 | 5 << 32 | 1), Look::Broken, "too early");
    assert_eq!(receiver.look(5 << 32 | 1), Look::Message { at: 51, length: 5 });
    receiver.free();
    assert_eq!(receiver.look(1 << 63 | 5 << 32 | 2), Look::Message { at: 64 + 51, length: 5 });
    receiver.free();
    assert_eq!(receiver.place(), Some(56));
    let mut receiver = Receiver::new(1, shape, CompletionFlag::Immediate);
    assert_eq!((receiver.told(), receiver.told(), receiver.told()), (Ok(()), Ok(()), Err(Beyond)));
    for (slots, bytes) in [(1, 64), (2, 56), (2, 65), (1025, 64), (2, 65_544), (0, 0)] {
        assert!(!RingConfig { slots, bytes }.is_sound());
    }
    const RAIL: Rail = Rail {
        kind: RailKind::Connection,
        longest: 512,
        mark_last: false,
        immediate: false,
        whole_word: false,
        write: true,
        read: true,
        bandwidth: 0,
    };
    let rail =
        |mark_last, immediate, whole_word| CompletionFlag::of(&Rail { mark_last, immediate, whole_word, ..RAIL });
    assert_eq!(rail(true, true, true), Some(CompletionFlag::Last));
    assert_eq!(rail(false, true, true), Some(CompletionFlag::Immediate));
    assert_eq!(rail(false, false, true), Some(CompletionFlag::Second));
    assert_eq!(rail(false, false, false), None);
    let one_put_in_order = Rail { mark_last: true, whole_word: false, ..RAIL };
    assert!(!CompletionFlag::Second.is_kept_by(&one_put_in_order), "the order of two puts is another promise");
}
