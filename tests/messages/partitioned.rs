//! Partitioned messages: any thread makes parts ready in any order, and parts arrive one by one. A lost part is an
//! error at both ends.

use crate::ranks;
use ranks::{VICTIM, die, fails_in_time, on};
use transom::messages::{Error, Tag};
use transom::{Status, World};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const GO: Tag<u8> = Tag::new(3);

/// Element `i` of a round's message.
fn element(from: usize, round: usize, i: usize) -> u64 {
    (from * 1_000_003 + round * 10_007 + i) as u64
}

/// Makes the parts of `round` ready, in an order that differs from round to round.
fn send_round(sending: &mut transom::messages::Partitioned<u64>, len: usize, rank: usize, round: usize) {
    let mut parts = sending.start().unwrap();
    let mut all: Vec<_> = parts.parts().collect();
    let number = all.len();
    all.rotate_left(round % number);
    if round % 2 == 1 {
        all.reverse();
    }
    for mut part in all {
        // The first parts are one element longer, as documented.
        let first = part.index() * (len / number) + part.index().min(len % number);
        part.iter_mut().zip(first..).for_each(|(to, i)| *to = element(rank, round, i));
        part.ready();
    }
    assert_eq!(parts.parts().len(), 0);
    parts.wait().unwrap();
}

#[test]
fn parts_of_different_cuts_arrive_in_any_order() {
    on(&ranks::SIZES, "parts_of_different_cuts_arrive_in_any_order", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        for (len, mine, theirs) in [(10, 3, 10), (1000, 7, 1), (1001, 1, 4), (100_003, 5, 3)] {
            let mut coming = world.precv_init(before, ONE, vec![0; len], theirs).unwrap();
            let mut sending = world.psend_init(next, ONE, vec![0; len], mine).unwrap();
            for round in 0..ranks::rounds(6) {
                let arriving = coming.start().unwrap();
                send_round(&mut sending, len, rank, round);
                let mut i = 0;
                for part in 0..theirs {
                    for got in arriving.part(part).unwrap() {
                        assert_eq!(*got, element(before, round, i));
                        i += 1;
                    }
                }
                assert_eq!(i, len);
                assert_eq!(
                    arriving.arrived(theirs - 1).unwrap().unwrap().last(),
                    Some(&element(before, round, len - 1))
                );
                assert!(matches!(arriving.arrived(theirs), Err(Error::Misuse { .. })));
                arriving.wait().unwrap();
                assert_eq!(coming.buffer().unwrap()[len - 1], element(before, round, len - 1));
            }
        }
    });
}

#[test]
fn ready_part_arrives_before_the_others() {
    on(&[1, 2, 4], "ready_part_arrives_before_the_others", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        // Parts that go at once, and parts that wait to be read.
        for len in [40, 80_000] {
            let mut sending = world.psend_init(next, ONE, vec![7; len], 4).unwrap();
            let mut coming = world.precv_init(before, ONE, vec![0; len], 4).unwrap();
            let arriving = coming.start().unwrap();
            let mut parts = sending.start().unwrap();
            parts.parts().nth(2).unwrap().ready();
            assert_eq!(arriving.part(2).unwrap(), vec![7; len / 4]);
            assert_eq!([0, 1, 3].map(|part| arriving.arrived(part).unwrap()), [None; 3]);
            assert_eq!(parts.parts().map(|part| part.index()).collect::<Vec<_>>(), [0, 1, 3]);
            world.send(before, GO, &[0]).unwrap();
            world.recv(next, GO).unwrap();
            parts.parts().for_each(|part| part.ready());
            arriving.wait().unwrap();
            parts.wait().unwrap();
        }
    });
}

