//! CG, conjugate gradient: the smallest eigenvalue of a sparse matrix by inverse iteration. The matrix is divided into
//! blocks over a grid of ranks. Teams of the rows and columns of the grid add and distribute vectors.

use crate::problem::{Check, Class, Clock, Outcome};
use crate::random::Random;
use std::ops::Range;
use transom::messages::Tag;
use transom::{Op, World};

pub const MOST_RANKS: usize = 1024;
const ITERATIONS: usize = 15;
/// Steps of the conjugate gradient in each iteration.
const STEPS: usize = 25;
const SEGMENT: Tag<f64> = Tag::new(1);

struct Size {
    n: usize,
    /// Nonzeros of each random vector whose outer product is added to the matrix.
    nonzeros: usize,
    shift: f64,
    zeta: f64,
}

pub fn run(world: &World, class: Class) -> Result<Outcome, transom::Error> {
    let s = Size { n: 1400, nonzeros: 7, shift: 10.0, zeta: 8.5971775078648 };
    let w = Size { n: 7000, nonzeros: 8, shift: 12.0, zeta: 10.362595087124 };
    let a = Size { n: 14000, nonzeros: 11, shift: 20.0, zeta: 17.130235054029 };
    let size = class.select(s, w, a);
    let mut system = System::new(world, &size)?;

    system.iterate(&mut vec![1.0; system.columns.len()])?; // touches all memory once
    let (mut x, mut zeta) = (vec![1.0; system.columns.len()], 0.0);
    let clock = Clock::start(world)?;
    for _ in 0..ITERATIONS {
        zeta = size.shift + 1.0 / system.iterate(&mut x)?;
    }
    let seconds = clock.stop(world)?;

    let products = (size.nonzeros * (size.nonzeros + 1)) as f64;
    let steps = STEPS as f64;
    let per_row = 3.0 + products + steps * (5.0 + products) + 3.0;
    let mop = 2.0 * (ITERATIONS * size.n) as f64 * per_row / 1e6;
    Ok(Outcome { iterations: ITERATIONS, seconds, mop, checks: vec![Check::near("zeta", zeta, size.zeta, 1e-10)] })
}

/// One rank's block of the matrix, and its place in the grid of ranks.
///
/// The grid has as many columns as rows, or twice as many. A vector is divided into as many segments as there are
/// ranks. Those of a block's rows are contiguous, and so are those of its columns.
struct System<'w> {
    world: &'w World,
    /// The ranks in the same row of the grid.
    row: World,
    /// The ranks in the same column of the grid.
    column: World,
    /// Lengths of the segments of this block's rows: each rank of the row adds one.
    row_counts: Vec<usize>,
    /// Lengths of the segments of this block's columns: each rank of the column contributes one.
    column_counts: Vec<usize>,
    /// Rank that needs the segment which this rank adds, and rank that adds the segment which this rank needs.
    transposed: (usize, usize),
    /// Columns of this block, and elements of this rank's vectors. The ranks of a column have the same elements.
    columns: Range<usize>,
    matrix: Sparse,
    /// Product of the block and a vector.
    partial: Vec<f64>,
    segment: Vec<f64>,
}

impl<'w> System<'w> {
    fn new(world: &'w World, size: &Size) -> Result<Self, transom::Error> {
        let (me, ranks) = (world.rank(), world.size());
        let rows = 1 << (ranks.ilog2() / 2);
        let columns = ranks / rows;
        let (r, c) = (me / columns, me % columns);
        let row = world.split(Some(r as u64), c as u64)?.expect("each rank names its row");
        let column = world.split(Some(c as u64), r as u64)?.expect("each rank names its column");

        let start = |segment: usize| segment * size.n / ranks;
        let counts = |segments: Range<usize>| segments.map(|at| start(at + 1) - start(at)).collect();
        let (row_segments, column_segments) = (r * columns..(r + 1) * columns, c * rows..(c + 1) * rows);
        let needed = c * rows + r;
        let own_rows = start(row_segments.start)..start(row_segments.end);
        let own_columns = start(column_segments.start)..start(column_segments.end);
        Ok(System {
            world,
            row,
            column,
            row_counts: counts(row_segments),
            column_counts: counts(column_segments),
            // Rank i adds segment i. Segment i is needed in column i / rows of the grid, by row i % rows.
            transposed: (me % rows * columns + me / rows, needed),
            matrix: Sparse::new(size, own_rows.clone(), own_columns.clone()),
            columns: own_columns,
            partial: vec![0.0; own_rows.len()],
            segment: Vec::new(),
        })
    }

    /// Collective: one step of the inverse iteration. Solves A z = x, replaces x by z / |z|, and returns x z.
    fn iterate(&mut self, x: &mut [f64]) -> Result<f64, transom::Error> {
        let z = self.solve(x)?;
        let mut products = [dot(x, &z), dot(&z, &z)];
        self.row.all_reduce(&mut products, Op::Sum)?;
        let norm = products[1].sqrt();
        x.iter_mut().zip(&z).for_each(|(x, z)| *x = z / norm);
        Ok(products[0])
    }

