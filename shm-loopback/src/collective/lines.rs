//! The lines of a board: how a rank says something in a round, and sees what others said.
//!
//! # Invariants
//! Rounds are numbered from 1, the same at all ranks; in each every rank *posts* its line once. A stamp is the number of the
//! round and a hash of the signatures of all calls until then. Where its line is ([`Place`]) is by what the call is, so that who looks
//! at the wrong place has called something else.
//!
//! 1. A line is stored before the number of its round; whoever [sees](Lines::see) the number sees the line. While it is stored
//!    again the number is 0, unless all have seen what was there.
//! 2. A rank that posts round `r` reads no line or cell of round `r - LAG` or before any more: a call has at most so many rounds
//!    open, and none when it ends.
//! 3. A line is written again `SLOTS` rounds later, and a cell no sooner than it [lasts](Block::lasts), when all other ranks have posted `LAG` rounds after the
//!    first ([`make_room`](Lines::make_room)). So nobody reads it any more, by 2.
//! 4. So a rank is less than `SLOTS` rounds ahead of any other: a number later than the awaited one is there only where a rank
//!    asks how far another is.
//!
//! The bell is one for all: whoever waits, waits for a line, and every line may be what somebody waits for.

use super::block::{Block, HALF_CARRIES, LINE, MODEL, Place, SLOTS, STAMP};
use super::broken::{Differ, Failure};
use super::slate::{Shared, Slate, Word};
use std::sync::atomic::Ordering::*;
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait, has_own_core};

/// How many rounds back a rank may still read when it posts.
pub(super) const LAG: u64 = if MODEL { 1 } else { 3 };
const AHEAD: u64 = SLOTS as u64 - LAG;

/// Looks before a wait turns messages, or does anything else.
const LOOKS: u32 = 16;

/// Of a round of this rank the hash of its stamp, and where its line is.
#[derive(Clone, Copy, Default)]
struct Said {
    calls: u64,
    place: Place,
}