#[test]
#[cfg_attr(transom_portable_copy, ignore = "ThreadSanitizer does not see a contended lock of std being acquired")]
fn parts_readied_by_threads_arrive_whole() {
    on(&[2], "parts_readied_by_threads_arrive_whole", |world| {
        let (rank, len, number) = (world.rank(), 64_000, 16);
        if rank == 0 {
            let mut sending = world.psend_init(1, ONE, vec![0; len], number).unwrap();
            for round in 0..ranks::rounds(30) {
                let mut parts = sending.start().unwrap();
                std::thread::scope(|threads| {
                    for mut part in parts.parts() {
                        threads.spawn(move || {
                            let first = part.index() * (len / number);
                            part.iter_mut().zip(first..).for_each(|(to, i)| *to = element(0, round, i));
                            part.ready();
                        });
                    }
                });
                parts.wait().unwrap();
            }
        } else if rank == 1 {
            let mut coming = world.precv_init(0, ONE, vec![0; len], number).unwrap();
            for round in 0..ranks::rounds(30) {
                coming.start().unwrap().wait().unwrap();
                let got = coming.buffer().unwrap();
                assert!(got.iter().enumerate().all(|(i, got)| *got == element(0, round, i)), "round {round}");
            }
        }
    });
}

#[test]
fn lost_part_is_reported_at_both_ends() {
    on(&[1, 2], "lost_part_is_reported_at_both_ends", |world| {
        let other = world.size() - 1 - world.rank();
        for len in [40, 80_000] {
            let mut sending = world.psend_init(other, ONE, vec![1; len], 4).unwrap();
            let mut coming = world.precv_init(other, ONE, vec![0; len], 2).unwrap();
            for lost in 0..4 {
                let arriving = coming.start().unwrap();
                let mut parts = sending.start().unwrap();
                for (index, part) in parts.parts().enumerate() {
                    if index >= lost {
                        part.ready();
                    }
                }
                match lost {
                    // Parts that are dropped, forgotten, or waited for: the receiver gets an error.
                    1 => drop(parts),
                    2 => std::mem::forget(parts),
                    _ => {
                        let ended = (parts.wait(), arriving.part(1).map(<[u64]>::len));
                        match (lost, ended) {
                            (0, (Ok(()), Ok(half))) => assert_eq!(half, len / 2),
                            (
                                3,
                                (Err(Error::PartsNotReady { missing: 3 }), Err(Error::PartsNotReady { missing: 1 })),
                            ) => {}
                            (_, ended) => panic!("{lost} parts lost: the ends returned {ended:?}"),
                        }
                    }
                }
                if lost == 2 {
                    // The next call on the end reports it.
                    drop(std::mem::replace(&mut sending, world.psend_init(other, ONE, vec![1; len], 4).unwrap()));
                }
                match arriving.wait() {
                    Ok(()) => assert_eq!(lost, 0),
                    Err(Error::PartsNotReady { missing }) => assert_eq!(missing, lost),
                    Err(error) => panic!("{error}"),
                }
                if lost == 2 {
                    coming = world.precv_init(other, ONE, vec![0; len], 2).unwrap();
                }
            }
        }
    });
}

#[test]
fn ends_match_in_creation_order() {
    on(&[1, 2], "ends_match_in_creation_order", |world| {
        let other = world.size() - 1 - world.rank();
        let mut sending = [10, 20].map(|n| world.psend_init(other, ONE, vec![n; 6], 3).unwrap());
        // Messages under another tag, or without parts, match none of these.
        let _others = [world.psend_init(other, TWO, vec![30; 6], 2), world.psend_init(other, TWO, vec![40; 6], 2)];
        let mut coming = [0, 1].map(|_| world.precv_init(other, ONE, vec![0; 6], 2).unwrap());
        let arriving = coming.each_mut().map(|coming| coming.start().unwrap());
        world.barrier().unwrap();
        let sent = world.isend(other, ONE, vec![50]);
        // The second is sent first.
        let mut parts = sending.each_mut().map(|sending| sending.start().unwrap());
        parts.iter_mut().rev().for_each(|parts| parts.parts().for_each(|part| part.ready()));
        arriving.into_iter().for_each(|arriving| arriving.wait().unwrap());
        parts.into_iter().for_each(|parts| parts.wait().unwrap());
        assert_eq!(coming.each_mut().map(|coming| coming.buffer().unwrap()), [[10; 6], [20; 6]]);
        assert_eq!(world.recv(other, Tag::<u64>::any()).unwrap().0, [50]);
        sent.wait().unwrap();
    });
}