    /// Collective: the conjugate gradient. Returns z with A z near x.
    fn solve(&mut self, x: &[f64]) -> Result<Vec<f64>, transom::Error> {
        let (mut z, mut q, mut r, mut p) = (vec![0.0; x.len()], vec![0.0; x.len()], x.to_vec(), x.to_vec());
        let mut rho = self.row.all_reduce_one(dot(&r, &r), Op::Sum)?;
        for _ in 0..STEPS {
            self.multiply(&p, &mut q)?;
            let alpha = rho / self.row.all_reduce_one(dot(&p, &q), Op::Sum)?;
            z.iter_mut().zip(&p).for_each(|(z, p)| *z += alpha * p);
            r.iter_mut().zip(&q).for_each(|(r, q)| *r -= alpha * q);
            let before = std::mem::replace(&mut rho, self.row.all_reduce_one(dot(&r, &r), Op::Sum)?);
            let beta = rho / before;
            p.iter_mut().zip(&r).for_each(|(p, r)| *p = r + beta * *p);
        }
        // NPB times the residual |x - A z| too, although the result does not depend on it.
        self.multiply(&z, &mut r)?;
        let square: f64 = r.iter().zip(x).map(|(r, x)| (x - r) * (x - r)).sum();
        self.row.all_reduce_one(square, Op::Sum)?;
        Ok(z)
    }

    /// Collective: `into` becomes A times `vector`.
    fn multiply(&mut self, vector: &[f64], into: &mut [f64]) -> Result<(), transom::Error> {
        let (world, me) = (self.world, self.world.rank());
        self.matrix.multiply(vector, &mut self.partial);
        // The product is the sum of the row's partial products. Each rank of the row adds one segment,
        self.segment.resize(self.row_counts[self.row.rank()], 0.0);
        self.row.reduce_scatter_v(&self.partial, &self.row_counts, &mut self.segment, Op::Sum)?;
        // swaps it for the one that it needs,
        let (to, from) = self.transposed;
        if to != me {
            let sent = std::mem::take(&mut self.segment);
            self.segment.resize(self.column_counts[self.column.rank()], 0.0);
            world.sendrecv(to, SEGMENT, &sent, from, SEGMENT, &mut self.segment)?;
        }
        // and the column collects the segments of its elements.
        self.column.all_gather_v_into(&self.segment, &self.column_counts, into)?;
        Ok(())
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// A block of a sparse matrix, row by row.
struct Sparse {
    /// Index of the first element of each row; at last the number of elements.
    starts: Vec<usize>,
    columns: Vec<u32>,
    values: Vec<f64>,
}

impl Sparse {
    /// Makes the matrix of NPB: a sum of outer products of random sparse vectors, and a shifted diagonal. All ranks
    /// make all vectors and keep the products in their block.
    fn new(size: &Size, rows: Range<usize>, columns: Range<usize>) -> Self {
        let n = size.n;
        let mut random = Random::at(Random::SEED, 1);
        let (mut weight, ratio) = (1.0, 0.1_f64.powf(1.0 / n as f64));
        let mut elements: Vec<Vec<(u32, f64)>> = vec![Vec::new(); rows.len()];
        for i in 0..n {
            let vector = sparse_vector(&mut random, n, size.nonzeros, i);
            for &(column, b) in vector.iter().filter(|(column, _)| columns.contains(column)) {
                for &(row, a) in vector.iter().filter(|(row, _)| rows.contains(row)) {
                    elements[row - rows.start].push(((column - columns.start) as u32, a * (b * weight)));
                }
            }
            weight *= ratio;
        }
        for i in rows.clone().filter(|i| columns.contains(i)) {
            elements[i - rows.start].push(((i - columns.start) as u32, 0.1 - size.shift));
        }

        let mut block = Sparse { starts: vec![0], columns: Vec::new(), values: Vec::new() };
        for mut row in elements {
            row.sort_by_key(|&(column, _)| column);
            for equal in row.chunk_by(|a, b| a.0 == b.0) {
                block.columns.push(equal[0].0);
                block.values.push(equal.iter().map(|(_, value)| value).sum());
            }
            block.starts.push(block.columns.len());
        }
        block
    }

    fn multiply(&self, vector: &[f64], into: &mut [f64]) {
        for (sum, bounds) in into.iter_mut().zip(self.starts.windows(2)) {
            let row = bounds[0]..bounds[1];
            let elements = self.columns[row.clone()].iter().zip(&self.values[row]);
            *sum = elements.map(|(&column, value)| value * vector[column as usize]).sum();
        }
    }
}

/// A random vector with `nonzeros` elements at distinct places, in which element `i` is 0.5.
fn sparse_vector(random: &mut Random, n: usize, nonzeros: usize, i: usize) -> Vec<(usize, f64)> {
    let places = n.next_power_of_two() as f64;
    let mut vector: Vec<(usize, f64)> = Vec::with_capacity(nonzeros + 1);
    while vector.len() < nonzeros {
        let (value, place) = (random.next(), (places * random.next()) as usize);
        if place < n && vector.iter().all(|&(other, _)| other != place) {
            vector.push((place, value));
        }
    }
    match vector.iter_mut().find(|(place, _)| *place == i) {
        Some((_, value)) => *value = 0.5,
        None => vector.push((i, 0.5)),
    }
    vector
}
