//! FT, Fourier transform: a heat equation on a periodic box, solved in the spectrum. Each rank has planes of constant
//! z, and transforms along x and y. For the transform along z, the ranks exchange data so that each has rows of
//! all z: by an all-to-all of sections, by puts of each row as soon as it is ready, or by pipes.

use crate::fft::{Complex, Direction, Fft, Lines};
use crate::pipes::Pipes;
use crate::problem::{By, Check, Class, Clock, Outcome};
use crate::random::Random;
use std::f64::consts::PI;
use std::ops::Range;
use transom::{Op, Rank, Section, Window, World};

const ITERATIONS: usize = 6;

/// Points along x, y and z.
fn shape(class: Class) -> [usize; 3] {
    class.select([64, 64, 64], [128, 128, 32], [256, 256, 128])
}

/// Each rank needs a plane of z and a row of y.
pub fn most_ranks(class: Class) -> usize {
    let [_, y, z] = shape(class);
    y.min(z)
}

pub fn run(world: &World, class: Class, by: By) -> Result<Outcome, transom::Error> {
    let mut heat = Heat::new(world, class, by)?;
    heat.transform_forward()?; // touches all memory once

    let clock = Clock::start(world)?;
    heat.set_initial_values();
    heat.transform_forward()?;
    let mut sums = Vec::with_capacity(ITERATIONS);
    for _ in 0..ITERATIONS {
        heat.evolve();
        heat.transform_inverse()?;
        sums.push(heat.checksum()?);
    }
    let seconds = clock.stop(world)?;

    let points = shape(class).iter().product::<usize>() as f64;
    let iterations = ITERATIONS as f64;
    let per_point = 14.8157 + 7.19641 * points.ln() + (5.23518 + 7.21113 * points.ln()) * iterations;
    let published = published(class);
    let check = |(at, sum): (usize, &Complex)| check_sum(at + 1, *sum, published[at]);
    let checks = sums.iter().enumerate().map(check).collect();
    Ok(Outcome { iterations: ITERATIONS, seconds, mop: points * per_point / 1e6, checks })
}

struct Heat<'w> {
    world: &'w World,
    shape: [usize; 3],
    fft: [Fft; 3],
    /// Factors of one step in time, for each wave number along x, y and z.
    decay: [Vec<f64>; 3],
    /// Part of each rank.
    parts: Vec<Part>,
    /// This rank's planes, in the order z, y, x.
    planes: Vec<Complex>,
    /// This rank's rows of the spectrum, in the order z, y, x.
    waves: Vec<Complex>,
    /// The same rows, while they are transformed.
    rows: Vec<Complex>,
    /// Memory that other ranks put planes or rows into; only by one-sided.
    window: Option<Window<Complex>>,
    /// Only by pipes.
    pipes: Option<Pipes>,
}

/// A rank's part of the box: planes of some z, with all x and y; spectra of some y, with all x and z.
struct Part {
    zs: Range<usize>,
    ys: Range<usize>,
}

impl<'w> Heat<'w> {
    fn new(world: &'w World, class: Class, by: By) -> Result<Self, transom::Error> {
        let (shape, ranks) = (shape(class), world.size());
        let own = shape.iter().product::<usize>() / ranks;
        // The wave numbers of index 0, 1 .. n - 1 are 0, 1 .. n / 2 - 1, -n / 2 .. -1.
        let decay = shape.map(|n| {
            let number = |at| if at < n / 2 { at as f64 } else { at as f64 - n as f64 };
            (0..n).map(|at| (-4e-6 * PI * PI * number(at) * number(at)).exp()).collect()
        });
        let share = |n: usize, rank: Rank| rank * n / ranks..(rank + 1) * n / ranks;
        let (window, pipes) = match by {
            By::Messages => (None, None),
            By::OneSided => (Some(world.allocate(own)?), None),
            By::Pipes => (None, Some(Pipes::open(world)?)),
        };
        Ok(Heat {
            world,
            shape,
            fft: shape.map(Fft::new),
            decay,
            parts: (0..ranks).map(|rank| Part { zs: share(shape[2], rank), ys: share(shape[1], rank) }).collect(),
            planes: vec![[0.0; 2]; own],
            waves: vec![[0.0; 2]; own],
            rows: vec![[0.0; 2]; own],
            window,
            pipes,
        })
    }

