//! The machine's own limits, shown beside every figure.

use super::buffer::Buffer;
use super::cores;
use super::statistics;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The primitive operations that one way of doing something takes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    pub atomics: f64,
    pub crossings: f64,
    pub copies: f64,
    /// Between hosts: messages of the task's size one way, and requests of that size that are answered.
    pub one_ways: f64,
    pub round_trips: f64,
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            atomics: self.atomics + other.atomics,
            crossings: self.crossings + other.crossings,
            copies: self.copies + other.copies,
            one_ways: self.one_ways + other.one_ways,
            round_trips: self.round_trips + other.round_trips,
        }
    }
}

/// The least time of an operation, whatever the protocol: the fastest of several ways.
#[derive(Clone, Debug, PartialEq)]
pub struct Limit(pub Vec<Cost>);

/// Times of the machine's primitive operations at some moment, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bare {
    /// One fetch-and-add on a word that no other thread uses. For random accumulates, on successive words outside all
    /// caches.
    pub atomic: f64,
    /// A copy of the task's size, between page-aligned buffers.
    pub copy: f64,
    /// Between hosts: a message of the task's size one way over a plain TCP stream, and a request of that size with its
    /// answer. Otherwise 0.
    pub one_way: f64,
    pub round_trip: f64,
    /// The same round trip, with an answering end that sleeps until the request arrives.
    pub asleep: f64,
}

impl Bare {
    /// The smaller time of each kind, because other load can only add to it.
    pub fn least(self, other: Bare) -> Bare {
        Bare { atomic: self.atomic.min(other.atomic), copy: self.copy.min(other.copy), ..self }
    }
}

impl Limit {
    pub fn nanoseconds(&self, bare: Bare, crossing: f64) -> f64 {
        let time = |cost: &Cost| {
            let memory = cost.atomics * bare.atomic + cost.crossings * crossing + cost.copies * bare.copy;
            memory + cost.one_ways * bare.one_way + cost.round_trips * bare.round_trip
        };
        self.0.iter().map(time).reduce(f64::min).unwrap_or(0.0)
    }

    /// Describes the limit, e.g. `2 atomics + memcpy`, `min(64 atomics, 2 atomics + memcpy)`.
    pub fn describe(&self) -> String {
        let times = |count: f64, what: &str| match count {
            0.0 => None,
            1.0 => Some(what.to_owned()),
            count => Some(format!("{count} {what}s")),
        };
        let way = |cost: &Cost| {
            let copy = (cost.copies > 0.0).then(|| "memcpy".to_owned());
            let streams = [times(cost.one_ways, "TCP one way"), times(cost.round_trips, "TCP round trip")];
            let parts =
                [times(cost.atomics, "atomic"), times(cost.crossings, "crossing"), copy].into_iter().chain(streams);
            parts.flatten().collect::<Vec<_>>().join(" + ")
        };
        let ways: Vec<_> = self.0.iter().map(way).collect();
        if let [way] = &ways[..] { way.clone() } else { format!("min({})", ways.join(", ")) }
    }
}

/// The number of words that exceed all caches: 256 MiB. A debug build uses fewer, as it measures nothing.
pub const FAR: usize = if cfg!(debug_assertions) { 1 << 18 } else { 1 << 25 };

/// The random index and operand generator, SplitMix64.
pub struct Random(pub u64);

impl Random {
    #[inline(always)]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// Measures the machine on rank 0's core. Takes 2 ms, and 250 ms if `far` asks for words outside the caches.
pub fn bare(bytes: usize, far: bool) -> Bare {
    let measure = move || {
        if let Some(&core) = cores::choice().first() {
            cores::bind(core);
        }
        let words: Vec<_> = (0..if far { FAR as u64 } else { 1 }).map(AtomicU64::new).collect();
        let mut random = Random(2);
        let atomic = match &words[..] {
            // Keeps the values in a register: a locked instruction awaits all earlier stores.
            [word] => median(Duration::from_micros(300), |count| {
                black_box((0..count).fold(0, |values, _| values ^ word.fetch_add(1, SeqCst)));
            }),
            words => median(Duration::from_millis(50), |count| {
                for _ in 0..count {
                    let number = random.next();
                    words[number as usize % FAR].fetch_xor(number, SeqCst);
                }
            }),
        };
        let (source, mut into) = (Buffer::new(bytes, |_| 1u8), Buffer::new(bytes, |_| 0u8));
        Bare { atomic, copy: copy(&source, &mut into), ..Bare::default() }
    };
    // Uses a thread of its own, because the launcher's thread must stay unbound.
    std::thread::scope(|scope| scope.spawn(measure).join()).unwrap_or_default()
}

/// Nanoseconds of the fastest copy: memcpy, or the moves for a size that the compiler knows.
fn copy(source: &[u8], into: &mut [u8]) -> f64 {
    let time = Duration::from_micros(1500);
    match source.len() {
        8 => known::<8>(time, source, into),
        16 => known::<16>(time, source, into),
        32 => known::<32>(time, source, into),
        64 => known::<64>(time, source, into),
        _ => median(time, |count| {
            for _ in 0..count {
                black_box(&mut *into).copy_from_slice(black_box(source));
            }
        }),
    }
}

fn known<const LEN: usize>(time: Duration, source: &[u8], into: &mut [u8]) -> f64 {
    let (Some(source), Some(into)) = (source.first_chunk::<LEN>(), into.first_chunk_mut::<LEN>()) else { return 0.0 };
    let (source, into) = (black_box(source), black_box(into));
    median(time, |count| {
        for _ in 0..count {
            *into = *source;
            // Without a value it only keeps the compiler from merging the copies.
            black_box(());
        }
    })
}

/// The median time of a call in nanoseconds, over batches that together take about `time`. `calls` runs the given number of
/// calls.
fn median(time: Duration, mut calls: impl FnMut(usize)) -> f64 {
    let mut batch = |count: usize| {
        let begun = Instant::now();
        calls(count);
        begun.elapsed()
    };
    let mut count = 1;
    while batch(count) < time / 50 && count < 1 << 30 {
        count *= 2;
    }
    let (begun, mut times) = (Instant::now(), Vec::new());
    while times.len() < 5 || begun.elapsed() < time {
        times.push(batch(count).as_secs_f64() * 1e9 / count as f64);
    }
    statistics::median(&times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_the_cheapest_alternative_as_measured() {
        let limit = Limit(vec![
            Cost { atomics: 512.0, ..Cost::default() },
            Cost { atomics: 2.0, copies: 1.0, ..Cost::default() },
        ]);
        assert_eq!(limit.nanoseconds(Bare { atomic: 5.0, copy: 30.0, ..Bare::default() }, 0.0), 40.0);
        assert_eq!(limit.nanoseconds(Bare { atomic: 0.125, copy: 1000.0, ..Bare::default() }, 0.0), 64.0);
        assert_eq!(limit.describe(), "min(512 atomics, 2 atomics + memcpy)");
        let crossing = Limit(vec![Cost { crossings: 1.0, copies: 1.0, ..Cost::default() }]);
        assert_eq!(crossing.nanoseconds(Bare { atomic: 5.0, copy: 3.0, ..Bare::default() }, 24.0), 27.0);
        assert_eq!(crossing.describe(), "crossing + memcpy");
        let stream = Limit(vec![Cost { one_ways: 1.0, round_trips: 2.0, ..Cost::default() }]);
        assert_eq!(stream.nanoseconds(Bare { one_way: 7.0, round_trip: 20.0, ..Bare::default() }, 0.0), 47.0);
        assert_eq!(stream.describe(), "TCP one way + 2 TCP round trips");
    }
}
