//! Failures of a board's calls, and how its ranks report them to each other.

use super::block::Block;
use super::lines::Lines;
use super::shared_lines::{SharedLines, Word};
use crate::event_count;
use crate::memory::View;
use std::sync::atomic::Ordering::*;
use transom_collective::Order;
use transom_locks::Rank;
use transom_windows::FabricError;

/// A failure of a call of a [`ShmCollective`](super::ShmCollective). It breaks the board: every rank fails, in this
/// call or in its next.
///
/// # Examples
/// ```
/// let failure = transom_shm_loopback::collective::Failure::Panicked { rank: 2 };
/// assert_eq!(failure.to_string(), "the operation of this collective call panicked at rank 2");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A rank died or left ([`FabricError::lost_rank`]), or aborted because its own call failed.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// A rank made a different call, or made its calls in another order.
    #[error("rank {rank} made a different collective call than this rank (signature {theirs:#x})")]
    Mismatch {
        /// Rank that made a different call. If several did, one of them.
        rank: Rank,
        /// Signature of its current call or, among the last few, of the first that differed. This rank's own signature
        /// if the difference is older.
        theirs: u64,
    },
    /// The caller's fold panicked.
    #[error("the operation of this collective call panicked at rank {rank}")]
    Panicked {
        /// Rank whose fold panicked.
        rank: Rank,
    },
}

/// Breaks a board from another thread than the one that waits in its calls.
#[derive(Clone)]
pub struct Breaker {
    view: View,
    block: Block,
    me: Rank,
}

impl Breaker {
    /// Breaks the board. Calls of all ranks, including this one, fail with [`FabricError::GivenUp`].
    pub fn give_up(&self) {
        let word = |offset| self.view.word(offset).expect("the block has all words of its layout");
        let _ = word(self.block.verdict(self.me) + KIND).compare_exchange(0, GIVEN_UP, Relaxed, Relaxed);
        let _ = word(self.block.broken()).compare_exchange(0, self.me as u64 + 1, SeqCst, SeqCst);
        event_count::notify(&self.view.header().event);
    }
}

/// Words of a rank's verdict: its kind, and the rank it is about. For different calls also that rank's signature, its
/// own, and the round.
const KIND: usize = 0;
const ABOUT: usize = 8;
const THEIRS: usize = 16;
const MINE: usize = 24;
const ROUND: usize = 32;
/// Nonzero once the rank has closed the board.
const CLOSED: usize = 40;

const MISMATCH: u64 = 1;
const PANICKED: u64 = 2;
const GIVEN_UP: u64 = 3;
const DIED: u64 = 4;
const LEFT: u64 = 5;

const AT_WILL: u64 = 1;
const IN_PANIC: u64 = 2;

/// Signatures of two ranks' calls that differ, and the first round in which they do.
#[derive(Clone, Copy, Default)]
pub(super) struct Differ {
    pub theirs: u64,
    pub mine: u64,
    pub round: u64,
}

impl Lines {
    pub(super) fn breaker(&self) -> Breaker {
        Breaker { view: self.shared.view.clone(), block: self.block, me: self.me }
    }
}

impl<S: SharedLines> Lines<S> {
    fn verdict(&self, rank: Rank, word: usize) -> usize {
        self.block.verdict(rank) + word
    }

    /// Breaks the board, unless another rank has broken it before.
    #[cold]
    fn break_board(&self, kind: u64, about: Rank, differ: Differ) {
        if self.shared.word(self.verdict(self.me, KIND)).load(Relaxed) == 0 {
            let Differ { theirs, mine, round } = differ;
            for (word, value) in [(ABOUT, about as u64), (THEIRS, theirs), (MINE, mine), (ROUND, round)] {
                self.shared.word(self.verdict(self.me, word)).store(value, Relaxed);
            }
            // A reader that sees the kind sees the other words. A `Breaker` of this rank may claim the board just
            // before.
            self.shared.word(self.verdict(self.me, KIND)).store(kind, Release);
        }
        self.shared.word(self.block.broken()).claim(self.me as u64 + 1);
        self.shared.notify();
    }

    /// Reports that `rank` has made a different call.
    #[cold]
    pub(super) fn mismatch(&self, rank: Rank, differ: Differ) -> Failure {
        self.break_board(MISMATCH, rank, differ);
        Failure::Mismatch { rank, theirs: differ.theirs }
    }

