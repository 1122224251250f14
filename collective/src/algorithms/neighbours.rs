//! Cartesian grids of ranks, and the exchange between neighbours.

use crate::hosts::Rank;
use crate::plan::{Plan, Span};

/// A Cartesian grid of ranks with `D` dimensions, the last of which varies fastest. In a periodic dimension (`around`),
/// the last rank is next to the first.
///
/// # Examples
/// ```
/// // In `transom`: `use transom::collective::Grid;`
/// use transom_collective::Grid;
/// let grid = Grid::new([2, 3], [false, true]).expect("no length is 0");
/// assert_eq!((grid.ranks(), grid.coordinates(4), grid.rank([1, 1])), (6, Some([1, 1]), Some(4)));
/// // Predecessor and successor in each dimension.
/// assert_eq!(grid.neighbours(5), [[Some(2), None], [Some(4), Some(3)]]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grid<const D: usize> {
    shape: [usize; D],
    around: [bool; D],
}

impl<const D: usize> Grid<D> {
    /// Makes a grid of these lengths; `None` if one of them is 0, or the number of ranks overflows.
    pub fn new(shape: [usize; D], around: [bool; D]) -> Option<Self> {
        let ranks = shape.iter().try_fold(1_usize, |ranks, len| ranks.checked_mul(*len))?;
        (ranks > 0).then_some(Grid { shape, around })
    }

    /// Makes a grid of `ranks` ranks with lengths as equal as possible, longest first; `None` if `ranks` is 0.
    ///
    /// # Examples
    /// ```
    /// use transom_collective::Grid;
    /// assert_eq!(Grid::of(12, [true; 2]).unwrap().shape(), [4, 3]);
    /// assert_eq!(Grid::of(12, [true; 3]).unwrap().shape(), [3, 2, 2]);
    /// assert_eq!(Grid::of(7, [true; 2]).unwrap().shape(), [7, 1]);
    /// ```
    pub fn of(ranks: usize, around: [bool; D]) -> Option<Self> {
        let mut shape = [1; D];
        let (mut left, mut prime) = (ranks, 2);
        let mut primes = Vec::new();
        while left > 1 {
            if prime * prime > left {
                prime = left;
            }
            while left.is_multiple_of(prime) {
                primes.push(prime);
                left /= prime;
            }
            prime += 1;
        }
        // The largest prime factor first, each to the shortest dimension.
        for prime in primes.into_iter().rev() {
            if let Some(shortest) = shape.iter_mut().min() {
                *shortest *= prime;
            }
        }
        shape.sort_by(|a, b| b.cmp(a));
        Grid::new(shape, around).filter(|grid| grid.ranks() == ranks)
    }

    /// The length of each dimension.
    pub fn shape(&self) -> [usize; D] {
        self.shape
    }

    /// The periodicity of each dimension.
    pub fn around(&self) -> [bool; D] {
        self.around
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.shape.iter().product()
    }

    /// The coordinates of a rank; `None` outside the grid.
    pub fn coordinates(&self, rank: Rank) -> Option<[usize; D]> {
        let (mut left, mut at) = (rank, [0; D]);
        for d in (0..D).rev() {
            (left, at[d]) = (left / self.shape[d], left % self.shape[d]);
        }
        (left == 0).then_some(at)
    }

    /// The rank at these coordinates; `None` outside the grid.
    pub fn rank(&self, at: [usize; D]) -> Option<Rank> {
        (0..D).try_fold(0, |rank, d| (at[d] < self.shape[d]).then(|| rank * self.shape[d] + at[d]))
    }

    /// The predecessor and successor of a rank in each dimension.
    ///
    /// A rank is its own neighbour in a periodic dimension of length 1. A rank outside the grid has no neighbours.
    pub fn neighbours(&self, rank: Rank) -> [[Option<Rank>; 2]; D] {
        let Some(at) = self.coordinates(rank) else { return [[None; 2]; D] };
        std::array::from_fn(|d| {
            let len = self.shape[d];
            let next = |steps: usize, at_edge: bool| {
                let there = !at_edge || self.around[d];
                let mut to = at;
                to[d] = (at[d] + steps) % len;
                self.rank(to).filter(|_| there)
            };
            [next(len - 1, at[d] == 0), next(1, at[d] + 1 == len)]
        })
    }

    /// A hash by which grids can be compared.
    pub fn number(&self) -> u32 {
        let parts = self.shape.iter().zip(self.around).map(|(len, around)| *len as u64 * 2 + u64::from(around));
        let mixed =
            parts.fold(D as u64, |mixed, part| (mixed ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29));
        (mixed >> 32) as u32
    }
}

/// Plans the exchange between grid neighbours.
///
/// The blocks of `len` elements are for the predecessor and the successor in the first dimension, then in the second,
/// and so on. The result holds the blocks from these neighbours in the same order. The block of a missing neighbour is
/// neither read nor written.
///
/// # Examples
/// ```
/// use transom_collective::{Grid, neighbours};
/// let row = Grid::new([3], [false]).unwrap();
/// assert_eq!([0, 1, 2].map(|rank| neighbours(rank, &row, 5).rounds[0].sends.len()), [1, 2, 1]);
/// ```
pub fn neighbours<const D: usize>(rank: Rank, grid: &Grid<D>, len: usize) -> Plan {
    let block = |d: usize, side: usize| (2 * d + side) * len..(2 * d + side + 1) * len;
    let mut plan = Plan::default();
    plan.round(|round| {
        for (d, [before, after]) in grid.neighbours(rank).into_iter().enumerate() {
            let (to_before, to_after) = (Span::given(block(d, 0)), Span::given(block(d, 1)));
            let (of_before, of_after) = (Span::data(block(d, 0)), Span::data(block(d, 1)));
            if before == Some(rank) {
                round.copy(to_before, of_after);
                round.copy(to_after, of_before);
                continue;
            }
            before.into_iter().for_each(|to| round.send(to, to_before));
            after.into_iter().for_each(|to| round.send(to, to_after));
            // Receives follow the order of sends, for a peer that is both predecessor and successor: the block sent to
            // the predecessor arrives from the successor.
            after.into_iter().for_each(|from| round.receive(from, of_after));
            before.into_iter().for_each(|from| round.receive(from, of_before));
        }
    });
    plan
}
