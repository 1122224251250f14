//! Long calls in which ranks read each other's buffers where they are, by one copy instead of two through cells, where that
//! [takes less time](super::ways).
//!
//! A rank that offers a buffer posts what leads to it. It leaves the call when all others have posted a round after their last
//! read of it, or when the board is broken, which readers look for after each read. Nobody writes to what is not its own.

use super::board::Board;
use super::broken::Failure;
use super::fold::Fold;
use super::lines::Lines;
use super::slate::Slate as _;
use crate::reach::{self, Reach};
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;
use transom_channel::wire::Key;
use transom_locks::Rank;

/// Bytes that are read at once to be folded: they stay in the cache that a core has to itself, or not far from it. Each call of the
/// kernel more took 5 to 10 us where two ranks read each other.
const PIECE: usize = if cfg!(test) { 10_000 } else { 512 << 10 };

/// A buffer that others may read, as long as this is there.
struct Offered(Key);

impl Offered {
    fn new(reach: &Reach, start: *const u8, len: usize) -> Self {
        Offered(reach.lead_to(start.expose_provenance(), len))
    }

    fn to_bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0.address.to_le_bytes());
        bytes[8..].copy_from_slice(&self.0.key.to_le_bytes());
        bytes
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        reach::withdraw(self.0);
    }
}

impl Lines {
    /// Reads what a rank has offered, into what is this rank's alone.
    pub(super) fn read_directly(
        &self,
        reach: &Reach,
        rank: Rank,
        from: (Key, usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        // SAFETY: an exclusive slice.
        let read = unsafe { reach.read(rank, from, (into.as_mut_ptr(), into.len())) };
        // Who has found the board broken takes back what it offered, and may write there: so what was read counts only if
        // the board is whole still. What others found is what went wrong.
        self.slate.fence(Acquire);
        match read {
            _ if self.is_broken() => Err(self.why_broken()),
            read => read.map_err(|error| self.give_up(error)),
        }
    }
}

impl Board {
    /// What a rank has offered in a round, which this rank waits for.
    pub(super) fn offered(&mut self, rank: Rank, round: u64) -> Result<Key, Failure> {
        let mut bytes = [0; 16];
        self.lines.take(rank, round, (16, 0), &mut bytes)?;
        let [address, key] = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        Ok(Key { address, key })
    }

    /// The root's part: every other rank reads what it [needs](Self::read_root) of `given`, where that is. `act` is called meanwhile.
    pub(super) fn offer_to_all(&mut self, reach: &Reach, given: &[u8], act: impl FnOnce()) -> Result<(), Failure> {
        let offered = Offered::new(reach, given.as_ptr(), given.len());
        let round = self.lines.post(&offered.to_bytes())?;
        self.meet(round)?;
        act();
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)
    }

    /// The part of the others: reads what the root gives, from byte `at` on.
    pub(super) fn read_root(&mut self, reach: &Reach, root: Rank, at: usize, into: &mut [u8]) -> Result<(), Failure> {
        let round = self.lines.post(&[])?;
        self.meet(round)?;
        let key = self.offered(root, round)?;
        self.lines.read_directly(reach, root, (key, at), into)?;
        self.lines.post(&[]).map(drop)
    }

