//! MG, multigrid: a Poisson equation on a periodic cube, by V-cycles over grids of 2, 4, 8 .. points a side. Ranks own
//! boxes of the finer grids and exchange faces with their neighbours. The coarsest grids have too few points for all
//! ranks: each rank has them whole, and does the same work on them.

use crate::problem::{Check, Class, Clock, Outcome};
use crate::random::Random;
use std::ops::Range;
use transom::messages::Tag;
use transom::{Op, Rank, Section, World};

pub const MOST_RANKS: usize = 1024;
const ITERATIONS: usize = 4;
/// Number of charges of each sign.
const CHARGES: usize = 10;
const FACE: Tag<f64> = Tag::new(1);

pub fn run(world: &World, class: Class) -> Result<Outcome, transom::Error> {
    let side = class.select(32, 128, 256);
    let published = class.select(0.5307707005734e-4, 0.6467329375339e-5, 0.2433365309069e-5);
    let mut grids = Multigrid::new(world, side)?;
    grids.cycle()?; // touches all memory once
    grids.finest().u.fill(0.0);

    let clock = Clock::start(world)?;
    grids.residual_of_finest()?;
    grids.norm()?;
    for _ in 0..ITERATIONS {
        grids.cycle()?;
        grids.residual_of_finest()?;
    }
    let norm = grids.norm()?;
    let seconds = clock.stop(world)?;

    let mop = 58.0 * ITERATIONS as f64 * (side as f64).powi(3) / 1e6;
    let checks = vec![Check::near("norm of the residual", norm, published, 1e-8)];
    Ok(Outcome { iterations: ITERATIONS, seconds, mop, checks })
}

struct Multigrid<'w> {
    world: &'w World,
    side: usize,
    /// From the coarsest to the finest.
    levels: Vec<Level>,
    /// Charges on the finest grid.
    v: Vec<f64>,
}

struct Level {
    mesh: Mesh,
    /// Solution, or its correction.
    u: Vec<f64>,
    /// Residual.
    r: Vec<f64>,
}

impl<'w> Multigrid<'w> {
    fn new(world: &'w World, side: usize) -> Result<Self, transom::Error> {
        let sides = (1..=side.ilog2()).map(|log| 1 << log);
        let level = |side| {
            let divided = Mesh::divided(side, world);
            let mesh = if divided.own.iter().all(|&points| points >= 2) { divided } else { Mesh::whole(side) };
            Level { u: mesh.zeros(), r: mesh.zeros(), mesh }
        };
        let levels: Vec<Level> = sides.map(level).collect();
        let mesh = &levels[levels.len() - 1].mesh;
        let mut v = mesh.zeros();
        for charge in [1.0, -1.0] {
            for position in extremes(world, mesh, side, charge)? {
                let [z, y, x] = [position / (side * side), position / side % side, position % side];
                if let Some(at) = mesh.index(world.rank(), [z, y, x]) {
                    v[at] = charge;
                }
            }
        }
        Ok(Multigrid { world, side, levels, v })
    }

    fn finest(&mut self) -> &mut Level {
        self.levels.last_mut().expect("there are grids")
    }

    /// Collective: one V-cycle.
    fn cycle(&mut self) -> Result<(), transom::Error> {
        let (world, top) = (self.world, self.levels.len() - 1);
        for k in (1..=top).rev() {
            self.restrict(k)?;
        }
        let coarsest = &mut self.levels[0];
        coarsest.u.fill(0.0);
        coarsest.mesh.smooth(&coarsest.r, &mut coarsest.u);
        coarsest.mesh.exchange(world, &mut coarsest.u)?;
        for k in 1..=top {
            if k < top {
                self.levels[k].u.fill(0.0);
            }
            self.interpolate(k);
            if k == top {
                self.residual_of_finest()?;
            } else {
                let Level { mesh, u, r } = &mut self.levels[k];
                mesh.subtract_product(u, r);
                mesh.exchange(world, r)?;
            }
            let Level { mesh, u, r } = &mut self.levels[k];
            mesh.smooth(r, u);
            mesh.exchange(world, u)?;
        }
        Ok(())
    }

    /// Collective: the residual of the finest grid becomes v - A u.
    fn residual_of_finest(&mut self) -> Result<(), transom::Error> {
        let world = self.world;
        let Level { mesh, u, r } = self.levels.last_mut().expect("there are grids");
        r.copy_from_slice(&self.v);
        mesh.subtract_product(u, r);
        mesh.exchange(world, r)
    }

