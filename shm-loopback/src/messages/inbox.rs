//! A rank's inbox: a fixed number of cells that any rank may fill, independent of the number of ranks.
//!
//! ```text
//!     0       free: a bit for each cell that may be so
//!     64      ready: a bit for each cell; the count of the desk
//!     128     closed, probe, threads of the owner that wait for messages
//!     192     the desk, see `joint`
//!     256     hungry: a bit for each rank that found no free cell
//!     then    cells: a line {owner, length, number}, and the bytes
//! ```
//! The first word of a cell holds the rank that claimed it plus one, or 0; a sender claims a cell by compare-and-swap
//! from 0. The bits of `free` are hints which cells to try. The sender fills its cell and sets the cell's bit in
//! `ready`. No step blocks other senders: a rank that dies after any step leaves behind only the cell, which the owner
//! of the inbox reclaims. The bits have no order, so the cells of each sender are numbered.

use super::joint::CopyDescriptor;
use crate::blocks::Forget;
use crate::event_count::EventCount;
use crate::memory::{HEADER, View};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use transom_locks::Rank;

/// Number of cells of an inbox.
pub const CELLS: usize = 64;
/// Bytes of a cell: 16 KiB of message data and its header.
pub const LONGEST: usize = (16 << 10) + 192;

const FREE: usize = 0;
const READY: usize = 64;
const CLOSED: usize = 128;
const PROBE: usize = 136;
const WAITING: usize = 144;
const LEFT: usize = 72;
const DESK: usize = 192;
const HUNGRY: usize = 256;
const LINE: usize = 64;
const STRIDE: usize = LINE + LONGEST;

/// Size of an inbox in bytes, in a job of `ranks` ranks.
///
/// # Examples
/// ```
/// use transom_shm_loopback::messages::inbox_bytes;
/// assert_eq!(inbox_bytes(2), 64 + 256 + 64 + 64 * (64 + 16576)); // 1.02 MiB
/// assert_eq!(inbox_bytes(1024), inbox_bytes(2) + 64);
/// ```
pub const fn inbox_bytes(ranks: usize) -> usize {
    HEADER + len(ranks)
}

/// Bytes after a ring for the words that its owner publishes: a cache line of their own.
pub(super) const BESIDE: usize = 64;

/// Size in bytes of a ring of `slots` slots of `bytes` bytes, with a cache line for the words that its owner publishes.
///
/// # Examples
/// ```
/// assert_eq!(transom_shm_loopback::messages::ring_bytes(256, 16_704), 128 + 256 * 16_704); // 4.08 MiB
/// ```
pub const fn ring_bytes(slots: usize, bytes: usize) -> usize {
    HEADER + (slots * bytes).next_multiple_of(BESIDE) + BESIDE
}

pub(crate) const fn len(ranks: usize) -> usize {
    cells(ranks) + CELLS * STRIDE
}

/// Offset of the first cell.
const fn cells(ranks: usize) -> usize {
    HUNGRY + ranks.div_ceil(8 * LINE) * LINE
}

/// The inbox of this rank or of a peer.
#[derive(Clone)]
pub(super) struct Inbox {
    pub view: View,
    cells: usize,
}

/// A rank's own inbox. Peers may fill its cells as soon as it is published.
pub(crate) struct Own {
    pub(super) inbox: Inbox,
    /// Keeps the memory open for peers that attach to it.
    _fd: Option<OwnedFd>,
    _listed: Forget,
    /// Peers read this word to test whether they can read this process's buffers.
    _probe: Box<u64>,
}

impl Own {
    /// Creates the inbox in a block of [`len`] bytes, before it is published.
    pub fn new(view: View, ranks: usize, fd: Option<OwnedFd>, listed: Forget) -> Own {
        let (inbox, probe) = (Inbox::new(view, ranks), Box::new(listed.tag));
        inbox.open((&raw const *probe).expose_provenance() as u64);
        Own { inbox, _fd: fd, _listed: listed, _probe: probe }
    }
}

/// Guard: a thread of the owner receives from the inbox until the guard is dropped.
pub(super) struct Attending<'i>(&'i AtomicU64);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Contents of a filled cell's header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cell {
    pub number: u32,
    pub owner: Rank,
    pub length: usize,
    /// Number of this message among those of its sender, modulo 2^32.
    pub order: u32,
}

impl Inbox {
    pub fn new(view: View, ranks: usize) -> Inbox {
        Inbox { view, cells: cells(ranks) }
    }

    /// Prepares the inbox for senders, before they learn of it. They may read the word at address `probe` of this
    /// process.
    pub fn open(&self, probe: u64) {
        self.word(FREE).store(u64::MAX, Relaxed);
        self.word(PROBE).store(probe, Relaxed);
    }

    #[inline(always)]
    fn word(&self, at: usize) -> &AtomicU64 {
        self.view.word(at).expect("an inbox is laid out")
    }

