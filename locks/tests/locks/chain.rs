//! A holder walks the chain of readers that wait behind it while one that it has granted already comes back, registers
//! behind the next writer, and so overwrites its link. Every state from there on.

use transom_locks::Mode::{self, Exclusive, Shared};
use transom_locks::model::{Call, Delivery, Handles, Program, Replay, Sim, SimState, Suspended};
use transom_locks::{At, Awaited, Error, LockLayout, Network, Rank, Wake};

/// Rank 0 holds the lock. Four readers register behind it in this order, then a writer queues. Rank 0 then releases.
const READERS: [Rank; 4] = [1, 2, 3, 4];
const WRITER: Rank = 5;
const RANKS: usize = 6;

/// The word that rank 0 writes at each rank when it may make its request.
const FLAG: usize = LockLayout::words(RANKS);

/// `next` and `waiters` of rank 0, at the lock of rank 0.
const NEXT: usize = 8;
const WAITERS: usize = 8 + 3;

/// The reader `returns` makes a second request.
struct Chain {
    returns: Rank,
}

impl Chain {
    fn mode(rank: Rank) -> Mode {
        if READERS.contains(&rank) { Shared } else { Exclusive }
    }
}

impl Program for Chain {
    type Local = Handles<16>;

    fn start(&self, _: Rank) -> Self::Local {
        Handles::new(RANKS, 0)
    }

    fn phases(&self, rank: Rank) -> usize {
        if rank == self.returns { 5 } else { 3 }
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        handles: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        if let Some(call) = self.call(rank, phase) {
            return call.run(handles, network);
        }
        if rank > 0 {
            return Ok(network.wait(FLAG, Awaited::Rank(0), |flag| flag == 1).map(drop)?);
        }
        for reader in READERS {
            network.notify(At { rank: reader, word: FLAG }, 1, Wake::Home)?;
            network.wait(WAITERS, Awaited::Anyone, |waiters| waiters >> 48 == reader as u64)?;
        }
        network.notify(At { rank: WRITER, word: FLAG }, 1, Wake::Home)?;
        Ok(network.wait(NEXT, Awaited::Rank(WRITER), |next| next != 0).map(drop)?)
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, RANKS))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        match (rank, phase) {
            (0, 0) | (1.., 1 | 3) => Some(Call::Acquire(0, Chain::mode(rank))),
            (0, 2) | (1.., 2 | 4) => Some(Call::Release(0)),
            _ => None,
        }
    }

    fn check(&self, state: &SimState<Self::Local>) -> Result<(), String> {
        let held = state.is_done() && (0..RANKS).any(|rank| state.local(rank).locks()[0].is_held());
        if held { Err("at the end a lock is held".into()) } else { Ok(()) }
    }
}

#[test]
fn granted_reader_that_returns_breaks_no_chain() {
    for delivery in [Delivery::Immediate, Delivery::Watched, Delivery::Torn] {
        for returns in READERS {
            let net = Sim::new(RANKS, FLAG + 1, Chain { returns }).with_delivery(delivery);
            let states = net.explore(1_000_000).unwrap_or_else(|stopped| panic!("{returns}, {delivery:?}: {stopped}"));
            println!("reader {returns} returns, {delivery:?}: {states} states");
        }
    }
}
