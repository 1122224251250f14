//! Layout of the memory block that the ranks of a board share.
//!
//! ```text
//!     broken                a line: 1 + the rank that broke the board, or 0
//!     for each rank         a line {its verdict: why it broke the board}
//!     for each rank, slot   a word {signature of the call}
//!     if two ranks, slots   a line that both write, half each
//!     for each rank, slot   half a line
//!     for each rank, slot   two lines
//!     for each rank         eight short cells, used in turn
//!     for each rank         long cells, used in turn
//! ```

use std::ops::Range;
use transom_locks::Rank;

/// Slots: rounds whose lines exist at once, a power of two except in the model. A rank that polls the progress of
/// others takes cache lines from ranks that are about to write them; many slots make such polls rare. The loom model
/// has the fewest possible slots and cells, so that it reuses them soon.
pub(super) const MODEL: bool = cfg!(all(test, feature = "loom"));
pub(super) const SLOTS: usize = if MODEL { 3 } else { 16 };
const SHORT_CELLS: usize = if MODEL { 3 } else { 8 };
pub(super) const LINE: usize = 64;
/// Bytes of a stamp: the round number, and the hash of all calls so far.
pub(super) const STAMP: usize = 16;
/// Payload bytes of half a line, and of a rank's own two lines.
pub(super) const HALF_CARRIES: usize = LINE / 2 - STAMP;
pub(super) const LINES_CARRY: usize = 2 * LINE - STAMP;
/// Bytes of a rank's signatures, and of its half lines.
const SIGNATURES: usize = (SLOTS * 8).next_multiple_of(LINE);
const HALVES: usize = (SLOTS * LINE / 2).next_multiple_of(LINE);
/// Cells begin at a page, so that each takes whole pages.
const PAGE: usize = 4096;
/// Bytes of a long cell (unless there are more than 512 ranks), and of a short cell.
const LONG: usize = 32 << 10;
const SHORT: usize = 8 << 10;
/// Approximate number of long cells of all ranks together. With few ranks each has 4 MiB of them, so that a reused cell
/// has moved to the cache that the cores share. While its lines are in the private caches of readers, the writer must
/// fetch each from there. Short messages are faster in few cells, which stay in those caches.
const LONG_CELLS: usize = 1024;

/// Returns the number of long cells of each rank, a power of two.
const fn long_cells(ranks: usize) -> usize {
    match LONG_CELLS / ranks {
        _ if MODEL => 3,
        0..=15 => 8,
        128.. => 128,
        each => 1 << each.ilog2(),
    }
}

/// Place where a rank posts its data of a round. The call determines the place, so a rank that reads another place has
/// made another call.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LineKind {
    /// A line that both ranks of a pair write, half each: one line transfer brings each rank the other's data.
    Pair,
    /// Half a line of the rank's own: one line transfer brings a reader two rounds of a rank that is ahead.
    Half,
    #[default]
    Lines,
}

impl LineKind {
    pub const ALL: [LineKind; 3] = [LineKind::Pair, LineKind::Half, LineKind::Lines];

    /// Returns the payload bytes; longer data goes to a cell.
    #[inline(always)]
    pub fn carries(self) -> usize {
        if self == LineKind::Lines { LINES_CARRY } else { HALF_CARRIES }
    }
}

/// Offsets of all parts of the block, which follow from the number of ranks.
#[derive(Clone, Copy)]
pub(super) struct Block {
    ranks: usize,
    signatures: usize,
    pairs: usize,
    halves: usize,
    lines: usize,
    short: usize,
    long: usize,
    /// Long cells of each rank.
    long_cells: usize,
}

impl Block {
    pub fn of(ranks: usize) -> Self {
        let long_cells = long_cells(ranks);
        let mut block = Block { ranks, signatures: 0, pairs: 0, halves: 0, lines: 0, short: 0, long: 0, long_cells };
        block.signatures = block.verdict(ranks);
        block.pairs = block.signatures + ranks * SIGNATURES;
        block.halves = block.pairs + if ranks == 2 { SLOTS * LINE } else { 0 };
        // Some processors fetch aligned pairs of lines: both lines of a rank form such a pair. The header takes one
        // line.
        let end = block.halves + ranks * HALVES;
        block.lines = (end + LINE).next_multiple_of(2 * LINE) - LINE;
        // Cells begin at a page. The header takes one line of the first page.
        let end = block.lines + SLOTS * ranks * 2 * LINE;
        block.short = (end + LINE).next_multiple_of(PAGE) - LINE;
        block.long = block.short + ranks * SHORT_CELLS * SHORT;
        block
    }

    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Returns the bytes after the header.
    pub fn bytes(self) -> usize {
        self.long + self.ranks * self.long_cells * self.cell_bytes()
    }

    /// Returns the offset of the word that names the rank that broke the board.
    pub fn broken(self) -> usize {
        0
    }

    /// Returns the offset of a rank's six verdict words: why it broke the board, and whether it has closed it.
    pub fn verdict(self, rank: Rank) -> usize {
        LINE + rank * LINE
    }

    /// Returns the offset of the signature of the call that `round` of `rank` belongs to.
    #[inline(always)]
    pub fn signature(self, rank: Rank, round: u64) -> usize {
        self.signatures + rank * SIGNATURES + slot(round) * 8
    }

    /// Returns whether any rank posts at `place`.
    pub fn has(self, place: LineKind) -> bool {
        place != LineKind::Pair || self.ranks == 2
    }

    /// Returns the offset of the line of `rank` in `round`.
    #[inline(always)]
    pub fn line(self, rank: Rank, round: u64, place: LineKind) -> usize {
        let slot = slot(round);
        match place {
            LineKind::Pair => self.pairs + slot * LINE + rank * (LINE / 2),
            LineKind::Half => self.halves + rank * HALVES + slot * (LINE / 2),
            LineKind::Lines => self.lines + (rank * SLOTS + slot) * 2 * LINE,
        }
    }

    /// Returns the offset of the cell that holds `len` bytes of `rank` in `round`.
    #[inline(always)]
    pub fn cell(self, rank: Rank, round: u64, len: usize) -> usize {
        let (at, cells, bytes) = match len {
            ..=SHORT => (self.short, SHORT_CELLS, SHORT),
            _ => (self.long, self.long_cells, self.cell_bytes()),
        };
        at + (rank * cells + round as usize % cells) * bytes
    }

    /// Returns the offsets of all long cells of `rank`.
    pub fn long_cells_of(self, rank: Rank) -> Range<usize> {
        let bytes = self.long_cells * self.cell_bytes();
        let start = self.long + rank * bytes;
        start..start + bytes
    }

    /// Returns the rounds after which data of `len` bytes is overwritten by data of the same length.
    #[inline(always)]
    pub fn lasts(self, len: usize) -> u64 {
        let rounds = match len {
            len if len <= LINES_CARRY => SLOTS,
            len if len <= SHORT => SHORT_CELLS,
            _ => self.long_cells.min(SLOTS),
        };
        rounds as u64
    }

    /// Returns the bytes of a long cell, at least one line for each rank.
    #[inline(always)]
    pub fn cell_bytes(self) -> usize {
        LONG.max(LINE * self.ranks)
    }
}

#[inline(always)]
fn slot(round: u64) -> usize {
    round as usize % SLOTS
}