    /// Every rank, or the root alone, reads the block at `at(reader)` of what each rank gives, into that one's place of `into`.
    pub(super) fn read_blocks(
        &mut self,
        reach: &Reach,
        root: Option<Rank>,
        given: &[u8],
        (len, at): (usize, impl Fn(Rank) -> usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let me = self.lines.me;
        let offered = Offered::new(reach, given.as_ptr(), given.len());
        let round = self.lines.post(&offered.to_bytes())?;
        if root.is_none_or(|root| root == me) {
            into[me * len..][..len].copy_from_slice(&given[at(me)..][..len]);
            for rank in self.lines.others() {
                let key = self.offered(rank, round)?;
                self.lines.read_directly(reach, rank, (key, at(me)), &mut into[rank * len..][..len])?;
            }
        } else {
            self.meet(round)?;
        }
        // Nobody reads any more what was offered, once all readers have posted this.
        let last = self.lines.post(&[])?;
        match root {
            None => self.lines.see_all(last),
            Some(root) if root != me => self.lines.see(root, last),
            Some(_) => Ok(()),
        }
    }

    /// Folds elements, shared among the ranks, for all or the root. What it takes of memory does not depend on how many they are.
    pub(super) fn reduce_directly(
        &mut self,
        reach: &Reach,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        // What only the root is to have the others fold apart.
        let most = if root.is_some() { self.ranks() * whole_elements(PIECE, element) } else { data.len() };
        data.chunks_mut(most).try_for_each(|data| self.reduce_part_directly(reach, root, data, element, &mut *fold))
    }

    /// Every rank folds its share of the elements, read where the others have them; then those that are to have them read the
    /// shares of the others where these have folded them. What a rank writes nobody reads at that time.
    fn reduce_part_directly(
        &mut self,
        reach: &Reach,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let (me, len) = (self.lines.me, data.len());
        let share = (len / element).div_ceil(self.ranks()) * element;
        let share = |rank: Rank| len.min(rank * share)..len.min((rank + 1) * share);
        let mine = share(me);
        let start = data.as_mut_ptr();
        // SAFETY: a part of the data, of which there is one slice at a time. By `start`, as others read: no part is behind a
        // reference of its own while they do.
        let part = |range: Range<usize>| unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) };
        let offered = Offered::new(reach, start, len);
        let keys = self.all_offer(&offered)?;
        // Where they are not for this rank its data stay as they were.
        let has = root.is_none_or(|root| root == me);
        let mut apart = std::mem::take(&mut self.apart);
        let (own, into) = match has {
            true => (None, part(mine.clone())),
            false => (Some(&*part(mine.clone())), apart.bytes(mine.len())),
        };
        self.fold_offered(reach, (&keys, mine.start), own, into, element, fold)?;
        let folded = Offered::new(reach, into.as_ptr(), into.len());
        let round = self.lines.post(&folded.to_bytes())?;
        for rank in self.lines.others().filter(|_| has) {
            let key = self.offered(rank, round)?;
            self.lines.read_directly(reach, rank, (key, 0), part(share(rank)))?;
        }
        // Nobody reads any more what was offered, once all have posted this.
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)?;
        drop(folded);
        self.apart = apart;
        Ok(())
    }

    /// Every rank folds its block of what each of the ranks gives, read where that is.
    pub(super) fn reduce_blocks_directly(
        &mut self,
        reach: &Reach,
        given: &[u8],
        into: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let at = self.lines.me * into.len();
        let offered = Offered::new(reach, given.as_ptr(), given.len());
        let keys = self.all_offer(&offered)?;
        self.fold_offered(reach, (&keys, at), Some(&given[at..][..into.len()]), into, element, fold)?;
        // As above.
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)
    }

    /// What each rank offers, this one's among it.
    fn all_offer(&mut self, mine: &Offered) -> Result<Vec<Key>, Failure> {
        let round = self.lines.post(&mine.to_bytes())?;
        let me = self.lines.me;
        (0..self.ranks()).map(|rank| if rank == me { Ok(mine.0) } else { self.offered(rank, round) }).collect()
    }

    /// Folds what all ranks offer from byte `at` on, in their order: what this rank has is `mine`, or else what it becomes.
    fn fold_offered(
        &mut self,
        reach: &Reach,
        (keys, at): (&[Key], usize),
        mine: Option<&[u8]>,
        into: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let (ranks, most) = (keys.len(), whole_elements(PIECE, element));
        for (begin, into) in (0..).step_by(most).zip(into.chunks_mut(most)) {
            let Board { lines, scratch, .. } = self;
            let room = scratch.two(Self::stride(into.len()));
            let read = |lines: &mut Lines, rank: Rank, into: &mut [u8]| {
                lines.read_directly(reach, rank, (keys[rank], at + begin), into)
            };
            match mine {
                Some(mine) => lines.fold_apart(&mine[begin..][..into.len()], into, room.0, fold, read)?,
                None => lines.fold_in_order(ranks, into, room, fold, read)?,
            }
        }
        Ok(())
    }
}

/// Bytes of as many elements as there are in so many bytes: one at least.
fn whole_elements(bytes: usize, element: usize) -> usize {
    (bytes / element).max(1) * element
}
