//! Each operation beside the hardware's own limit, in one run: `cargo bench --bench limits`.
//!
//! Two ranks on two cores. Every figure is the median of many samples, ours and the limit's in turn, and the ratio is
//! the median of the pairs' ratios, so that a change of the machine's speed affects both. A limit is the
//! machine's, for any protocol. A limit that is beaten by more than 10 % is wrong, and the program fails.

#[allow(dead_code, unused_imports, reason = "it serves `transom bench` too")]
#[path = "../src/bench/buffer.rs"]
mod buffer;
#[allow(dead_code, unused_imports, reason = "it serves `transom bench` too")]
#[path = "../src/bench/cores.rs"]
mod cores;

use buffer::Buffer;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst, fence};
use std::time::Instant;
use transom::{Op, Window, World};

const SAMPLES: usize = 101;
/// A ratio below this shows a wrong limit.
const LEAST: f64 = 1.0 / 1.1;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = transom::start(2)?;
    assert!(world.size() == 2, "the limits are those of two ranks");
    // Each rank has a core of its own, so that both always run.
    if let Some(&core) = cores::choice().get(world.rank()) {
        cores::bind(core);
    }
    let mut words: Window<u64> = world.allocate(1 << 10)?;
    let mut bytes: Window<u8> = world.allocate(1 << 20)?;
    let mut table = Table::default();
    if world.rank() == 0 {
        println!("{:<34} {:>10} {:>10} {:>7} {:>7} {:>7}  at most", "", "ours ns", "limit ns", "ratio", "min", "max");
        one_sided(&mut words, &mut bytes, &mut table)?;
    }
    together(&world, &mut words, &mut table)?;
    match &table.wrong[..] {
        [] => Ok(()),
        wrong => Err(format!("beaten by more than 10 %, so the limits are wrong of {}", wrong.join(", ")).into()),
    }
}

/// Operations of rank 0 alone; rank 1, the target, sleeps in a barrier.
fn one_sided(words: &mut Window<u64>, bytes: &mut Window<u8>, table: &mut Table) -> Result<(), transom::Error> {
    let plain = Plain::new();
    let (word, other, at) = (&plain.0[0], &plain.0[64], black_box(3));
    let checked = |value| {
        plain.0.get(black_box(at)).expect("inside").store(value, std::sync::atomic::Ordering::Relaxed);
        fence(SeqCst);
    };

    let epoch = words.lock_all()?;
    let target = epoch.target(1)?;
    let count = 20_000;
    table.compare(
        "put 8 B + flush",
        "a checked store and a fence",
        3.0,
        count,
        count,
        || target.put(black_box(at), &[black_box(7)]).and_then(|()| target.flush()).expect("put"),
        || checked(black_box(7)),
    );
    table.compare(
        "fetch_and_op sum",
        "fetch_add",
        1.5,
        count,
        count,
        || {
            black_box(target.fetch_and_op(black_box(at), Op::Sum, 1).expect("sum"));
        },
        || {
            black_box(word.fetch_add(1, SeqCst));
        },
    );
    table.compare(
        "compare_and_swap",
        "compare_exchange",
        1.5,
        count,
        count,
        || {
            black_box(target.compare_and_swap(black_box(at), 0, 0).expect("swap"));
        },
        || {
            black_box(other.compare_exchange(black_box(0), 0, SeqCst, SeqCst).ok());
        },
    );
    epoch.unlock()?;

    let two_swaps = || {
        black_box(other.compare_exchange(0, 5, SeqCst, SeqCst).ok());
        black_box(other.compare_exchange(5, 0, SeqCst, SeqCst).ok());
    };
    table.compare(
        "lock exclusive + unlock, free",
        "two compare_exchange",
        2.0,
        count,
        count,
        || words.lock_exclusive(black_box(1)).and_then(|epoch| epoch.unlock()).expect("lock"),
        two_swaps,
    );
    table.compare(
        "lock shared + unlock, free",
        "two compare_exchange",
        2.0,
        count,
        count,
        || words.lock_shared(black_box(1)).and_then(|epoch| epoch.unlock()).expect("lock"),
        two_swaps,
    );
    table.compare(
        "lock_all + unlock_all, 2 ranks",
        "two compare_exchange",
        6.0,
        count,
        count,
        || words.lock_all().and_then(|epoch| epoch.unlock()).expect("lock"),
        two_swaps,
    );

    let epoch = bytes.lock_shared(1)?;
    for (name, len, limit) in [("4 KiB", 4 << 10, 1.1), ("64 KiB", 64 << 10, 1.1), ("1 MiB", 1 << 20, 1.0 / 0.95)] {
        let (source, mut into, mut to) =
            (Buffer::new(len, |_| 1u8), Buffer::new(len, |_| 0u8), Buffer::new(len, |_| 0u8));
        let (source, into, to) = (&source[..], &mut into[..], &mut to[..]);
        let count = (8 << 20) / len;
        table.compare(
            &format!("put {name}"),
            "memcpy",
            limit,
            count,
            count,
            || epoch.put(0, black_box(source)).expect("put"),
            || black_box(&mut *to).copy_from_slice(black_box(source)),
        );
        table.compare(
            &format!("get {name}"),
            "memcpy",
            limit,
            count,
            count,
            || epoch.get(0, black_box(&mut *into)).expect("get"),
            || black_box(&mut *to).copy_from_slice(black_box(source)),
        );
    }
    epoch.unlock()
}

