//! The lines of a board: how a rank says something in a round, and sees what others said.
//!
//! # Invariants
//! Rounds are numbered from 1, the same at all ranks; in each every rank *posts* its line once. A stamp is the number of the
//! round and a hash of the signatures of all calls until then. Where two ranks say little to each other their lines are halves
//! of one, so that one crossing brings it: by what the call is, so that who looks at the wrong place has called something else.
//!
//! 1. A line is stored before the number of its round; whoever [sees](Lines::see) the number sees the line. While it is stored
//!    again the number is 0, unless all have seen what was there.
//! 2. A rank that posts round `r` reads no line or cell of round `r - LAG` or before any more: a call has at most so many rounds
//!    open, and none when it ends.
//! 3. A line is written again `SLOTS` rounds later, and a cell `CELLS`, when all other ranks have posted `LAG` rounds after the
//!    first ([`make_room`](Lines::make_room)). So nobody reads it any more, by 2.
//! 4. So a rank is less than `SLOTS` rounds ahead of any other: a number later than the awaited one is there only where a rank
//!    asks how far another is.
//!
//! The bell is one for all: whoever waits, waits for a line, and every line may be what somebody waits for.

use super::block::{Block, HALF_CARRIES, LINES_CARRY, STAMP};
use super::broken::{Differ, Failure};
use super::slate::{Shared, Slate};
use std::sync::atomic::Ordering::*;
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait};

/// Rounds whose lines are there at once, powers of two, and whose cells are; and how many rounds back a rank may still read when it
/// posts. Lines are many, since whoever asks how far others are takes lines from them that they are about to write. A model has
/// as few as there can be, so that they are soon written again.
const MODEL: bool = cfg!(all(test, feature = "loom"));
pub(super) const SLOTS: usize = if MODEL { 3 } else { 16 };
pub(super) const CELLS: usize = if MODEL { 3 } else { 8 };
pub(super) const LAG: u64 = if MODEL { 1 } else { 3 };
const AHEAD: u64 = SLOTS as u64 - LAG;
const CELLS_AHEAD: u64 = CELLS as u64 - LAG;

/// Looks before a wait turns messages, or does anything else.
const LOOKS: u32 = 16;

/// What a rank said in a round: the hash of its stamp, the signature of the call that it belongs to, and where.
#[derive(Clone, Copy, Default)]
struct Said {
    calls: u64,
    call: u64,
    halved: bool,
}

pub(super) struct Lines<S = Shared> {
    pub me: Rank,
    pub block: Block,
    pub slate: S,
    /// The last round that this rank posted.
    pub round: u64,
    /// All others have posted this one, as far as was asked.
    heard: u64,
    /// The last round that each rank is known to have posted.
    seen: Box<[u64]>,
    /// What this rank said in its last rounds.
    past: [Said; SLOTS],
    /// The call under way: its name and signature, and the hash of all until now.
    pub name: &'static str,
    pub call: u64,
    calls: u64,
    halved: bool,
}

impl<S: Slate> Lines<S> {
    pub fn new(me: Rank, block: Block, slate: S) -> Self {
        Lines {
            me,
            block,
            slate,
            round: 0,
            heard: 0,
            seen: vec![0; block.ranks()].into(),
            past: Default::default(),
            name: "",
            call: 0,
            calls: 0,
            halved: false,
        }
    }

