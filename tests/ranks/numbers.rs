//! Values that ranks pass to collectives, and the results.

/// A number of each rank, index and round, not too large for sums in a double to be exact.
pub fn number(rank: usize, index: usize, round: usize) -> u64 {
    ((rank * 7919 + index * 104_729 + round * 1_299_709) % 1000) as u64
}

pub fn numbers(rank: usize, len: usize, round: usize) -> Vec<u64> {
    (0..len).map(|index| number(rank, index, round)).collect()
}

/// The reduction of an element of some ranks, one after the other.
pub fn folded(ranks: std::ops::Range<usize>, index: usize, round: usize, op: impl Fn(u64, u64) -> u64) -> u64 {
    ranks.map(|rank| number(rank, index, round)).reduce(op).unwrap()
}
