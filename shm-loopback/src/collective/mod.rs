//! Collectives of ranks that share memory, straight through it: [`Board`]. What a call means, of which type and operation, is
//! the caller's: here are bytes, a fold of elements, and a signature by which different calls are told apart.
//!
//! # How
//! Every call is a number of *rounds*. In each round every rank writes two lines `{stamp, up to 112 bytes}`, behind a cell of
//! 32 KiB if there are more bytes, and reads the lines that it needs. Up to 16 bytes take half a line, of which two rounds of a
//! rank share one, or, if two ranks say so much to each other, these two. The stamp is the number of the round and a hash of all
//! calls so far, which tells that a line is there and that its
//! rank calls the same (`lines.rs`). Up to 16 rounds are under way at once, eight of those with cells: long calls are pipelined.
//!
//! Reductions of more than 8 KiB are shared: each rank folds its share of the elements, and writes it once for all. Below that
//! every rank folds all.
//!
//! Blocks of 32 KiB and more that each gets of each (all-gather, all-to-all), and broadcasts of 64 KiB and more, are read from where
//! they are (`direct.rs`), by one copy in place of two, if all ranks may read each other's memory (that is mapped, or of this
//! process, or by the kernel), share no cores, and found that faster: they try it when they open a board.
//!
//! # Memory
//! One block for all ranks: `1,152 + ranks x (704 + 16 x 128)` bytes of lines and at most 4 KiB of padding, then
//! `ranks x 8 x max(32 KiB, 64 x ranks)` bytes of cells, of which pages that were never used take none. Calls of at most 112 bytes
//! use no cell, others the beginning of each. Each rank has besides at most as much private memory as two cells, or `ranks` times
//! 8 KiB or an element, whichever is most, once it has reduced or scanned.

mod block;
mod board;
mod broken;
mod direct;
mod lines;
mod moves;
mod reduce;
mod scratch;
mod slate;
mod ways;

pub use board::Board;
pub use broken::{Breaker, Failure};

#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests;