/// Values of the n-th send end: it matches the n-th receive end.
#[test]
fn dropped_receive_keeps_its_matching_position() {
    on(&[1, 2], "dropped_receive_keeps_its_matching_position", |world| {
        let other = world.size() - 1 - world.rank();
        for dropped in [&[0][..], &[1], &[0, 1], &[0, 2], &[1, 2, 3], &[0, 1, 2, 3]] {
            let receive = |_| Some(world.precv_init(other, ONE, vec![0; 6], 2).unwrap());
            let mut coming: Vec<_> = (0..5).map(receive).collect();
            dropped.iter().for_each(|&end| coming[end] = None);
            world.barrier().unwrap();
            let send = |n: u64| world.psend_init(other, ONE, vec![n; 6], 3).unwrap();
            let mut sending: Vec<_> = (0..5).map(|n| send(10 + n)).collect();
            let mut parts: Vec<_> = sending.iter_mut().map(|sending| sending.start().unwrap()).collect();
            parts.iter_mut().for_each(|parts| parts.parts().for_each(|part| part.ready()));
            for (end, coming) in coming.iter_mut().enumerate() {
                let Some(coming) = coming else { continue };
                coming.start().unwrap().wait().unwrap();
                assert_eq!(coming.buffer().unwrap(), [10 + end as u64; 6], "end {end}, without {dropped:?}");
            }
            parts.into_iter().for_each(|parts| parts.wait().unwrap());
        }
    });
}

/// The library receives the parts, of 24 bytes and of 160 KB, and discards them.
#[test]
fn parts_for_a_dropped_receive_are_discarded() {
    on(&[1, 2], "parts_for_a_dropped_receive_are_discarded", |world| {
        let other = world.size() - 1 - world.rank();
        for (len, times) in [(6, 2000), (40_000, 100)] {
            for time in 0..ranks::rounds(times) {
                let mut coming = world.precv_init(other, ONE, vec![0; len], 2).unwrap();
                if time % 2 == 0 {
                    drop(coming.start().unwrap());
                }
                // A started receive takes a round, and is dropped behind it. The others are dropped before their sends
                // are made.
                let mut kept = (time % 4 == 0).then_some(coming);
                let mut sending = world.psend_init(other, ONE, vec![1; len], 2).unwrap();
                for _ in 0..2 {
                    let mut parts = sending.start().unwrap();
                    parts.parts().for_each(|part| part.ready());
                    if time % 4 == 1 {
                        world.progress().unwrap();
                    }
                    parts.wait().unwrap_or_else(|error| panic!("{len}, {time}: {error}"));
                    drop(kept.take());
                }
            }
        }
        // The next ends match.
        world.barrier().unwrap();
        let mut coming = world.precv_init(other, ONE, vec![0; 6], 2).unwrap();
        let mut sending = world.psend_init(other, ONE, vec![7; 6], 2).unwrap();
        let mut parts = sending.start().unwrap();
        parts.parts().for_each(|part| part.ready());
        coming.start().unwrap().wait().unwrap();
        assert_eq!(coming.buffer().unwrap(), [7; 6]);
        parts.wait().unwrap();
    });
}

#[test]
fn dropped_send_end_is_reported_with_its_rank() {
    on(&[1, 2], "dropped_send_end_is_reported_with_its_rank", |world| {
        let (rank, other) = (world.rank(), world.size() - 1 - world.rank());
        for time in 0..ranks::rounds(2000) {
            let early = (time % 2 == 0).then(|| world.precv_init(other, ONE, vec![0; 6], 2).unwrap());
            if time % 4 < 2 {
                drop(world.psend_init(other, ONE, vec![1; 6], 3).unwrap());
            } else {
                // One round is complete, and there is no second one.
                let mut sending = world.psend_init(other, ONE, vec![time as u64; 6], 3).unwrap();
                let mut parts = sending.start().unwrap();
                parts.parts().for_each(|part| part.ready());
                parts.wait().unwrap();
            }
            let mut coming = early.unwrap_or_else(|| world.precv_init(other, ONE, vec![0; 6], 2).unwrap());
            if time % 4 >= 2 {
                coming.start().unwrap().wait().unwrap();
                assert_eq!(coming.buffer().unwrap(), [time as u64; 6]);
            }
            for _ in 0..2 {
                let told = coming.start().unwrap().wait();
                assert!(
                    matches!(told, Err(Error::SenderDropped { rank }) if rank == other),
                    "{rank}, {time}: {told:?}"
                );
            }
            assert!(coming.buffer().is_ok());
        }
    });
}