/// Who says something in each round of a call, and how many bytes: the same at all ranks.
#[derive(Clone, Copy)]
pub(super) enum Says {
    /// All, and each sees all: so nobody asks later how far others were.
    All(usize),
    Some(usize),
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
    place: Place,
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
            place: Place::default(),
        }
    }

    /// From now on rounds belong to the call of this name and signature.
    #[inline(always)]
    pub fn begin(&mut self, name: &'static str, call: u64, says: Says) -> Result<(), Failure> {
        (self.name, self.call) = (name, call);
        self.place = match says {
            Says::All(len) if len <= HALF_CARRIES && self.block.ranks() == 2 => Place::Pair,
            Says::Some(len) if len <= HALF_CARRIES => Place::Half,
            _ => Place::Lines,
        };
        if self.is_broken() {
            return Err(self.why_broken());
        }
        self.calls = (self.calls.rotate_left(23) ^ call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(())
    }

    /// Posts the next round with these bytes, and returns its number.
    #[inline(always)]
    pub fn post(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        self.post_at(self.place, bytes)
    }

    /// The same where the caller knows the place of the call.
    #[inline(always)]
    pub fn post_at(&mut self, place: Place, bytes: &[u8]) -> Result<u64, Failure> {
        self.post_parts_at(place, bytes.len(), std::iter::once((0, bytes)))
    }

    /// Posts the next round with `len` bytes, of which parts are given by where they begin. `len` is the same at whoever
    /// [takes](Self::take) them, and at most what a cell has.
    #[inline(always)]
    pub fn post_parts<'b>(
        &mut self,
        len: usize,
        parts: impl IntoIterator<Item = (usize, &'b [u8])>,
    ) -> Result<u64, Failure> {
        self.post_parts_at(self.place, len, parts)
    }

    #[inline(always)]
    fn post_parts_at<'b>(
        &mut self,
        place: Place,
        len: usize,
        parts: impl IntoIterator<Item = (usize, &'b [u8])>,
    ) -> Result<u64, Failure> {
        let round = self.round + 1;
        let ahead = self.block.lasts(len) - LAG;
        if round > self.heard + ahead {
            self.make_room(round, round - ahead)?;
        }
        let line = self.block.line(self.me, round, place);
        let (number, hash) = self.stamp(line);
        if place != Place::Pair {
            // Who asks how far this rank is may still look, and is not to take what follows for what was here before.
            number.store(0, Relaxed);
            self.slate.fence(Release);
        }
        for (at, part) in parts {
            debug_assert!(at + part.len() <= len, "a part of what is posted");
            if !part.is_empty() {
                self.slate.write(self.payload(self.me, round, (place, line), len) + at, part);
            }
        }
        self.publish(round, number, hash);
        (self.past[round as usize % SLOTS], self.round) = (Said { calls: self.calls, place }, round);
        if place == Place::Half {
            // The line after this.
            self.slate.prefetch::<true>(self.block.line(self.me, round + 2, place));
        }
        Ok(round)
    }

    /// Writes the stamp of a line that is written.
    #[inline(always)]
    fn publish(&self, round: u64, number: &S::Word, hash: &S::Word) {
        self.slate.word(self.block.signature(self.me, round)).store(self.call, Relaxed);
        hash.store(self.calls, Relaxed);
        number.store(round, Release);
        self.slate.ring();
    }

    /// Whether all ranks say at most 16 bytes, which two can [`exchange`](Self::exchange).
    #[inline(always)]
    pub fn is_pair(&self) -> bool {
        self.place == Place::Pair
    }

    /// Posts the next round with these bytes, and takes as many of the other of two ranks: as [`post`](Self::post) and
    /// [`take`](Self::take) in fewer steps, since it is one line.
    #[inline(always)]
    pub fn exchange(&mut self, mine: &[u8], theirs: &mut [u8]) -> Result<(), Failure> {
        let round = self.round + 1;
        if round > self.heard + AHEAD {
            self.make_room(round, round - AHEAD)?;
        }
        let (line, me) = (self.block.line(0, round, Place::Pair), self.me % 2);
        let (payload, half) = (line + STAMP, LINE / 2);
        let words = self.slate.line(line);
        if !mine.is_empty() {
            self.slate.write(payload + me * half, mine);
        }
        self.publish(round, &words[4 * me], &words[4 * me + 1]);
        (self.past[round as usize % SLOTS], self.round) = (Said { calls: self.calls, place: Place::Pair }, round);
        self.look(1 - me, round, (&words[4 - 4 * me], &words[5 - 4 * me]))?;
        if !mine.is_empty() {
            self.slate.read(payload + (1 - me) * half, theirs);
        }
        self.all_seen(round);
        Ok(())
    }

    /// The two words of the stamp there.
    #[inline(always)]
    fn stamp(&self, line: usize) -> (&S::Word, &S::Word) {
        let words = self.slate.line(line);
        // It begins a line, or its second half.
        let first = (line / 8) & 4;
        (&words[first], &words[first + 1])
    }

    /// Where the `len` bytes of a round are, whose stamp is there.
    #[inline(always)]
    fn payload(&self, rank: Rank, round: u64, (place, line): (Place, usize), len: usize) -> usize {
        debug_assert!(len <= self.block.cell_bytes(), "what a cell has");
        match len <= place.carries() {
            true => line + STAMP,
            false => self.block.cell(rank, round, len),
        }
    }

    /// Returns when `rank` has posted the round, which this rank has posted.
    #[inline(always)]
    pub fn see(&mut self, rank: Rank, round: u64) -> Result<(), Failure> {
        self.see_at(self.place, rank, round).map(drop)
    }

    #[inline(always)]
    fn see_at(&mut self, place: Place, rank: Rank, round: u64) -> Result<usize, Failure> {
        let line = self.block.line(rank, round, place);
        self.look(rank, round, self.stamp(line))?;
        if place == Place::Half {
            // The line after this, which whoever is ahead has written.
            self.slate.prefetch::<false>(self.block.line(rank, round + 2, place));
        }
        self.seen[rank] = round;
        Ok(line)
    }

    /// Returns when this stamp of a rank is that of the round.
    #[inline(always)]
    fn look(&self, rank: Rank, round: u64, (number, hash): (&S::Word, &S::Word)) -> Result<(), Failure> {
        let mut looks = 0;
        while number.load(SeqCst) != round || hash.load(Relaxed) != self.calls {
            if looks == LOOKS || self.slate.is_crowded() || !has_own_core() {
                return self.wait(rank, round);
            }
            looks += 1;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// [`see`](Self::see) of every other rank.
    #[inline(always)]
    pub fn see_all(&mut self, round: u64) -> Result<(), Failure> {
        for rank in self.others() {
            self.see(rank, round)?;
        }
        self.all_seen(round);
        Ok(())
    }

    /// This rank has seen the round of every other.
    #[inline(always)]
    pub fn all_seen(&mut self, round: u64) {
        self.heard = round;
    }

    /// All ranks but this, the next ones first: so they do not all read the same one at once.
    #[inline(always)]
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<S> {
        let (me, ranks) = (self.me, self.block.ranks());
        (me + 1..me + ranks).map(move |rank| if rank < ranks { rank } else { rank - ranks })
    }

    /// [`see`](Self::see), and copies bytes of the round, of `len` that the rank has posted.
    #[inline(always)]
    pub fn take(&mut self, rank: Rank, round: u64, (len, at): (usize, usize), into: &mut [u8]) -> Result<(), Failure> {
        self.take_at(self.place, rank, round, (len, at), into)
    }

    /// The same where the caller knows the place of the call.
    #[inline(always)]
    pub fn take_at(
        &mut self,
        place: Place,
        rank: Rank,
        round: u64,
        (len, at): (usize, usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        debug_assert!(at + into.len() <= len, "a part of what was posted");
        let line = self.see_at(place, rank, round)?;
        self.slate.read(self.payload(rank, round, (place, line), len) + at, into);
        Ok(())
    }

    /// Waits until all others have posted the round `least`, so that what this round writes can be written again.
    #[cold]
    fn make_room(&mut self, round: u64, least: u64) -> Result<(), Failure> {
        for rank in self.others() {
            if self.seen[rank] >= least {
                continue;
            }
            let posted = |later: u64| {
                let Said { calls, place } = self.past[later as usize % SLOTS];
                let (number, hash) = self.stamp(self.block.line(rank, later, place));
                number.load(SeqCst) == later && hash.load(Relaxed) == calls
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
        let Said { calls, place } = self.past[round as usize % SLOTS];
        let awaited = Awaited::Rank(rank);
        let (number, hash) = self.stamp(self.block.line(rank, round, place));
        // Where it may be if its rank called something else.
        let others = Place::ALL.into_iter().filter(|&other| other != place && self.block.has(other));
        let wait = Wait { rank: self.me, call: &self.name, awaited, deadline: None };
        let look = || {
            // First, since whoever broke the board may have posted the round before.
            let broken = self.is_broken();
            let (found, theirs) = (number.load(SeqCst), hash.load(SeqCst));
            if found > round {
                return Ok(Some(Found::Later(found)));
            }
            // Unless it is written again meanwhile, for a later one.
            if found == round && number.load(SeqCst) == round {
                return Ok(Some(if theirs == calls { Found::Round } else { Found::Another }));
            }
            if others.clone().any(|place| self.stamp(self.block.line(rank, round, place)).0.load(SeqCst) == round) {
                return Ok(Some(Found::Another));
            }
            Ok(broken.then_some(Found::Broken))
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
        let differ =
            |round: u64| Differ { theirs: self.call_of(rank, round), mine: self.call_of(self.me, round), round };
        let mut last = (round.saturating_sub(AHEAD - 1).max(1)..=round).map(differ);
        last.find(|differ| differ.theirs != differ.mine).unwrap_or(differ(round))
    }

    /// The signature of the call that this rank's round belonged to; that of its last if it is not known.
    pub fn signature_of(&self, round: u64) -> u64 {
        match self.round.checked_sub(round) {
            Some(ago) if ago < SLOTS as u64 => self.call_of(self.me, round),
            _ => self.call,
        }
    }

    /// The signature of the call that a rank's round belonged to, or one in the same slot.
    fn call_of(&self, rank: Rank, round: u64) -> u64 {
        self.slate.word(self.block.signature(rank, round)).load(Relaxed)
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
