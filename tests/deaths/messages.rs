//! Ranks that die among messages: every call that needs them fails within a second, and names them. Other ranks go on,
//! and receive what had arrived.

use crate::ranks;
use ranks::{IN_TIME, VICTIM, die, fails_in_time};
use std::time::{Duration, Instant};
use transom::messages::{Error, Requests, Source, Tag};
use transom::{Op, Status, Window, World};

const ONE: Tag<u64> = Tag::new(1);
const TWO: Tag<u64> = Tag::new(2);

fn with_a_death(name: &str, sizes: &[usize], body: impl Fn(World)) {
    for size in sizes {
        let Some(outcome) = ranks::outcome_of(*size, name, &body) else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

/// The living ranks go on exchanging messages.
fn the_others_go_on(world: &World) {
    let living: Vec<usize> = (0..world.size()).filter(|rank| *rank != VICTIM).collect();
    for round in 0..20 {
        for to in &living {
            drop(world.isend(*to, TWO, vec![round; 1 + 2000 * (round as usize % 3)]));
        }
        for from in &living {
            assert_eq!(world.recv(*from, TWO).unwrap().0[0], round);
        }
    }
}

/// Returns when each of the others has begun to wait.
fn all_have_called(world: &World) {
    for _ in 1..world.size() {
        world.recv(Source::Any, TWO).unwrap();
    }
    std::thread::sleep(Duration::from_millis(30));
}

fn dies_when_all_have_called(world: &World) {
    all_have_called(world);
    die();
}

#[test]
fn death_fails_blocking_calls() {
    with_a_death("death_fails_blocking_calls", &[2, 3, 4, 8], |world| {
        if world.rank() == VICTIM {
            dies_when_all_have_called(&world);
        }
        world.send(VICTIM, TWO, &[0]).unwrap();
        let mut short = [0; 4];
        match world.rank() % 8 {
            0 | 4 => fails_in_time("recv", || world.recv(VICTIM, ONE)),
            2 | 6 => fails_in_time("recv from any", || world.recv(Source::Any, ONE)),
            3 => fails_in_time("probe", || world.probe(VICTIM, ONE)),
            7 => fails_in_time("probe_for", || world.probe_for(VICTIM, ONE, Duration::from_secs(3600))),
            _ => fails_in_time("recv_into", || world.recv_into(VICTIM, ONE, &mut short)),
        }
        // Later calls fail at once.
        fails_in_time("send", || world.send(VICTIM, ONE, &[1]));
        fails_in_time("ssend", || world.ssend(VICTIM, ONE, &[1]));
        fails_in_time("irecv", || Ok(world.irecv(VICTIM, ONE).wait()?));
        fails_in_time("isend", || Ok(world.isend(VICTIM, ONE, vec![1; 100_000]).wait()?));
        if world.rank() % 4 != 2 && world.size() > 2 {
            fails_in_time("first recv from any source", || world.recv(Source::Any, ONE));
        }
        the_others_go_on(&world);
        if world.size() == 2 {
            fails_in_time("recv from any source without other ranks", || world.recv(Source::Any, ONE));
        }
    });
}

/// The program ignores the handles, as it does when only the end of the scope is to wait.
#[test]
fn death_fails_scopes_with_dropped_requests() {
    with_a_death("death_fails_scopes_with_dropped_requests", &[2, 3], |world| {
        if world.rank() == VICTIM {
            dies_when_all_have_called(&world);
        }
        let (long, mut got) = (vec![1; 1 << 20], [0; 4]);
        world.send(VICTIM, TWO, &[0]).unwrap();
        fails_in_time("a scope with a long send", || {
            world.scope(|scope| {
                scope.isend(VICTIM, ONE, &long);
                Ok::<(), Error>(())
            })
        });
        fails_in_time("a scope with a receive", || {
            world.scope(|scope| {
                scope.irecv(VICTIM, ONE, &mut got);
                Ok::<(), Error>(())
            })
        });
        fails_in_time("a scope with a collective", || {
            world.scope(|scope| {
                scope.iall_reduce(&mut got, Op::Sum);
                Ok::<(), Error>(())
            })
        });
        the_others_go_on(&world);
    });
}

/// Calls that do not wait, or not long.
#[test]
fn death_fails_polling_calls() {
    with_a_death("death_fails_polling_calls", &[2, 4, 9], |world| {
        if world.rank() == VICTIM {
            dies_when_all_have_called(&world);
        }
        world.send(VICTIM, TWO, &[0]).unwrap();
        let waited = world.irecv(VICTIM, ONE);
        match world.rank() {
            0 => fails_in_time("test", || {
                let mut asked = waited;
                while !asked.test() {}
                Ok(asked.wait()?)
            }),
            2 => fails_in_time("try_probe", || {
                loop {
                    if world.try_probe(VICTIM, ONE)?.is_some() {
                        return Ok(());
                    }
                }
            }),
            8 => fails_in_time("probe_for", || {
                loop {
                    if world.probe_for(VICTIM, ONE, Duration::from_millis(3))?.is_some() {
                        return Ok(());
                    }
                }
            }),
            3 => fails_in_time("wait_for", || {
                let mut asked = waited;
                loop {
                    asked = match asked.wait_for(Duration::from_millis(3)) {
                        Ok(ended) => return Ok(ended?),
                        Err(asked) => asked,
                    };
                }
            }),
            4 => fails_in_time("peek", || {
                loop {
                    if world.peek(VICTIM, ONE)?.is_some() {
                        return Ok(());
                    }
                }
            }),
            5 => fails_in_time("a pipe's get", || {
                let pipe = world.pipe(VICTIM)?;
                while pipe.get(&mut [vec![0; 8]])? == Some(0) {}
                Ok(())
            }),
            6 => fails_in_time("arrived", || {
                let mut parts = world.precv_init(VICTIM, ONE, vec![0_u64; 4], 2)?;
                let arriving = parts.start()?;
                while arriving.arrived(1)?.is_none() {}
                Ok(())
            }),
            _ => fails_in_time("test of a barrier", || {
                let mut asked = world.ibarrier();
                while !asked.test() {}
                Ok(asked.wait()?)
            }),
        }
        the_others_go_on(&world);
    });
}

#[test]
fn death_fails_requests_in_flight() {
    with_a_death("death_fails_requests_in_flight", &[2, 4], |world| {
        if world.rank() == VICTIM {
            // Messages that it never receives, and one whose data it has just asked for.
            let begun = world.irecv(0, Tag::<u64>::new(7));
            dies_when_all_have_called(&world);
            #[allow(unreachable_code, reason = "dropped only when the process ends")]
            drop(begun);
        }
        let mut all = Requests::new();
        all.push(world.isend(VICTIM, ONE, vec![1; 1_000_000]));
        all.push(world.isend(VICTIM, Tag::new(7), vec![1; 3_000_000]));
        all.push(world.issend(VICTIM, ONE, vec![1]));
        all.push(world.irecv(VICTIM, ONE));
        all.push(world.irecv_into(VICTIM, ONE, vec![0; 10_000]));
        world.send(VICTIM, TWO, &[0]).unwrap();
        let begun = Instant::now();
        let mut told = 0;
        while let Some((number, ended)) = all.wait_any() {
            match ended {
                Ok(_) => assert_eq!(
                    (number, world.rank()),
                    (1, 0),
                    "request ended without error although the victim received nothing"
                ),
                Err(failed) => {
                    told += 1;
                    assert!(matches!(failed.error, Error::PeerDied { rank: VICTIM }), "{failed}");
                    assert_eq!(failed.buffer.is_some(), number != 3, "failed request did not return its buffer");
                }
            }
        }
        assert!(
            told >= 4 && begun.elapsed() < ranks::within(IN_TIME),
            "{told} requests failed after {:?}, expected at least 4 in time",
            begun.elapsed()
        );
        the_others_go_on(&world);
    });
}

/// The rank dies at any point of what it sends and receives.
#[test]
fn death_at_any_time_fails_only_its_messages() {
    for delay in [0, 1, 3, 7, 15, 40] {
        with_a_death("death_at_any_time_fails_only_its_messages", &[3], |world| {
            let delay = std::env::var("TEST_DELAY").map_or(5, |delay| delay.parse().unwrap());
            if world.rank() == VICTIM {
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(delay));
                    die();
                });
            }
            let len = |i: usize| [1, 300, 3000, 100, 40_000][i % 5];
            let mut failed = false;
            for i in 0..ranks::rounds(500) {
                let sent: Vec<_> = (0..world.size()).map(|to| world.isend(to, ONE, vec![i as u64; len(i)])).collect();
                for from in 0..world.size() {
                    if failed && from == VICTIM {
                        continue;
                    }
                    match world.recv(from, ONE) {
                        Ok((got, _)) => {
                            assert_eq!(got, vec![i as u64; len(i)], "message is incomplete or out of order")
                        }
                        Err(error) => {
                            assert!(matches!(error, Error::PeerDied { rank: VICTIM }) && from == VICTIM, "{error}");
                            failed = true;
                        }
                    }
                }
                for (to, sent) in sent.into_iter().enumerate() {
                    if let Err(failed) = sent.wait() {
                        assert!(to == VICTIM && matches!(failed.error, Error::PeerDied { .. }), "{failed}");
                    }
                }
            }
            if world.rank() == VICTIM {
                std::thread::sleep(Duration::from_secs(10)); // until it dies
            }
            the_others_go_on(&world);
        });
        if std::env::var_os("TEST_ROLE").is_some() {
            return;
        }
        // SAFETY: set before the copies are started; this test reads it in them only.
        unsafe { std::env::set_var("TEST_DELAY", delay.to_string()) };
    }
}