    /// Collective: the residual of level k becomes that of level k - 1.
    fn restrict(&mut self, k: usize) -> Result<(), transom::Error> {
        let world = self.world;
        let (coarser, finer) = self.levels.split_at_mut(k);
        let (coarse, fine) = (&mut coarser[k - 1], &finer[0]);
        if coarse.mesh.parts == fine.mesh.parts {
            fine.mesh.restrict(&fine.r, &coarse.mesh, &mut coarse.r);
        } else {
            // Each rank restricts its box. All ranks collect the boxes.
            let part = Mesh::divided(1 << k, world);
            let mut own = part.zeros();
            fine.mesh.restrict(&fine.r, &part, &mut own);
            let own: Vec<f64> = part.block([1; 3], part.own).flat_map(|row| &own[row]).copied().collect();
            let boxes = world.all_gather(&own)?;
            for (rank, own) in boxes.chunks_exact(own.len()).enumerate() {
                let rows = coarse.mesh.block(part.first(rank).map(|cell| cell + 1), part.own);
                for (row, own) in rows.zip(own.chunks_exact(part.own[2])) {
                    coarse.r[row].copy_from_slice(own);
                }
            }
        }
        coarse.mesh.exchange(world, &mut coarse.r)
    }

    /// Adds the correction of level k - 1 to the solution of level k.
    fn interpolate(&mut self, k: usize) {
        let (coarser, finer) = self.levels.split_at_mut(k);
        let (coarse, fine) = (&coarser[k - 1], &mut finer[0]);
        if coarse.mesh.parts == fine.mesh.parts {
            coarse.mesh.interpolate(&coarse.u, &fine.mesh, &mut fine.u);
        } else {
            // This rank's box of the whole grid, with its ghosts.
            let part = Mesh::divided(1 << k, self.world);
            let rows = coarse.mesh.block(part.first(self.world.rank()), part.own.map(|points| points + 2));
            let own: Vec<f64> = rows.flat_map(|row| &coarse.u[row]).copied().collect();
            part.interpolate(&own, &fine.mesh, &mut fine.u);
        }
    }

    /// Collective: root mean square of the residual.
    fn norm(&mut self) -> Result<f64, transom::Error> {
        let (world, points) = (self.world, (self.side as f64).powi(3));
        let Level { mesh, r, .. } = self.finest();
        let square: f64 = mesh.block([1; 3], mesh.own).flat_map(|row| &r[row]).map(|r| r * r).sum();
        Ok((world.all_reduce_one(square, Op::Sum)? / points).sqrt())
    }
}

/// Collective: positions of the ten largest random numbers of the grid, or of the ten smallest if `sign` is -1.
fn extremes(world: &World, mesh: &Mesh, side: usize, sign: f64) -> Result<Vec<usize>, transom::Error> {
    let mut best: Vec<(f64, usize)> = Vec::with_capacity(CHARGES + 1);
    let mut keep = |value: f64, position: usize| {
        if best.len() < CHARGES || value > best[CHARGES - 1].0 {
            best.insert(best.partition_point(|&(other, _)| other > value), (value, position));
            best.truncate(CHARGES);
        }
    };
    let first = mesh.first(world.rank());
    for z in first[0]..first[0] + mesh.own[0] {
        for y in first[1]..first[1] + mesh.own[1] {
            let start = (z * side + y) * side + first[2];
            let mut random = Random::at(Random::SEED, start as u64);
            (start..start + mesh.own[2]).for_each(|position| keep(sign * random.next(), position));
        }
    }
    // The best of all ranks are among the best of each.
    let own: Vec<usize> = best.iter().map(|&(_, position)| position).collect();
    let mut all = world.all_gather_v(&own)?.into_elements();
    let value = |&position: &usize| sign * Random::at(Random::SEED, position as u64).next();
    all.sort_by(|a, b| value(b).total_cmp(&value(a)));
    all.truncate(CHARGES);
    Ok(all)
}

/// A box of a grid, with a layer of ghost cells around it. Axes are in the order z, y, x; cells along x are adjacent.
struct Mesh {
    /// Points of the box, without ghosts.
    own: [usize; 3],
    /// Number of boxes along each axis.
    parts: [usize; 3],
}

impl Mesh {
    /// A rank's box of a grid that is divided among all ranks, which are a power of two.
    fn divided(side: usize, world: &World) -> Self {
        let log = world.size().ilog2();
        let parts = [1 << log.div_ceil(3), 1 << ((log + 1) / 3), 1 << (log / 3)];
        Mesh { own: parts.map(|parts| side / parts), parts }
    }

