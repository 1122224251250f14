//! The board of a team: how all ranks open it together, and what a rank holds of it.

use super::block::Block;
use super::broken::{Breaker, Failure};
use super::lines::Lines;
use super::path_tuner::PathTuner;
use super::reduce;
use super::scratch::Scratch;
use super::shared_lines::Shared;
use crate::blocks::Forget;
use crate::key::{Key, fresh_tag};
use crate::loopback::Loopback;
use crate::memory::View;
use crate::reach::Reach;
use crate::team::Meet;
use transom_locks::Rank;
use transom_windows::{FabricError, OobExchange};

/// Collectives of the ranks of a team through shared memory. All ranks make the same calls in the same order.
///
/// `call` is the signature of a call: a hash of all that must be equal at all ranks (kind of call, root, operation,
/// type and length). Ranks whose signatures differ fail with [`Failure::Mismatch`]. A rank that waits for others finds
/// a difference in the same call. A rank that need not wait finds it some calls later at the latest: the root of a
/// broadcast or scatter, and every other rank of a reduction or gather. With debug assertions every call waits.
///
/// # Errors
/// All calls fail within 100 ms after a rank died, left, made a different call, or panicked in a fold. Every later call
/// of every rank then fails too. Buffers of a failed call have unspecified contents. A rank that already has all its
/// data may complete a call that fails elsewhere, and fail in the next.
///
/// # Cost
/// Small calls take one cache line transfer between ranks that have a core each. The [module](crate::collective) gives
/// the memory.
///
/// # Examples
/// ```
/// use transom_shm_loopback::{Loopback, collective::ShmCollective};
/// use transom_windows::OobExchange;
///
/// let ranks: Vec<_> = Loopback::threads(3)?.into_iter().map(|team| std::thread::spawn(move || {
///     let mut board = ShmCollective::open(&team).unwrap();
///     let mut data = [team.rank() as u8 + 1; 2];
///     board.all_reduce(7, &mut data, 1, &mut |into, with, _| {
///         into.iter_mut().zip(with).for_each(|(into, with)| *into += with);
///     }).unwrap();
///     data
/// })).collect();
/// assert!(ranks.into_iter().all(|rank| rank.join().unwrap() == [6, 6]));
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct ShmCollective {
    pub(super) lines: Lines,
    pub(super) scratch: Scratch,
    /// Folds that other ranks read while `scratch` is in use.
    pub(super) apart: Scratch,
    /// Access to other ranks' buffers, if every rank can read the memory of all.
    pub(super) reach: Option<Reach>,
    pub(super) tuner: PathTuner,
    /// Bytes up to which every rank folds all elements itself. Equal at all ranks.
    pub(super) whole: usize,
    /// If true, ranks wait for all others in the first round of every call, so that a different call is found at once.
    pub(super) strict: bool,
}

