//! The Fourier transform of many lines of complex numbers at once.

use std::f64::consts::PI;

/// Real and imaginary part.
pub type Complex = [f64; 2];

/// Lines that are transformed together: the number at the same place of each. The compiler makes vectors of them.
const LANES: usize = 8;

#[derive(Clone, Copy)]
struct Lanes {
    real: [f64; LANES],
    imaginary: [f64; LANES],
}

/// Direction of a transform. Neither divides by the length.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Forward,
    Inverse,
}

/// Places of lines in memory.
#[derive(Clone, Copy)]
pub struct Lines {
    /// Number of lines, a multiple of 8.
    pub count: usize,
    /// Distance between the first numbers of two adjacent lines.
    pub apart: usize,
    /// Distance between two adjacent numbers of a line.
    pub stride: usize,
}

/// Transforms of lines of one length, a power of two.
pub struct Fft {
    /// exp(-2 pi i k / length), for the first half of the circle.
    roots: Vec<Complex>,
    from: Vec<Lanes>,
    into: Vec<Lanes>,
}

impl Fft {
    pub fn new(length: usize) -> Self {
        let root = |k| {
            let angle = -2.0 * PI * k as f64 / length as f64;
            [angle.cos(), angle.sin()]
        };
        let none = Lanes { real: [0.0; LANES], imaginary: [0.0; LANES] };
        Fft { roots: (0..length / 2).map(root).collect(), from: vec![none; length], into: vec![none; length] }
    }

    /// Transforms lines of `data` in place.
    pub fn transform(&mut self, data: &mut [Complex], lines: Lines, direction: Direction) {
        // An inverse transform is a forward one with real and imaginary parts exchanged.
        let (re, im) = if direction == Direction::Forward { (0, 1) } else { (1, 0) };
        for first in (0..lines.count).step_by(LANES).map(|line| line * lines.apart) {
            for (at, lanes) in self.from.iter_mut().enumerate() {
                let first = first + at * lines.stride;
                for lane in 0..LANES {
                    let number = data[first + lane * lines.apart];
                    (lanes.real[lane], lanes.imaginary[lane]) = (number[re], number[im]);
                }
            }
            self.transform_lanes();
            for (at, lanes) in self.from.iter().enumerate() {
                let first = first + at * lines.stride;
                for lane in 0..LANES {
                    let number = &mut data[first + lane * lines.apart];
                    (number[re], number[im]) = (lanes.real[lane], lanes.imaginary[lane]);
                }
            }
        }
    }

    /// Stockham's algorithm: each pass combines the two halves of `from` in pairs, in the order that the next pass
    /// needs, so that no pass reverses bits.
    fn transform_lanes(&mut self) {
        let half = self.from.len() / 2;
        let mut run = 1; // numbers in a row with the same root
        while run <= half {
            let (low, high) = self.from.split_at(half);
            let runs = low.chunks_exact(run).zip(high.chunks_exact(run)).zip(self.into.chunks_exact_mut(2 * run));
            for (((low, high), into), root) in runs.zip(self.roots.iter().step_by(run)) {
                let (sums, differences) = into.split_at_mut(run);
                for (((low, high), sum), difference) in low.iter().zip(high).zip(sums).zip(differences) {
                    for lane in 0..LANES {
                        sum.real[lane] = low.real[lane] + high.real[lane];
                        sum.imaginary[lane] = low.imaginary[lane] + high.imaginary[lane];
                        let real = low.real[lane] - high.real[lane];
                        let imaginary = low.imaginary[lane] - high.imaginary[lane];
                        difference.real[lane] = real * root[0] - imaginary * root[1];
                        difference.imaginary[lane] = real * root[1] + imaginary * root[0];
                    }
                }
            }
            std::mem::swap(&mut self.from, &mut self.into);
            run *= 2;
        }
    }
}