    fn line(&self, number: u32) -> usize {
        self.cells + number as usize * STRIDE
    }

    /// Offset of the bytes of a cell.
    pub fn bytes(&self, number: u32) -> usize {
        self.line(number) + LINE
    }

    /// Announces that the owner receives no more messages.
    pub fn close(&self) {
        self.word(CLOSED).store(1, SeqCst);
    }

    pub fn is_closed(&self) -> bool {
        self.word(CLOSED).load(SeqCst) != 0
    }

    pub fn probe(&self) -> u64 {
        self.word(PROBE).load(Relaxed)
    }

    /// Announces that a thread of the owner receives from this inbox.
    pub fn attend(&self) -> Attending<'_> {
        let waiting = self.word(WAITING);
        waiting.fetch_add(1, Relaxed);
        Attending(waiting)
    }

    /// True if a thread of the owner receives from the inbox and none is parked.
    pub fn is_attended(&self) -> bool {
        self.word(WAITING).load(Relaxed) > 0 && self.view.header().event.sleepers() == 0
    }

    /// Claims a free cell for the caller until it is [filled](Self::fill). If no cell is free, the owner of the inbox
    /// wakes `rank` once one is.
    pub fn claim(&self, rank: Rank) -> Option<u32> {
        self.try_claim(rank).or_else(|| {
            self.word(HUNGRY + rank / 64 * 8).fetch_or(1 << (rank % 64), SeqCst);
            // A cell may have become free before the bit was set.
            self.try_claim(rank)
        })
    }

    fn try_claim(&self, rank: Rank) -> Option<u32> {
        let word = self.word(FREE);
        let mut free = word.load(SeqCst);
        while free != 0 {
            let cell = free.trailing_zeros();
            if self.take(cell, rank) {
                word.fetch_and(!(1 << cell), Relaxed);
                return Some(cell);
            }
            free &= free - 1;
        }
        None
    }

    /// Claims a cell for the rank, unless another rank holds it.
    fn take(&self, cell: u32, rank: Rank) -> bool {
        // Acquire: pairs with the release in `free`, after the previous message was read.
        self.word(self.line(cell)).compare_exchange(0, rank as u64 + 1, Acquire, Relaxed).is_ok()
    }

    /// Publishes a message of `length` bytes in the cell, with the sender's sequence number `order`.
    pub fn fill(&self, cell: u32, length: usize, order: u32) {
        self.word(self.line(cell) + 8).store((length as u64) << 32 | u64::from(order), Relaxed);
        // Release: a receiver that sees the bit sees the contents of the cell.
        self.word(READY).fetch_or(1 << cell, SeqCst);
    }

    /// True if a cell was filled, or a peer's long read has chunks left at the desk.
    #[inline(always)]
    pub fn has_work(&self) -> bool {
        self.word(READY).load(SeqCst) != 0 || self.word(LEFT).load(Relaxed) as u32 != 0
    }

    /// The desk, where peers request help with long reads.
    pub fn desk(&self) -> CopyDescriptor<'_> {
        let words = self.view.own_words(DESK, 8).expect("an inbox is laid out");
        CopyDescriptor { left: self.word(LEFT), words }
    }

    /// Appends the cells that were filled since the last call, those of one sender in order. Callers reuse `cells`, so
    /// that a wait does not allocate.
    pub fn filled(&self, ranks: usize, cells: &mut Vec<Cell>) {
        let word = self.word(READY);
        let mut ready = if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) };
        while ready != 0 {
            let number = ready.trailing_zeros();
            ready &= ready - 1;
            let owner = self.word(self.line(number)).load(Relaxed).wrapping_sub(1) as Rank;
            let said = self.word(self.line(number) + 8).load(Relaxed);
            let (length, order) = ((said >> 32) as usize, said as u32);
            if owner < ranks && length <= LONGEST {
                cells.push(Cell { number, owner, length, order });
            } else {
                // Only a faulty rank writes this header; the cell stays lost.
                tracing::warn!(owner, length, "a cell of the inbox has invalid contents");
            }
        }
        if cells.len() > 1 {
            // With 64 cells, the numbers of one owner differ by far less than 2^31.
            let earlier = |a: &Cell, b: &Cell| (a.order.wrapping_sub(b.order) as i32).cmp(&0);
            cells.sort_unstable_by(|a, b| a.owner.cmp(&b.owner).then_with(|| earlier(a, b)));
        }
    }

    /// Frees a cell and returns the ranks that wait for one.
    pub fn free(&self, cell: u32, ranks: usize) -> Vec<Rank> {
        // Release: the next sender claims the cell only after it was read.
        self.word(self.line(cell)).store(0, Release);
        self.word(FREE).fetch_or(1 << cell, SeqCst);
        let mut waiting = Vec::new();
        for at in 0..ranks.div_ceil(64) {
            let word = self.word(HUNGRY + 8 * at);
            let mut bits = if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) };
            while bits != 0 {
                waiting.push(64 * at + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        // Any rank can write these words, so the bits are checked.
        waiting.retain(|rank| *rank < ranks);
        waiting
    }

    /// Frees the cells that a dead rank had claimed and not filled; returns the ranks that wait for a cell.
    pub fn reclaim(&self, dead: Rank, ranks: usize) -> Vec<Rank> {
        let ready = self.word(READY).load(SeqCst);
        let of = |cell: &u32| ready >> cell & 1 == 0 && self.word(self.line(*cell)).load(Relaxed) == dead as u64 + 1;
        (0..CELLS as u32).filter(of).flat_map(|cell| self.free(cell, ranks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryBlock;
    use std::sync::Arc;

    fn inbox(ranks: usize) -> Inbox {
        let inbox = Inbox::new(View::whole(&Arc::new(MemoryBlock::heap(len(ranks), 1).unwrap())), ranks);
        inbox.open(0);
        inbox
    }

    fn filled(inbox: &Inbox, ranks: usize) -> impl Iterator<Item = Cell> {
        let mut cells = Vec::new();
        inbox.filled(ranks, &mut cells);
        cells.into_iter()
    }

    #[test]
    fn cells_of_a_sender_are_read_in_sequence_order() {
        let inbox = inbox(3);
        let cells: Vec<u32> = (0..6).map(|i| inbox.claim(1 + i % 2).unwrap()).collect();
        // Sender 1 fills its cells in reverse; its sequence numbers wrap around.
        for (cell, order) in [(4, u32::MAX), (2, 0), (0, 1)] {
            inbox.fill(cells[cell], 7, order);
        }
        inbox.fill(cells[3], 9, 0);
        let came: Vec<_> = filled(&inbox, 3).map(|cell| (cell.owner, cell.number, cell.length)).collect();
        assert_eq!(came, [(1, cells[4], 7), (1, cells[2], 7), (1, cells[0], 7), (2, cells[3], 9)]);
        assert_eq!(filled(&inbox, 3).count(), 0);
    }

    #[test]
    fn sender_without_a_cell_is_notified_of_the_next() {
        let inbox = inbox(100);
        let cells: Vec<u32> = (0..CELLS).map(|_| inbox.claim(99).unwrap()).collect();
        assert_eq!((inbox.claim(70), inbox.claim(3)), (None, None));
        let mut waiting = inbox.free(cells[5], 100);
        waiting.sort();
        assert_eq!(waiting, [3, 70]);
        assert_eq!(inbox.claim(3), Some(cells[5]));
        assert_eq!(inbox.free(cells[5], 100), Vec::<Rank>::new(), "a sender was notified twice");
        // Bits that no correct rank sets.
        inbox.word(HUNGRY + 8).store(u64::MAX, SeqCst);
        assert_eq!(inbox.free(cells[5], 100), (64..100).collect::<Vec<_>>());
    }

    #[test]
    fn unfilled_cells_of_a_dead_rank_are_reclaimed() {
        let inbox = inbox(4);
        let dead: Vec<u32> = (0..10).map(|_| inbox.claim(2).unwrap()).collect();
        let living = inbox.claim(1).unwrap();
        inbox.fill(dead[0], 1, 0);
        assert_eq!(inbox.reclaim(2, 4), Vec::<Rank>::new());
        assert_eq!(filled(&inbox, 4).map(|cell| cell.number).collect::<Vec<_>>(), [dead[0]]);
        let free: Vec<u32> = std::iter::from_fn(|| inbox.try_claim(3)).collect();
        assert_eq!(free.len(), CELLS - 2, "expected all cells free but the filled one and that of the living rank");
        assert!(!free.contains(&living) && !free.contains(&dead[0]));
    }

    /// The dead rank may have stopped between any two steps of a claim.
    #[test]
    fn cell_of_a_rank_dead_within_claim_is_reclaimed() {
        let inbox = inbox(4);
        assert!(inbox.take(0, 2)); // its bit still says that it is free
        assert!(!inbox.take(0, 1));
        let others: Vec<u32> = std::iter::from_fn(|| inbox.claim(1)).collect();
        assert_eq!(others, (1..CELLS as u32).collect::<Vec<_>>());
        assert_eq!(inbox.reclaim(2, 4), [1], "the sender that found no cell must be notified");
        assert_eq!(inbox.claim(1), Some(0));
    }

    #[test]
    fn cell_with_invalid_owner_or_length_is_ignored() {
        let inbox = inbox(2);
        for (owner, length) in [(7, 1), (1, LONGEST + 1), (usize::MAX - 1, 0)] {
            let cell = inbox.claim(1).unwrap();
            inbox.word(inbox.line(cell)).store(owner as u64 + 1, Relaxed);
            inbox.fill(cell, length, 0);
            assert_eq!(filled(&inbox, 2).count(), 0, "{length} bytes of {owner}");
        }
    }
}