/// The rank sends, and dies before any receive: complete messages are received, then its death is reported.
#[test]
fn messages_complete_before_death_are_received() {
    with_a_death("messages_complete_before_death_are_received", &[2, 3], |world| {
        if world.rank() == VICTIM {
            for i in 0..100 {
                world.send(0, ONE, &[i]).unwrap();
            }
            if ranks::over_network() {
                std::thread::sleep(Duration::from_secs(1)); // its adapter dies with it
            }
            die();
        }
        if world.rank() == 0 {
            while !matches!(world.send(VICTIM, TWO, &[0]), Err(Error::PeerDied { .. })) {
                std::thread::sleep(Duration::from_millis(5));
                drop(world.irecv(VICTIM, TWO).wait_for(Duration::from_millis(1)));
            }
            for i in 0..100 {
                assert_eq!(world.recv(VICTIM, ONE).unwrap().0, [i]);
            }
            fails_in_time("recv after the last message", || world.recv(VICTIM, ONE));
        }
        the_others_go_on(&world);
    });
}

/// The panicking rank keeps the lent memory until the others release it; they wait for its next operation.
#[test]
fn panic_in_a_scope_with_sends_is_reported() {
    let name = "panic_in_a_scope_with_sends_is_reported";
    let Some(outcome) = ranks::outcome_of(3, name, |world| {
        if world.rank() == VICTIM {
            let (long, short) = (vec![1; 1_000_000], [1]);
            let ended: Result<(), Error> = world.scope(|scope| {
                std::mem::forget((scope.isend(0, TWO, &long), scope.issend(2, TWO, &short)));
                panic!("intended panic");
            });
            ended.unwrap();
        }
        let begun = Instant::now();
        let error = world.recv(VICTIM, ONE).unwrap_err();
        assert!(matches!(error, Error::PeerDied { rank: VICTIM }), "{error}");
        assert!(begun.elapsed() < ranks::within(2 * IN_TIME), "death reported after {:?}", begun.elapsed());
    }) else {
        return;
    };
    ranks::only_failed(&outcome, VICTIM, Status::Exited(101));
}

