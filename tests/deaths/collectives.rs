//! Ranks that die in collectives: every other rank gets an error that names them, within a second, in this and in each
//! later call.

use crate::ranks;
use ranks::{IN_TIME, VICTIM, die, fails_in_time};
use std::time::{Duration, Instant};
use transom::messages::{Error, Source, Tag};
use transom::{Op, Status, World};

const READY: Tag<u8> = Tag::new(2);

/// All other ranks call, and the victim does not: straight through shared memory, and by messages.
fn with_a_death(name: &str, call: impl Fn(&World) -> Result<(), Error>) {
    let body = |world: World| {
        world.all_reduce_one(1, Op::Sum).unwrap();
        if world.rank() == VICTIM {
            (1..world.size()).for_each(|_| drop(world.recv(Source::Any, READY).unwrap()));
            std::thread::sleep(Duration::from_millis(30));
            die();
        }
        world.send(VICTIM, READY, &[0]).unwrap();
        // A rank whose call waits for no other gets the error from the next call.
        fails_in_time("the call", || call(&world).and_then(|()| world.all_reduce_one(1, Op::Sum)));
        fails_in_time("a later call", || world.broadcast_one(0, 1));
        fails_in_time("a started call", || Ok(world.iall_gather(vec![1]).wait()?));
        // Messages among the living still work.
        let living: Vec<usize> = (0..world.size()).filter(|rank| *rank != VICTIM).collect();
        living.iter().for_each(|to| world.send(*to, READY, &[1]).unwrap());
        living.iter().for_each(|from| drop(world.recv(*from, READY).unwrap()));
    };
    for variables in [&[][..], ranks::BY_MESSAGES] {
        for size in [2, 3, 4, 8] {
            let Some(outcome) = ranks::outcome_with(variables, size, name, body) else { return };
            ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
        }
    }
}

#[test]
fn death_fails_short_all_reduce() {
    with_a_death("death_fails_short_all_reduce", |world| world.all_reduce(&mut [1; 3], Op::Sum));
}

#[test]
fn death_fails_long_all_reduce() {
    with_a_death("death_fails_long_all_reduce", |world| world.all_reduce(&mut vec![1_u64; 1 << 18], Op::Sum));
}

#[test]
fn death_fails_long_broadcast() {
    with_a_death("death_fails_long_broadcast", |world| world.broadcast(0, &mut vec![1_u64; 1 << 18]));
}

#[test]
fn death_fails_gather() {
    with_a_death("death_fails_gather", |world| world.gather(0, &[1; 10]).map(drop));
}

#[test]
fn death_fails_long_all_to_all() {
    with_a_death("death_fails_long_all_to_all", |world| {
        let data = vec![1_u64; world.size() << 15];
        world.all_to_all(&data, &mut data.clone())
    });
}

#[test]
fn death_fails_started_collectives() {
    with_a_death("death_fails_started_collectives", |world| {
        let (one, other) = (world.iall_reduce(vec![1_u64; 1 << 16], Op::Sum), world.ibarrier());
        let (one, other) = (one.wait().map(drop), other.wait());
        other?;
        Ok(one?)
    });
}

/// The victim has done a part of the call.
#[test]
fn death_amid_a_collective_fails_the_others() {
    let name = "death_amid_a_collective_fails_the_others";
    for size in [2, 3, 5] {
        let outcome = ranks::outcome_of(size, name, |world| {
            world.all_reduce_one(1, Op::Sum).unwrap();
            let started = world.iall_reduce(vec![world.rank() as u64; 1 << 17], Op::Sum);
            if world.rank() == VICTIM {
                // The others wait; it has turned its messages a few times.
                (1..world.size()).for_each(|_| drop(world.recv(Source::Any, READY).unwrap()));
                (0..3).for_each(|_| world.progress().unwrap());
                die();
            }
            world.send(VICTIM, READY, &[0]).unwrap();
            // The dead rank may have taken part in this call in time.
            fails_in_time("the started call or the next one", || {
                started.wait().map_err(Error::from).and_then(|_| world.all_reduce_one(1, Op::Sum))
            });
        });
        let Some(outcome) = outcome else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

/// A rank leaves while others call: an error as well.
#[test]
fn departure_fails_waiting_all_reduce() {
    ranks::on(&[2, 3, 5], "departure_fails_waiting_all_reduce", |world| {
        world.all_reduce_one(1, Op::Sum).unwrap();
        if world.rank() == VICTIM {
            return;
        }
        let begun = Instant::now();
        let error = world.all_reduce_one(1, Op::Sum).unwrap_err();
        assert!(matches!(error, Error::PeerLeft { rank: VICTIM }), "{error}");
        assert!(begun.elapsed() < ranks::within(IN_TIME), "took {:?}", begun.elapsed());
    });
}

/// A rank panics while it lends buffers to a collective that the others never call. Its scope ends all the same, and
/// the others get an error.
#[test]
fn panic_in_a_scope_with_collectives_ends_in_time() {
    ranks::on(&[2, 3, 5], "panic_in_a_scope_with_collectives_ends_in_time", |world| {
        world.all_reduce_one(1, Op::Sum).unwrap();
        if world.rank() != VICTIM {
            world.send(VICTIM, READY, &[1]).unwrap();
            world.recv(VICTIM, READY).unwrap();
            return fails_in_time("a call", || world.all_reduce_one(1, Op::Sum));
        }
        // The panic fails calls that have not ended at other ranks.
        (0..world.size()).filter(|from| *from != VICTIM).for_each(|from| _ = world.recv(from, READY).unwrap());
        let begun = Instant::now();
        // One call has announced its data to a receiver, the other waits for a message.
        let (mut sums, mut copy) = (vec![1_u64; 100_000], [0; 3]);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            world.scope(|scope| -> Result<(), Error> {
                std::mem::forget(scope.iall_reduce(&mut sums, Op::Sum));
                std::mem::forget(scope.ibroadcast(0, &mut copy));
                panic!("intended panic in a scope");
            })
        }));
        assert!(panicked.is_err() && begun.elapsed() < ranks::within(IN_TIME), "it took {:?}", begun.elapsed());
        (0..world.size()).filter(|to| *to != VICTIM).for_each(|to| world.send(to, READY, &[1]).unwrap());
    });
}