/// The sender's rounds end, though no receive end takes its parts.
#[test]
fn parts_of_mismatched_length_are_discarded() {
    on(&[1, 2], "parts_of_mismatched_length_are_discarded", |world| {
        let other = world.size() - 1 - world.rank();
        for _ in 0..ranks::rounds(100) {
            let mut coming = world.precv_init(other, ONE, vec![0; 7], 1).unwrap();
            let mut sending = world.psend_init(other, ONE, vec![1; 40_000], 2).unwrap();
            let mut parts = sending.start().unwrap();
            parts.parts().for_each(|part| part.ready());
            assert!(matches!(coming.start().unwrap().wait(), Err(Error::Misuse { .. })));
            parts.wait().unwrap();
        }
    });
}

#[test]
fn mismatched_ends_are_refused_and_null_peer_works() {
    on(&[1, 2], "mismatched_ends_are_refused_and_null_peer_works", |world| {
        let other = world.size() - 1 - world.rank();
        let mut sending = world.psend_init(other, ONE, vec![1; 6], 3).unwrap();
        let mut coming = world.precv_init(other, ONE, vec![0; 7], 3).unwrap();
        let mut parts = sending.start().unwrap();
        parts.parts().for_each(|part| part.ready());
        let refused = coming.start().unwrap().wait().unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("the sender's partitioned message has 6 elements of 8 bytes, the receiver's 7"),
            "{refused}"
        );
        // This message has no receive.
        drop(parts);
        for parts in [0, 7] {
            assert!(matches!(world.psend_init(other, ONE, vec![1; 6], parts), Err(Error::Misuse { .. })));
        }
        let mut nobody = world.psend_init(None, ONE, vec![1; 6], 3).unwrap();
        let mut parts = nobody.start().unwrap();
        parts.parts().skip(1).for_each(|part| part.ready());
        assert!(matches!(parts.wait(), Err(Error::PartsNotReady { missing: 1 })));
        let mut nobody = world.precv_init(None, ONE, vec![5; 6], 3).unwrap();
        assert_eq!(nobody.start().unwrap().arrived(2).unwrap(), Some(&[5, 5][..]));
    });
}

#[test]
fn death_amid_parts_fails_the_missing_parts() {
    let body = |world: World| {
        if world.rank() == VICTIM {
            let mut sending = world.psend_init(0, ONE, vec![1; 8], 4).unwrap();
            let mut parts = sending.start().unwrap();
            parts.parts().next().unwrap().ready();
            world.recv(0, GO).unwrap();
            die();
        }
        let mut coming = world.precv_init(VICTIM, ONE, vec![0; 8], 4).unwrap();
        let mut never = world.precv_init(VICTIM, ONE, vec![0; 8], 4).unwrap();
        let mut sending = world.psend_init(VICTIM, ONE, vec![1; 800_000], 2).unwrap();
        let (arriving, never) = (coming.start().unwrap(), never.start().unwrap());
        let mut parts = sending.start().unwrap();
        parts.parts().next().unwrap().ready();
        assert_eq!(arriving.part(0).unwrap(), [1; 2]);
        world.send(VICTIM, GO, &[0]).unwrap();
        fails_in_time("a part of the dead rank", || arriving.part(3).map(|_| ()));
        assert_eq!(arriving.arrived(0).unwrap(), Some(&[1; 2][..]), "part received before the death is missing");
        fails_in_time("parts that were never announced", || never.wait());
        fails_in_time("parts to the dead rank", || parts.wait());
    };
    if let Some(outcome) = ranks::outcome_of(2, "death_amid_parts_fails_the_missing_parts", body) {
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}
