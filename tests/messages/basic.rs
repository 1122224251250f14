//! Messages between processes and between threads: matching, order, lengths, and the end of a rank.

use crate::ranks;
use ranks::{on, pattern};
use std::time::{Duration, Instant};
use transom::messages::{Error, Peer, Request, Source, Status, Tag, Tags};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);
const BYTES: Tag<u8> = Tag::new(9);

/// Lengths in bytes around those at which the path changes: ring, queue, rendezvous, pieces.
const LENGTHS: [usize; 16] =
    [0, 1, 7, 8, 9, 100, 1900, 2040, 4096, 8192, 16_383, 16_384, 16_385, 40_000, 200_000, 3_000_001];

#[test]
fn ring_exchange_of_every_length_arrives() {
    on(&ranks::SIZES, "ring_exchange_of_every_length_arrives", |world| {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        for round in 0..ranks::rounds(30) / 10 {
            for len in LENGTHS {
                let mine = pattern(rank + round, len);
                let mut got = vec![0; len + 5];
                let status = world.sendrecv(next, BYTES, &mine, before, BYTES, &mut got).unwrap();
                assert_eq!(status, Status { from: before, tag: 9, len });
                assert!(got[..len] == pattern(before + round, len), "{len} bytes");
                assert!(got[len..] == [0; 5], "bytes beyond the message were written");
            }
        }
    });
}

#[test]
fn recv_returns_messages_of_any_length() {
    on(&[2, 4], "recv_returns_messages_of_any_length", |world| {
        let other = world.rank() ^ 1;
        for len in LENGTHS {
            if world.rank() % 2 == 0 {
                world.send(other, BYTES, &pattern(1, len)).unwrap();
                assert_eq!(world.recv(other, BYTES).unwrap().0, pattern(2, len));
            } else {
                let (got, status) = world.recv(other, BYTES).unwrap();
                assert!(got == pattern(1, len), "{len} bytes");
                assert_eq!(status.len, len);
                world.send(other, BYTES, &pattern(2, len)).unwrap();
            }
        }
    });
}

/// Messages of all lengths are received in the order of the sends, on every path; received, probed and peeked in turn.
#[test]
fn messages_of_a_pair_arrive_in_send_order() {
    on(&[2, 3], "messages_of_a_pair_arrive_in_send_order", |world| {
        let many = ranks::rounds(300);
        let len = |i: usize| [8, 3000, 24, 9000, 16, 60_000, 8, 8, 2000][i % 9] / 8;
        if world.rank() == 0 {
            let mut got = vec![0; world.size()];
            for _ in 0..many * (world.size() - 1) {
                let (data, status) = world.recv(Source::Any, Tag::<u64>::any()).unwrap();
                let i = &mut got[status.from];
                assert_eq!((data[0], data.len(), status.tag), (*i as u64, len(*i), 5 + *i as u32 % 2));
                assert_eq!(*data.last().unwrap(), *i as u64);
                *i += 1;
            }
            world.barrier().unwrap();
            for _ in 0..many * (world.size() - 1) {
                let message = world.probe(Source::Any, Tag::<u64>::new(7)).unwrap();
                let i = message.status().from;
                assert_eq!(message.status().len, len(got[i]));
                assert_eq!(message.recv().unwrap()[0], got[i] as u64);
                got[i] += 1;
            }
        } else {
            for i in 0..many {
                world.send(0, Tag::new(5 + i as u32 % 2), &vec![i as u64; len(i)]).unwrap();
            }
            world.barrier().unwrap();
            let sent: Vec<_> = (many..2 * many).map(|i| world.isend(0, Tag::new(7), vec![i as u64; len(i)])).collect();
            Request::wait_all(sent).unwrap();
        }
    });
}

#[test]
fn receives_match_in_posting_order() {
    on(&[2], "receives_match_in_posting_order", |world| {
        let other = 1 - world.rank();
        let exact = world.irecv(other, TWO);
        let any_tag = world.irecv(other, Tag::<u64>::any());
        let any_source = world.irecv(Source::Any, ONE);
        let last = world.irecv(Source::Any, Tag::<u64>::any());
        world.barrier().unwrap();
        for (i, tag) in [ONE, ONE, TWO, TWO].into_iter().enumerate() {
            world.send(other, tag, &[i as u64]).unwrap();
        }
        let ended = [exact, any_tag, any_source, last].map(|request| request.wait_status().unwrap());
        let got = ended.map(|(data, status)| (data[0], status.tag));
        assert_eq!(got, [(2, 2), (0, 1), (1, 1), (3, 2)]);
    });
}