    fn set_initial_values(&mut self) {
        let first = self.planes.len() * self.world.rank();
        let mut random = Random::at(Random::SEED, 2 * first as u64);
        self.planes.iter_mut().for_each(|value| *value = [random.next(), random.next()]);
    }

    /// Collective: the spectrum of `planes` goes to `waves`.
    fn transform_forward(&mut self) -> Result<(), transom::Error> {
        let Heat { world, shape, fft, parts, planes, waves, pipes, .. } = self;
        let ([nx, ny, _], own) = (*shape, &parts[world.rank()]);
        let row = own.ys.len() * nx;
        let planes_of_z = planes.chunks_exact_mut(nx * ny).zip(own.zs.clone());
        match &mut self.window {
            None => {
                planes_of_z.for_each(|(plane, _)| transform_plane(fft, plane, *shape, Direction::Forward));
                let (given, taken) = (own.sections_of_planes(parts, *shape), own.sections_of_waves(parts, *shape));
                all_to_all(world, pipes, planes, &given, waves, &taken)?;
            }
            Some(window) => {
                let epoch = window.fence()?;
                for (plane, z) in planes_of_z {
                    transform_plane(fft, plane, *shape, Direction::Forward);
                    // The next plane is transformed while this one is on its way.
                    for (rank, part) in parts.iter().enumerate() {
                        epoch.target(rank)?.put(z * row, &plane[part.ys.start * nx..part.ys.end * nx])?;
                    }
                }
                window.fence()?;
                window.local().read_into(0, waves)?;
            }
        }
        fft[2].transform(waves, Lines { count: row, apart: 1, stride: row }, Direction::Forward);
        Ok(())
    }

    /// One step in time: each wave decays by its numbers.
    fn evolve(&mut self) {
        let (nx, ys) = (self.shape[0], self.parts[self.world.rank()].ys.clone());
        let [along_x, along_y, along_z] = &self.decay;
        let decays = along_z.iter().flat_map(|z| along_y[ys.clone()].iter().map(move |y| z * y));
        let lines = self.waves.chunks_exact_mut(nx).zip(self.rows.chunks_exact_mut(nx));
        for ((waves, rows), decay) in lines.zip(decays) {
            for ((wave, row), x) in waves.iter_mut().zip(rows).zip(along_x) {
                *wave = wave.map(|part| part * (decay * x));
                *row = *wave;
            }
        }
    }

    /// Collective: the values of the spectrum in `rows` go to `planes`.
    fn transform_inverse(&mut self) -> Result<(), transom::Error> {
        let Heat { world, shape, fft, parts, planes, rows, pipes, .. } = self;
        let ([nx, ny, _], own) = (*shape, &parts[world.rank()]);
        let row = own.ys.len() * nx;
        match &mut self.window {
            None => {
                fft[2].transform(rows, Lines { count: row, apart: 1, stride: row }, Direction::Inverse);
                let (given, taken) = (own.sections_of_waves(parts, *shape), own.sections_of_planes(parts, *shape));
                all_to_all(world, pipes, rows, &given, planes, &taken)?;
            }
            Some(window) => {
                // The fence waits until all ranks have read what the last transform put.
                let epoch = window.fence()?;
                for (y, first) in own.ys.clone().zip((0..row).step_by(nx)) {
                    let lines = Lines { count: nx, apart: 1, stride: row };
                    fft[2].transform(&mut rows[first..], lines, Direction::Inverse);
                    // The rows of the next y are transformed while these are on their way.
                    for (rank, part) in parts.iter().enumerate() {
                        let target = epoch.target(rank)?;
                        for (at, z) in part.zs.clone().enumerate() {
                            target.put((at * ny + y) * nx, &rows[z * row + first..][..nx])?;
                        }
                    }
                }
                window.fence()?;
                window.local().read_into(0, planes)?;
            }
        }
        planes.chunks_exact_mut(nx * ny).for_each(|plane| transform_plane(fft, plane, *shape, Direction::Inverse));
        Ok(())
    }

