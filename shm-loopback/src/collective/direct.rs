//! Long calls in which ranks read each other's buffers directly: one copy instead of two through cells, chosen where it
//! [takes less time](super::path_tuner).
//!
//! A rank that offers a buffer posts a key to it. It leaves the call once all others have posted a round after their
//! last read, or once the board is broken. Readers check for a broken board after each read. No rank writes to
//! another's memory.

use super::board::ShmCollective;
use super::broken::Failure;
use super::fold::Fold;
use super::lines::Lines;
use super::shared_lines::SharedLines as _;
use crate::reach::{self, Reach};
use std::ops::Range;
use std::sync::atomic::Ordering::Acquire;
use transom_channel::wire::Key;
use transom_locks::Rank;

/// Bytes read at once to be folded, which stay in a core's private cache or near it. Each further system call took 5 to
/// 10 us where two ranks read each other.
const PIECE: usize = if cfg!(test) { 10_000 } else { 512 << 10 };

/// A buffer that other ranks may read until this is dropped.
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
    /// Reads `into.len()` bytes from a buffer that `rank` offered.
    pub(super) fn read_directly(
        &self,
        reach: &Reach,
        rank: Rank,
        from: (Key, usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        // SAFETY: `into` is an exclusive slice.
        let read = unsafe { reach.read(rank, from, (into.as_mut_ptr(), into.len())) };
        // An owner that finds the board broken withdraws its buffer and may write to it. Data read counts only if the
        // board is still whole; otherwise the error of the broken board is the cause.
        self.shared.fence(Acquire);
        match read {
            _ if self.is_broken() => Err(self.why_broken()),
            read => read.map_err(|error| self.give_up(error)),
        }
    }
}

impl ShmCollective {
    /// Returns the key that `rank` posted in `round`. Waits for it.
    pub(super) fn offered(&mut self, rank: Rank, round: u64) -> Result<Key, Failure> {
        let mut bytes = [0; 16];
        self.lines.take(rank, round, (16, 0), &mut bytes)?;
        let [address, key] = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        Ok(Key { address, key })
    }

    /// Root's part: offers `given` until every other rank has [read](Self::read_root) what it needs. Calls `act`
    /// meanwhile.
    pub(super) fn offer_to_all(&mut self, reach: &Reach, given: &[u8], act: impl FnOnce()) -> Result<(), Failure> {
        let offered = Offered::new(reach, given.as_ptr(), given.len());
        let round = self.lines.post(&offered.to_bytes())?;
        self.meet(round)?;
        act();
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)
    }

    /// Part of the other ranks: reads from the root's buffer, beginning at byte `at`.
    pub(super) fn read_root(&mut self, reach: &Reach, root: Rank, at: usize, into: &mut [u8]) -> Result<(), Failure> {
        let round = self.lines.post(&[])?;
        self.meet(round)?;
        let key = self.offered(root, round)?;
        self.lines.read_directly(reach, root, (key, at), into)?;
        self.lines.post(&[]).map(drop)
    }

    /// Has every rank, or only the root, read a block of `len` bytes from each rank. The block of `reader` begins at
    /// byte `at(reader)` of that rank's `given`; `into` holds them in the order of ranks.
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
        // Once all readers have posted this round, no rank reads the offered buffer.
        let last = self.lines.post(&[])?;
        match root {
            None => self.lines.see_all(last),
            Some(root) if root != me => self.lines.see(root, last),
            Some(_) => Ok(()),
        }
    }

    /// Reduces by shares, for all ranks or for the root. Private memory does not grow with the number of ranks.
    pub(super) fn reduce_directly(
        &mut self,
        reach: &Reach,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        // In a reduction to a root, the other ranks fold into separate memory.
        let most = if root.is_some() { self.ranks() * whole_elements(PIECE, element) } else { data.len() };
        data.chunks_mut(most).try_for_each(|data| self.reduce_part_directly(reach, root, data, element, &mut *fold))
    }

    /// Folds this rank's share of the elements, read from the buffers of all ranks. Then each receiving rank reads the
    /// folded shares of the others from where they are. No rank reads a range while another writes it.
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
        // SAFETY: each range is inside the data, and one slice exists at a time. All are derived from `start`, as the
        // other ranks' reads are: no part is behind a separate reference while they read.
        let part = |range: Range<usize>| unsafe { std::slice::from_raw_parts_mut(start.add(range.start), range.len()) };
        let offered = Offered::new(reach, start, len);
        let keys = self.all_offer(&offered)?;
        // In a reduction to a root, the data of all other ranks must stay unchanged.
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
        // Once all ranks have posted this round, no rank reads the offered buffers.
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)?;
        drop(folded);
        self.apart = apart;
        Ok(())
    }

    /// Folds this rank's block, read from the buffers of all ranks.
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
        // The same as above.
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)
    }

    /// Folds the elements of the first `first` ranks, which are this rank and lower ones, or only lower ones.
    pub(super) fn scan_directly(
        &mut self,
        reach: &Reach,
        first: usize,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let most = whole_elements(PIECE, element);
        data.chunks_mut(most).try_for_each(|data| self.scan_part_directly(reach, first, data, &mut *fold))
    }

    /// The last rank's data is not read, and becomes the fold at once. Other ranks fold into separate memory, and write
    /// to their data once the higher ranks have read it.
    fn scan_part_directly(
        &mut self,
        reach: &Reach,
        first: usize,
        data: &mut [u8],
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let (me, len) = (self.lines.me, data.len());
        let offered = Offered::new(reach, data.as_ptr(), len);
        let round = self.lines.post(&offered.to_bytes())?;
        self.meet(round)?;
        let mut apart = std::mem::take(&mut self.apart);
        let is_read = me + 1 < self.ranks();
        let folded = if is_read && me > 0 { apart.bytes(len) } else { &mut [] };
        if me > 0 {
            let keys = (0..me).map(|rank| self.offered(rank, round)).collect::<Result<Vec<_>, _>>()?;
            let ShmCollective { lines, scratch, .. } = self;
            let into = if is_read {
                folded.copy_from_slice(data);
                &mut *folded
            } else {
                &mut *data
            };
            lines.fold_in_order(first, into, scratch.two(Self::stride(len)), fold, |lines, rank, into| {
                lines.read_directly(reach, rank, (keys[rank], 0), into)
            })?;
        }
        let last = self.lines.post(&[])?;
        for rank in me + 1..self.ranks() {
            self.lines.see(rank, last)?;
        }
        drop(offered);
        if !folded.is_empty() {
            data.copy_from_slice(folded);
        }
        self.apart = apart;
        Ok(())
    }

    /// Returns the key that each rank offers, including this rank's.
    fn all_offer(&mut self, mine: &Offered) -> Result<Vec<Key>, Failure> {
        let round = self.lines.post(&mine.to_bytes())?;
        let me = self.lines.me;
        (0..self.ranks()).map(|rank| if rank == me { Ok(mine.0) } else { self.offered(rank, round) }).collect()
    }

    /// Folds the bytes from `at` on of all offered buffers into `into`, in the order of ranks. This rank's elements are
    /// `mine`, or the previous contents of `into` if there is none.
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
            let ShmCollective { lines, scratch, .. } = self;
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

/// Returns the bytes of the most whole elements within `bytes`, at least one element.
fn whole_elements(bytes: usize, element: usize) -> usize {
    (bytes / element).max(1) * element
}
