//! A dissemination barrier: in round k every rank tells the one 2^k further on and waits for the one 2^k before.

use crate::{At, Awaited, Error, Rank, Words};

/// Rounds lie on lines of their own, so that one crossing of one cache line is one hand-over.
const LINE: usize = 8;

/// One rank's handle on a barrier of all ranks: ceil(log2 ranks) posts and as many local waits each time.
///
/// Hensgen, Finkel and Manber, "Two Algorithms for Barrier Synchronization", 1988. A round's word counts the
/// barriers passed, so that a rank which runs ahead into the next one cannot be mistaken: it can be one ahead at most.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::Barrier;
///
/// let net = Sim::new(5, Barrier::words(5), sim::once(|_, words| {
///     let mut barrier = Barrier::new(words.ranks(), 0);
///     barrier.wait(words)?;
///     barrier.wait(words)
/// }));
/// net.run_random(3).unwrap();
/// # use transom_locks::Words;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    base: usize,
    ranks: usize,
    passed: u64,
}

impl Barrier {
    /// Words at each rank: 8 for each round, so that each has a cache line.
    pub const fn words(ranks: usize) -> usize {
        LINE * rounds(ranks) as usize
    }

    /// A handle on the barrier of `ranks` ranks whose words begin at `base` and are 0 at the start.
    pub const fn new(ranks: usize, base: usize) -> Self {
        Barrier { base, ranks, passed: 0 }
    }

    /// Returns when every rank has called it as often as this one.
    ///
    /// # Errors
    /// [`Error::Words`] if the network fails or a rank died or left: the barrier cannot be passed any more.
    #[inline]
    pub fn wait<W: Words>(&mut self, words: &W) -> Result<(), Error<W::Error>> {
        self.passed += 1;
        for round in 0..rounds(self.ranks) {
            let step = 1 << round;
            let word = self.base + LINE * round as usize;
            let before: Rank = (words.rank() + self.ranks - step) % self.ranks;
            words.post(At { rank: (words.rank() + step) % self.ranks, word }, self.passed)?;
            words.wait(word, Awaited::Rank(before), |passed| passed >= self.passed)?;
        }
        Ok(())
    }
}

const fn rounds(ranks: usize) -> u32 {
    match ranks {
        0 | 1 => 0,
        _ => (ranks - 1).ilog2() + 1,
    }
}
