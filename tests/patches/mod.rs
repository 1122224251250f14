//! Random arrays and patches, and lists of their elements.

use std::ops::Range;
use transom::Distribution;

/// Every index of a patch, in row-major order.
pub fn all<const D: usize>(ranges: [Range<usize>; D]) -> Vec<[usize; D]> {
    let mut indices = vec![[0; D]];
    for d in 0..D {
        let longer = indices.into_iter().flat_map(|index| {
            ranges[d].clone().map(move |i| {
                let mut index = index;
                index[d] = i;
                index
            })
        });
        indices = longer.collect();
    }
    indices
}

/// A random distribution of an array.
pub fn any_distribution<const D: usize>(random: &mut fastrand::Rng) -> Distribution<D> {
    match random.u8(0..5) {
        0 => Distribution::Block,
        1 => Distribution::Cyclic,
        2 => Distribution::Balanced,
        _ => Distribution::BlockCyclic(std::array::from_fn(|_| random.usize(1..6))),
    }
}

/// Lengths of an array, some of them nothing, some less than there are ranks.
pub fn any_shape<const D: usize>(random: &mut fastrand::Rng) -> [usize; D] {
    std::array::from_fn(|_| random.usize(0..[60, 13, 8][D - 1]))
}

#[allow(dead_code, reason = "each test file uses what it needs")]
/// Ranges inside an array, now and then all of a dimension, or nothing.
pub fn any_patch<const D: usize>(random: &mut fastrand::Rng, shape: [usize; D]) -> [Range<usize>; D] {
    std::array::from_fn(|d| match random.u8(0..4) {
        0 => 0..shape[d],
        _ => {
            let start = random.usize(0..=shape[d]);
            start..random.usize(start..=shape[d])
        }
    })
}
