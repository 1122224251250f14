//! Collectives among ranks that share memory: [`ShmCollective`]. A board moves bytes, calls the caller's fold on
//! elements, and compares signatures to detect ranks that make different calls. The caller defines call kinds, types
//! and operations.
//!
//! # How
//! A call consists of numbered *rounds*. In each round every rank posts two cache lines `{stamp, up to 112 bytes}` and
//! reads the lines that it needs. More bytes go to a cell of 8 or 32 KiB beside the lines. Up to 16 bytes take half a
//! line: two rounds of a rank share one line, or both ranks of a pair share it. The stamp is the round number and a
//! hash of all calls so far. It tells readers that the line is written, and that its rank makes the same call
//! (`lines.rs`). Up to 16 rounds are in flight at once, or eight with short cells, so long calls are pipelined.
//!
//! Ranks share the work of a long reduction: each folds its share of the elements and posts the result once for all. In
//! a short reduction every rank folds all elements. The limit (`whole` in `reduce.rs`) is 8 KiB with two ranks, or
//! where ranks share cores. Otherwise it falls with the cube of the number of ranks: 7.4 KiB with 3 ranks, 3.1 KiB with
//! 4, 400 bytes with 8, and 64 bytes from 15 ranks on.
//!
//! Readers may copy long data directly from the buffers of other ranks (`direct.rs`): one copy instead of two through
//! cells. This applies from 32 KiB on to broadcasts, to the blocks of gathers, scatters, all-to-alls and
//! reduce-scatters, to the shares of a reduction, and to scans. All ranks must be able to read each other's memory
//! (mapped, of the same process, or through the kernel), which they test when they open the board, and must not share
//! cores. After 2 MiB of such calls, the next ones of each kind and length measure both paths, and later calls measure
//! again (`path_tuner.rs`).
//!
//! # Memory
//! All ranks share one block: `1,152 + ranks x (704 + 16 x 128)` bytes of lines, at most 4 KiB of padding, then `ranks
//! x (8 x 8 KiB + cells x max(32 KiB, 64 x ranks))` bytes of cells. Pages that were never used take no memory, until
//! paths are measured: all cells are mapped then, so that no new page is measured. `cells`
//! is 128 with up to 8 ranks. With more ranks it is the largest power of two for which all ranks together have at most
//! 1,024, but at least 8. Calls of at most 112 bytes use no cell. Once it has reduced or scanned, each rank also has
//! private memory: at most the largest of three cells, `ranks` times 8 KiB, and `ranks` elements. Direct reductions and
//! scans add 1.5 MiB, or three elements.

mod block;
mod board;
mod broken;
mod direct;
mod fold;
mod lines;
mod moves;
mod path_tuner;
mod reduce;
mod scratch;
mod shared_lines;

pub use board::ShmCollective;
pub use broken::{Breaker, Failure};

#[cfg(all(test, feature = "loom"))]
mod model;
#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests;