/// The window keeps the rank in its job, and another thread of it goes on.
#[test]
fn panic_with_world_but_kept_window_is_reported() {
    if ranks::over_network() {
        return; // there the error comes when the rank has left completely
    }
    let name = "panic_with_world_but_kept_window_is_reported";
    let Some(outcome) = ranks::outcome_of(3, name, |world| {
        let window: Window<u64> = world.allocate(1).unwrap();
        if world.rank() == VICTIM {
            all_have_called(&world);
            let panicked = std::thread::spawn(move || {
                let _world = world;
                panic!("intended panic");
            });
            panicked.join().unwrap_err();
            std::thread::sleep(3 * IN_TIME);
            drop(window);
            return;
        }
        world.send(VICTIM, TWO, &[0]).unwrap();
        fails_in_time("recv", || world.recv(VICTIM, ONE));
        fails_in_time("isend", || Ok(world.isend(VICTIM, ONE, vec![1; 100_000]).wait()?));
    }) else {
        return;
    };
    assert!(outcome.statuses().iter().all(|status| *status == Status::Exited(0)), "{outcome}");
}

/// Messages that the others receive in time are delivered without errors: the program may go on after the panic.
#[test]
fn panic_in_a_scope_delivers_received_sends() {
    ranks::on(&[2], "panic_in_a_scope_delivers_received_sends", |world| {
        let other = 1 - world.rank();
        // The panicking rank waits for a second, in which all of it must arrive.
        let many = ranks::rounds(1_000_000);
        let long = vec![world.rank() as u64; many];
        if world.rank() == VICTIM {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                world.scope::<(), Error>(|scope| {
                    std::mem::forget(scope.isend(other, TWO, &long));
                    panic!("intended panic");
                })
            }));
            assert!(panicked.is_err());
        } else {
            std::thread::sleep(IN_TIME / 5);
            assert!(world.recv(other, TWO).unwrap().0 == vec![VICTIM as u64; many]);
        }
        world.barrier().unwrap();
    });
}

