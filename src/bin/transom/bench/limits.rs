//! The machine's own limits, beside which every figure is put.

use super::cores;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// What an operation takes at least, in things of which the machine's own time is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    pub atomics: f64,
    pub crossings: f64,
    pub copies: f64,
}

/// What the machine needed at some moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bare {
    /// One fetch-and-add on a word that nobody else uses.
    pub atomic: f64,
    /// memcpy of the size in question.
    pub copy: f64,
}

impl Limit {
    pub fn nanoseconds(self, bare: Bare, crossing: f64) -> f64 {
        self.atomics * bare.atomic + self.crossings * crossing + self.copies * bare.copy
    }

    /// In words, e.g. `2 atomics + memcpy`.
    pub fn describe(self) -> String {
        let times = |count: f64, what: &str| match count {
            0.0 => None,
            1.0 => Some(what.to_owned()),
            count => Some(format!("{count} {what}s")),
        };
        let copy = (self.copies > 0.0).then(|| "memcpy".to_owned());
        let parts = [times(self.atomics, "atomic"), times(self.crossings, "crossing"), copy];
        parts.into_iter().flatten().collect::<Vec<_>>().join(" + ")
    }
}

/// Measures the machine, on the core that rank 0 has; takes about two milliseconds.
pub fn bare(bytes: usize) -> Bare {
    let measure = move || {
        if let Some(&core) = cores::allowed().first() {
            cores::bind(core);
        }
        let word = AtomicU64::new(0);
        let atomic = median(Duration::from_micros(300), || {
            black_box(word.fetch_add(black_box(1), SeqCst));
        });
        let (source, mut into) = (vec![1u8; bytes], vec![0u8; bytes]);
        let copy = median(Duration::from_micros(1500), || {
            black_box(&mut into[..]).copy_from_slice(black_box(&source));
        });
        Bare { atomic, copy }
    };
    // A thread of its own, as the launcher's may not be bound.
    std::thread::scope(|scope| scope.spawn(measure).join()).unwrap_or_default()
}

/// The median time of a call, in nanoseconds, of batches that together take about so long.
fn median(time: Duration, mut call: impl FnMut()) -> f64 {
    let mut batch = |count: usize| {
        let begun = Instant::now();
        (0..count).for_each(|_| call());
        begun.elapsed()
    };
    // The first touches memory that was not there.
    batch(1);
    let mut count = 1;
    while batch(count) < time / 50 && count < 1 << 30 {
        count *= 2;
    }
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || begun.elapsed() < time {
        times.push(batch(count).as_secs_f64() * 1e9 / count as f64);
    }
    super::statistics::median(&times)
}
