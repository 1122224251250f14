//! Pipes of processes and of threads with every protocol; closed ends, errors, deaths.

use crate::ranks;
use ranks::{VICTIM, die, on};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::{Duration, Instant};
use transom::messages::{Error, Tag};
use transom::pipe::{Config, Fault, Pipe, Step};
use transom::{Buffer, Status, World};

const STEPS: [Step; 5] = [Step::Basic, Step::Piggyback, Step::Pipeline, Step::Read, Step::Write];

fn stepping(step: Step) -> Config {
    Config { step, ..Config::default() }
}

/// One pipe with each other rank, opened in the same order at all ranks.
fn pipes(world: &World, config: Config) -> Vec<Pipe> {
    let (rank, size) = (world.rank(), world.size());
    let pairs = (0..size).flat_map(|a| (a + 1..size).map(move |b| (a, b)));
    let mine = pairs.filter(|(a, b)| [*a, *b].contains(&rank));
    mine.map(|(a, b)| world.pipe_with(a + b - rank, config).unwrap()).collect()
}

fn byte(from: usize, to: usize, at: usize) -> u8 {
    (at * 7 + at / 251 + 31 * from + 57 * to) as u8
}

fn stretch(from: usize, to: usize, at: usize, length: usize) -> Vec<u8> {
    (at..at + length).map(|at| byte(from, to, at)).collect()
}

/// Writes `total` bytes in pieces of all lengths, by both kinds of call.
fn write(pipe: &Pipe, me: usize, total: usize) {
    let (mut at, mut round) = (0, 0);
    while at < total {
        let length = [1, 8, 100, 5000, 16 << 10, 70_000, 3, 200_000][round % 8].min(total - at);
        let data = stretch(me, pipe.peer(), at, length);
        match round % 3 {
            0 => assert_eq!(pipe.start_put(data.clone()).wait().unwrap(), data),
            _ => (&mut &*pipe).write_all(&data).unwrap(),
        }
        (at, round) = (at + length, round + 1);
    }
    pipe.end().unwrap();
}

fn read(pipe: &Pipe, me: usize, total: usize) {
    let (mut at, mut round) = (0, 0);
    loop {
        let room = [7, 100_000, 1, 4000, 300_000][round % 5];
        let got = match round % 2 {
            0 => pipe.start_get(vec![0; room]).wait().unwrap(),
            _ => {
                let mut into = vec![0; room];
                let length = (&mut &*pipe).read(&mut into).unwrap();
                into.truncate(length);
                into
            }
        };
        if got.is_empty() {
            break;
        }
        assert!(got == stretch(pipe.peer(), me, at, got.len()), "{} bytes differ from offset {at} on", got.len());
        (at, round) = (at + got.len(), round + 1);
    }
    assert_eq!(at, total);
}

#[test]
fn streams_between_all_pairs_arrive_whole() {
    on(&[2, 3, 4], "streams_between_all_pairs_arrive_whole", |world| {
        for step in STEPS {
            let total = 1_500_000 / world.size();
            let pipes = pipes(&world, stepping(step));
            std::thread::scope(|scope| {
                for pipe in &pipes {
                    scope.spawn(|| write(pipe, world.rank(), total));
                    scope.spawn(|| read(pipe, world.rank(), total));
                }
            });
            for count in pipes.iter().map(Pipe::count) {
                // Shared memory is read, and not written. Adapters move buffers that are long enough to register.
                if !ranks::over_network() {
                    assert_eq!(
                        (count.read > 0, count.written),
                        (matches!(step, Step::Read | Step::Write), 0),
                        "{count:?}"
                    );
                }
                let moved = count.copied + count.read + count.written;
                assert_eq!((moved, count.got), (total as u64, total as u64), "{step:?} {count:?}");
            }
        }
    });
}

