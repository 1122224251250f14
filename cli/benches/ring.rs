//! Time to hand bytes from one core to another through a ring of memory, by the size of the ring: `cargo bench --bench
//! ring`. It uses no library: two threads copy 16 KiB into the next slot, and out of it.
//!
//! While both cores' own caches hold a slot, the writer must first take each of its lines from the other core. A ring
//! larger than these caches is in the cache that both cores share. So are the rings of messages, and the long cells of
//! collectives.

#[allow(dead_code, unused_imports, reason = "it serves `transom bench` too")]
#[path = "../src/bench/cores.rs"]
mod cores;

use std::hint::{black_box, spin_loop};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

const PIECE: usize = 16 << 10;
/// Rounds of each ring size, in turn with the other sizes; the result is their median.
const ROUNDS: usize = 9;
/// Bytes that go through the ring in a round, and before it is measured.
const BYTES: usize = 64 << 20;
const BEFORE: usize = 16 << 20;

#[repr(align(128))]
#[derive(Default)]
struct Count(AtomicUsize);

struct Ring {
    /// Locked by one thread at a time, as the counts say.
    slots: Vec<Mutex<Vec<u8>>>,
    written: Count,
    read: Count,
}

impl Ring {
    fn new(bytes: usize) -> Self {
        let slots = (0..bytes / PIECE).map(|_| Mutex::new(vec![1; PIECE])).collect();
        Ring { slots, written: Count::default(), read: Count::default() }
    }

    /// Calls `act` on one slot after the other, each once `is_ready` accepts its number. Returns the mean time in a
    /// call.
    fn go_round(&self, mine: &Count, is_ready: impl Fn(usize) -> bool, mut act: impl FnMut(&mut [u8])) -> Duration {
        let mut took = Duration::ZERO;
        for number in 0..(BEFORE + BYTES) / PIECE {
            while !is_ready(number) {
                spin_loop();
            }
            let mut slot = self.slots[number % self.slots.len()].lock().expect("nobody panics");
            let begun = Instant::now();
            act(black_box(&mut slot));
            if number >= BEFORE / PIECE {
                took += begun.elapsed();
            }
            drop(slot);
            mine.0.store(number + 1, Release);
        }
        took / (BYTES / PIECE) as u32
    }
}

/// Nanoseconds to write a piece, and to read it.
fn round(bytes: usize, cores: &[usize]) -> [u64; 2] {
    let ring = &Ring::new(bytes);
    let bind = |at: usize| cores.get(at).copied().into_iter().for_each(cores::bind);
    let took = std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            bind(0);
            let piece = vec![2; PIECE];
            let is_free = |number| number - ring.read.0.load(Acquire) < ring.slots.len();
            ring.go_round(&ring.written, is_free, |slot| slot.copy_from_slice(black_box(&piece)))
        });
        let reader = scope.spawn(move || {
            bind(1);
            let mut piece = vec![0; PIECE];
            let is_there = |number| ring.written.0.load(Acquire) > number;
            ring.go_round(&ring.read, is_there, |slot| black_box(&mut piece).copy_from_slice(slot))
        });
        [writer, reader].map(|thread| thread.join().expect("nobody panics"))
    });
    took.map(|time| time.as_nanos() as u64)
}

fn main() {
    let cores = cores::choice();
    assert!(cores.len() >= 2, "two threads hand bytes over, and each needs a core");
    let sizes = [64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20];
    let mut all = sizes.map(|bytes| (bytes, [const { Vec::new() }; 2]));
    for _ in 0..ROUNDS {
        for (bytes, times) in &mut all {
            let took = round(*bytes, &cores);
            times.iter_mut().zip(took).for_each(|(times, time)| times.push(time));
        }
    }
    println!("{:>10} {:>12} {:>11} {:>16}", "ring", "ns to write", "ns to read", "GB/s of the slower");
    for (bytes, times) in all {
        let [write, read] = times.map(|mut times: Vec<u64>| {
            times.sort_unstable();
            times[ROUNDS / 2]
        });
        println!("{:>6} KiB {write:>12} {read:>11} {:>16.1}", bytes >> 10, PIECE as f64 / write.max(read) as f64);
    }
}
