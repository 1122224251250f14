//! Instructions of each call, counted by callgrind: `cargo bench --bench instructions` (needs valgrind).
//!
//! Each call is run 1,000 and 2,000 times in a program of its own; the difference is what 1,000 take. Counts do not
//! depend on what else the machine does, so a change of one is a change of the code.

mod callgrind;

use callgrind::collected;
use std::hint::black_box;
use transom::{Error, Op, Window, World};

type Call = fn(&mut Window<u64>, usize) -> Result<(), Error>;

/// Each call, done `times` times on this rank's own part.
const CALLS: &[(&str, Call)] = &[
    ("put 8 B", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.put(black_box(3), &[i as u64]))
    }),
    ("put 8 B + flush", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.put(black_box(3), &[i as u64]).and_then(|()| epoch.flush()))
    }),
    ("get 8 B", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|_| epoch.get_one(black_box(3)).map(|value| _ = black_box(value)))
    }),
    ("put 2 KiB", |window, times| {
        let epoch = window.lock_shared(0)?;
        let source = [1; 256];
        (0..times).try_for_each(|_| epoch.put(black_box(3), &source))
    }),
    ("fetch_and_op sum", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|_| epoch.fetch_and_op(black_box(3), Op::Sum, 1).map(drop))
    }),
    ("accumulate one xor", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.accumulate(black_box(3), Op::Xor, &[i as u64]))
    }),
    ("compare_and_swap", |window, times| {
        let epoch = window.lock_shared(0)?;
        (0..times).try_for_each(|i| epoch.compare_and_swap(black_box(3), i as u64, i as u64 + 1).map(drop))
    }),
    ("lock exclusive + unlock", |window, times| (0..times).try_for_each(|_| window.lock_exclusive(0)?.unlock())),
    ("lock shared + unlock", |window, times| (0..times).try_for_each(|_| window.lock_shared(0)?.unlock())),
    ("lock_all + unlock, 1 rank", |window, times| (0..times).try_for_each(|_| window.lock_all()?.unlock())),
    ("post, start, complete, wait", |window, times| {
        (0..times).try_for_each(|_| {
            window.post(&[0])?;
            window.start(&[0])?.complete()?;
            window.wait()
        })
    }),
    ("fence, 1 rank", |window, times| (0..times).try_for_each(|_| window.fence().map(drop))),
];

type ValueCall = fn(&World, usize) -> Result<(), Error>;

/// Each call on a value behind a lock, done `times` times.
const VALUE_CALLS: &[(&str, ValueCall)] = &[
    ("mutex u64, lock + unlock", |world, times| {
        let mutex = world.mutex(0, 1_u64)?;
        (0..times).try_for_each(|_| {
            let mut guard = black_box(&mutex).lock()?;
            *guard += 1;
            guard.unlock()
        })
    }),
    ("mutex [u64; 8], lock + unlock", |world, times| {
        let mutex = world.mutex(0, [1_u64; 8])?;
        (0..times).try_for_each(|_| {
            let mut guard = black_box(&mutex).lock()?;
            guard[3] += 1;
            guard.unlock()
        })
    }),
    ("mutex u64, lock, drop", |world, times| {
        let mutex = world.mutex(0, 1_u64)?;
        (0..times).try_for_each(|_| black_box(&mutex).lock().map(|mut guard| *guard += 1))
    }),
    ("rw_lock u64, read + unlock", |world, times| {
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
        if let Some((_, call)) = VALUE_CALLS.iter().find(|(name, _)| name == call) {
            return Ok(call(&transom::init()?, times.parse()?)?);
        }
        let call = CALLS.iter().find(|(name, _)| name == call).expect("a call of the table").1;
        let mut window = transom::init()?.allocate(1 << 10)?;
        return Ok(call(&mut window, times.parse()?)?);
    }
    println!("{:<28} {:>12}", "", "instructions");
    let names = CALLS.iter().map(|(name, _)| name).chain(VALUE_CALLS.iter().map(|(name, _)| name));
    for call in names {
        let thousand = collected(&[], &[call, "2000"])? - collected(&[], &[call, "1000"])?;
        println!("{call:<28} {:>12.1}", thousand as f64 / 1000.0);
    }
    Ok(())
}
