//! Where everything lies in the block that the ranks of a board share.
//!
//! ```text
//!     broken                a line: 1 + the rank that broke the board
//!     for each rank         a line {why it broke it}, lines {signatures of its last calls}
//!     of two ranks          for each slot a line that both write, half each
//!     for each slot, rank   two lines
//!     for each rank         some cells, for every eighth round each
//! ```

use super::lines::{CELLS, SLOTS};
use transom_locks::Rank;

const LINE: usize = 64;
/// A stamp: the number of a round, and the hash of all calls until then.
pub(super) const STAMP: usize = 16;
/// Bytes that a rank's half of a line carries, and its own two lines.
pub(super) const HALF_CARRIES: usize = LINE / 2 - STAMP;
pub(super) const LINES_CARRY: usize = 2 * LINE - STAMP;
/// A page, for what is used with what.
const PAGE: usize = 4096;
/// Bytes of a cell, if there are not very many ranks.
const CELL: usize = 32 << 10;

/// What a block is for, which all offsets follow from.
#[derive(Clone, Copy)]
pub(super) struct Block {
    ranks: usize,
    /// The lines that two ranks write both.
    halves: usize,
    lines: usize,
    cells: usize,
}

impl Block {
    pub fn of(ranks: usize) -> Self {
        let mut block = Block { ranks, halves: 0, lines: 0, cells: 0 };
        block.halves = block.verdict(ranks);
        // Two lines of one rank are fetched together by processors that fetch aligned pairs: the header takes a line.
        let end = block.halves + if ranks == 2 { SLOTS * LINE } else { 0 };
        block.lines = (end + LINE).next_multiple_of(2 * LINE) - LINE;
        // Cells begin with a page: the header takes a line of the first.
        let end = block.lines + SLOTS * ranks * 2 * LINE;
        block.cells = (end + LINE).next_multiple_of(PAGE) - LINE;
        block
    }

    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Bytes after the header.
    pub fn bytes(self) -> usize {
        self.cells + self.ranks * CELLS * self.cell_bytes()
    }

    /// Where it is said that the board is broken.
    pub fn broken(self) -> usize {
        0
    }

    /// Six words of a rank: why it broke the board, and whether it has closed it.
    pub fn verdict(self, rank: Rank) -> usize {
        LINE + rank * (LINE + (SLOTS * 8).next_multiple_of(LINE))
    }

    /// The signature of the call that a round of a rank belongs to.
    pub fn signature(self, rank: Rank, round: u64) -> usize {
        self.verdict(rank) + LINE + slot(round) * 8
    }

    /// Where a rank says what it says in a round: in a line of both ranks, or in its own.
    #[inline(always)]
    pub fn line(self, rank: Rank, round: u64, halved: bool) -> usize {
        match halved {
            true => self.halves + slot(round) * LINE + rank * (LINE / 2),
            false => self.lines + (slot(round) * self.ranks + rank) * 2 * LINE,
        }
    }

    #[inline(always)]
    pub fn cell(self, rank: Rank, round: u64) -> usize {
        self.cells + (rank * CELLS + round as usize % CELLS) * self.cell_bytes()
    }

    /// Bytes that a cell carries: some for each rank.
    #[inline(always)]
    pub fn cell_bytes(self) -> usize {
        CELL.max(LINE * self.ranks)
    }
}

#[inline(always)]
fn slot(round: u64) -> usize {
    round as usize % SLOTS
}
