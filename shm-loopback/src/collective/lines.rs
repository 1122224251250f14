//! Lines of a board: how a rank posts its data of a round, and reads the data of other ranks.
//!
//! # Invariants
//! All ranks number rounds alike, from 1. Every rank *posts* its line once in each round. A stamp is the round number
//! and a hash of the signatures of all calls so far. The call determines the [`LineKind`] of the line, so a rank that
//! looks at the wrong place has made another call.
//!
//! 1. A line is stored before the number of its round, so a rank that [sees](Lines::see) the number sees the line.
//!    While a line is overwritten its number is 0, unless all ranks have seen its previous contents.
//! 2. A rank that posts round `r` no longer reads any line or cell of round `r - LAG` or earlier. A call has at most
//!    `LAG` rounds open, and none when it ends.
//! 3. A line is overwritten `SLOTS` rounds later, and a cell not before it [lasts](Block::lasts) no longer. By then all
//!    other ranks have posted at least `LAG` rounds after the first use ([`make_room`](Lines::make_room)). By 2, no
//!    rank reads it any more.
//! 4. Hence a rank is less than `SLOTS` rounds ahead of any other. A poll finds a later number than the awaited one
//!    only in [`make_room`](Lines::make_room), where a rank polls the progress of others.
//!
//! All waits share one event count: each waits for a line, and any line may be one that some rank waits for.

use super::block::{Block, HALF_CARRIES, LINE, LineKind, MODEL, SLOTS, STAMP};
use super::broken::{Differ, Failure};
use super::shared_lines::{Shared, SharedLines, Word};
use std::sync::atomic::Ordering::*;
use transom_locks::{Awaited, Rank};
use transom_windows::{FabricError, Wait, has_own_core};

/// Rounds before the one just posted that a rank may still read.
pub(super) const LAG: u64 = if MODEL { 1 } else { 3 };
const AHEAD: u64 = SLOTS as u64 - LAG;

/// Polls of a line before the rank waits with progress of messages.
const LOOKS: u32 = 16;

/// A past round of this rank: the hash of its stamp, and the place of its line.
#[derive(Clone, Copy, Default)]
struct Said {
    calls: u64,
    place: LineKind,
}

/// The ranks that post data in each round of a call, and the number of bytes. Equal at all ranks.
#[derive(Clone, Copy)]
pub(super) enum Says {
    /// All ranks post, and each reads all, so that no rank later polls the progress of others.
    All(usize),
    Some(usize),
}

pub(super) struct Lines<S = Shared> {
    pub me: Rank,
    pub block: Block,
    pub shared: S,
    /// Last round that this rank posted.
    pub round: u64,
    /// Round that all others are known to have posted.
    heard: u64,
    /// Last round that each rank is known to have posted.
    seen: Box<[u64]>,
    /// Last `SLOTS` rounds of this rank.
    past: [Said; SLOTS],
    /// Current call: its name and signature, and the hash of all calls so far.
    pub name: &'static str,
    pub call: u64,
    calls: u64,
    place: LineKind,
}

impl<S: SharedLines> Lines<S> {
    pub fn new(me: Rank, block: Block, shared: S) -> Self {
        Lines {
            me,
            block,
            shared,
            round: 0,
            heard: 0,
            seen: vec![0; block.ranks()].into(),
            past: Default::default(),
            name: "",
            call: 0,
            calls: 0,
            place: LineKind::default(),
        }
    }

    /// Begins a call, to which the following rounds belong.
    #[inline(always)]
    pub fn begin(&mut self, name: &'static str, call: u64, says: Says) -> Result<(), Failure> {
        (self.name, self.call) = (name, call);
        self.place = match says {
            Says::All(len) if len <= HALF_CARRIES && self.block.ranks() == 2 => LineKind::Pair,
            Says::Some(len) if len <= HALF_CARRIES => LineKind::Half,
            _ => LineKind::Lines,
        };
        if self.is_broken() {
            return Err(self.why_broken());
        }
        self.calls = (self.calls.rotate_left(23) ^ call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Ok(())
    }

    /// Posts the next round with `bytes`, and returns its number.
    #[inline(always)]
    pub fn post(&mut self, bytes: &[u8]) -> Result<u64, Failure> {
        self.post_at(self.place, bytes)
    }

    /// Like [`post`](Self::post), where the caller knows the place of the call.
    #[inline(always)]
    pub fn post_at(&mut self, place: LineKind, bytes: &[u8]) -> Result<u64, Failure> {
        self.post_parts_at(place, bytes.len(), std::iter::once((0, bytes)))
    }

    /// Posts the next round with `len` bytes. Each part is given with its offset; bytes outside the parts are
    /// unspecified. `len` is the same at all ranks that [take](Self::take) the data, and at most the length of a cell.
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
        place: LineKind,
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
        if place != LineKind::Pair {
            // A polling rank may still read this line. The number 0 keeps it from taking the new data for the old.
            number.store(0, Relaxed);
            self.shared.fence(Release);
        }
        for (at, part) in parts {
            debug_assert!(at + part.len() <= len, "each part is within the posted data");
            if !part.is_empty() {
                self.shared.write(self.payload(self.me, round, (place, line), len) + at, part);
            }
        }
        self.publish(round, number, hash);
        (self.past[round as usize % SLOTS], self.round) = (Said { calls: self.calls, place }, round);
        if place == LineKind::Half {
            // Prefetches the following line.
            self.shared.prefetch::<true>(self.block.line(self.me, round + 2, place));
        }
        Ok(round)
    }

