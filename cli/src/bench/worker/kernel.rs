//! How fast a core is in LU's block operation alone, and how fast it could be at most.

use super::block::subtract_product;
use super::facts::{Facts, Outcome};
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::World;

/// How often both are timed, and how long is enough.
const BATCHES: usize = 25;
const ENOUGH: Duration = Duration::from_millis(100);
/// Operations of a batch, or a single product if that has more.
const BATCH: f64 = 4e6;

/// Rank 0 alone.
pub fn measure(world: &World, size: usize, facts: &mut Facts) -> Outcome {
    if world.rank() == 0 {
        tell(size, facts);
    }
    world.barrier()?;
    Ok(())
}

/// Notes GFLOP/s of the kernel on blocks that stay in the nearest cache, and of additions and multiplications that wait for
/// nothing, in vectors as wide as the kernel's. The two take turns, some 2 ms in all.
pub fn tell(size: usize, facts: &mut Facts) {
    let [left, upper] = [(); 2].map(|()| Buffer::new(size * size, |_| 1e-3));
    let mut block = Buffer::new(size * size, |_| 0.0);
    let once = 2.0 * (size as f64).powi(3);
    let products = (BATCH / once).ceil() as usize;
    let mut kernel = || {
        for _ in 0..products {
            subtract_product(size, black_box(&mut block), black_box(&left), &upper);
        }
        products as f64 * once
    };
    let (begun, mut kernels, mut peaks) = (Instant::now(), Vec::new(), Vec::new());
    while kernels.len() < 3 || kernels.len() < BATCHES && begun.elapsed() < ENOUGH {
        kernels.push(timed(&mut kernel));
        peaks.push(timed(|| peak(1 << 14)));
    }
    facts.value("kernel", median(&kernels));
    facts.value("peak", median(&peaks));
}
/// GFLOP/s of a call that says how many operations it made.
fn timed(call: impl FnOnce() -> f64) -> f64 {
    let begun = Instant::now();
    let operations = call();
    operations / begun.elapsed().as_secs_f64() / 1e9
}

/// As many sums as the kernel keeps in registers.
const SUMS: usize = 128;

fn peak(turns: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { peak_avx512(turns) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { peak_avx2(turns) };
        }
    }
    sums::<SUMS, false>(turns)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn peak_avx512(turns: usize) -> f64 {
    sums::<SUMS, true>(turns)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn peak_avx2(turns: usize) -> f64 {
    // Half the registers, of half the width.
    sums::<{ SUMS / 4 }, true>(2 * turns)
}

/// Sums of which none waits for another; returns how many operations that was.
#[inline(always)]
fn sums<const N: usize, const FUSED: bool>(turns: usize) -> f64 {
    let (factor, summand) = (black_box(0.5), black_box(1.0));
    let mut sums: [f64; N] = std::array::from_fn(|at| black_box(at as f64));
    for _ in 0..turns {
        for sum in &mut sums {
            *sum = if FUSED { sum.mul_add(factor, summand) } else { *sum * factor + summand };
        }
    }
    black_box(sums);
    (2 * N * turns) as f64
}
