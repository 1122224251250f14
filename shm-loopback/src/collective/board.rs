//! A rank's place at a board, made by all ranks together.

use super::block::Block;
use super::broken::{Breaker, Failure};
use super::lines::Lines;
use super::reduce;
use super::scratch::Scratch;
use super::slate::Shared;
use super::ways::Ways;
use crate::blocks::Forget;
use crate::key::{Key, fresh_tag};
use crate::loopback::Loopback;
use crate::memory::View;
use crate::reach::Reach;
use crate::team::Meet;
use transom_locks::Rank;
use transom_windows::{Exchange, FabricError};

/// Collectives of the ranks of a team, on memory that they share. All ranks make the same calls in the same order.
///
/// `call` is what a rank says of its call, the same number at all ranks: a hash of what must be the same (the kind of call,
/// its root, operation, type, and length). Ranks whose calls have different signatures fail with [`Failure::Mismatch`]. Where
/// a rank waits for others it finds out in this call; where it need not wait (the root of a broadcast or scatter, others than
/// the root of a reduction or gather) at the latest some calls later, unless debug assertions are on: then it waits too.
///
/// # Errors
/// All calls fail when a rank died or left, called something else, or panicked in a fold, in a tenth of a second; and so does
/// every later call, at all ranks. What is in the buffers of a call that failed is unspecified. A rank that has all it needs
/// may finish the call in which another fails, and fail in the next.
///
/// # Cost
/// Small calls take one crossing of a line between ranks that have a core each. See the [module](crate::collective) for memory.
///
/// # Examples
/// ```
/// use transom_shm_loopback::{Loopback, collective::Board};
/// use transom_windows::Exchange;
///
/// let ranks: Vec<_> = Loopback::threads(3)?.into_iter().map(|team| std::thread::spawn(move || {
///     let mut board = Board::open(&team).unwrap();
///     let mut data = [team.rank() as u8 + 1; 2];
///     board.all_reduce(7, &mut data, 1, &mut |into, with, _| {
///         into.iter_mut().zip(with).for_each(|(into, with)| *into += with);
///     }).unwrap();
///     data
/// })).collect();
/// assert!(ranks.into_iter().all(|rank| rank.join().unwrap() == [6, 6]));
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct Board {
    pub(super) lines: Lines,
    pub(super) scratch: Scratch,
    /// What others read while the scratch memory is used.
    pub(super) apart: Scratch,
    /// How buffers of others are reached, if each rank reaches those of all.
    pub(super) reach: Option<Reach>,
    pub(super) ways: Ways,
    /// Bytes up to which each rank folds those of all. The same at all ranks.
    pub(super) whole: usize,
    /// Has ranks wait for all others in the first round of every call, so that they find out who calls something else.
    pub(super) strict: bool,
}

impl Board {
    /// Collective. Holds as long as the board lives a mapping and, while all open it, a descriptor at rank 0; it does not keep
    /// the rank in its job. A rank that drops its board has left, as far as calls of others need it.
    ///
    /// # Errors
    /// Those of [`Exchange::all_gather`] and, at all ranks if at one, [`FabricError::System`] if there is no memory,
    /// [`FabricError::BadKey`].
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Loopback, collective::Board};
    /// let mut board = Board::open(&Loopback::alone()?)?;
    /// board.barrier(1)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(team: &Loopback) -> Result<Self, FabricError> {
        Board::open_by(team, &mut |mine| team.all_gather(mine))
    }

    /// As [`open`](Self::open), where the ranks meet in another way than by the exchange of their job. `meet` is called twice, and gives
    /// what each rank passes to all of them, in the order of ranks.
    ///
    /// # Errors
    /// Those of `meet`, and those of [`open`](Self::open).
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Loopback, collective::Board};
    /// let mut board = Board::open_by(&Loopback::alone()?, &mut |mine| Ok(vec![mine.to_vec()]))?;
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
        // A word of this rank's own, for others to try whether they can read it.
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
        // Everyone reaches it, or somebody does not; the descriptor is needed until then.
        let outcomes = [view.is_err(), reads, !team.0.control.is_crowded()].map(u8::from);
        let outcomes = meet(&outcomes)?;
        drop(probe);
        let (view, _) = view?;
        drop(attachable);
        if let Some(rank) = outcomes.iter().position(|outcome| outcome.first() != Some(&0)) {
            return Err(FabricError::GivenUp { rank });
        }
        let slate = Shared::new(view, team.0.control.clone(), team.0.progress.clone());
        let lines = Lines::new(me, block, slate);
        let all = |which: usize| outcomes.iter().all(|outcome| outcome.get(which) == Some(&1));
        let reach = all(1).then_some(reach);
        let strict = cfg!(debug_assertions);
        let crowded = !all(2);
        let (ways, whole) = (Ways::new(crowded), reduce::whole(team.size(), crowded));
        Ok(Board { lines, scratch: Scratch::default(), apart: Scratch::default(), reach, ways, whole, strict })
    }

    /// What breaks the board while a call waits at it.
    pub fn breaker(&self) -> Breaker {
        self.lines.breaker()
    }

    /// Has each call that waits for long call `act` every tenth of a second, in the thread that waits. Set once.
    pub fn at_long_waits(&self, act: impl Fn() + Send + Sync + 'static) {
        let _ = self.lines.slate.at_long_waits.set(Box::new(act));
    }

    pub(super) fn ranks(&self) -> usize {
        self.lines.block.ranks()
    }

    /// After the first round of a call in which this rank waits for nobody, or not for all.
    #[inline(always)]
    pub(super) fn meet(&mut self, round: u64) -> Result<(), Failure> {
        if self.strict { self.lines.see_all(round) } else { Ok(()) }
    }

    /// An error unless what the caller says of its buffers is true. The others would wait for its rounds.
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
        self.must(root < self.ranks(), || format!("the root is rank {root}, of {} ranks", self.ranks()))
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.lines.close();
    }
}