    /// Stores the stamp of a line whose data is written.
    #[inline(always)]
    fn publish(&self, round: u64, number: &S::Word, hash: &S::Word) {
        self.shared.word(self.block.signature(self.me, round)).store(self.call, Relaxed);
        hash.store(self.calls, Relaxed);
        number.store(round, Release);
        self.shared.notify();
    }

    /// Returns true if there are two ranks and each posts at most 16 bytes, so that they can
    /// [`exchange`](Self::exchange).
    #[inline(always)]
    pub fn is_pair(&self) -> bool {
        self.place == LineKind::Pair
    }

    /// Posts the next round with `mine`, and reads as many bytes of the other of two ranks. Does the same as
    /// [`post`](Self::post) and [`take`](Self::take) in fewer steps, since both ranks share the line.
    #[inline(always)]
    pub fn exchange(&mut self, mine: &[u8], theirs: &mut [u8]) -> Result<(), Failure> {
        let round = self.round + 1;
        if round > self.heard + AHEAD {
            self.make_room(round, round - AHEAD)?;
        }
        let (line, me) = (self.block.line(0, round, LineKind::Pair), self.me % 2);
        let (payload, half) = (line + STAMP, LINE / 2);
        let words = self.shared.line(line);
        if !mine.is_empty() {
            self.shared.write(payload + me * half, mine);
        }
        self.publish(round, &words[4 * me], &words[4 * me + 1]);
        (self.past[round as usize % SLOTS], self.round) = (Said { calls: self.calls, place: LineKind::Pair }, round);
        self.look(1 - me, round, (&words[4 - 4 * me], &words[5 - 4 * me]))?;
        if !mine.is_empty() {
            self.shared.read(payload + (1 - me) * half, theirs);
        }
        self.all_seen(round);
        Ok(())
    }

    /// Returns the two words of the stamp of `line`.
    #[inline(always)]
    fn stamp(&self, line: usize) -> (&S::Word, &S::Word) {
        let words = self.shared.line(line);
        // The stamp begins the line or its second half.
        let first = (line / 8) & 4;
        (&words[first], &words[first + 1])
    }

    /// Returns the offset of the `len` bytes of a round. `line` is the offset of its stamp.
    #[inline(always)]
    fn payload(&self, rank: Rank, round: u64, (place, line): (LineKind, usize), len: usize) -> usize {
        debug_assert!(len <= self.block.cell_bytes(), "data fits into a cell");
        match len <= place.carries() {
            true => line + STAMP,
            false => self.block.cell(rank, round, len),
        }
    }

    /// Waits until `rank` has posted `round`, which this rank has posted.
    #[inline(always)]
    pub fn see(&mut self, rank: Rank, round: u64) -> Result<(), Failure> {
        self.see_at(self.place, rank, round).map(drop)
    }

    #[inline(always)]
    fn see_at(&mut self, place: LineKind, rank: Rank, round: u64) -> Result<usize, Failure> {
        let line = self.block.line(rank, round, place);
        self.look(rank, round, self.stamp(line))?;
        if place == LineKind::Half {
            // Prefetches the following line, which a rank that is ahead has written.
            self.shared.prefetch::<false>(self.block.line(rank, round + 2, place));
        }
        self.seen[rank] = round;
        Ok(line)
    }

