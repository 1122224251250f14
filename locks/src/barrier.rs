//! A dissemination barrier: in round k each rank notifies the rank 2^k after it and waits for the rank 2^k before it.

use crate::{At, Awaited, Error, Network, Rank, Wake};

/// Words per round: a cache line, so that each hand-over moves exactly one line.
const LINE: usize = 8;

/// One rank's handle on a barrier of all ranks: ceil(log2 ranks) notifications and as many local waits per barrier.
///
/// A rank whose call fails abandons the barrier for good, and notifies the ranks that would wait for it: their calls
/// fail too.
///
/// Hensgen, Finkel and Manber, "Two Algorithms for Barrier Synchronization", 1988. A round's word counts the barriers
/// passed, so that a rank that runs ahead into the next barrier is not mistaken; it can be at most one ahead.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::Barrier;
///
/// let net = Sim::new(5, Barrier::words(5), sim::once(|_, network| {
///     let mut barrier = Barrier::new(network.ranks(), 0);
///     barrier.wait(network)?;
///     barrier.wait(network)
/// }));
/// net.run_random(3).unwrap();
/// # use transom_locks::Network;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    base: usize,
    ranks: usize,
    passed: u64,
    given_up: bool,
}

impl Barrier {
    /// Words at each rank: 8 per round, one cache line.
    pub const fn words(ranks: usize) -> usize {
        LINE * rounds(ranks) as usize
    }

    /// Creates a handle on the barrier of `ranks` ranks whose words begin at `base` and are initially 0.
    pub const fn new(ranks: usize, base: usize) -> Self {
        Barrier { base, ranks, passed: 0, given_up: false }
    }

    /// Returns once every rank has called it as often as this one.
    ///
    /// # Errors
    /// [`Error::Network`] if the network fails, or if a rank that this one waits for has died or left.
    /// [`Error::GivenUp`] if another rank's call failed. After either error the barrier can never be passed again.
    #[inline]
    pub fn wait<N: Network>(&mut self, network: &N) -> Result<(), Error<N::Error>> {
        if self.given_up {
            return Err(Error::GivenUp { rank: network.rank() });
        }
        self.passed += 1;
        for round in (0..).take_while(|&round| 1 << round < self.ranks) {
            if let Err((told, error)) = self.round(network, round) {
                self.give_up(network, round, told);
                return Err(error);
            }
        }
        Ok(())
    }

    /// One round. An error carries whether the rank after this one was notified of this barrier.
    #[inline]
    fn round<N: Network>(&self, network: &N, round: u32) -> Result<(), (bool, Error<N::Error>)> {
        let before = (network.rank() + self.ranks - (1 << round)) % self.ranks;
        let after = self.after(network.rank(), round);
        network.notify(after, self.passed, Wake::Home).map_err(|error| (false, error.into()))?;
        // A rank that gave up after this barrier has passed it: its count is kept beside the flag.
        let enough = |word: u64| word & !GIVEN_UP >= self.passed;
        let word = network.wait(after.word, Awaited::Rank(before), |word| enough(word) || word & GIVEN_UP != 0);
        match word {
            Ok(word) if enough(word) => Ok(()),
            Ok(_) => Err((true, Error::GivenUp { rank: before })),
            Err(error) => Err((true, error.into())),
        }
    }

    /// Notifies the ranks that wait for this one, now or later, without lowering the counts they were sent before.
    #[cold]
    fn give_up<N: Network>(&mut self, network: &N, failed: u32, told: bool) {
        self.given_up = true;
        for round in failed..rounds(self.ranks) {
            let passed = if round == failed && told { self.passed } else { self.passed - 1 };
            // A rank that cannot be notified has failed by itself.
            let _ = network.notify(self.after(network.rank(), round), GIVEN_UP | passed, Wake::Home);
        }
        for round in 0..failed {
            let _ = network.notify(self.after(network.rank(), round), GIVEN_UP | self.passed, Wake::Home);
        }
    }

    /// The word of a round at the rank that `rank` notifies.
    #[inline]
    fn after(&self, rank: Rank, round: u32) -> At {
        At { rank: (rank + (1 << round)) % self.ranks, word: self.base + LINE * round as usize }
    }
}

/// Flag in a round's word: its writer has given up. No count of barriers reaches it.
const GIVEN_UP: u64 = 1 << 63;

const fn rounds(ranks: usize) -> u32 {
    match ranks {
        0 | 1 => 0,
        _ => (ranks - 1).ilog2() + 1,
    }
}