    /// The whole grid.
    fn whole(side: usize) -> Self {
        Mesh { own: [side; 3], parts: [1; 3] }
    }

    fn zeros(&self) -> Vec<f64> {
        vec![0.0; (self.own[0] + 2) * (self.own[1] + 2) * (self.own[2] + 2)]
    }

    /// A row of cells along x, with the ghosts at its ends.
    fn row(&self, z: usize, y: usize) -> Range<usize> {
        let width = self.own[2] + 2;
        let start = (z * (self.own[1] + 2) + y) * width;
        start..start + width
    }

    /// The rows of a part of the box. Its first cell is counted from the first ghost.
    fn block(&self, first: [usize; 3], size: [usize; 3]) -> impl Iterator<Item = Range<usize>> {
        let rows =
            (first[0]..first[0] + size[0]).flat_map(move |z| (first[1]..first[1] + size[1]).map(move |y| (z, y)));
        rows.map(move |(z, y)| {
            let start = self.row(z, y).start + first[2];
            start..start + size[2]
        })
    }

    /// Place of a rank's box among the boxes.
    fn place(&self, rank: Rank) -> [usize; 3] {
        let [_, y, x] = self.parts;
        [rank / (x * y), rank / x % y, rank % x]
    }

    /// Position in the grid of the first point of a rank's box.
    fn first(&self, rank: Rank) -> [usize; 3] {
        let place = self.place(rank);
        std::array::from_fn(|axis| place[axis] * self.own[axis])
    }

    /// Index of a point of the grid, if it is in the rank's box.
    fn index(&self, rank: Rank, point: [usize; 3]) -> Option<usize> {
        let place = self.place(rank);
        let inside = (0..3).all(|axis| point[axis] / self.own[axis] == place[axis]);
        let [z, y, x] = std::array::from_fn(|axis| point[axis] % self.own[axis] + 1);
        inside.then(|| self.row(z, y).start + x)
    }

    /// The rank whose box is the next along an axis, or the previous. The grid is periodic.
    fn neighbour(&self, rank: Rank, axis: usize, next: bool) -> Rank {
        let mut place = self.place(rank);
        let step = if next { 1 } else { self.parts[axis] - 1 };
        place[axis] = (place[axis] + step) % self.parts[axis];
        (place[0] * self.parts[1] + place[1]) * self.parts[2] + place[2]
    }