    /// Waits until the stamp of `rank` is that of `round`.
    #[inline(always)]
    fn look(&self, rank: Rank, round: u64, (number, hash): (&S::Word, &S::Word)) -> Result<(), Failure> {
        let mut looks = 0;
        while number.load(SeqCst) != round || hash.load(Relaxed) != self.calls {
            if looks == LOOKS || self.shared.is_oversubscribed() || !has_own_core() {
                return self.wait(rank, round);
            }
            looks += 1;
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Waits for every other rank by [`see`](Self::see).
    #[inline(always)]
    pub fn see_all(&mut self, round: u64) -> Result<(), Failure> {
        for rank in self.others() {
            self.see(rank, round)?;
        }
        self.all_seen(round);
        Ok(())
    }

    /// Records that this rank has seen `round` of every other rank.
    #[inline(always)]
    pub fn all_seen(&mut self, round: u64) {
        self.heard = round;
    }

    /// Returns all other ranks, beginning with the next one, so that not all ranks read from the same one at once.
    #[inline(always)]
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<S> {
        let (me, ranks) = (self.me, self.block.ranks());
        (me + 1..me + ranks).map(move |rank| if rank < ranks { rank } else { rank - ranks })
    }

    /// Waits for `round` of `rank`, and copies a part of its data. `len` is the length that the rank has posted; the
    /// part begins at byte `at`.
    #[inline(always)]
    pub fn take(&mut self, rank: Rank, round: u64, (len, at): (usize, usize), into: &mut [u8]) -> Result<(), Failure> {
        self.take_at(self.place, rank, round, (len, at), into)
    }

    /// Like [`take`](Self::take), where the caller knows the place of the call.
    #[inline(always)]
    pub fn take_at(
        &mut self,
        place: LineKind,
        rank: Rank,
        round: u64,
        (len, at): (usize, usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        debug_assert!(at + into.len() <= len, "the part is within the posted data");
        let line = self.see_at(place, rank, round)?;
        self.shared.read(self.payload(rank, round, (place, line), len) + at, into);
        Ok(())
    }

    /// Waits until all other ranks have posted round `least`, so that the memory of `round` can be overwritten.
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
            // Finds how far the rank is, so as not to poll again soon. Each poll takes a cache line from that rank, so
            // there are few. Mostly the rank is close behind.
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

    /// Waits for `round` of `rank`, or for a later one in the same slot.
    #[cold]
    #[inline(never)]
    fn wait(&self, rank: Rank, round: u64) -> Result<(), Failure> {
        let Said { calls, place } = self.past[round as usize % SLOTS];
        let awaited = Awaited::Rank(rank);
        let (number, hash) = self.stamp(self.block.line(rank, round, place));
        // Places of the round if its rank made another call.
        let others = LineKind::ALL.into_iter().filter(|&other| other != place && self.block.has(other));
        let wait = Wait { rank: self.me, call: &self.name, awaited, deadline: None };
        let look = || {
            // Loaded first: the rank that broke the board may have posted the round before.
            let broken = self.is_broken();
            let (found, theirs) = (number.load(SeqCst), hash.load(SeqCst));
            if found > round {
                return Ok(Some(Found::Later(found)));
            }
            // The second load ensures that the line was not overwritten for a later round meanwhile.
            if found == round && number.load(SeqCst) == round {
                return Ok(Some(if theirs == calls { Found::Round } else { Found::Another }));
            }
            if others.clone().any(|place| self.stamp(self.block.line(rank, round, place)).0.load(SeqCst) == round) {
                return Ok(Some(Found::Another));
            }
            Ok(broken.then_some(Found::Broken))
        };
        let check = || self.shared.check_peers(self.me, awaited).and_then(|()| self.check_open(rank));
        let found = self.shared.wait(wait, look, check);
        match found.map_err(|error| self.give_up(error))? {
            Found::Broken => Err(self.why_broken()),
            Found::Round => Ok(()),
            // The rank can be `SLOTS` rounds ahead only if this rank has posted `LAG` rounds after the awaited one.
            Found::Later(number) if number == round + SLOTS as u64 && round + LAG <= self.round => Ok(()),
            Found::Later(number) => {
                let why = format!("rank {rank} has written round {number} of a collective over round {round}");
                Err(self.give_up(FabricError::Corrupt { why }))
            }
            Found::Another => Err(self.mismatch(rank, self.first_difference(rank, round))),
        }
    }

    /// Returns the oldest known round that belongs to another call at `rank`, or `round` if there is none.
    fn first_difference(&self, rank: Rank, round: u64) -> Differ {
        let differ =
            |round: u64| Differ { theirs: self.call_of(rank, round), mine: self.call_of(self.me, round), round };
        let mut last = (round.saturating_sub(AHEAD - 1).max(1)..=round).map(differ);
        last.find(|differ| differ.theirs != differ.mine).unwrap_or(differ(round))
    }

    /// Returns the signature of the call that this rank's `round` belonged to, or the latest signature if the round is
    /// too old.
    pub fn signature_of(&self, round: u64) -> u64 {
        match self.round.checked_sub(round) {
            Some(ago) if ago < SLOTS as u64 => self.call_of(self.me, round),
            _ => self.call,
        }
    }

    /// Returns the signature of the call that `round` of `rank`, or a later round in its slot, belongs to.
    fn call_of(&self, rank: Rank, round: u64) -> u64 {
        self.shared.word(self.block.signature(rank, round)).load(Relaxed)
    }
}

/// Outcome of a wait.
enum Found {
    Round,
    Later(u64),
    /// The awaited round, but of another call.
    Another,
    Broken,
}