#[test]
fn message_longer_than_its_buffer_is_truncated() {
    on(&[2], "message_longer_than_its_buffer_is_truncated", |world| {
        let other = 1 - world.rank();
        for len in [10, 1000, 20_000, 1_000_000] {
            let mine = pattern(3, 8 * len);
            let sent = world.isend(other, BYTES, mine.clone());
            world.isend(other, BYTES, vec![1, 2, 3]).wait().unwrap();
            let mut short = vec![0; len];
            let error = world.recv_into(other, BYTES, &mut short).unwrap_err();
            let Error::Truncated { status, room } = &error else { panic!("{error}") };
            assert_eq!((*status, *room), (Status { from: other, tag: 9, len: 8 * len }, len));
            assert!(error.to_string().contains("with tag 9 from rank"), "{error}");
            assert_eq!(short, mine[..len], "truncated receive lost the beginning of the message");
            assert_eq!(world.recv(other, BYTES).unwrap().0, [1, 2, 3]);
            assert_eq!(sent.wait().unwrap(), mine, "truncation changed the sender's result");
            // The buffer comes back with the error.
            let coming = world.irecv_into(other, BYTES, vec![7; 2]);
            world.send(other, BYTES, &[4, 5, 6]).unwrap();
            assert_eq!(coming.wait().unwrap_err().buffer, Some(vec![4, 5]));
        }
        world.send(other, Tag::new(4), &[1_u8, 2, 3]).unwrap();
        let error = world.recv(other, Tag::<u16>::new(4)).unwrap_err();
        assert!(matches!(error, Error::OtherType { bytes: 3, element: 2, tag: 4, .. }), "{error}");
    });
}

#[test]
fn null_and_self_work_and_invalid_peer_is_refused() {
    on(&[1, 3], "null_and_self_work_and_invalid_peer_is_refused", |world| {
        let (me, size) = (world.rank(), world.size());
        world.send(Peer::None, ONE, &[1]).unwrap();
        assert_eq!(world.recv(Source::None, ONE).unwrap().1.from, Status::NOBODY);
        assert!(
            matches!(world.send(size, ONE, &[1]), Err(Error::NoSuchRank { rank, ranks }) if (rank, ranks) == (size, size))
        );
        assert!(matches!(world.recv(size + 7, ONE), Err(Error::NoSuchRank { .. })));
        let failed = world.isend(size, ONE, vec![5]).wait().unwrap_err();
        assert_eq!(failed.buffer, Some(vec![5]));
        for len in LENGTHS {
            let coming = world.irecv(me, BYTES);
            world.send(me, BYTES, &pattern(len, len)).unwrap();
            assert_eq!(coming.wait().unwrap(), pattern(len, len));
        }
        // Before the message is received: a short one is kept, a long one must be a request.
        world.send(me, ONE, &[1, 2]).unwrap();
        let sent = world.issend(me, TWO, vec![3; 100_000]);
        assert_eq!(world.peek(Source::Any, Tags::from(TWO)).unwrap().unwrap().len, 100_000);
        assert_eq!(world.recv(me, TWO).unwrap().0, [3; 100_000]);
        assert_eq!(world.recv(me, ONE).unwrap().0, [1, 2]);
        sent.wait().unwrap();
        // A message to oneself that is never received does not keep the rank in the job.
        drop(world.isend(me, ONE, vec![1; 100_000]));
    });
}

#[test]
fn synchronous_send_waits_for_its_receive() {
    on(&[2], "synchronous_send_waits_for_its_receive", |world| {
        if world.rank() == 0 {
            for len in [1, 50_000] {
                let mut sent = world.issend(1, ONE, vec![1; len]);
                world.send(1, TWO, &[1]).unwrap();
                world.recv(1, TWO).unwrap(); // rank 1 has seen that it is there, and received nothing
                assert!(!sent.test(), "synchronous send completed before its receive");
                world.send(1, TWO, &[2]).unwrap();
                sent.wait().unwrap();
                world.ssend(1, ONE, &[2]).unwrap();
            }
        } else {
            for _ in 0..2 {
                world.recv(0, TWO).unwrap();
                while world.peek(0, ONE).unwrap().is_none() {}
                world.send(0, TWO, &[1]).unwrap();
                world.recv(0, TWO).unwrap();
                world.recv(0, ONE).unwrap();
                world.recv(0, ONE).unwrap();
            }
        }
    });
}