    /// The cells of a face, which is `at` cells from the first ghost along its axis.
    fn face(&self, axis: usize, at: usize) -> Section<'static> {
        let [z, y, x] = self.own.map(|points| points + 2);
        match axis {
            0 => Section::Contiguous { offset: at * y * x, len: y * x },
            1 => Section::Strided { offset: at * x, count: z, block: x, stride: y * x },
            _ => Section::Strided { offset: at, count: z * y, block: 1, stride: x },
        }
    }

    /// Collective: fills the ghosts with the points of the neighbours. Edges and corners get their values because
    /// later faces include the ghosts of earlier axes.
    fn exchange(&self, world: &World, values: &mut [f64]) -> Result<(), transom::Error> {
        let me = world.rank();
        for axis in [2, 1, 0] {
            let last = self.own[axis];
            for (to_next, own, ghost) in [(true, last, 0), (false, 1, last + 1)] {
                let mut face = self.face(axis, own).pack(values).expect("faces are inside the box");
                if self.parts[axis] > 1 {
                    let (to, from) = (self.neighbour(me, axis, to_next), self.neighbour(me, axis, !to_next));
                    world.sendrecv_replace(to, from, FACE, &mut face)?;
                }
                self.face(axis, ghost).unpack(&face, values).expect("faces are inside the box");
            }
        }
        Ok(())
    }

    /// Sums of the cells around a row: `near` of the four beside each cell, `far` of the four diagonally beside it.
    fn sum_around(&self, values: &[f64], z: usize, y: usize, near: &mut [f64], far: &mut [f64]) {
        let width = self.own[2] + 2;
        let row = |z, y| &values[self.row(z, y)][..width];
        let beside = [row(z - 1, y), row(z + 1, y), row(z, y - 1), row(z, y + 1)];
        let diagonal = [row(z - 1, y - 1), row(z - 1, y + 1), row(z + 1, y - 1), row(z + 1, y + 1)];
        let (near, far) = (&mut near[..width], &mut far[..width]);
        for x in 0..width {
            near[x] = beside[0][x] + beside[1][x] + beside[2][x] + beside[3][x];
            far[x] = diagonal[0][x] + diagonal[1][x] + diagonal[2][x] + diagonal[3][x];
        }
    }

    /// Calls `change` with each row of points, and the sums around it.
    fn each_row(&self, values: &[f64], mut change: impl FnMut([usize; 2], &[f64], &[f64])) {
        let (mut near, mut far) = (vec![0.0; self.own[2] + 2], vec![0.0; self.own[2] + 2]);
        for z in 1..=self.own[0] {
            for y in 1..=self.own[1] {
                self.sum_around(values, z, y, &mut near, &mut far);
                change([z, y], &near, &far);
            }
        }
    }

    /// Subtracts A u from r. The weight of the six nearest points is 0.
    fn subtract_product(&self, u: &[f64], r: &mut [f64]) {
        const A: [f64; 4] = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
        let width = self.own[2] + 2;
        self.each_row(u, |[z, y], near, far| {
            let (u, r) = (&u[self.row(z, y)][..width], &mut r[self.row(z, y)][..width]);
            let (near, far) = (&near[..width], &far[..width]);
            for x in 1..width - 1 {
                r[x] -= A[0] * u[x] + A[2] * (far[x] + near[x - 1] + near[x + 1]) + A[3] * (far[x - 1] + far[x + 1]);
            }
        });
    }

    /// Adds C r to u: the smoother. The weight of the eight corners is 0.
    fn smooth(&self, r: &[f64], u: &mut [f64]) {
        const C: [f64; 4] = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
        let width = self.own[2] + 2;
        self.each_row(r, |[z, y], near, far| {
            let (r, u) = (&r[self.row(z, y)][..width], &mut u[self.row(z, y)][..width]);
            let (near, far) = (&near[..width], &far[..width]);
            for x in 1..width - 1 {
                u[x] +=
                    C[0] * r[x] + C[1] * (r[x - 1] + r[x + 1] + near[x]) + C[2] * (far[x] + near[x - 1] + near[x + 1]);
            }
        });
    }

    /// Averages the residual for the coarser grid, each of whose points is the second of a pair of points here.
    fn restrict(&self, r: &[f64], coarse: &Mesh, into: &mut [f64]) {
        let (mut near, mut far) = (vec![0.0; self.own[2] + 2], vec![0.0; self.own[2] + 2]);
        for z in 1..=coarse.own[0] {
            for y in 1..=coarse.own[1] {
                self.sum_around(r, 2 * z, 2 * y, &mut near, &mut far);
                let (r, into) = (&r[self.row(2 * z, 2 * y)], &mut into[coarse.row(z, y)]);
                for (x, into) in into[1..=coarse.own[2]].iter_mut().enumerate() {
                    let (left, at, right) = (2 * x + 1, 2 * x + 2, 2 * x + 3);
                    *into = 0.5 * r[at]
                        + 0.25 * (r[left] + r[right] + near[at])
                        + 0.125 * (near[left] + near[right] + far[at])
                        + 0.0625 * (far[left] + far[right]);
                }
            }
        }
    }

    /// Adds the correction z of this coarser grid to the solution of the finer grid, by linear interpolation. Ghosts
    /// get theirs too, because this grid has them.
    fn interpolate(&self, z: &[f64], fine: &Mesh, u: &mut [f64]) {
        let mut sum = vec![0.0; self.own[2] + 2];
        let [planes, rows, _] = self.own;
        for ((k, j), (dk, dj)) in pairs(planes + 1, rows + 1).flat_map(|at| pairs(2, 2).map(move |d| (at, d))) {
            // Mean of the one, two or four rows that are nearest to this row of the finer grid.
            let weight = 1.0 / ((dk + 1) * (dj + 1)) as f64;
            sum.fill(0.0);
            for (k, j) in pairs(dk + 1, dj + 1).map(|(a, b)| (k + a, j + b)) {
                sum.iter_mut().zip(&z[self.row(k, j)]).for_each(|(sum, z)| *sum += z);
            }
            let u = &mut u[fine.row(2 * k + dk, 2 * j + dj)];
            for (u, sum) in u.chunks_exact_mut(2).zip(sum.windows(2)) {
                u[0] += weight * sum[0];
                u[1] += 0.5 * weight * (sum[0] + sum[1]);
            }
        }
    }
}

/// All pairs of a number below `a` and one below `b`.
fn pairs(a: usize, b: usize) -> impl Iterator<Item = (usize, usize)> + Clone {
    (0..a).flat_map(move |first| (0..b).map(move |second| (first, second)))
}
