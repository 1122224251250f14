//! A barrier that a rank abandons, under every schedule: a barrier that all ranks had reached is passed by all, and no
//! rank waits for ever.

use std::cell::Cell;
use transom_locks::model::{Delivery, Replay, Sim, Suspended, sim};
use transom_locks::{At, Awaited, Barrier, Error, Network, Rank, Wake};

/// A network that fails after `waits` waits.
struct Failing<'a> {
    network: &'a Replay,
    waits: Cell<u32>,
}

#[derive(Debug)]
enum Failure {
    Suspended(Suspended),
    Lost,
}

impl Network for Failing<'_> {
    type Error = Failure;
    type Pending = <Replay as Network>::Pending;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn ranks(&self) -> usize {
        self.network.ranks()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Failure> {
        self.network.cas(at, expected, new, wake).map_err(Failure::Suspended)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Failure> {
        self.network.start_add(at, delta, wake).map_err(Failure::Suspended)
    }

    fn finish(&self, pending: Self::Pending) -> Result<u64, Failure> {
        self.network.finish(pending).map_err(Failure::Suspended)
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Failure> {
        self.network.notify(at, value, wake).map_err(Failure::Suspended)
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Failure> {
        match self.waits.get().checked_sub(1) {
            Some(left) => {
                let value = self.network.wait(word, on, until).map_err(Failure::Suspended)?;
                self.waits.set(left);
                Ok(value)
            }
            None => Err(Failure::Lost),
        }
    }
}

/// Rank 0 passes one barrier and fails in the second after `waits` waits. All others must pass the first, and return.
fn one_gives_up(ranks: usize, waits: u32, delivery: Delivery) -> usize {
    let rounds = Barrier::words(ranks) as u32 / 8;
    let body = move |rank: Rank, network: &Replay| -> Result<(), Error<Suspended>> {
        let waits = Cell::new(if rank == 0 { rounds + waits } else { u32::MAX });
        let failing = Failing { network, waits };
        let mut barrier = Barrier::new(ranks, 0);
        for nth in 1..=2 {
            match barrier.wait(&failing) {
                Err(Error::Network(Failure::Suspended(suspended))) => return Err(suspended.into()),
                Err(_) if nth == 1 => return Err(Error::Epoch("a barrier that all had come to was not passed")),
                // A rank that knows all have arrived may pass.
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    };
    let net = Sim::new(ranks, Barrier::words(ranks), sim::once(body)).with_delivery(delivery);
    net.explore(5_000_000).unwrap_or_else(|failure| panic!("{ranks} ranks, {waits} waits, {delivery:?}: {failure}"))
}

#[test]
fn abandoned_barrier_fails_all_and_undoes_none() {
    for (ranks, rounds) in [(2, 1), (3, 2), (4, 2)] {
        for waits in 0..rounds {
            let immediate = one_gives_up(ranks, waits, Delivery::Immediate);
            println!("{ranks} ranks, given up after {waits} waits: {immediate} states");
            if ranks < 4 {
                one_gives_up(ranks, waits, Delivery::Deferred);
            }
        }
    }
}