/// Non-blocking calls, on rings of all shapes, from and into several buffers.
#[test]
fn put_and_get_return_the_bytes_moved() {
    on(&[1, 2, 4], "put_and_get_return_the_bytes_moved", |world| {
        let peer = if world.size() == 1 { 0 } else { world.rank() ^ 1 };
        for step in STEPS {
            for (chunk, chunks) in [(64, 2), (72, 3), (4096, 5), (65_536, 16)] {
                let config = Config { step, chunk, chunks, zero_copy_from: 0 };
                let pipe = world.pipe_with(peer, config).unwrap();
                let total = 4 * (chunk * chunks).min(9000) as usize;
                let (mut put, mut got) = (0, 0);
                if chunk < 65_536 {
                    // The other end gets nothing yet: the ring becomes full, and then takes nothing.
                    while put < total {
                        let data = stretch(world.rank(), peer, put, (total - put).min(5000));
                        match pipe.put(&[data]).unwrap() {
                            0 => break,
                            moved => put += moved,
                        }
                    }
                    assert!(put > 0 && put <= (chunk * chunks) as usize, "{put} bytes in {chunks} chunks of {chunk}");
                    world.barrier().unwrap();
                }
                while put < total || got < total {
                    let data = stretch(world.rank(), peer, put, (total - put).min(5000));
                    let (first, second) = data.split_at(data.len() / 3);
                    let moved = pipe.put(&[IoSlice::new(first), IoSlice::new(&[]), IoSlice::new(second)]).unwrap();
                    put += moved;
                    let (mut first, mut second) = ([0; 13], vec![0; 2000]);
                    let Some(moved) = pipe.get(&mut [&mut first[..], &mut second]).unwrap() else {
                        // The last put was the one that the other end waited for.
                        assert_eq!((put, got), (total, total), "stream ended before all bytes moved");
                        break;
                    };
                    let all = [&first[..], &second].concat();
                    assert!(
                        all[..moved] == stretch(peer, world.rank(), got, moved),
                        "{moved} bytes differ from offset {got} on"
                    );
                    assert!(
                        all[moved..].iter().all(|byte| *byte == 0),
                        "bytes beyond the returned length were written"
                    );
                    got += moved;
                    std::thread::yield_now();
                }
                pipe.end().unwrap();
                while pipe.get(&mut [&mut [0_u8; 10][..]]).unwrap().is_some() {}
            }
        }
    });
}

/// A buffer that the peer has handed over arrives at a non-blocking get in pieces.
#[test]
fn owned_put_buffer_is_got_piece_by_piece() {
    on(&[2], "owned_put_buffer_is_got_piece_by_piece", |world| {
        let pipe = world.pipe(1 - world.rank()).unwrap();
        let length = 300_000;
        if world.rank() == 0 {
            let mut put = pipe.start_put(stretch(0, 1, 0, length));
            let behind = pipe.put(&[&[1_u8][..]]).unwrap();
            assert!(behind == 0 || put.test(), "a put overtook a put in flight");
            let back = put.wait().unwrap();
            assert!(back == stretch(0, 1, 0, length));
            if !ranks::over_network() {
                // The byte behind is copied if the put before it was over by then.
                assert_eq!((pipe.count().read, pipe.count().copied), (length as u64, behind as u64));
            }
        } else {
            let (mut into, mut got) = (vec![0; length], 0);
            while got < length {
                got += pipe.get(&mut [&mut into[got..]]).unwrap().expect("the stream should not have ended");
            }
            assert!(into == stretch(0, 1, 0, length));
        }
    });
}

/// A buffer of the world, which adapters know already, is put, and the stream is read into another one.
#[test]
fn world_buffer_is_put_and_read_into() {
    on(&[2], "world_buffer_is_put_and_read_into", |world| {
        let (me, other) = (world.rank(), 1 - world.rank());
        for step in STEPS {
            let pipe = world.pipe_with(other, stepping(step)).unwrap();
            let mut at = 0;
            for length in [1, 5000, 300_000] {
                let (mut mine, mut room) = (world.buffer(length).unwrap(), world.buffer(length).unwrap());
                mine.copy_from_slice(&stretch(me, other, at, length));
                let start = mine.as_ptr();
                let put = pipe.start_put(mine);
                (&mut &pipe).read_exact(&mut room).unwrap();
                assert!(room[..] == stretch(other, me, at, length), "{step:?}, {length} bytes from offset {at} on");
                let mine: Buffer<u8> = put.wait().unwrap();
                assert_eq!((mine.as_ptr(), mine.len()), (start, length), "{step:?}");
                assert!(mine[..] == stretch(me, other, at, length), "{step:?}: the buffer that was put has changed");
                at += length;
            }
        }
    });
}