    /// Collective: the sum of 1024 values, divided by the number of points.
    fn checksum(&self) -> Result<Complex, transom::Error> {
        let ([nx, ny, nz], Part { zs, .. }) = (self.shape, &self.parts[self.world.rank()]);
        let mut sum = [0.0; 2];
        for [x, y, z] in (1..=1024).map(|j| [j % nx, 3 * j % ny, 5 * j % nz]) {
            if zs.contains(&z) {
                let value = self.planes[((z - zs.start) * ny + y) * nx + x];
                sum = [sum[0] + value[0], sum[1] + value[1]];
            }
        }
        self.world.all_reduce(&mut sum, Op::Sum)?;
        Ok(sum.map(|part| part / (nx * ny * nz) as f64))
    }
}

impl Part {
    /// Sections of this rank's planes that hold the rows of each rank.
    fn sections_of_planes(&self, parts: &[Part], [nx, ny, _]: [usize; 3]) -> Vec<Section<'static>> {
        let section = |other: &Part| Section::Strided {
            offset: other.ys.start * nx,
            count: self.zs.len(),
            block: other.ys.len() * nx,
            stride: ny * nx,
        };
        parts.iter().map(section).collect()
    }

    /// Sections of this rank's spectra that hold the planes of each rank.
    fn sections_of_waves(&self, parts: &[Part], [nx, ..]: [usize; 3]) -> Vec<Section<'static>> {
        let row = self.ys.len() * nx;
        let section = |other: &Part| Section::Contiguous { offset: other.zs.start * row, len: other.zs.len() * row };
        parts.iter().map(section).collect()
    }
}

/// Collective: by messages, or by pipes.
fn all_to_all(
    world: &World,
    pipes: &mut Option<Pipes>,
    data: &[Complex],
    given: &[Section],
    into: &mut [Complex],
    taken: &[Section],
) -> Result<(), transom::Error> {
    match pipes {
        None => Ok(world.all_to_all_sections(data, given, into, taken)?),
        Some(pipes) => pipes.all_to_all(data, given, into, taken),
    }
}

/// Transforms a plane along x and y.
fn transform_plane(fft: &mut [Fft; 3], plane: &mut [Complex], [nx, ny, _]: [usize; 3], direction: Direction) {
    fft[0].transform(plane, Lines { count: ny, apart: nx, stride: 1 }, direction);
    fft[1].transform(plane, Lines { count: nx, apart: 1, stride: nx }, direction);
}

fn check_sum(iteration: usize, found: Complex, published: Complex) -> Check {
    let size = |[real, imaginary]: Complex| real.hypot(imaginary);
    let error = size([found[0] - published[0], found[1] - published[1]]) / size(published);
    let text = |[real, imaginary]: Complex| format!("{real:.12e} + {imaginary:.12e} i");
    Check {
        text: format!(
            "checksum {iteration}: {}, published {}, error {error:.1e} (at most 1e-12)",
            text(found),
            text(published)
        ),
        right: error <= 1e-12,
    }
}

/// Checksum of each iteration.
fn published(class: Class) -> [Complex; ITERATIONS] {
    class.select(
        [
            [5.546087004964e2, 4.845363331978e2],
            [5.546385409189e2, 4.865304269511e2],
            [5.546148406171e2, 4.883910722336e2],
            [5.545423607415e2, 4.901273169046e2],
            [5.544255039624e2, 4.917475857993e2],
            [5.542683411902e2, 4.932597244941e2],
        ],
        [
            [5.673612178944e2, 5.293246849175e2],
            [5.631436885271e2, 5.282149986629e2],
            [5.594024089970e2, 5.270996558037e2],
            [5.560698047020e2, 5.260027904925e2],
            [5.530898991250e2, 5.249400845633e2],
            [5.504159734538e2, 5.239212247086e2],
        ],
        [
            [5.046735008193e2, 5.114047905510e2],
            [5.059412319734e2, 5.098809666433e2],
            [5.069376896287e2, 5.098144042213e2],
            [5.077892868474e2, 5.101336130759e2],
            [5.085233095391e2, 5.104914655194e2],
            [5.091487099959e2, 5.107917842803e2],
        ],
    )
}
