//! Both sides of a rendezvous in every order of events, and the choice of the mover.

use super::every;
use std::collections::VecDeque;
use std::hash::Hash;
use transom_channel::rendezvous::{Facts, Mover, Receiving, Sending, movers};

/// Both sides of a rendezvous, on up to three lanes that are each in order.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Meeting {
    sending: Sending,
    receiving: Option<Receiving>,
    refusals: u8,
    /// Stripes posted and not complete, by lane; the value tells whether the data has landed.
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
fn rendezvous_completes_in_every_event_order() {
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
                        assert!(
                            new.refusals == 0 || new.landed.iter().all(|landed| *landed),
                            "the message completed before its data arrived"
                        );
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
fn rendezvous_refuses_events_out_of_state() {
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
fn mover_follows_memory_access_and_order() {
    let facts = Facts { in_place: true, receiver_first: true, readable: true, writable: true };
    let best = |facts| movers(facts).next().unwrap();
    assert_eq!(best(facts), Mover::Write);
    assert_eq!(best(Facts { receiver_first: false, ..facts }), Mover::Read);
    assert_eq!(best(Facts { receiver_first: false, readable: false, ..facts }), Mover::Write);
    assert_eq!(best(Facts { writable: false, ..facts }), Mover::Read);
    assert_eq!(best(Facts { writable: false, readable: false, ..facts }), Mover::Copy);
    assert_eq!(best(Facts { in_place: false, ..facts }), Mover::Copy);
}