#[test]
fn leaked_requests_leave_messages_working() {
    on(&[1, 2, 4], "leaked_requests_leave_messages_working", |world| {
        let other = world.rank() ^ usize::from(world.size() > 1);
        for len in [3, 30_000] {
            std::mem::forget(world.irecv(other, Tag::<u64>::new(50)));
            std::mem::forget(world.irecv_into(other, Tag::new(51), vec![0_u64; 10]));
            std::mem::forget(world.isend(other, ONE, vec![1; len]));
            drop(world.isend(other, ONE, vec![2; len]));
            assert_eq!(world.recv(other, ONE).unwrap().0, vec![1; len]);
            assert_eq!(world.recv(other, ONE).unwrap().0, vec![2; len]);
            // The forgotten receive is still posted, and takes one message.
            world.send(other, Tag::new(50), &[1_u64]).unwrap();
            world.send(other, Tag::new(50), &[2_u64]).unwrap();
            assert_eq!(world.recv(other, Tag::<u64>::new(50)).unwrap().0, [2]);
        }
        let world = std::mem::ManuallyDrop::new(world);
        let _never_freed = world.irecv(other, TWO);
        world.barrier().unwrap();
        drop(std::mem::ManuallyDrop::into_inner(world));
    });
}

/// Messages of a rank that has left are still received.
#[test]
fn messages_of_departed_sender_are_received() {
    on(&[2, 4], "messages_of_departed_sender_are_received", |world| {
        let size = world.size();
        if world.rank() > 0 {
            world.send(0, ONE, &[world.rank() as u64]).unwrap();
            drop(world.isend(0, TWO, vec![world.rank() as u64; 100_000]));
            return; // and leaves
        }
        let mut from = vec![];
        for _ in 1..size {
            let (got, status) = world.recv(Source::Any, ONE).unwrap();
            assert_eq!(got, [status.from as u64]);
            from.push(status.from);
        }
        from.sort();
        assert_eq!(from, (1..size).collect::<Vec<_>>());
        // The ranks wait to leave, however long this rank is busy otherwise.
        drop(world.irecv(0, TWO).wait_for(Duration::from_millis(400)).unwrap_err());
        for rank in 1..size {
            assert_eq!(world.recv(rank, TWO).unwrap().0, vec![rank as u64; 100_000]);
        }
        let begun = Instant::now();
        let gone = world.recv(Source::Any, ONE).unwrap_err();
        assert!(matches!(gone, Error::PeerLeft { .. }), "expected PeerLeft, found {gone}");
        let gone = world.recv(1, ONE).unwrap_err();
        assert!(matches!(gone, Error::PeerLeft { rank: 1 }), "{gone}");
        let gone = world.send(1, ONE, &[1]).unwrap_err();
        assert!(matches!(gone, Error::PeerLeft { rank: 1 }), "{gone}");
        assert!(begun.elapsed() < ranks::within(Duration::from_secs(1)));
    });
}

