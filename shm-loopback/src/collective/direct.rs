//! Long calls in which ranks read each other's buffers where they are, by one copy instead of two through cells.
//!
//! A rank that offers a buffer posts what leads to it. It leaves the call when all others have posted a round after their last
//! read of it. Nobody writes to what is not its own.

use super::board::Board;
use super::broken::Failure;
use crate::reach::{self, Reach};
use transom_channel::wire::Key;
use transom_locks::Rank;

/// Bytes from which on a read of a block takes less time than two copies of it through cells, where the kernel does it.
pub(super) const BLOCK_FROM: usize = 32 << 10;
/// The same of all elements of a reduction, of which each rank reads its share of all others, and theirs.
pub(super) const REDUCE_FROM: usize = 256 << 10;
/// Bytes that are read, and then folded, at once.
const PIECE: usize = 64 << 10;

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

impl Board {
    /// How buffers of others are reached, if a read of so many bytes is worth it and all ranks can.
    pub(super) fn direct(&self, bytes: usize, from: usize) -> Option<Reach> {
        self.reach.clone().filter(|_| bytes >= from && self.ranks() > 1)
    }

    /// What a rank has offered in a round, which this rank waits for.
    fn offered(&mut self, rank: Rank, round: u64) -> Result<Key, Failure> {
        self.lines.see(rank, round)?;
        let mut bytes = [0; 16];
        self.lines.read(rank, round, 16, 0, &mut bytes);
        let [address, key] = [0, 8].map(|at| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes")));
        Ok(Key { address, key })
    }

    /// Reads what a rank has offered, into what is this rank's alone.
    fn read_directly(&self, reach: &Reach, rank: Rank, from: (Key, usize), into: &mut [u8]) -> Result<(), Failure> {
        // SAFETY: an exclusive slice.
        let read = unsafe { reach.read(rank, from, (into.as_mut_ptr(), into.len())) };
        read.map_err(|error| self.lines.give_up(error))
    }

    /// Returns when nobody reads any more what was offered.
    fn leave(&mut self) -> Result<(), Failure> {
        let last = self.lines.post(&[])?;
        self.lines.see_all(last)
    }

    /// Every rank has the block at `at(reader)` of what it gives read by each reader, into its place of `into`.
    pub(super) fn read_blocks(
        &mut self,
        reach: &Reach,
        given: &[u8],
        (len, at): (usize, impl Fn(Rank) -> usize),
        into: &mut [u8],
    ) -> Result<(), Failure> {
        let me = self.lines.me;
        let offered = Offered::new(reach, given.as_ptr(), given.len());
        let round = self.lines.post(&offered.to_bytes())?;
        into[me * len..][..len].copy_from_slice(&given[at(me)..][..len]);
        for rank in self.lines.others() {
            let key = self.offered(rank, round)?;
            self.read_directly(reach, rank, (key, at(me)), &mut into[rank * len..][..len])?;
        }
        self.leave()
    }

    /// Every rank folds its share of the elements of all, which it reads where they are, and then reads the shares of others,
    /// if it is to have them.
    pub(super) fn reduce_directly(
        &mut self,
        reach: &Reach,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: &mut dyn FnMut(&mut [u8], &[u8]),
    ) -> Result<(), Failure> {
        let (me, ranks, elements) = (self.lines.me, self.ranks(), data.len() / element);
        let keep = root.is_none_or(|root| root == me);
        let share = |rank: Rank| {
            let at = |rank: usize| (elements as u128 * rank as u128 / ranks as u128) as usize * element;
            at(rank)..at(rank + 1)
        };
        let (mine, piece) = (share(me), (PIECE / element).max(1) * element);
        // Others read parts of these elements while this rank works on others: from here on by this pointer alone.
        let (start, len) = (data.as_mut_ptr(), data.len());
        // SAFETY: within the data. Nobody else writes there, and nobody reads what the caller of this is about to write.
        let own = |part: std::ops::Range<usize>| unsafe {
            std::slice::from_raw_parts_mut(start.wrapping_add(part.start), part.len())
        };
        let all = Offered::new(reach, start, len);
        let round = self.lines.post(&all.to_bytes())?;
        let keys: Vec<Key> = (0..ranks)
            .map(|rank| if rank == me { Ok(all.0) } else { self.offered(rank, round) })
            .collect::<Result<_, _>>()?;

        // Where the shares of others stay as they are, this one's is folded elsewhere.
        let stride = piece.next_multiple_of(64);
        let mut scratch = std::mem::take(&mut self.scratch);
        let (into, rest) = scratch.bytes(2 * stride + if keep { 0 } else { mine.len() }).split_at_mut(stride);
        let (with, apart) = rest.split_at_mut(stride);
        for begin in mine.clone().step_by(piece) {
            let part = begin..mine.end.min(begin + piece);
            let (into, with) = (&mut into[..part.len()], &mut with[..part.len()]);
            match me {
                0 => into.copy_from_slice(own(part.clone())),
                _ => self.read_directly(reach, 0, (keys[0], begin), into)?,
            }
            for (rank, key) in keys.iter().enumerate().skip(1) {
                if rank == me {
                    self.lines.fold(fold, into, own(part.clone()));
                } else {
                    self.read_directly(reach, rank, (*key, begin), with)?;
                    self.lines.fold(fold, into, with);
                }
            }
            match keep {
                true => own(part).copy_from_slice(into),
                false => apart[begin - mine.start..][..part.len()].copy_from_slice(into),
            }
        }

        let folded = if keep { start.wrapping_add(mine.start) } else { apart.as_mut_ptr() };
        let folded = Offered::new(reach, folded, mine.len());
        let round = self.lines.post(&folded.to_bytes())?;
        for rank in self.lines.others().filter(|_| keep) {
            // It has posted this after it has read its share here.
            let key = self.offered(rank, round)?;
            self.read_directly(reach, rank, (key, 0), own(share(rank)))?;
        }
        let left = self.leave();
        drop(folded);
        self.scratch = scratch;
        left
    }
}
