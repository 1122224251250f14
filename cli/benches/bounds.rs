//! Calls whose cost must not grow beside many requests, teams, collectives or waiting ranks, each held to a bound:
//! `cargo bench --bench bounds`. Times are those of a rank's thread on its core, so that other programs disturb less.

mod on_core;

use on_core::on_core;
use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;
use transom::messages::{Requests, Tag};
use transom::{Error, Launch, Op, World};

const ONE: Tag<u64> = Tag::new(1);
/// No message has this tag.
const NEVER: Tag<u64> = Tag::new(2);

/// A name, its unit, its bound, and the measurement by rank 0 of two.
type Row = (&'static str, &'static str, f64, fn(&World) -> Result<f64, Error>);

const ROWS: [Row; 5] = [
    ("wait_any of 30,000 receives, one ended", "ns", 1_000.0, wait_any),
    ("test of a receive beside 2,000 teams", "ns", 100.0, test_beside_teams),
    ("start of a collective beside 6,000", "ns", 10_000.0, start_beside_collectives),
    ("foreign executor, beside block_on", "times", 1.5, foreign_executor),
    ("lock at a rank asleep in the same window, beside another", "times", 2.0, lock_at_a_sleeper),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if std::env::args().any(|arg| arg == "rank") {
        return Ok(rank(&transom::init()?)?);
    }
    let outcome = Launch::new(std::env::current_exe()?, 2).args(["rank"]).deadline(Duration::from_secs(600)).run()?;
    match outcome.success() {
        true => Ok(()),
        false => Err(outcome.to_string().into()),
    }
}

fn rank(world: &World) -> Result<(), Error> {
    let mut beyond = Vec::new();
    for (name, unit, most, measure) in ROWS {
        world.barrier()?;
        let found = measure(world)?;
        if world.rank() == 0 {
            println!("{name:<58} {found:>9.2} {unit:<5} at most {most}");
            beyond.extend((found > most).then_some(name));
        }
    }
    world.barrier()?;
    match beyond.is_empty() {
        true => Ok(()),
        false => Err(Error::other(std::io::Error::other(format!("beyond their bounds: {beyond:?}")))),
    }
}

/// Nanoseconds per call in a row of `calls`: the shortest of three rows. Some kernels update a thread's CPU time only
/// at each tick of 4 ms, so a row takes ten times as long as a tick.
fn shortest(calls: usize, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let begun = on_core();
        (0..calls).try_for_each(|_| call())?;
        best = best.min((on_core() - begun) / calls as f64);
    }
    Ok(best)
}

/// A message to the rank itself, its receive, which is added to the set, and the wait.
fn wait_any(world: &World) -> Result<f64, Error> {
    let me = world.rank();
    let ended = |set: &mut Requests<'_, Vec<u64>>| {
        world.send(me, ONE, &[7])?;
        set.push(world.irecv(me, ONE));
        let (_, got) = set.wait_any().expect("a request has ended");
        black_box(got?);
        Ok(())
    };
    let mut set: Requests<'_, Vec<u64>> = (0..30_000).map(|_| world.irecv(1 - me, NEVER)).collect();
    // Each request is polled once.
    assert!(set.test_any().is_none());
    shortest(100_000, || ended(&mut set))
}

fn test_beside_teams(world: &World) -> Result<f64, Error> {
    let teams = (0..2_000).map(|_| Ok(world.split(Some(0), 0)?.expect("a team of all")));
    let teams = teams.collect::<Result<Vec<World>, Error>>()?;
    teams.iter().try_for_each(|team| team.barrier())?;
    let mut coming = world.irecv(1 - world.rank(), NEVER);
    let test = shortest(1_000_000, || {
        black_box(coming.test());
        Ok(())
    })?;
    world.barrier()?;
    Ok(test)
}

fn start_beside_collectives(world: &World) -> Result<f64, Error> {
    const UNDER_WAY: usize = 6_000;
    let start = || world.iall_reduce(vec![1_u64], Op::Sum);
    let mut started = Vec::new();
    let mut found = 0.0;
    if world.rank() == 0 {
        started.extend((0..UNDER_WAY).map(|_| start()));
        found = shortest(3_000, || {
            started.push(start());
            Ok(())
        })?;
        world.send(1, ONE, &[started.len() as u64])?;
    } else {
        let many = world.recv(0, ONE)?.0[0];
        started.extend((0..many).map(|_| start()));
    }
    started.into_iter().try_for_each(|started| started.wait().map(drop).map_err(Error::from))?;
    Ok(found)
}

/// An executor of one task that sleeps until it is woken.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn run<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Round trips of futures.
fn foreign_executor(world: &World) -> Result<f64, Error> {
    let other = 1 - world.rank();
    let round_trip = || async move {
        let coming = world.irecv(other, ONE);
        if world.rank() == 0 {
            drop(world.isend(other, ONE, vec![1]));
            coming.await?;
        } else {
            coming.await?;
            drop(world.isend(other, ONE, vec![1]));
        }
        Ok::<(), Error>(())
    };
    let mut best = [f64::MAX; 2];
    for _ in 0..10 {
        world.barrier()?;
        best[0] = best[0].min(elapsed(300, || world.block_on(round_trip())?)?);
        world.barrier()?;
        best[1] = best[1].min(elapsed(300, || run(round_trip()))?);
    }
    Ok(best[1] / best[0])
}

fn elapsed(calls: usize, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let begun = std::time::Instant::now();
    (0..calls).try_for_each(|_| call())?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Rank 1 sleeps until a signal comes, of the window in which rank 0 locks and puts, or of another.
fn lock_at_a_sleeper(world: &World) -> Result<f64, Error> {
    let [mut same, mut other] = [world.allocate_with_signals::<u64>(8, 1)?, world.allocate_with_signals::<u64>(8, 1)?];
    let mut best = [f64::MAX; 2];
    for round in 1..=3 {
        for (which, best) in best.iter_mut().enumerate() {
            world.barrier()?;
            if world.rank() == 0 {
                std::thread::sleep(Duration::from_millis(20));
                let locks = shortest(500_000, || {
                    let epoch = same.lock_exclusive(1)?;
                    epoch.put(0, &[1])?;
                    epoch.unlock()
                })?;
                *best = best.min(locks);
                let waited = if which == 0 { &mut same } else { &mut other };
                let epoch = waited.lock_shared(1)?;
                epoch.signal(0, 1)?;
                epoch.unlock()?;
            } else {
                let waited = if which == 0 { &mut same } else { &mut other };
                waited.signals().wait_until(0, |signals| signals >= round)?;
            }
        }
    }
    Ok(best[0] / best[1])
}
