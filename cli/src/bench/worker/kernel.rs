//! The speed of a core in LU's block operation alone, and an upper bound of it.

use super::block::subtract_product;
use super::facts::{Facts, Outcome};
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::World;

/// The number of batches of each, and the time after which no further batches are needed.
const BATCHES: usize = 25;
const ENOUGH: Duration = Duration::from_millis(100);
/// Operations of a batch, or those of one product if that has more.
const BATCH: f64 = 4e6;

/// Only rank 0 measures.
pub fn measure(world: &World, size: usize, facts: &mut Facts) -> Outcome {
    if world.rank() == 0 {
        tell(size, facts);
    }
    world.barrier()?;
    Ok(())
}

/// Reports the GFLOP/s of the kernel on blocks in the L1 cache, and of independent multiply-additions in vectors as
/// wide as the kernel's. The two alternate, for about 2 ms in all.
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
/// GFLOP/s of a call that returns the number of its operations.
fn timed(call: impl FnOnce() -> f64) -> f64 {
    let begun = Instant::now();
    let operations = call();
    operations / begun.elapsed().as_secs_f64() / 1e9
}

/// The number of sums that the kernel keeps in registers.
const SUMS: usize = 128;

fn peak(turns: usize) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has the features that the function was compiled for.
            return unsafe { peak_avx512(turns) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has the features that the function was compiled for.
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
    // Half as many registers, each half as wide.
    sums::<{ SUMS / 4 }, true>(2 * turns)
}

/// Computes independent sums, and returns the number of operations.
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
