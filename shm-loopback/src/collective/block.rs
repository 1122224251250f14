//! Where everything lies in the block that the ranks of a board share.
//!
//! ```text
//!     broken                a line: 1 + the rank that broke the board
//!     for each rank         a line {why it broke it}
//!     for each rank, slot   a word {the signature of its call}
//!     of two ranks          for each slot a line that both write, half each
//!     for each rank, slot   half a line
//!     for each rank, slot   two lines
//!     for each rank         short cells, for every eighth round each
//!     for each rank         long cells, likewise, of which there are more
//! ```

use transom_locks::Rank;

/// Rounds whose lines are there at once, a power of two. They are many, since whoever asks how far others are takes lines from them that
/// they are about to write. And short cells of a rank. A model has as few as there can be, so that they are soon written again.
pub(super) const MODEL: bool = cfg!(all(test, feature = "loom"));
pub(super) const SLOTS: usize = if MODEL { 3 } else { 16 };
const SHORT_CELLS: usize = if MODEL { 3 } else { 8 };
pub(super) const LINE: usize = 64;
/// A stamp: the number of a round, and the hash of all calls until then.
pub(super) const STAMP: usize = 16;
/// Bytes that half a line carries, and a rank's own two lines.
pub(super) const HALF_CARRIES: usize = LINE / 2 - STAMP;
pub(super) const LINES_CARRY: usize = 2 * LINE - STAMP;
/// What the signatures of a rank take, and its halves of lines.
const SIGNATURES: usize = (SLOTS * 8).next_multiple_of(LINE);
const HALVES: usize = (SLOTS * LINE / 2).next_multiple_of(LINE);
/// A page, for what is used with what.
const PAGE: usize = 4096;
/// Bytes of a long cell, if there are not very many ranks, and of a short one.
const LONG: usize = 32 << 10;
const SHORT: usize = 8 << 10;
/// Long cells of all ranks together, about. A rank has 4 MiB of them where ranks are few, so that one that is written again has gone to the
/// cache that processors share: while their own caches have it, each of its lines is first to be taken from another. What is short
/// is quicker in few cells, which these caches have.
const LONG_CELLS: usize = 1024;

/// How many long cells each of so many ranks has, a power of two.
const fn long_cells(ranks: usize) -> usize {
    match LONG_CELLS / ranks {
        _ if MODEL => 3,
        0..=15 => 8,
        128.. => 128,
        each => 1 << each.ilog2(),
    }
}

/// Where ranks say what they say in a round, by what the call is: who looks elsewhere has called something else.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Place {
    /// In a line that both of two ranks write, half each: one crossing brings each the other's.
    Pair,
    /// In half a line of the rank's own: one crossing brings two rounds of who is ahead.
    Half,
    #[default]
    Lines,
}

impl Place {
    pub const ALL: [Place; 3] = [Place::Pair, Place::Half, Place::Lines];

    /// Bytes; more are in a cell.
    #[inline(always)]
    pub fn carries(self) -> usize {
        if self == Place::Lines { LINES_CARRY } else { HALF_CARRIES }
    }
}

/// What a block is for, which all offsets follow from.
#[derive(Clone, Copy)]
pub(super) struct Block {
    ranks: usize,
    signatures: usize,
    pairs: usize,
    halves: usize,
    lines: usize,
    short: usize,
    long: usize,
    /// How many a rank has.
    long_cells: usize,
}

impl Block {
    pub fn of(ranks: usize) -> Self {
        let long_cells = long_cells(ranks);
        let mut block = Block { ranks, signatures: 0, pairs: 0, halves: 0, lines: 0, short: 0, long: 0, long_cells };
        block.signatures = block.verdict(ranks);
        block.pairs = block.signatures + ranks * SIGNATURES;
        block.halves = block.pairs + if ranks == 2 { SLOTS * LINE } else { 0 };
        // Two lines of one rank are fetched together by processors that fetch aligned pairs: the header takes a line.
        let end = block.halves + ranks * HALVES;
        block.lines = (end + LINE).next_multiple_of(2 * LINE) - LINE;
        // Cells begin with a page: the header takes a line of the first.
        let end = block.lines + SLOTS * ranks * 2 * LINE;
        block.short = (end + LINE).next_multiple_of(PAGE) - LINE;
        block.long = block.short + ranks * SHORT_CELLS * SHORT;
        block
    }

    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// Bytes after the header.
    pub fn bytes(self) -> usize {
        self.long + self.ranks * self.long_cells * self.cell_bytes()
    }

    /// Where it is said that the board is broken.
    pub fn broken(self) -> usize {
        0
    }

    /// Six words of a rank: why it broke the board, and whether it has closed it.
    pub fn verdict(self, rank: Rank) -> usize {
        LINE + rank * LINE
    }

    /// The signature of the call that a round of a rank belongs to.
    #[inline(always)]
    pub fn signature(self, rank: Rank, round: u64) -> usize {
        self.signatures + rank * SIGNATURES + slot(round) * 8
    }

    /// Whether anybody says anything there.
    pub fn has(self, place: Place) -> bool {
        place != Place::Pair || self.ranks == 2
    }

    /// Where a rank says what it says in a round.
    #[inline(always)]
    pub fn line(self, rank: Rank, round: u64, place: Place) -> usize {
        let slot = slot(round);
        match place {
            Place::Pair => self.pairs + slot * LINE + rank * (LINE / 2),
            Place::Half => self.halves + rank * HALVES + slot * (LINE / 2),
            Place::Lines => self.lines + (rank * SLOTS + slot) * 2 * LINE,
        }
    }

    /// The cell in which a rank says so many bytes in a round.
    #[inline(always)]
    pub fn cell(self, rank: Rank, round: u64, len: usize) -> usize {
        let (at, cells, bytes) = match len {
            ..=SHORT => (self.short, SHORT_CELLS, SHORT),
            _ => (self.long, self.long_cells, self.cell_bytes()),
        };
        at + (rank * cells + round as usize % cells) * bytes
    }

    /// How many rounds later what is said in a round is written over, if so many bytes are said then, too.
    #[inline(always)]
    pub fn lasts(self, len: usize) -> u64 {
        let rounds = match len {
            len if len <= LINES_CARRY => SLOTS,
            len if len <= SHORT => SHORT_CELLS,
            _ => self.long_cells.min(SLOTS),
        };
        rounds as u64
    }

    /// Bytes that a long cell carries: some for each rank.
    #[inline(always)]
    pub fn cell_bytes(self) -> usize {
        LONG.max(LINE * self.ranks)
    }
}

#[inline(always)]
fn slot(round: u64) -> usize {
    round as usize % SLOTS
}