#[test]
fn stream_is_read_after_its_writer_has_left() {
    on(&[2, 3], "stream_is_read_after_its_writer_has_left", |world| {
        let last = world.size() - 1;
        for step in STEPS {
            if world.rank() == last {
                let pipes: Vec<Pipe> = (0..last).map(|rank| world.pipe_with(rank, stepping(step)).unwrap()).collect();
                world.barrier().unwrap();
                for (rank, mut pipe) in pipes.into_iter().enumerate() {
                    let mut all = Vec::new();
                    assert_eq!(pipe.read_to_end(&mut all).unwrap(), 100_000);
                    assert!(all == stretch(rank, last, 0, 100_000));
                    assert_eq!(pipe.read(&mut [0]).unwrap(), 0, "read after the end returned data");
                }
            } else {
                let pipe = world.pipe_with(last, stepping(step)).unwrap();
                assert_eq!(pipe.put(&[stretch(world.rank(), last, 0, 100_000)]).unwrap(), 100_000);
                drop(pipe);
                world.barrier().unwrap();
            }
        }
        // The rank of the other end leaves as well.
        if world.rank() == last {
            let mut pipe = world.pipe(0).unwrap();
            let mut all = Vec::new();
            std::thread::sleep(Duration::from_millis(300));
            pipe.read_to_end(&mut all).unwrap();
            assert_eq!(all, b"farewell");
        } else if world.rank() == 0 {
            world.pipe(last).unwrap().write_all(b"farewell").unwrap();
        }
    });
}

#[test]
fn invalid_pipe_use_is_refused() {
    on(&[2], "invalid_pipe_use_is_refused", |world| {
        let other = 1 - world.rank();
        let error = world.pipe(2).unwrap_err();
        assert!(matches!(error, Error::NoSuchRank { rank: 2, ranks: 2 }), "{error}");
        let none = Config { chunk: 12, ..Config::default() };
        let error = world.pipe_with(other, none).unwrap_err();
        assert!(matches!(error, Error::Pipe { rank, fault: Fault::Sizes { chunk: 12, chunks: 16 } } if rank == other));
        // Only one end fails by itself: the other end gets an error, and the next pipe works.
        let error = world.pipe_with(other, if world.rank() == 0 { none } else { Config::default() }).unwrap_err();
        match error {
            Error::Pipe { rank: 1, fault: Fault::Sizes { .. } } => assert_eq!(world.rank(), 0),
            Error::Pipe { rank: 0, fault: Fault::Refused } => assert_eq!(world.rank(), 1),
            other => panic!("{other}"),
        }
        // Ends with different configurations.
        let error = world.pipe_with(other, stepping(STEPS[world.rank()])).unwrap_err();
        assert!(matches!(error, Error::Pipe { rank, fault: Fault::Differs { .. } } if rank == other), "{error}");
        let theirs = format!("it opened its end with Config {{ step: {:?}", STEPS[other]);
        assert!(error.to_string().contains(&theirs), "{error}");
        // The peer closes while this end writes.
        let mut pipe = world.pipe(other).unwrap();
        if world.rank() == 0 {
            drop(pipe);
        } else {
            let error = std::iter::repeat_with(|| pipe.write(&[1; 5000])).find_map(Result::err).unwrap();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            assert_eq!(error.to_string(), "the pipe to rank 0: it has closed its end");
            let within = error.get_ref().unwrap().downcast_ref::<Error>();
            assert!(matches!(within, Some(Error::Pipe { rank: 0, fault: Fault::Closed })));
            let failed = pipe.start_put(vec![1, 2, 3]).wait().unwrap_err();
            assert_eq!(failed.buffer, Some(vec![1, 2, 3]));
            pipe.end().unwrap();
            let error = pipe.put(&[&[1_u8][..]]).unwrap_err();
            assert!(matches!(error, Error::Pipe { rank: 0, fault: Fault::Ended }), "{error}");
        }
        world.barrier().unwrap();
    });
}

/// Pipes that are opened and closed leave no memory behind, neither own nor mapped from the peer.
#[test]
fn repeated_pipes_leave_no_mappings() {
    on(&[2], "repeated_pipes_leave_no_mappings", |world| {
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let mut before = 0;
        for round in 0..300 {
            let mut pipe = world.pipe_with(1 - world.rank(), stepping(STEPS[round % 5])).unwrap();
            pipe.write_all(&[round as u8; 100]).unwrap();
            pipe.read_exact(&mut [0; 100]).unwrap();
            drop(pipe);
            world.barrier().unwrap();
            world.progress().unwrap();
            if round == 50 {
                before = maps();
            }
        }
        assert!(maps() < before + 60, "{} mappings after 250 more pipes, {before} before", maps());
    });
}

