//! A dissemination barrier: in round k every rank tells the one 2^k further on and waits for the one 2^k before.

use crate::{At, Awaited, Error, Network, Rank, Wake};

/// Rounds lie on lines of their own, so that one crossing of one cache line is one hand-over.
const LINE: usize = 8;

/// One rank's handle on a barrier of all ranks: ceil(log2 ranks) notifications and as many local waits each time.
///
/// A rank whose call fails gives the barrier up, for good, and tells those that would wait for it: they fail too.
///
/// Hensgen, Finkel and Manber, "Two Algorithms for Barrier Synchronization", 1988. A round's word counts the
/// barriers passed, so that a rank which runs ahead into the next one cannot be mistaken: it can be one ahead at most.
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
    /// Words at each rank: 8 for each round, so that each has a cache line.
    pub const fn words(ranks: usize) -> usize {
        LINE * rounds(ranks) as usize
    }

    /// A handle on the barrier of `ranks` ranks whose words begin at `base` and are 0 at the start.
    pub const fn new(ranks: usize, base: usize) -> Self {
        Barrier { base, ranks, passed: 0, given_up: false }
    }

    /// Returns when every rank has called it as often as this one.
    ///
    /// # Errors
    /// [`Error::Network`] if the network fails or a rank that this one waits for died or left, [`Error::GivenUp`] if
    /// that happened to another: the barrier cannot be passed any more, now or later.
    #[inline]
    pub fn wait<N: Network>(&mut self, network: &N) -> Result<(), Error<N::Error>> {
        if self.given_up {
            return Err(Error::GivenUp { rank: network.rank() });
        }
        self.passed += 1;
        for round in 0..rounds(self.ranks) {
            if let Err((told, error)) = self.round(network, round) {
                self.give_up(network, round, told);
                return Err(error);
            }
        }
        Ok(())
    }

    /// One round; with an error, whether the rank after was told of this barrier.
    #[inline]
    fn round<N: Network>(&self, network: &N, round: u32) -> Result<(), (bool, Error<N::Error>)> {
        let before = (network.rank() + self.ranks - (1 << round)) % self.ranks;
        let after = self.after(network.rank(), round);
        network.notify(after, self.passed, Wake::Home).map_err(|error| (false, error.into()))?;
        // A rank that gave up later passed this one: its count is still there.
        let enough = |word: u64| word & !GIVEN_UP >= self.passed;
        let word = network.wait(after.word, Awaited::Rank(before), |word| enough(word) || word & GIVEN_UP != 0);
        match word {
            Ok(word) if enough(word) => Ok(()),
            Ok(_) => Err((true, Error::GivenUp { rank: before })),
            Err(error) => Err((true, error.into())),
        }
    }

    /// Tells those that would wait for this rank, now or later, and leaves what they were told before.
    #[cold]
    fn give_up<N: Network>(&mut self, network: &N, failed: u32, told: bool) {
        self.given_up = true;
        for round in failed..rounds(self.ranks) {
            let passed = if round == failed && told { self.passed } else { self.passed - 1 };
            // One that cannot be told has failed by itself.
            let _ = network.notify(self.after(network.rank(), round), GIVEN_UP | passed, Wake::Home);
        }
        for round in 0..failed {
            let _ = network.notify(self.after(network.rank(), round), GIVEN_UP | self.passed, Wake::Home);
        }
    }

    /// The word of a round at the rank that this one tells.
    #[inline]
    fn after(&self, rank: Rank, round: u32) -> At {
        At { rank: (rank + (1 << round)) % self.ranks, word: self.base + LINE * round as usize }
    }
}

/// The bit of a word whose rank has given up: no count of barriers reaches it.
const GIVEN_UP: u64 = 1 << 63;

const fn rounds(ranks: usize) -> u32 {
    match ranks {
        0 | 1 => 0,
        _ => (ranks - 1).ilog2() + 1,
    }
}
