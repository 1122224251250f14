//! Latency and bandwidth of operations with each synchronization.

use super::arguments::{Measurement, Sync, Worker};
use super::facts::{Facts, Outcome};
use super::memory::window;
use super::sampling;
use crate::bench::buffer::Buffer;
use bytemuck::Pod;
use std::hint::black_box;
use std::time::Duration;
use transom::messages::Tag;
use transom::{Atomic, Error, Op, Rank, Target, Window, World};

/// Operations between two flushes of the bandwidth measurements, as in OSU.
pub const IN_A_ROW: usize = 64;

/// A request for a lock, or its answer.
const LOCK: Tag<u8> = Tag::new(1);
/// The end of an epoch, and whether it was the last one.
const UNLOCK: Tag<u8> = Tag::new(2);

/// The value of an element, by its index.
pub fn pattern(at: usize) -> u64 {
    (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The target of operations: the next rank, or the rank itself if it is alone.
pub fn partner(world: &World) -> Rank {
    (world.rank() + 1) % world.size().min(2)
}

pub fn latency(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let len = match worker.measurement {
        Measurement::FetchAndOp | Measurement::CompareAndSwap => 1,
        _ => worker.bytes / 8,
    };
    let mut window = window::<u64>(world, len)?;
    let (source, mut into) = (Buffer::new(len, pattern), Buffer::new(len, |_| 0));
    let (source, into) = (&source[..], &mut into[..]);
    let gets = matches!(worker.measurement, Measurement::Get | Measurement::EightGets);
    if gets {
        window.local().write(0, source)?;
    }
    world.barrier()?;
    let mut done = 0;
    let count = &mut done;
    let samples = match worker.measurement {
        Measurement::Put => under(worker, world, &mut window, |target| target.put(0, black_box(source))),
        Measurement::Get => under(worker, world, &mut window, |target| target.get(0, black_box(into))),
        Measurement::EightGets => {
            under(worker, world, &mut window, |target| (0..8).try_for_each(|_| target.get(0, black_box(into))))
        }
        Measurement::FetchAndOp => under(worker, world, &mut window, |target| {
            *count += 1;
            black_box(target.fetch_and_op(0, Op::Sum, black_box(1))?);
            Ok(())
        }),
        _ => under(worker, world, &mut window, |target| {
            *count += 1;
            black_box(target.compare_and_swap(0, *count - 1, *count)?);
            Ok(())
        }),
    }?;
    facts.samples(&samples);
    window.fence()?;
    if world.rank() == 0 {
        let mut there = vec![0; len];
        window.lock_shared(partner(world))?.get(0, &mut there)?;
        let expected = |at| match worker.measurement {
            Measurement::FetchAndOp | Measurement::CompareAndSwap => done,
            _ => pattern(at),
        };
        facts.check(agree(&there, expected), || format!("{:?}: the target has wrong elements", worker.measurement));
        if gets {
            facts.check(agree(into, pattern), || "get delivered wrong elements".into());
        }
    }
    // Keeps the target unchanged until it has been checked.
    window.fence()?;
    Ok(())
}

/// Accumulates by sum, each adding 1. The number of operations is exact as an element, for doubles below 2^53.
pub fn sums<T: Atomic + PartialEq>(
    worker: &Worker,
    world: &World,
    facts: &mut Facts,
    element: fn(u64) -> T,
) -> Outcome {
    let len = worker.bytes / 8;
    let mut window = window::<T>(world, len)?;
    let (source, mut into) = (Buffer::new(len, |_| element(1)), Buffer::new(len, |_| element(0)));
    let (source, into) = (&source[..], &mut into[..]);
    world.barrier()?;
    let mut done = 0;
    let fetches = worker.measurement == Measurement::GetAccumulate;
    let samples = match fetches {
        true => under(worker, world, &mut window, |target| {
            done += 1;
            target.get_accumulate(0, Op::Sum, black_box(source), black_box(into))
        }),
        false => under(worker, world, &mut window, |target| {
            done += 1;
            target.accumulate(0, Op::Sum, black_box(source))
        }),
    }?;
    facts.samples(&samples);
    window.fence()?;
    if world.rank() == 0 {
        let mut there = vec![element(0); len];
        window.lock_shared(partner(world))?.get(0, &mut there)?;
        facts.check(there.iter().all(|sum| *sum == element(done)), || "the target has wrong sums".into());
        let before = !fetches || into.iter().all(|sum| *sum == element(done - 1));
        facts.check(before, || "get_accumulate delivered wrong sums".into());
    }
    // Keeps the target unchanged until it has been checked.
    window.fence()?;
    Ok(())
}

pub fn bandwidth(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let len = worker.bytes / 8;
    let mut window = window::<u64>(world, len)?;
    let (source, mut into) = (Buffer::new(len, pattern), Buffer::new(len, |_| 0));
    let (source, into) = (&source[..], &mut into[..]);
    if worker.measurement == Measurement::GetBw {
        window.local().write(0, source)?;
    }
    world.barrier()?;
    if world.rank() == 0 {
        let epoch = window.lock_all()?;
        let target = epoch.target(partner(world))?;
        let samples = sampling::alone(worker.time(), IN_A_ROW, |count| {
            for _ in 0..count / IN_A_ROW {
                for _ in 0..IN_A_ROW {
                    match worker.measurement {
                        Measurement::PutBw => target.put(0, black_box(source))?,
                        _ => target.get(0, black_box(into))?,
                    }
                }
                target.flush()?;
            }
            Ok(())
        })?;
        facts.samples(&samples);
        let mut there = vec![0; len];
        target.get(0, &mut there)?;
        facts.check(agree(&there, pattern), || "the target has wrong elements".into());
        if worker.measurement == Measurement::GetBw {
            facts.check(into == source, || "get delivered wrong elements".into());
        }
    }
    world.barrier()?;
    Ok(())
}

pub fn lock(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let mut window = window::<u64>(world, 1)?;
    facts.samples(&under(worker, world, &mut window, |target| target.put(0, &[black_box(7)]))?);
    if world.rank() == 0 {
        let found = window.lock_shared(partner(world))?.get_one(0)?;
        facts.check(found == 7, || format!("the target has {found}, expected 7"));
    }
    world.barrier()?;
    Ok(())
}

pub fn barrier(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    facts.samples(&sampling::together(world, time, 1, |count| Ok((0..count).try_for_each(|_| world.barrier())?))?);
    Ok(())
}

/// Collective: samples of an operation together with the synchronization that makes its effect visible.
fn under<T: Pod>(
    worker: &Worker,
    world: &World,
    window: &mut Window<T>,
    mut call: impl FnMut(&Target<T>) -> Result<(), Error>,
) -> Outcome<Vec<f64>> {
    let (me, to, time) = (world.rank(), partner(world), worker.time());
    // The rank whose turn it is, if both must take part. A single rank always has its turn.
    let turn = |i: usize| me < 2 && (i % 2 == me || world.size() == 1);
    match worker.sync {
        Sync::Fence => sampling::together(world, time, 1, |count| {
            for i in 0..count {
                let epoch = window.fence()?;
                if turn(i) {
                    call(&epoch.target(to)?)?;
                }
            }
            window.fence()?;
            Ok(())
        }),
        Sync::Pscw => sampling::together(world, time, 1, |count| {
            for i in (0..count).filter(|_| me < 2) {
                if !turn(i) || world.size() == 1 {
                    window.post(&[to])?;
                }
                if turn(i) {
                    let epoch = window.start(&[to])?;
                    call(&epoch.target(to)?)?;
                    epoch.complete()?;
                }
                if !turn(i) || world.size() == 1 {
                    window.wait()?;
                }
            }
            Ok(())
        }),
        Sync::TwoSided => granted(world, window, to, time, call),
        _ => {
            // The other ranks are only targets, and sleep.
            let samples = if me == 0 { passive(worker, window, to, call)? } else { Vec::new() };
            world.barrier()?;
            Ok(samples)
        }
    }
}

/// Collective: samples of an epoch whose lock the target grants, as in MPI libraries: the origin asks by a message, and
/// waits for the answer. The target waits in the library for that.
fn granted<T: Pod>(
    world: &World,
    window: &mut Window<T>,
    to: Rank,
    time: Duration,
    mut call: impl FnMut(&Target<T>) -> Result<(), Error>,
) -> Outcome<Vec<f64>> {
    let mut samples = Vec::new();
    if world.rank() == 0 {
        let epoch = window.lock_all()?;
        let target = epoch.target(to)?;
        samples = sampling::alone(time, 1, |count| {
            for _ in 0..count {
                world.send(to, LOCK, &[])?;
                world.recv_into(to, LOCK, &mut [])?;
                call(&target)?;
                target.flush()?;
                world.send(to, UNLOCK, &[u8::from(false)])?;
                if to == 0 {
                    world.recv_into(to, UNLOCK, &mut [0])?;
                }
            }
            Ok(())
        })?;
        if to != 0 {
            world.send(to, LOCK, &[])?;
            world.recv_into(to, LOCK, &mut [])?;
            world.send(to, UNLOCK, &[u8::from(true)])?;
        }
        epoch.unlock()?;
    } else if world.rank() == 1 {
        let mut last = [0];
        while last == [u8::from(false)] {
            world.recv_into(0, LOCK, &mut [])?;
            world.send(0, LOCK, &[])?;
            world.recv_into(0, UNLOCK, &mut last)?;
        }
    }
    world.barrier()?;
    Ok(samples)
}

/// Samples of synchronizations in which the target takes no part.
fn passive<T: Pod>(
    worker: &Worker,
    window: &mut Window<T>,
    to: Rank,
    mut call: impl FnMut(&Target<T>) -> Result<(), Error>,
) -> Outcome<Vec<f64>> {
    let time = worker.time();
    match worker.sync {
        Sync::Lock => sampling::alone(time, 1, |count| {
            for _ in 0..count {
                let epoch = window.lock_shared(black_box(to))?;
                call(&epoch)?;
                epoch.unlock()?;
            }
            Ok(())
        }),
        Sync::LockExclusive => sampling::alone(time, 1, |count| {
            for _ in 0..count {
                let epoch = window.lock_exclusive(black_box(to))?;
                call(&epoch)?;
                epoch.unlock()?;
            }
            Ok(())
        }),
        Sync::LockAll => sampling::alone(time, 1, |count| {
            for _ in 0..count {
                let epoch = window.lock_all()?;
                call(&epoch.target(to)?)?;
                epoch.unlock()?;
            }
            Ok(())
        }),
        Sync::FlushLocal => {
            let epoch = window.lock_all()?;
            let target = epoch.target(to)?;
            let samples = sampling::alone(time, 1, |count| {
                Ok((0..count).try_for_each(|_| call(&target).and_then(|()| target.flush_local()))?)
            })?;
            epoch.unlock()?;
            Ok(samples)
        }
        _ => {
            let epoch = window.lock_all()?;
            let target = epoch.target(to)?;
            let samples = sampling::alone(time, 1, |count| {
                for _ in 0..count {
                    call(&target)?;
                    target.flush()?;
                }
                Ok(())
            })?;
            epoch.unlock()?;
            Ok(samples)
        }
    }
}

fn agree(found: &[u64], expected: impl Fn(usize) -> u64) -> bool {
    found.iter().enumerate().all(|(at, &element)| element == expected(at))
}
