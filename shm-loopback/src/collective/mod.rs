//! Collectives of ranks that share memory, straight through it: [`Board`]. What a call means, of which type and operation, is
//! the caller's: here are bytes, a fold of elements, and a signature by which different calls are told apart.
//!
//! # How
//! Every call is a number of *rounds*. In each round every rank writes two lines `{stamp, up to 112 bytes}`, behind a cell of
//! 8 or 32 KiB if there are more bytes, and reads the lines that it needs. Up to 16 bytes take half a line, of which two rounds of a
//! rank share one, or, if two ranks say so much to each other, these two. The stamp is the number of the round and a hash of all
//! calls so far, which tells that a line is there and that its
//! rank calls the same (`lines.rs`). Up to 16 rounds are under way at once, eight of those with
//! short cells: long calls are pipelined.
//!
//! Long reductions are shared: each rank folds its share of the elements, and writes it once for all. Short ones every rank folds
//! whole: up to 8 KiB where ranks share cores, or are two, and else as far as the cube of their number leaves it worth it (`whole` in
//! `reduce.rs`): 7.4 KiB by 3, 3.1 KiB by 4, 400 bytes by 8, 64 from 15 on.
//!
//! Broadcasts of 32 KiB and more, blocks as long (of gathers, scatters, all-to-alls and reduce-scatters), and shares as long of a
//! reduction may be read from where they are (`direct.rs`), by one copy in place of two, if all ranks may read each other's
//! memory (that is mapped, or of this process, or by the kernel), which they try when they open a board, and share no cores. Which way is
//! faster the first calls of each kind and length find out, and some many calls later again (`ways.rs`). Scans are never read so.
//!
//! # Memory
//! One block for all ranks: `1,152 + ranks x (704 + 16 x 128)` bytes of lines and at most 4 KiB of padding, then
//! `ranks x (8 x 8 KiB + cells x max(32 KiB, 64 x ranks))` bytes of cells, of which pages that were never used take none: 128 long cells
//! for each of up to 8 ranks, beyond that so many, a power of two, that all have 1,024 at most, but 8 at least. Calls of at most 112 bytes
//! use no cell. Each rank has besides at most as much private memory as three cells, or `ranks` times
//! 8 KiB or an element, whichever is most, once it has reduced or scanned; and 1.5 MiB, or two
//! elements, if it has read what it folds where that is.

mod block;
mod board;
mod broken;
mod direct;
mod fold;
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
