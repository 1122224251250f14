//! Instructions of each call, counted by callgrind and held to a bound: `cargo bench --bench instructions` (needs
//! valgrind).
//!
//! Each call is run 1,000 and 2,000 times in a program of its own; the difference is the count of 1,000. Counts do not
//! depend on the load of the machine, so a changed count is a change of the code.

mod callgrind;

use callgrind::collected;
use std::hint::black_box;
use transom::{Error, Op, Window, World};

type Call = fn(&mut Window<u64>, usize) -> Result<(), Error>;

/// Each call, done `times` times on this rank's own part, and its bound of instructions, 3 % above a count.
const CALLS: &[(&str, u64, Call)] = &[
    ("put 8 B", 24, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.put(black_box(3), &[i as u64]))
    }),
    ("put 8 B + flush", 34, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.put(black_box(3), &[i as u64]).and_then(|()| epoch.flush()))
    }),
    ("get 8 B", 26, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|_| epoch.get_one(black_box(3)).map(|value| _ = black_box(value)))
    }),
    ("put 2 KiB", 2114, |window, times| {
        let epoch = window.lock_shared(0)?;
        let source = [1; 256];
        (0..times).try_for_each(|_| epoch.put(black_box(3), &source))
    }),
    ("fetch_and_op sum", 29, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|_| epoch.fetch_and_op(black_box(3), Op::Sum, 1).map(drop))
    }),
    ("accumulate one xor", 30, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.accumulate(black_box(3), Op::Xor, &[i as u64]))
    }),
    ("compare_and_swap", 31, |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.compare_and_swap(black_box(3), i as u64, i as u64 + 1).map(drop))
    }),
    ("lock exclusive + unlock", 63, |window, times| (0..times).try_for_each(|_| window.lock_exclusive(0)?.unlock())),
    ("lock shared + unlock", 59, |window, times| (0..times).try_for_each(|_| window.lock_shared(0)?.unlock())),
    ("lock_all + unlock, 1 rank", 105, |window, times| (0..times).try_for_each(|_| window.lock_all()?.unlock())),
    ("post, start, complete, wait", 688, |window, times| {
        (0..times).try_for_each(|_| {
            window.post(&[0])?;
            window.start(&[0])?.complete()?;
            window.wait()
        })
    }),
    ("fence, 1 rank", 27, |window, times| (0..times).try_for_each(|_| window.fence().map(drop))),
];

type ValueCall = fn(&World, usize) -> Result<(), Error>;

/// Each call on a value behind a lock, done `times` times, and its bound of instructions.
const VALUE_CALLS: &[(&str, u64, ValueCall)] = &[
    ("mutex u64, lock + unlock", 174, |world, times| {
        let mutex = world.mutex(0, 1_u64)?;
        (0..times).try_for_each(|_| {
            let mut guard = black_box(&mutex).lock()?;
            *guard += 1;
            guard.unlock()
        })
    }),
    ("mutex [u64; 8], lock + unlock", 187, |world, times| {
        let mutex = world.mutex(0, [1_u64; 8])?;
        (0..times).try_for_each(|_| {
            let mut guard = black_box(&mutex).lock()?;
            guard[3] += 1;
            guard.unlock()
        })
    }),
    ("mutex u64, lock, drop", 233, |world, times| {
        let mutex = world.mutex(0, 1_u64)?;
        (0..times).try_for_each(|_| black_box(&mutex).lock().map(|mut guard| *guard += 1))
    }),
    ("rw_lock u64, read + unlock", 141, |world, times| {
        let value = world.rw_lock(0, 1_u64)?;
        (0..times).try_for_each(|_| {
            let guard = black_box(&value).read()?;
            black_box(*guard);
            guard.unlock()
        })
    }),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args().collect();
    if let [_, call, times] = &args[..] {
        if let Some((_, _, call)) = VALUE_CALLS.iter().find(|(name, _, _)| name == call) {
            return Ok(call(&transom::init()?, times.parse()?)?);
        }
        let call = CALLS.iter().find(|(name, _, _)| name == call).expect("a call of the table").2;
        let mut window = transom::init()?.allocate(1 << 10)?;
        return Ok(call(&mut window, times.parse()?)?);
    }
    println!("{:<30} {:>12} {:>8}", "", "instructions", "at most");
    let calls = CALLS.iter().map(|(name, most, _)| (name, most));
    let mut beyond = Vec::new();
    for (call, most) in calls.chain(VALUE_CALLS.iter().map(|(name, most, _)| (name, most))) {
        let thousand = collected(&[], &[call, "2000"])? - collected(&[], &[call, "1000"])?;
        println!("{call:<30} {:>12.1} {most:>8}", thousand as f64 / 1000.0);
        beyond.extend((thousand > 1000 * most).then_some(*call));
    }
    match beyond.is_empty() {
        true => Ok(()),
        false => Err(format!("more instructions than they may take: {}", beyond.join(", ")).into()),
    }
}