/// Operations of both ranks: a barrier against a cache line that crosses.
fn together(world: &World, words: &mut Window<u64>, table: &mut Table) -> Result<(), Box<dyn std::error::Error>> {
    world.barrier()?;
    let (me, count) = (world.rank() as u64, 2000);
    let mut ball = 0;
    // The ball lies in rank 0's part; even is rank 0's turn.
    let epoch = words.lock_all()?;
    let line = epoch.target(0)?;
    let mut round_trips = || {
        for _ in 0..count / 2 {
            let mine = ball + me;
            while line.get_one(512).expect("get") != mine {
                std::hint::spin_loop();
            }
            line.put(512, &[mine + 1]).expect("put");
            ball += 2;
        }
    };
    let (mut ours, mut limits) = (Vec::new(), Vec::new());
    for _ in 0..SAMPLES {
        world.barrier()?;
        limits.push(per_call(count, 1, &mut round_trips));
        world.barrier()?;
        ours.push(per_call(count, count, || world.barrier().expect("barrier")));
    }
    if me == 0 {
        table.report("barrier, 2 ranks", "a cache line that crosses", 6.0, &ours, &limits);
    }
    epoch.unlock()?;
    Ok(())
}

/// Nanoseconds of each of `count` operations of `calls` calls.
fn per_call(count: usize, calls: usize, mut call: impl FnMut()) -> f64 {
    let begun = Instant::now();
    for _ in 0..calls {
        call();
    }
    begun.elapsed().as_secs_f64() * 1e9 / count as f64
}

/// Rows, printed as they are measured.
#[derive(Default)]
struct Table {
    /// Names of rows that beat their limit.
    wrong: Vec<String>,
}

impl Table {
    /// `ours` and `limit`, each called `calls` times, do `count` operations.
    #[allow(clippy::too_many_arguments, reason = "a row of a table")]
    fn compare(
        &mut self,
        name: &str,
        limit_name: &str,
        most: f64,
        count: usize,
        calls: usize,
        mut ours: impl FnMut(),
        mut limit: impl FnMut(),
    ) {
        let sample = |_| (per_call(count, calls, &mut ours), per_call(count, calls, &mut limit));
        let (ours, limits): (Vec<_>, Vec<_>) = (0..SAMPLES).map(sample).unzip();
        self.report(name, limit_name, most, &ours, &limits);
    }

    fn report(&mut self, name: &str, limit_name: &str, most: f64, ours: &[f64], limits: &[f64]) {
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let ratios = sorted(ours.iter().zip(limits).map(|(ours, limit)| ours / limit).collect());
        let (ours, limits) = (sorted(ours.to_vec()), sorted(limits.to_vec()));
        let middle = SAMPLES / 2;
        let verdict = match ratios[middle] {
            ratio if ratio < LEAST => "  LIMIT WRONG",
            ratio if ratio <= most => "",
            _ => "  MISSED",
        };
        println!(
            "{name:<34} {:>10.1} {:>10.1} {:>7.2} {:>7.2} {:>7.2}  {most:.2} x {limit_name}{verdict}",
            ours[middle],
            limits[middle],
            ratios[middle],
            ratios[0],
            ratios[SAMPLES - 1]
        );
        if ratios[middle] < LEAST {
            self.wrong.push(name.to_owned());
        }
    }
}

/// Words of this rank's own, not shared with anybody.
#[repr(align(64))]
struct Plain([AtomicU64; 128]);

impl Plain {
    fn new() -> Box<Self> {
        Box::new(Plain(std::array::from_fn(|_| AtomicU64::new(0))))
    }
}
