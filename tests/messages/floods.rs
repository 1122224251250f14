//! Messages that their receiver leaves unreceived: they block no other message, and their memory is bounded.

use crate::ranks;
use ranks::{on, rounds, share_memory};
use std::io::{Read, Write};
use transom::messages::{Error, Request, Source, Tag};
use transom::{Op, World};

const FIRST: Tag<u8> = Tag::new(1);
const LAST: Tag<u64> = Tag::new(2);

/// Number of messages of a flood: more than credit admits, of any size.
fn many() -> usize {
    rounds(if cfg!(transom_portable_copy) { 10_000 } else { 70_000 })
}

fn byte(number: usize) -> u8 {
    (number * 7 + number / 256) as u8
}

/// Sends `many` messages of `length` bytes to rank 0, and receives none.
fn flood(world: &World, many: usize, length: usize) -> Vec<Request<'_, Vec<u8>>> {
    (0..many).map(|number| world.isend(0, FIRST, vec![byte(number); length])).collect()
}

/// Receives them all, in the order in which they were sent.
fn drain(world: &World, many: usize, length: usize) {
    let mut got = vec![0; length];
    for number in 0..many {
        let status = world.recv_into(1, FIRST, &mut got).unwrap();
        assert!(status.len == length && got.iter().all(|one| *one == byte(number)), "{length} B: message {number}");
    }
}

#[test]
fn last_message_arrives_before_its_flood() {
    on(&[2], "last_message_arrives_before_its_flood", |world| {
        last_arrives_first(&world, many(), 8, Source::Rank(1));
        last_arrives_first(&world, many() / 2, 160, Source::Any);
    });
}

#[test]
fn last_message_arrives_before_longer_ones() {
    on(&[2], "last_message_arrives_before_longer_ones", |world| {
        last_arrives_first(&world, many() / 2, 192, Source::Rank(1));
        last_arrives_first(&world, many() / 2, 208, Source::Any);
    });
}

fn last_arrives_first(world: &World, many: usize, length: usize, source: Source) {
    if world.rank() == 1 {
        let sent = flood(world, many, length);
        world.send(0, LAST, &[77]).unwrap();
        sent.into_iter().for_each(|request| _ = request.wait().unwrap());
    } else {
        assert_eq!(world.recv(source, LAST).unwrap().0, [77]);
        drain(world, many, length);
    }
    world.barrier().unwrap();
}

/// Probes find it too.
#[test]
fn last_message_is_probed_before_its_flood() {
    on(&[2], "last_message_is_probed_before_its_flood", |world| {
        if world.rank() == 1 {
            let sent = flood(&world, many() / 2, 100);
            world.send(0, LAST, &[77]).unwrap();
            sent.into_iter().for_each(|request| _ = request.wait().unwrap());
        } else {
            let found = loop {
                if let Some(found) = world.try_probe(Source::Any, LAST).unwrap() {
                    break found;
                }
            };
            assert_eq!(found.recv().unwrap(), [77]);
            drain(&world, many() / 2, 100);
        }
    });
}

/// A blocking send of a short message waits for no receive.
#[test]
fn short_sends_return_before_any_receive() {
    on(&[2], "short_sends_return_before_any_receive", |world| {
        let many = rounds(if cfg!(transom_portable_copy) { 10_000 } else { 100_000 });
        if world.rank() == 1 {
            (0..many).for_each(|number| world.send(0, FIRST, &[byte(number); 8]).unwrap());
            world.send(0, LAST, &[many as u64]).unwrap();
        } else {
            assert_eq!(world.recv(1, LAST).unwrap().0, [many as u64]);
            let kept = world.counters().unwrap().unexpected_peak;
            assert_eq!(kept, 72 * many as u64, "expected 64 bytes per envelope plus the data");
            drain(&world, many, 8);
        }
    });
}

/// The library's own messages pass the program's unreceived ones: first calls of each kind.
#[test]
fn internal_messages_pass_a_flood() {
    on(&[2, 3], "internal_messages_pass_a_flood", |world| {
        for length in [8, 160] {
            let sent = if world.rank() == 1 { flood(&world, many() / 2, length) } else { Vec::new() };
            world.barrier().unwrap();
            world.ibarrier().wait().unwrap();
            let sum = world.iall_reduce(vec![1_u64; 2000], Op::Sum).wait().unwrap();
            assert_eq!(sum, vec![world.size() as u64; 2000]);
            let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
            team.barrier().unwrap();
            let mine = vec![world.rank() as u64; 1 + world.rank()];
            let all = team.all_gather_v(&mine).unwrap();
            assert_eq!(all.elements().len(), (1..=world.size()).sum::<usize>());
            if world.rank() < 2 {
                let mut pipe = world.pipe(1 - world.rank()).unwrap();
                let mut got = [0; 4];
                pipe.write_all(b"pass").unwrap();
                pipe.flush().unwrap();
                pipe.read_exact(&mut got).unwrap();
                assert_eq!(&got, b"pass");
            }
            if world.rank() == 0 {
                drain(&world, many() / 2, length);
            }
            sent.into_iter().for_each(|request| _ = request.wait().unwrap());
            world.barrier().unwrap();
        }
    });
}

/// Messages of dropped teams are discarded, and do not count any more.
#[test]
fn unreceived_messages_are_discarded_with_their_team() {
    on(&[2, 4], "unreceived_messages_are_discarded_with_their_team", |world| {
        let (rank, size) = (world.rank(), world.size());
        for _ in 0..rounds(70) {
            let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
            for number in 0..1000 {
                drop(team.isend((rank + 1) % size, FIRST, vec![byte(number); 8]));
            }
            // All of them have arrived once the messages behind them have.
            world.sendrecv((rank + 1) % size, LAST, &[1], (rank + size - 1) % size, LAST, &mut [0]).unwrap();
            drop(team);
        }
        world.barrier().unwrap();
        let counters = world.counters().unwrap();
        assert!(counters.discarded >= 1000 * (rounds(70) as u64 - 1), "{} messages were discarded", counters.discarded);
        assert!(counters.unexpected_peak <= 3 * 72 * 1000, "{} bytes were kept", counters.unexpected_peak);
        if share_memory(&world) {
            world.send((rank + 1) % size, FIRST, &[9; 4000]).unwrap();
            assert_eq!(world.recv(Source::Any, FIRST).unwrap().0, [9; 4000]);
        }
    });
}

/// A long send to a team that its receiver has dropped fails with `TeamDropped`.
#[test]
fn send_to_dropped_team_names_its_receiver() {
    on(&[2], "send_to_dropped_team_names_its_receiver", |world| {
        let team = world.split(Some(0), 0).unwrap().expect("a colour was named");
        if world.rank() == 0 {
            drop(team);
            world.send(1, LAST, &[1]).unwrap();
        } else {
            let early = team.isend(0, FIRST, vec![1; 1_000_000]);
            world.recv(0, LAST).unwrap();
            for error in [early.wait().unwrap_err().error, team.ssend(0, FIRST, &[1]).unwrap_err()] {
                assert!(matches!(error, Error::TeamDropped { rank: 0 }), "{error}");
            }
            team.send(0, FIRST, &[1]).unwrap();
        }
        world.barrier().unwrap();
    });
}