/// All ranks send to one that sleeps and then receives. Memory stays bounded, and no message is lost.
#[test]
fn flood_is_bounded_and_loses_nothing() {
    on(&[2, 4, 8], "flood_is_bounded_and_loses_nothing", |world| {
        // ThreadSanitizer makes the test ten times slower.
        let many = ranks::rounds(if cfg!(transom_portable_copy) { 300 } else { 3000 }) as u64;
        let (rank, size) = (world.rank(), world.size());
        if rank > 0 {
            for i in 0..many {
                drop(world.isend(0, TWO, vec![i; 1 + i as usize % 300]));
            }
            world.send(0, ONE, &[0]).unwrap();
            return world.barrier().unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
        // Later messages can be received before these.
        for from in 1..size {
            world.recv(from, ONE).unwrap();
        }
        let kept = world.counters().unwrap().unexpected_peak;
        assert!(kept <= (256 * size as u64) + (8 << 20), "{kept} bytes of unexpected messages exceed the limit");
        let mut next = vec![0; size];
        for _ in 0..many as usize * (size - 1) {
            let (got, status) = world.recv(Source::Any, TWO).unwrap();
            let i = &mut next[status.from];
            assert_eq!((got[0], got.len()), (*i, 1 + *i as usize % 300));
            *i += 1;
        }
        world.barrier().unwrap();
    });
}

/// Ranks that wait for other events move messages: more messages are sent than a rank accepts that makes no call.
#[test]
fn every_blocking_call_progresses_messages() {
    const MANY: u64 = 200;
    on(&[2], "every_blocking_call_progresses_messages", |world| {
        let mut window = world.allocate_with_signals::<u64>(1, 1).unwrap();
        for round in 1..=5 {
            if world.rank() == 0 {
                let long = world.isend(1, ONE, vec![round; 100_000]);
                match round {
                    1 => world.barrier().unwrap(),
                    2 => drop(window.fence().unwrap()),
                    3 => drop(window.signals().wait_until(0, |value| value == 1).unwrap()),
                    4 => drop(window.lock_exclusive(1).unwrap()),
                    _ => drop(world.recv(1, TWO).unwrap()),
                }
                // The other rank had the complete message before that could end. With datagrams the last
                // acknowledgement may be late.
                assert_eq!(long.wait().unwrap().len(), 100_000);
                (0..MANY).for_each(|i| assert_eq!(world.recv(1, ONE).unwrap().0, [i]));
                world.send(1, TWO, &[0]).unwrap();
                world.recv(1, TWO).unwrap();
            } else {
                let serve = || {
                    std::thread::sleep(Duration::from_millis(50)); // the other rank sleeps in its wait
                    assert_eq!(world.recv(0, ONE).unwrap().0, vec![round; 100_000]);
                    (0..MANY).for_each(|i| world.send(0, ONE, &[i]).unwrap());
                };
                if round == 4 {
                    let me = world.rank();
                    let epoch = window.lock_exclusive(me).unwrap();
                    serve();
                    epoch.unlock().unwrap();
                } else {
                    serve();
                }
                match round {
                    1 => world.barrier().unwrap(),
                    2 => drop(window.fence().unwrap()),
                    3 => window.lock_all().unwrap().target(0).unwrap().put_signal(0, &[1], 0, 1).unwrap(),
                    4 => {}
                    _ => world.send(0, TWO, &[0]).unwrap(),
                }
                world.recv(0, TWO).unwrap();
                world.send(0, TWO, &[0]).unwrap();
            }
        }
    });
}

/// A message wakes a rank that sleeps in a fence. A lost wake-up would cost a tenth of a second.
#[test]
fn message_wakes_a_rank_asleep_in_a_fence() {
    on(&[2], "message_wakes_a_rank_asleep_in_a_fence", |world| {
        let mut window = world.allocate::<u64>(1).unwrap();
        let mut times = Vec::new();
        for _ in 0..10 {
            if world.rank() == 0 {
                let mut coming = world.irecv(1, ONE);
                let _ = window.fence().unwrap();
                assert!(coming.test());
            } else {
                std::thread::sleep(Duration::from_millis(40)); // it sleeps by now
                let begun = Instant::now();
                world.ssend(0, ONE, &[1]).unwrap(); // ends when it was matched there
                times.push(begun.elapsed());
                let _ = window.fence().unwrap();
            }
        }
        if let Some(best) = times.into_iter().min() {
            assert!(best < ranks::within(Duration::from_millis(20)), "fastest wake-up took {best:?}");
        }
    });
}

#[test]
#[cfg_attr(transom_portable_copy, ignore = "ThreadSanitizer does not see a contended lock of std being acquired")]
fn concurrent_threads_of_a_rank_exchange_messages() {
    on(&[2], "concurrent_threads_of_a_rank_exchange_messages", |world| {
        let other = 1 - world.rank();
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let world = &world;
                scope.spawn(move || {
                    let tag = Tag::<u64>::new(100 + thread);
                    for i in 0..ranks::rounds(300) as u64 {
                        let len = [1, 2000, 20_000][i as usize % 3];
                        let sent = world.isend(other, tag, vec![i; len]);
                        assert_eq!(world.recv(other, tag).unwrap().0, vec![i; len], "thread {thread}");
                        sent.wait().unwrap();
                    }
                });
            }
        });
    });
}

#[test]
fn messages_of_overlapping_teams_are_separate() {
    on(&[4, 8], "messages_of_overlapping_teams_are_separate", |world| {
        let half = world.size() / 2;
        // Teams that have ranks in common, under other numbers.
        let row = world.split(Some((world.rank() / half) as u64), 100 - world.rank() as u64).unwrap().unwrap();
        let column = world.split(Some((world.rank() % half) as u64), 0).unwrap().unwrap();
        let teams = [&world, &row, &column];
        for team in teams {
            let next = (team.rank() + 1) % team.size();
            team.send(next, ONE, &[team.size() as u64 * 1000 + team.rank() as u64]).unwrap();
        }
        // In another order than they were sent.
        for team in [&column, &world, &row] {
            let before = (team.rank() + team.size() - 1) % team.size();
            let (got, status) = team.recv(Source::Any, Tag::<u64>::any()).unwrap();
            assert_eq!((got, status.from), (vec![team.size() as u64 * 1000 + before as u64], before));
            assert!(team.try_probe(Source::Any, Tag::<u64>::any()).unwrap().is_none());
        }
        assert!(matches!(row.send(half, ONE, &[1]), Err(Error::NoSuchRank { .. })));
        // A team outlives the world.
        world.barrier().unwrap();
        drop(world);
        row.sendrecv((row.rank() + 1) % half, ONE, &[1], Source::Any, ONE, &mut [0]).unwrap();
    });
}