/// Ranks of a pipe are those of its team, and pipes of teams are apart.
#[test]
fn team_pipe_uses_team_ranks() {
    on(&[4], "team_pipe_uses_team_ranks", |world| {
        let team = world.split(Some(world.rank() as u64 % 2), 0).unwrap().unwrap();
        let mut pipe = team.pipe(1 - team.rank()).unwrap();
        assert_eq!(pipe.peer(), 1 - team.rank());
        writeln!(pipe, "{}", world.rank()).unwrap();
        let mut text = [0; 2];
        pipe.read_exact(&mut text).unwrap();
        assert_eq!(text[0] - b'0', world.rank() as u8 ^ 2);
    });
}

/// A program that is disturbed neither by other messages nor by a thread that waits for one.
#[test]
fn messages_and_pipes_do_not_disturb_each_other() {
    on(&[2], "messages_and_pipes_do_not_disturb_each_other", |world| {
        const TAG: Tag<u64> = Tag::new(0);
        let other = 1 - world.rank();
        let pipes: Vec<Pipe> = STEPS.iter().map(|step| world.pipe_with(other, stepping(*step)).unwrap()).collect();
        std::thread::scope(|scope| {
            for pipe in &pipes {
                scope.spawn(|| write(pipe, world.rank(), 300_000));
                scope.spawn(|| read(pipe, world.rank(), 300_000));
            }
            for round in 0..300 {
                let mut got = vec![0; 10_000];
                let mine = vec![round; [1, 100, 10_000][round as usize % 3]];
                world.sendrecv(other, TAG, &mine, other, TAG, &mut got).unwrap();
                assert_eq!(got[..mine.len()], mine);
            }
        });
    });
}

const READY: Tag<u8> = Tag::new(1);

#[test]
fn death_fails_waiting_pipe_calls() {
    for size in [2, 3, 4] {
        let outcome = ranks::outcome_of(size, "death_fails_waiting_pipe_calls", |world| {
            let others = || (0..world.size()).filter(|rank| *rank != VICTIM);
            for (round, step) in STEPS.into_iter().enumerate() {
                // Four pipes to each rank: one that stays in use, and one for each call that waits.
                let waits: Vec<Pipe> = match world.rank() {
                    VICTIM => others().collect::<Vec<_>>(),
                    _ => vec![VICTIM],
                }
                .into_iter()
                .flat_map(|rank| (0..4).map(move |_| rank))
                .map(|rank| world.pipe_with(rank, stepping(step)).unwrap())
                .collect();
                if round + 1 < STEPS.len() {
                    continue;
                }
                if world.rank() == VICTIM {
                    assert_eq!(waits[0].put(&[&[5_u8; 10][..]]).unwrap(), 10);
                    others().for_each(|rank| world.send(rank, READY, &[0]).unwrap());
                    std::thread::sleep(Duration::from_millis(400));
                    die();
                }
                world.recv(VICTIM, READY).unwrap();
                let fails = |what: &str, call: &dyn Fn() -> std::io::Result<()>| {
                    let error = call().expect_err(what);
                    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{what}: {error}");
                    assert_eq!(error.to_string(), "rank 1 died", "{what}");
                    let within = error.get_ref().unwrap().downcast_ref::<Error>().unwrap();
                    assert_eq!(within.lost_rank(), Some(VICTIM));
                };
                let full = || loop {
                    (&waits[1]).write_all(&[1; 1000])?;
                };
                let long = || (&waits[2]).write_all(&vec![1; 500_000]);
                let begun = Instant::now();
                std::thread::scope(|scope| {
                    scope.spawn(|| fails("read", &|| (&waits[3]).read(&mut [0; 9]).map(drop)));
                    scope.spawn(|| fails("write to a full ring", &full));
                    scope.spawn(|| fails("write of a long buffer", &long));
                    scope.spawn(|| {
                        fails("start_get", &|| {
                            Ok(waits[3].start_get(vec![0; 9]).wait().map(drop).map_err(Error::from)?)
                        })
                    });
                });
                assert!(begun.elapsed() < Duration::from_millis(400) + ranks::within(Duration::from_secs(1)));
                fails("open", &|| Ok(world.pipe(VICTIM).map(drop)?));
                // Data that had arrived can be got.
                if world.rank() == 0 {
                    let mut into = [0; 20];
                    assert_eq!((&waits[0]).read(&mut into).unwrap(), 10);
                    assert_eq!(into[..11], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 0]);
                }
                fails("read after the last byte", &|| (&waits[0]).read(&mut [0; 9]).map(drop));
            }
        });
        let Some(outcome) = outcome else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}