    /// From now on rounds belong to the call of this name and signature. `symmetric` is how much each rank says, if all see all
    /// in each round: so nobody asks later how far they were.
    #[inline(always)]
    pub fn begin(&mut self, name: &'static str, call: u64, symmetric: Option<usize>) -> Result<(), Failure> {
        (self.name, self.call) = (name, call);
        self.halved = self.block.ranks() == 2 && symmetric.is_some_and(|len| len <= HALF_CARRIES);
        if self.is_broken() {
            return Err(self.why_broken());
        }
        self.calls = (self.calls.rotate_left(23) ^ call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(())
    }

    /// Posts the next round with these bytes, and returns its number.
    #[inline(always)]
    pub fn post(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        self.post_parts(bytes.len(), std::iter::once((0, bytes)))
    }

    /// Posts the next round with `len` bytes, of which parts are given by where they begin. `len` is the same at whoever
    /// [reads](Self::read) them, and at most what a cell has.
    #[inline(always)]
    pub fn post_parts<'b>(
        &mut self,
        len: usize,
        parts: impl IntoIterator<Item = (usize, &'b [u8])>,
    ) -> Result<u64, Failure> {
        let round = self.round + 1;
        let ahead = if len > LINES_CARRY { CELLS_AHEAD } else { AHEAD };
        if round > self.heard + ahead {
            self.make_room(round, round - ahead)?;
        }
        let line = self.block.line(self.me, round, self.halved);
        if !self.halved {
            // Who asks how far this rank is may still look, and is not to take what follows for what was here before.
            self.slate.store(line, 0, Relaxed);
            self.slate.fence(Release);
        }
        for (at, part) in parts {
            debug_assert!(at + part.len() <= len, "a part of what is posted");
            self.slate.write(self.payload(self.me, round, len) + at, part);
        }
        self.slate.store(self.block.signature(self.me, round), self.call, Relaxed);
        self.slate.store(line + 8, self.calls, Relaxed);
        // Releases the line, and is before the question whether anybody sleeps.
        self.slate.store(line, round, SeqCst);
        self.past[round as usize % SLOTS] = Said { calls: self.calls, call: self.call, halved: self.halved };
        self.round = round;
        self.slate.ring();
        Ok(round)
    }

    /// Where the `len` bytes of a round are.
    #[inline(always)]
    fn payload(&self, rank: Rank, round: u64, len: usize) -> usize {
        debug_assert!(len <= self.block.cell_bytes(), "what a cell has");
        match len <= if self.halved { HALF_CARRIES } else { LINES_CARRY } {
            true => self.block.line(rank, round, self.halved) + STAMP,
            false => self.block.cell(rank, round),
        }
    }

    /// Returns when `rank` has posted the round, which this rank has posted.
    #[inline(always)]
    pub fn see(&mut self, rank: Rank, round: u64) -> Result<(), Failure> {
        let line = self.block.line(rank, round, self.halved);
        let mut looks = 0;
        while self.slate.load(line, SeqCst) != round || self.slate.load(line + 8, Relaxed) != self.calls {
            if looks == LOOKS || self.slate.is_crowded() {
                self.wait(rank, round)?;
                break;
            }
            looks += 1;
            std::hint::spin_loop();
        }
        self.seen[rank] = round;
        Ok(())
    }

    /// [`see`](Self::see) of every other rank.
    #[inline(always)]
    pub fn see_all(&mut self, round: u64) -> Result<(), Failure> {
        self.others().try_for_each(|rank| self.see(rank, round))
    }

    /// All ranks but this, the next ones first: so they do not all read the same one at once.
    #[inline(always)]
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<S> {
        let (me, ranks) = (self.me, self.block.ranks());
        (me + 1..ranks).chain(0..me)
    }

    /// Copies bytes out of a round of a rank that was seen, of `len` that it posted.
    #[inline(always)]
    pub fn read(&self, rank: Rank, round: u64, len: usize, at: usize, into: &mut [u8]) {
        debug_assert!(at + into.len() <= len, "a part of what was posted");
        self.slate.read(self.payload(rank, round, len) + at, into);
    }

    /// Waits until all others have posted the round `least`, so that what this round writes can be written again.
    #[cold]
    fn make_room(&mut self, round: u64, least: u64) -> Result<(), Failure> {
        for rank in self.others() {
            if self.seen[rank] >= least {
                continue;
            }
            let posted = |later: u64| {
                let Said { calls, halved, .. } = self.past[later as usize % SLOTS];
                let line = self.block.line(rank, later, halved);
                self.slate.load(line, SeqCst) == later && self.slate.load(line + 8, Relaxed) == calls
            };
            // As far as it is, so as not to ask again soon; by few looks, each of which takes a line from it. Mostly it is close.
            let close = (round - 2).max(least);
            if posted(close) {
                self.seen[rank] = close;
                continue;
            }
            if !posted(least) {
                self.wait(rank, least)?;
            }
            let (mut latest, mut step) = (least, 1);
            while latest + step < round && posted(latest + step) {
                (latest, step) = (latest + step, 2 * step);
            }
            self.seen[rank] = latest;
        }
        self.heard = self.others().map(|rank| self.seen[rank]).min().unwrap_or(round);
        Ok(())
    }

    /// Waits for a round, or a later one in the same slot.
    #[cold]
    #[inline(never)]
    fn wait(&self, rank: Rank, round: u64) -> Result<(), Failure> {
        let Said { calls, halved, .. } = self.past[round as usize % SLOTS];
        let awaited = Awaited::Rank(rank);
        let line = self.block.line(rank, round, halved);
        // Where it would be if its rank called something else.
        let elsewhere = (self.block.ranks() == 2).then(|| self.block.line(rank, round, !halved));
        let wait = Wait { rank: self.me, call: &self.name, awaited, deadline: None };
        let look = || {
            let (number, theirs) = (self.slate.load(line, SeqCst), self.slate.load(line + 8, SeqCst));
            if number > round {
                return Ok(Some(Found::Later(number)));
            }
            // Unless it is written again meanwhile, for a later one.
            if number == round && self.slate.load(line, SeqCst) == round {
                return Ok(Some(if theirs == calls { Found::Round } else { Found::Another }));
            }
            if elsewhere.is_some_and(|line| self.slate.load(line, SeqCst) == round) {
                return Ok(Some(Found::Another));
            }
            Ok(self.is_broken().then_some(Found::Broken))
        };
        let check = || self.slate.check_peers(self.me, awaited).and_then(|()| self.check_open(rank));
        let found = self.slate.wait(wait, look, check);
        match found.map_err(|error| self.give_up(error))? {
            Found::Broken => Err(self.why_broken()),
            Found::Round => Ok(()),
            // It is that far ahead only if this rank has posted what it awaits.
            Found::Later(number) if number == round + SLOTS as u64 && round + LAG <= self.round => Ok(()),
            Found::Later(number) => {
                let why = format!("rank {rank} is in round {number} of a board, which cannot be before round {round}");
                Err(self.give_up(FabricError::Corrupt { why }))
            }
            Found::Another => Err(self.mismatch(rank, self.first_difference(rank, round))),
        }
    }

    /// The first of the last rounds that belongs to another call at `rank`; the given one if it is not known any more.
    fn first_difference(&self, rank: Rank, round: u64) -> Differ {
        let differ = |round: u64| Differ {
            theirs: self.slate.load(self.block.signature(rank, round), Relaxed),
            mine: self.past[round as usize % SLOTS].call,
            round,
        };
        let mut last = (round.saturating_sub(AHEAD - 1).max(1)..=round).map(differ);
        last.find(|differ| differ.theirs != differ.mine).unwrap_or(differ(round))
    }

    /// The signature of the call that this rank's round belonged to; that of its last if it is not known.
    pub fn signature_of(&self, round: u64) -> u64 {
        match self.round.checked_sub(round) {
            Some(ago) if ago < SLOTS as u64 => self.past[round as usize % SLOTS].call,
            _ => self.call,
        }
    }
}

/// What a wait ends with.
enum Found {
    Round,
    Later(u64),
    /// The round, but of another call.
    Another,
    Broken,
}
