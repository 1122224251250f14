//! Barrier, overlap and startup.

use super::{Facts, Outcome, sampling};
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::{Window, World};

/// How long the target of the overlap measurement computes at a time.
const COMPUTE: Duration = Duration::from_millis(20);
/// When the origin begins an operation while the target computes.
const PAUSE: Duration = Duration::from_millis(1);

pub(super) fn barrier(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    let samples = sampling::together(world, time, |count| Ok((0..count).try_for_each(|_| world.barrier())?))?;
    facts.samples(&samples);
    Ok(())
}

/// Rank 1 computes and calls nothing while rank 0 locks it, gets and unlocks.
pub(super) fn overlap(world: &World, bytes: usize, time: Duration, facts: &mut Facts) -> Outcome {
    let me = world.rank();
    let mut window = world.allocate::<u64>(bytes / 8)?;
    window.local().write(0, &vec![me as u64; bytes / 8])?;
    window.fence()?;
    let mut into = vec![0; bytes / 8];
    // As many operations as take half of the time, while rank 1 waits inside of the library.
    let mut count = 0u32;
    if me == 0 {
        let begun = Instant::now();
        while begun.elapsed() < COMPUTE / 2 {
            get(&mut window, &mut into)?;
            count += 1;
        }
    }
    world.barrier()?;
    let (begun, mut rounds) = (Instant::now(), 0u32);
    let (mut communication, mut computing, mut both) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let mut told = world.allocate::<u64>(1)?;
    loop {
        rounds += 1;
        // Communication alone, then computation alone, then both.
        communication += phase(world, |me| if me == 0 { gets(&mut window, &mut into, count) } else { Ok(()) })?;
        computing += phase(world, |me| if me == 1 { compute() } else { Ok(()) })?;
        both += phase(world, |me| match me {
            0 => gets(&mut window, &mut into, count),
            1 => compute(),
            _ => Ok(()),
        })?;
        // How long one takes, while rank 1 surely computes.
        let mut samples = Vec::new();
        phase(world, |me| {
            let begun = Instant::now();
            let mut next = PAUSE;
            while me == 0 && begun.elapsed() < COMPUTE - PAUSE {
                if begun.elapsed() >= next {
                    let begun = Instant::now();
                    get(&mut window, &mut into)?;
                    samples.push(begun.elapsed().as_nanos() as f64);
                    next += PAUSE;
                }
            }
            if me == 1 { compute() } else { Ok(()) }
        })?;
        facts.samples(&samples);
        if me == 0 {
            told.local().set(0, u64::from(begun.elapsed() < time))?;
        }
        told.fence()?;
        let more = told.lock_shared(0)?.get_one(0)?;
        told.fence()?;
        if more == 0 {
            break;
        }
    }
    if me == 0 {
        for (name, sum) in [("communication", communication), ("compute", computing), ("both", both)] {
            facts.value(name, sum.as_secs_f64() / f64::from(rounds));
        }
        facts.check(into.iter().all(|&element| element == 1), || "get brought other elements".into());
    }
    Ok(())
}

/// Collective: how long it takes until all ranks have done their part.
fn phase(world: &World, part: impl FnOnce(usize) -> Outcome) -> Outcome<Duration> {
    world.barrier()?;
    let begun = Instant::now();
    part(world.rank())?;
    world.barrier()?;
    Ok(begun.elapsed())
}

fn gets(window: &mut Window<u64>, into: &mut [u64], count: u32) -> Outcome {
    (0..count).try_for_each(|_| get(window, into))
}

fn get(window: &mut Window<u64>, into: &mut [u64]) -> Outcome {
    let epoch = window.lock_shared(1)?;
    epoch.get(0, black_box(into))?;
    Ok(epoch.unlock()?)
}

fn compute() -> Outcome {
    let begun = Instant::now();
    let mut x = 1.0;
    while begun.elapsed() < COMPUTE {
        for _ in 0..1000 {
            x = black_box(x * 1.000_000_1);
        }
    }
    Ok(())
}

pub(super) fn startup(world: &World, facts: &mut Facts) -> Outcome {
    world.barrier()?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let kib: f64 = kib.ok_or("/proc/self/status has no VmRSS")?;
    facts.value("rss", kib * 1024.0);
    Ok(())
}