/// Threads make teams of the same ranks at once; messages of one team are not received in another.
#[test]
#[cfg_attr(transom_portable_copy, ignore = "ThreadSanitizer does not see a contended lock of std being acquired")]
fn messages_of_concurrent_splits_are_separate() {
    on(&[2, 4], "messages_of_concurrent_splits_are_separate", |world| {
        let twins = [(); 2].map(|()| world.split(Some(0), 0).unwrap().unwrap());
        for round in 0..30 {
            let made = std::thread::scope(|scope| {
                let making = twins.each_ref().map(|twin| scope.spawn(|| twin.split(Some(0), 0).unwrap().unwrap()));
                making.map(|thread| thread.join().unwrap())
            });
            let (next, size) = ((world.rank() + 1) % world.size(), world.size());
            for (nth, team) in made.iter().enumerate() {
                team.send(next, ONE, &[2 * round + nth as u64]).unwrap();
            }
            // In another order than they were sent.
            for (nth, team) in made.iter().enumerate().rev() {
                let before = (world.rank() + size - 1) % size;
                assert_eq!(team.recv(before, ONE).unwrap().0, [2 * round + nth as u64]);
            }
        }
    });
}

/// Two messages longer than a 32-bit count of bytes, or of one-byte elements.
#[test]
#[ignore = "takes 5 GiB of memory"]
fn messages_above_two_gib_arrive_whole() {
    on(&[2], "messages_above_two_gib_arrive_whole", |world| {
        const LEN: usize = (2 << 30) + 12345;
        if world.rank() == 0 {
            let mut data = vec![0_u8; LEN];
            (data[0], data[1 << 31], data[LEN - 1]) = (1, 2, 3);
            world.send(1, BYTES, &data).unwrap();
        } else {
            let (data, status) = world.recv(0, BYTES).unwrap();
            assert_eq!((status.len, data.len()), (LEN, LEN));
            assert_eq!((data[0], data[1 << 31], data[LEN - 1]), (1, 2, 3));
        }
    });
}

/// The short path through an open ring does not give a message to the wrong receive.
#[test]
fn short_receive_overtakes_no_posted_receive() {
    on(&[1, 2], "short_receive_overtakes_no_posted_receive", |world| {
        let other = (world.rank() + 1) % world.size();
        let mut got = [0];
        let send = |value: u64| world.send(other, ONE, &[value]).unwrap();
        for value in 0..40 {
            send(value); // opens the ring
            world.recv_into(other, ONE, &mut got).unwrap();
            assert_eq!(got, [value]);
        }
        for round in 0..50 {
            // The short receive does not overtake a receive that was posted before.
            let posted = world.irecv(Source::Any, Tag::<u64>::any());
            send(round);
            send(round + 1);
            world.recv_into(other, ONE, &mut got).unwrap();
            assert_eq!(got, [round + 1]);
            assert_eq!(posted.wait().unwrap(), [round]);
            // The short receive does not overtake a message that arrived before, behind one of another tag.
            world.send(other, TWO, &[round]).unwrap();
            send(100);
            world.barrier().unwrap();
            send(101);
            for expected in [100, 101] {
                world.recv_into(other, ONE, &mut got).unwrap();
                assert_eq!(got, [expected]);
            }
            let mut none = [0_u64; 0];
            let short = world.recv_into(other, TWO, &mut none).unwrap_err();
            assert!(matches!(short, Error::Truncated { room: 0, .. }), "{short}");
        }
    });
}

/// A message wakes a sleeping rank. No rank finds its message only because it looks again after a tenth of a second.
#[test]
fn arrived_message_causes_no_missed_wake() {
    on(&[2], "arrived_message_causes_no_missed_wake", |world| {
        let (me, other, tag) = (world.rank(), 1 - world.rank(), Tag::<u32>::new(1));
        for turn in 0..200 {
            if me == turn % 2 {
                std::thread::sleep(Duration::from_millis(1));
                world.send(other, tag, &[turn as u32]).unwrap();
            } else {
                assert_eq!(world.recv(other, tag).unwrap().0, [turn as u32]);
            }
        }
        assert_eq!(world.counters().unwrap().missed_wakes, 0);
    });
}