    /// Reports that this rank's own call failed.
    #[cold]
    pub(super) fn give_up(&self, error: FabricError) -> Failure {
        let (kind, about) = match error {
            FabricError::PeerDied { rank } => (DIED, rank),
            FabricError::PeerLeft { rank } => (LEFT, rank),
            _ => (GIVEN_UP, self.me),
        };
        self.break_board(kind, about, Differ::default());
        Failure::Fabric(error)
    }

    /// Calls the caller's fold. Breaks the board if it panics.
    #[inline(always)]
    pub(super) fn fold<F>(&self, fold: &mut F, into: &mut [u8], with: &[u8], order: Order)
    where
        F: FnMut(&mut [u8], &[u8], Order) + ?Sized,
    {
        struct Panics<'l, S: SharedLines>(&'l Lines<S>);
        impl<S: SharedLines> Drop for Panics<'_, S> {
            fn drop(&mut self) {
                self.0.break_board(PANICKED, self.0.me, Differ::default());
            }
        }
        if into.is_empty() {
            return;
        }
        let panics = Panics(self);
        fold(into, with, order);
        std::mem::forget(panics);
    }

    #[inline(always)]
    pub(super) fn is_broken(&self) -> bool {
        self.shared.word(self.block.broken()).load(SeqCst) != 0
    }

    /// Returns the failure of a rank that finds the board broken.
    #[cold]
    pub(super) fn why_broken(&self) -> Failure {
        let said = self.shared.word(self.block.broken()).load(SeqCst).wrapping_sub(1);
        let Some(by) = usize::try_from(said).ok().filter(|&by| by < self.block.ranks()) else {
            return corrupt(format!("rank {said} aborted a collective of {} ranks", self.block.ranks()));
        };
        let kind = self.shared.word(self.verdict(by, KIND)).load(Acquire);
        let found = |word| self.shared.word(self.verdict(by, word)).load(Relaxed);
        let about = || match usize::try_from(found(ABOUT)).ok().filter(|&rank| rank < self.block.ranks()) {
            Some(rank) => Ok(rank),
            None => Err(corrupt(format!(
                "rank {by} aborted the collective because of rank {}, which does not exist",
                found(ABOUT)
            ))),
        };
        match kind {
            MISMATCH => {
                // Two ranks differ. Names the one that this rank disagrees with.
                let about = match about() {
                    Ok(rank) => rank,
                    Err(failure) => return failure,
                };
                let sides = [(about, found(THEIRS)), (by, found(MINE))];
                let mine = self.signature_of(found(ROUND));
                let other = |side: &&(Rank, u64)| side.0 != self.me && side.1 != mine;
                let side = sides.iter().find(other).or_else(|| sides.iter().find(|side| side.0 != self.me));
                let (rank, theirs) = *side.unwrap_or(&sides[0]);
                Failure::Mismatch { rank, theirs }
            }
            PANICKED => Failure::Panicked { rank: by },
            GIVEN_UP => FabricError::GivenUp { rank: by }.into(),
            DIED => about().map_or_else(|failure| failure, |rank| FabricError::PeerDied { rank }.into()),
            LEFT => about().map_or_else(|failure| failure, |rank| FabricError::PeerLeft { rank }.into()),
            kind => corrupt(format!("rank {by} aborted the collective with unknown reason {kind}")),
        }
    }

    /// Reports that this rank no longer uses the board.
    pub(super) fn close(&self) {
        let how = if std::thread::panicking() { IN_PANIC } else { AT_WILL };
        self.shared.word(self.verdict(self.me, CLOSED)).store(how, SeqCst);
        self.shared.notify();
    }

    /// Fails if `rank` no longer uses the board.
    pub(super) fn check_open(&self, rank: Rank) -> Result<(), FabricError> {
        match self.shared.word(self.verdict(rank, CLOSED)).load(SeqCst) {
            0 => Ok(()),
            IN_PANIC => Err(FabricError::PeerDied { rank }),
            _ => Err(FabricError::PeerLeft { rank }),
        }
    }
}

fn corrupt(why: String) -> Failure {
    Failure::Fabric(FabricError::Corrupt { why })
}
