//! The distribution of LU's matrix over the ranks, and its elements.

use transom::{Rank, World};

/// The owner of each block: rows of blocks are distributed cyclically over rows of ranks, columns over columns.
#[derive(Clone, Copy)]
pub struct Grid {
    pub n: usize,
    /// Rows of a block.
    pub size: usize,
    /// Rows of blocks; the last may extend past n, padded with the identity.
    pub blocks: usize,
    pub rank: Rank,
    rank_rows: usize,
    rank_columns: usize,
}

impl Grid {
    pub fn new(world: &World, n: usize, size: usize) -> Result<Self, String> {
        if size > n {
            return Err(format!("a block of {size} rows is larger than the matrix of {n}"));
        }
        let ranks = world.size();
        let rank_rows = (1..=ranks.isqrt()).rev().find(|rows| ranks.is_multiple_of(*rows)).unwrap_or(1);
        Ok(Grid { n, size, blocks: n.div_ceil(size), rank: world.rank(), rank_rows, rank_columns: ranks / rank_rows })
    }

    pub fn owner(self, row: usize, column: usize) -> Rank {
        row % self.rank_rows * self.rank_columns + column % self.rank_columns
    }

    /// Elements of a block.
    pub fn area(self) -> usize {
        self.size * self.size
    }

    /// The index of a block among its owner's.
    pub fn number(self, row: usize, column: usize) -> usize {
        row / self.rank_rows * self.blocks.div_ceil(self.rank_columns) + column / self.rank_columns
    }

    /// The offset of a block in its owner's part of the window, in elements.
    pub fn offset(self, row: usize, column: usize) -> usize {
        self.number(row, column) * self.area()
    }

    /// Elements of the window at each rank.
    pub fn part(self) -> usize {
        self.blocks.div_ceil(self.rank_rows) * self.blocks.div_ceil(self.rank_columns) * self.area()
    }

    /// This rank's rows of blocks from `from` on; [`columns`](Self::columns) likewise.
    pub fn rows(self, from: usize) -> impl Iterator<Item = usize> + Clone {
        (from..self.blocks).filter(move |row| row % self.rank_rows == self.rank / self.rank_columns)
    }

    pub fn columns(self, from: usize) -> impl Iterator<Item = usize> + Clone {
        (from..self.blocks).filter(move |column| column % self.rank_columns == self.rank % self.rank_columns)
    }

    /// This rank's blocks to the right of and below a diagonal block.
    pub fn mine(self, from: usize) -> impl Iterator<Item = (usize, usize)> {
        self.rows(from).flat_map(move |row| self.columns(from).map(move |column| (row, column)))
    }

    /// An element of the matrix, a hash of its indices.
    pub fn element(self, row: usize, column: usize) -> f64 {
        if row >= self.n || column >= self.n {
            return f64::from(row == column);
        }
        let mut hash = (row as u64) << 32 | column as u64;
        for _ in 0..2 {
            hash = (hash ^ hash >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let random = (hash >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        if row == column { self.n as f64 + 1.0 + random } else { random }
    }
}
