//! A rank dies while another one keeps sending: every call that waits reports the death, also calls that always find a
//! message.

#![allow(clippy::unit_arg, reason = "a call is one expression")]

use crate::ranks;
use ranks::{IN_TIME, VICTIM, die};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use transom::messages::{Requests, Source, Tag};
use transom::{Error, Op, Status, Window, World};

const STREAM: Tag<u64> = Tag::new(1);
const NEVER: Tag<u64> = Tag::new(2);
const HOUR: Duration = Duration::from_secs(3600);
const LIVES_FOR: Duration = Duration::from_millis(300);
const CASE: &str = "TEST_CASE";
const STREAMER: usize = 2;

type Case = (&'static str, fn(&World) -> Result<(), Error>);

/// Drops the value of a call.
fn ended<T, E: Into<Error>>(result: Result<T, E>) -> Result<(), Error> {
    result.map(drop).map_err(Into::into)
}

/// Calls that take messages from any source. Each is repeated until it fails.
const FROM_ANY: &[Case] = &[
    ("recv", |world| ended(world.recv(Source::Any, STREAM))),
    ("recv_into", |world| ended(world.recv_into(Source::Any, STREAM, &mut [0; 4]))),
    ("irecv wait", |world| ended(world.irecv(Source::Any, STREAM).wait())),
    ("irecv wait_for", |world| match world.irecv(Source::Any, STREAM).wait_for(HOUR) {
        Ok(done) => ended(done),
        Err(_) => panic!("request did not end within an hour"),
    }),
    ("irecv test", |world| {
        let mut request = world.irecv(Source::Any, STREAM);
        while !request.test() {}
        ended(request.wait())
    }),
    ("irecv await", |world| {
        let done = world.block_on(async { world.irecv(Source::Any, STREAM).await })?;
        ended(done)
    }),
    ("wait_any", |world| {
        let mut requests: Requests<_> = (0..3).map(|_| world.irecv(Source::Any, STREAM)).collect();
        while let Some((_, ended)) = requests.wait_any() {
            ended.map_err(|failed| failed.error)?;
        }
        Ok(())
    }),
    ("wait_any beside requests that end", |world| {
        let mut requests: Requests<_> = (0..3).map(|_| world.irecv(STREAMER, STREAM)).collect();
        requests.push(world.irecv(VICTIM, NEVER));
        while let Some((_, done)) = requests.wait_any() {
            ended(done)?;
            requests.push(world.irecv(STREAMER, STREAM));
        }
        Ok(())
    }),
    ("probe", |world| ended(world.probe(Source::Any, STREAM)?.recv())),
    ("probe_for", |world| {
        ended(world.probe_for(Source::Any, STREAM, HOUR)?.expect("a message should arrive within an hour").recv())
    }),
    ("try_probe", |world| ended(world.try_probe(Source::Any, STREAM)?.map(|message| message.recv()).transpose())),
    ("peek", |world| match world.peek(Source::Any, STREAM)? {
        Some(status) => ended(world.recv(status.from, STREAM)),
        None => Ok(()),
    }),
    ("probe_async", |world| ended(world.block_on(async { world.probe_async(Source::Any, STREAM).await })??.recv())),
    ("scope", |world| {
        let mut into = [0];
        world.scope(|scope| {
            let request = scope.irecv(Source::Any, STREAM, &mut into);
            ended(request.wait())
        })
    }),
    ("end of a scope", |world| {
        let mut into = [0];
        world.scope(|scope| Ok(drop(scope.irecv(Source::Any, STREAM, &mut into))))
    }),
    ("sendrecv", |world| ended(world.sendrecv(None, STREAM, &[1], Source::Any, STREAM, &mut [0; 4]))),
    ("persistent", |world| {
        let mut receive = world.recv_init(Source::Any, STREAM, vec![0; 4])?;
        ended(receive.start()?.wait())
    }),
];

/// Calls that need the victim, while another thread of the rank receives what the living rank sends.
const OF_THE_VICTIM: &[Case] = &[
    ("recv", |world| ended(world.recv(VICTIM, NEVER))),
    ("irecv wait", |world| ended(world.irecv(VICTIM, NEVER).wait())),
    ("irecv test", |world| {
        let mut request = world.irecv(VICTIM, NEVER);
        while !request.test() {}
        ended(request.wait())
    }),
    ("wait_any", |world| {
        let mut requests = Requests::new();
        requests.push(world.irecv(VICTIM, NEVER));
        requests.push(world.irecv(STREAMER, NEVER));
        while let Some((_, ended)) = requests.wait_any() {
            ended.map_err(|failed| failed.error)?;
        }
        Ok(())
    }),
    ("probe", |world| ended(world.probe(VICTIM, NEVER)?.recv())),
    ("try_probe", |world| ended(world.try_probe(VICTIM, NEVER))),
    ("probe_async", |world| ended(world.block_on(async { world.probe_async(VICTIM, NEVER).await })?)),
    ("ssend", |world| Ok(world.ssend(VICTIM, NEVER, &[1])?)),
    ("isend", |world| ended(world.isend(VICTIM, NEVER, vec![1; 1_000_000]).wait())),
    ("sendrecv", |world| ended(world.sendrecv(VICTIM, NEVER, &[1], VICTIM, NEVER, &mut [0]))),
    ("scope", |world| {
        let mut into = [0];
        world.scope(|scope| Ok(drop(scope.irecv(VICTIM, NEVER, &mut into))))
    }),
    ("persistent", |world| {
        let mut receive = world.recv_init(VICTIM, NEVER, vec![0; 4])?;
        ended(receive.start()?.wait())
    }),
    ("partitioned", |world| {
        let mut parts = world.precv_init(VICTIM, NEVER, vec![0_u64; 4], 2)?;
        ended(parts.start()?.wait())
    }),
    ("pipe", |world| ended(world.pipe(VICTIM)?.get(&mut [vec![0; 8]]))),
    ("barrier", |world| Ok(world.barrier()?)),
    ("ibarrier wait", |world| Ok(world.ibarrier().wait()?)),
    ("ibarrier test", |world| {
        let mut request = world.ibarrier();
        while !request.test() {}
        ended(request.wait())
    }),
    ("all_reduce", |world| Ok(world.all_reduce(&mut [1_u64], Op::Sum)?)),
    ("fence", |world| ended(with_window(world).fence())),
    ("lock", |world| with_window(world).lock_exclusive(STREAMER)?.unlock()),
    ("try_lock_for", |world| {
        let window = &mut with_window(world);
        loop {
            if let Some(epoch) = window.try_lock_for(STREAMER, transom::Mode::Exclusive, Duration::from_millis(3))? {
                return epoch.unlock();
            }
        }
    }),
    ("wait_until", |world| {
        let mut window = with_window(world);
        let epoch = window.lock_all()?;
        epoch.signals().wait_until(0, |value| value > 0)?;
        epoch.unlock()
    }),
    ("wait_until_for", |world| {
        let mut window = with_window(world);
        let epoch = window.lock_all()?;
        while epoch.signals().wait_until_for(0, Duration::from_millis(3), |value| value > 0)?.is_none() {}
        epoch.unlock()
    }),
    ("post and wait", |world| {
        let mut window = with_window(world);
        window.post(&[VICTIM])?;
        window.wait()
    }),
    ("post and test", |world| {
        let mut window = with_window(world);
        window.post(&[VICTIM])?;
        while !window.test()? {}
        Ok(())
    }),
    ("start", |world| with_window(world).start(&[VICTIM])?.complete()),
];

/// Made by all ranks. The victim holds its lock at the streamer.
fn with_window(world: &World) -> Window<u64> {
    let mut window = world.allocate_with_signals(1, 1).unwrap();
    if world.rank() == VICTIM {
        std::mem::forget(window.lock_exclusive(STREAMER).unwrap());
    }
    world.barrier().unwrap();
    window
}

fn body(world: &World, cases: &[Case], receives: bool) {
    let asked = std::env::var(CASE).unwrap();
    let (name, call) = *cases.iter().find(|(name, _)| *name == asked).unwrap();
    let makes_window = ["fence", "lock", "try_lock_for", "wait_until", "wait_until_for", "post", "start"];
    let makes_window = receives && makes_window.iter().any(|made| name.starts_with(made));
    match world.rank() {
        0 => {}
        VICTIM => {
            std::thread::spawn(|| {
                std::thread::sleep(LIVES_FOR);
                die();
            });
            let _window = makes_window.then(|| with_window(world));
            while world.send(0, STREAM, &[1]).is_ok() {}
            unreachable!("rank 0 should outlive this rank");
        }
        _ => {
            let _window = makes_window.then(|| with_window(world));
            // Until rank 0 has left.
            while world.send(0, STREAM, &[1]).is_ok() {}
            return;
        }
    }
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    std::thread::scope(|threads| {
        if receives {
            threads.spawn(|| {
                while !over.load(Relaxed) {
                    // The other rank learns of the death as well.
                    let _ = world.recv(Source::Any, STREAM);
                }
            });
        }
        let error = loop {
            if let Err(error) = call(world) {
                break error;
            }
            assert!(begun.elapsed() < ranks::within(10 * IN_TIME), "{name} reported no death");
        };
        over.store(true, Relaxed);
        assert_eq!(error.lost_rank(), Some(VICTIM), "{name}: {error}");
        let told = begun.elapsed();
        assert!(told < ranks::within(LIVES_FOR + 4 * IN_TIME), "{name} reported the death after {told:?}");
    });
}

fn each(test: &str, cases: &[Case], variables: &[(&str, &str)], receives: bool) {
    for (name, _) in ranks::each(cases) {
        let variables = [variables, &[(CASE, name)]].concat();
        let outcome = ranks::outcome_with(&variables, 3, test, |world| body(&world, cases, receives));
        let Some(outcome) = outcome else { return };
        ranks::only_failed(&outcome, VICTIM, Status::Killed(9));
    }
}

#[test]
fn calls_from_any_source_report_a_death() {
    each("calls_from_any_source_report_a_death", FROM_ANY, &[], false);
}

#[test]
fn calls_that_need_the_victim_report_its_death() {
    each("calls_that_need_the_victim_report_its_death", OF_THE_VICTIM, &[], true);
}

/// Without rings every message uses the inbox.
#[test]
fn calls_beside_a_full_inbox_report_a_death() {
    let variables = [("TRANSOM_MESSAGES", "rings=0")];
    each("calls_beside_a_full_inbox_report_a_death", FROM_ANY, &variables, false);
}
