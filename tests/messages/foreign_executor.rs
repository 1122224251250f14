//! Requests and probes as futures of an executor that does not know this library.

use crate::ranks;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use transom::World;
use transom::messages::{Source, Tag};

const TOKEN: Tag<u64> = Tag::new(1);

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future as a minimal executor does, and counts its polls.
fn run<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut polls = 0;
    loop {
        polls += 1;
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        std::thread::park();
    }
}

/// Passes a token round all ranks. Its value after the last round.
async fn pass(world: &World, rounds: usize, probes: bool) -> Result<u64, transom::Error> {
    let (rank, size) = (world.rank(), world.size());
    let mut token = vec![0];
    for round in 0..rounds {
        if rank > 0 || round > 0 {
            token = match probes {
                true => world.probe_async(Source::Any, TOKEN).await?.irecv().await?,
                false => world.irecv(Source::Any, TOKEN).await?,
            };
        }
        token = world.isend((rank + 1) % size, TOKEN, vec![token[0] + 1]).await?;
    }
    if rank == 0 {
        token = world.irecv(Source::Any, TOKEN).await?;
    }
    Ok(token[0])
}

/// Ranks share cores: a rank that polls without success must let the others run. Otherwise it polls some 10,000 times
/// in a round.
#[test]
fn foreign_executor_yields_a_shared_core() {
    ranks::on(&[8], "foreign_executor_yields_a_shared_core", |world| {
        let rounds = ranks::rounds(100);
        for probes in [false, true] {
            world.barrier().unwrap();
            let (token, polls) = run(pass(&world, rounds, probes));
            assert_eq!(
                token.unwrap(),
                ((rounds - 1) * 8 + world.rank() + 1 + if world.rank() == 0 { 7 } else { 0 }) as u64
            );
            assert!(polls < 100 * rounds, "{polls} polls for {rounds} rounds");
        }
    });
}

/// A future is polled when it is made and when it was woken.
#[test]
fn progress_thread_wakes_a_foreign_executor() {
    ranks::on(&[2, 4], "progress_thread_wakes_a_foreign_executor", |world| {
        world.start_progress_thread().unwrap();
        world.start_progress_thread().unwrap();
        let rounds = ranks::rounds(100);
        world.barrier().unwrap();
        let (token, polls) = run(pass(&world, rounds, false));
        token.unwrap();
        // Each round awaits a receive and a send, each of which is polled twice at most.
        assert!(polls <= 4 * rounds + 4, "{polls} polls for {rounds} rounds");
    });
}