impl ShmCollective {
    /// Opens the board of a team. Collective. The board keeps a mapping and, until all ranks have opened it, a
    /// descriptor at rank 0. It does not keep the rank in its job. A rank that drops its board has left, for calls of
    /// the others that need it.
    ///
    /// # Errors
    /// Errors of [`OobExchange::all_gather`] and, at all ranks if at one, [`FabricError::System`] if memory cannot be
    /// allocated, and [`FabricError::BadKey`].
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// board.barrier(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(team: &Loopback) -> Result<Self, FabricError> {
        ShmCollective::open_by(team, &mut |mine| team.all_gather(mine))
    }

    /// Like [`open`](Self::open), but the ranks exchange data by `meet` instead of the exchange of their job. `meet` is
    /// called twice. It passes the bytes of each rank to all ranks and returns them in the order of ranks.
    ///
    /// # Errors
    /// Errors of `meet`, and those of [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// let mut board = ShmCollective::open_by(&Loopback::alone()?, &mut |mine| Ok(vec![mine.to_vec()]))?;
    /// board.barrier(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open_by(team: &Loopback, meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let (me, block) = (team.rank(), Block::of(team.size()));
        let made = (me == 0).then(|| team.0.block(block.bytes())).transpose();
        let key = made.as_ref().ok().and_then(|made| made.as_ref()).map(|(_, key, _)| *key);
        let attachable = key.map(|key| Forget { blocks: team.0.blocks.clone(), tag: key.tag });
        let key = key.map_or_else(Vec::new, |key| key.to_bytes());
        let reach = Reach::from(&*team.0);
        reach.admit();
        // A word that the other ranks read, to test whether they can.
        let probe = Box::new(fresh_tag());
        let words = [(&raw const *probe).expose_provenance() as u64, *probe];
        let said = [&words[0].to_le_bytes()[..], &words[1].to_le_bytes(), &key].concat();
        let all = meet(&said)?;
        let word = |rank: Rank, at: usize| all[rank].get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        let word = |rank, at| word(rank, at).map_or(0, u64::from_le_bytes);
        let reads = (0..team.size()).all(|rank| rank == me || reach.try_out(rank, word(rank, 0), word(rank, 8)));
        let key = all[0].get(16..).and_then(Key::from_bytes);
        let view = made.and_then(|made| match (&made, key) {
            (Some((memory, ..)), _) => Ok((View::whole(memory), made)),
            (None, Some(key)) => team.0.attach(0, key, block.bytes()).map(|view| (view, made)),
            (None, None) => Err(FabricError::GivenUp { rank: 0 }),
        });
        // The second meeting: every rank has attached the block, or one has failed. The descriptor is needed until
        // then.
        let outcomes = [view.is_err(), reads, !team.0.control.is_oversubscribed()].map(u8::from);
        let outcomes = meet(&outcomes)?;
        drop(probe);
        let (view, _) = view?;
        drop(attachable);
        if let Some(rank) = outcomes.iter().position(|outcome| outcome.first() != Some(&0)) {
            return Err(FabricError::GivenUp { rank });
        }
        let shared = Shared::new(view, team.0.control.clone(), team.0.progress.clone());
        let lines = Lines::new(me, block, shared);
        let all = |which: usize| outcomes.iter().all(|outcome| outcome.get(which) == Some(&1));
        let reach = all(1).then_some(reach);
        let strict = cfg!(debug_assertions);
        let oversubscribed = !all(2);
        let (tuner, whole) = (PathTuner::new(oversubscribed), reduce::whole(team.size(), oversubscribed));
        Ok(ShmCollective { lines, scratch: Scratch::default(), apart: Scratch::default(), reach, tuner, whole, strict })
    }

    /// Returns a handle that breaks the board from another thread, so that a waiting call fails.
    pub fn breaker(&self) -> Breaker {
        self.lines.breaker()
    }

    /// Has every long wait call `act` every 100 ms, in the waiting thread. Only the first `act` is used.
    pub fn at_long_waits(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.lines.shared.at_long_waits.set(Box::new(act));
    }

    pub(super) fn ranks(&self) -> usize {
        self.lines.block.ranks()
    }

    /// Waits for the other ranks in strict mode. Called after the first round of a call that waits for no other rank,
    /// or not for all.
    #[inline(always)]
    pub(super) fn meet(&mut self, round: u64) -> Result<(), Failure> {
        if self.strict { self.lines.see_all(round) } else { Ok(()) }
    }

    /// Fails unless `right`, and breaks the board: the other ranks would wait for this rank's rounds.
    #[inline(always)]
    pub(super) fn must(&self, right: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
        if right { Ok(()) } else { Err(self.misused(what())) }
    }

    #[cold]
    fn misused(&self, why: String) -> Failure {
        self.lines.give_up(FabricError::Misuse { why: format!("{}: {why}", self.lines.name) })
    }

    #[inline(always)]
    pub(super) fn must_be_rank(&self, root: Rank) -> Result<(), Failure> {
        self.must(root < self.ranks(), || {
            format!("there is no rank {root}, which is named as the root: ranks are 0 to {}", self.ranks() - 1)
        })
    }
}

impl Drop for ShmCollective {
    fn drop(&mut self) {
        self.lines.close();
    }
}