/// Mapped memory of peers in this process, in blocks of this size.
fn mapped(bytes: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_such = |line: &&str| {
        let place = line.split_once(' ').and_then(|(place, _)| place.split_once('-'));
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        line.contains("memfd:transom") && place.is_some_and(|(from, to)| number(to) - number(from) > bytes)
    };
    maps.lines().filter(is_such).count()
}

#[test]
fn buffers_of_a_dead_rank_are_unmapped() {
    const LEN: usize = 4 << 20;
    const BUFFERS: usize = 5;
    with_a_death("buffers_of_a_dead_rank_are_unmapped", &[2], |world| {
        if world.rank() == VICTIM {
            let buffers = [(); BUFFERS].map(|()| world.buffer::<u8>(LEN).unwrap());
            for sent in buffers.map(|buffer| world.isend(0, Tag::new(3), buffer)) {
                std::mem::forget(sent.wait().unwrap());
            }
            dies_when_all_have_called(&world);
        }
        (0..BUFFERS).for_each(|_| assert_eq!(world.recv(VICTIM, Tag::<u8>::new(3)).unwrap().0.len(), LEN));
        let before = mapped(LEN);
        assert!(before >= BUFFERS || !ranks::share_memory(&world), "{before} buffers are mapped, expected {BUFFERS}");
        world.send(VICTIM, TWO, &[0]).unwrap();
        fails_in_time("recv", || world.recv(VICTIM, ONE));
        // The mapping ends once the process has ended completely and a call looks.
        let begun = Instant::now();
        while mapped(LEN) > 0 {
            assert!(begun.elapsed() < ranks::within(IN_TIME), "{} of {before} buffers are still mapped", mapped(LEN));
            world.progress().unwrap();
        }
    });
}

/// A team without the victim notices nothing.
#[test]
fn death_outside_a_team_leaves_it_working() {
    with_a_death("death_outside_a_team_leaves_it_working", &[4], |world| {
        let team = world.split(Some(u64::from(world.rank() == VICTIM)), 0).unwrap().unwrap();
        if world.rank() == VICTIM {
            dies_when_all_have_called(&world);
        }
        let coming = team.irecv(Source::Any, ONE);
        world.send(VICTIM, TWO, &[0]).unwrap();
        fails_in_time("recv of the world", || world.recv(Source::Any, ONE));
        team.send((team.rank() + 1) % team.size(), ONE, &[7]).unwrap();
        assert_eq!(coming.wait().unwrap(), [7]);
    });
}

/// Other ranks do not wait for its messages while it has the window.
#[test]
fn rank_keeping_only_a_window_has_left_messages() {
    if ranks::over_network() {
        return; // there the error comes when the rank has left completely
    }
    ranks::on(&[2, 3, 8], "rank_keeping_only_a_window_has_left_messages", |world| {
        let mut window: Window<u64> = world.allocate(1).unwrap();
        window.fence().unwrap();
        let others = world.size() as u64 - 1;
        if world.rank() == VICTIM {
            world.send(0, ONE, &[5]).unwrap();
            drop(world);
            return while window.lock_shared(VICTIM).unwrap().get_one(0).unwrap() < others {
                std::thread::yield_now();
            };
        }
        if world.rank() == 0 {
            assert_eq!(world.recv(VICTIM, ONE).unwrap().0, [5]);
        }
        let begun = Instant::now();
        let error = world.recv(VICTIM, ONE).unwrap_err();
        assert!(
            matches!(error, Error::PeerLeft { rank: VICTIM }) && begun.elapsed() < ranks::within(IN_TIME),
            "{error}"
        );
        window.lock_exclusive(VICTIM).unwrap().fetch_and_op(0, Op::Sum, 1).unwrap();
    });
}
