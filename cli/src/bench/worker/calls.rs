//! The time that ranks 0 and 1 spend in calls, and the communication that overlaps with other work.

use super::facts::{Facts, Outcome};
use super::operations::pattern;
use super::sampling;
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::{Duration, Instant};
use transom::messages::{Error, Tag};
use transom::{Op, World};

const DATA: Tag<u64> = Tag::new(1);
const READY: Tag<u8> = Tag::new(2);

/// Rank 0 sends, makes no call until the reply has surely arrived, and receives it. The first element tells rank 1
/// whether to continue.
pub fn overhead(world: &World, bytes: usize, time: Duration, facts: &mut Facts) -> Outcome {
    let len = bytes / 8;
    let (mut source, mut into) = (Buffer::new(len, pattern), Buffer::new(len, |_| 0));
    match world.rank() {
        0 => {
            source[0] = 1;
            let mut exchange = |source: &[u64], gap: f64| -> Result<[f64; 2], Error> {
                let begun = Instant::now();
                world.send(1, DATA, black_box(source))?;
                let sent = Instant::now();
                while (sent.elapsed().as_nanos() as f64) < gap {
                    std::hint::spin_loop();
                }
                let asked = Instant::now();
                world.recv_into(1, DATA, &mut into)?;
                Ok([sent - begun, asked.elapsed()].map(|took| took.as_nanos() as f64))
            };
            let begun = Instant::now();
            let mut round_trips = Vec::new();
            while round_trips.len() < 100 || round_trips.len() < 10_000 && begun.elapsed() < time / 4 {
                round_trips.push(exchange(&source, 0.0)?.into_iter().sum::<f64>());
            }
            let round_trip = median(&round_trips);
            let (begun, mut sends, mut receives) = (Instant::now(), Vec::new(), Vec::new());
            while sends.len() < 100 || sends.len() < 100_000 && begun.elapsed() < time {
                let [send, receive] = exchange(&source, 2.0 * round_trip)?;
                sends.push(send);
                receives.push(receive);
            }
            source[0] = 0;
            exchange(&source, 0.0)?;
            let (clock, step) = clock();
            facts.value("send", (median_of_means(&sends) - clock).max(0.0));
            facts.value("recv", (median_of_means(&receives) - clock).max(0.0));
            facts.value("clock_step", step);
            facts.value("one_way", round_trip / 2.0);
            facts.check(into[..] == source[..], || "the messages delivered wrong elements".into());
        }
        1 => loop {
            world.recv_into(0, DATA, &mut into)?;
            world.send(0, DATA, &into)?;
            if into[0] == 0 {
                break;
            }
        },
        _ => {}
    }
    world.barrier()?;
    Ok(())
}

/// Times in a batch, of which the mean is taken.
const BATCH: usize = 50;

/// The median of the means of batches. A single time is a whole number of the clock's steps, a mean is not.
fn median_of_means(times: &[f64]) -> f64 {
    let means: Vec<_> = times.chunks_exact(BATCH).map(|batch| batch.iter().sum::<f64>() / BATCH as f64).collect();
    median(&means)
}

/// The time of two successive clock readings, and the least step between two that differ, in nanoseconds.
fn clock() -> (f64, f64) {
    let times: Vec<_> = (0..2000).map(|_| Instant::now().elapsed().as_nanos() as f64).collect();
    let step = times.iter().copied().filter(|time| *time > 0.0).reduce(f64::min);
    (median_of_means(&times), step.unwrap_or(0.0))
}

/// A message in each direction is in flight while both ranks compute for as long as it takes.
pub fn overlap(world: &World, bytes: usize, time: Duration, facts: &mut Facts) -> Outcome {
    let len = bytes / 8;
    let (source, mut into) = (Buffer::new(len, pattern), Buffer::new(len, |_| 0));
    let (me, other) = (world.rank(), 1 - world.rank().min(1));
    hide(world, me < 2, time, facts, |long| {
        world.scope(|scope| {
            let coming = scope.irecv(other, DATA, &mut into);
            let sent = scope.isend(other, DATA, black_box(&source));
            compute(long);
            coming.wait()?;
            sent.wait()?;
            Ok(())
        })
    })?;
    facts.check(me != 0 || into[..] == source[..], || "the messages delivered wrong elements".into());
    Ok(())
}

/// An all_reduce by a request, the element-wise maximum over the ranks, while all compute for as long as it takes.
pub fn overlap_collectives(world: &World, bytes: usize, time: Duration, facts: &mut Facts) -> Outcome {
    let of_rank = |rank: usize| move |at| (pattern(at) + rank as u64) as f64;
    let mut data = Buffer::new(bytes / 8, of_rank(world.rank()));
    hide(world, true, time, facts, |long| {
        world.scope(|scope| {
            let largest = scope.iall_reduce(&mut data, Op::Max);
            compute(long);
            largest.wait()?;
            Ok(())
        })
    })?;
    let largest = of_rank(world.size() - 1);
    let right = data.iter().enumerate().all(|(at, element)| *element == largest(at));
    facts.check(right, || "all_reduce computed wrong elements".into());
    Ok(())
}

/// Measures `communicate` without computing, then computing for as long as that took, then both.
fn hide(
    world: &World,
    takes_part: bool,
    time: Duration,
    facts: &mut Facts,
    mut communicate: impl FnMut(Duration) -> Result<(), Error>,
) -> Outcome {
    let mut measure = |communicates: bool, long: Duration| -> Outcome<f64> {
        let samples = sampling::together(world, time / 3, 1, |count| {
            for _ in (0..count).filter(|_| takes_part) {
                if communicates { communicate(long)? } else { compute(long) }
            }
            Ok(())
        })?;
        // All ranks use rank 0's duration.
        let mut mine = [median(&samples)];
        world.broadcast(0, &mut mine)?;
        Ok(mine[0])
    };
    let communication = measure(true, Duration::ZERO)?;
    let long = Duration::from_nanos(communication as u64);
    let compute = measure(false, long)?;
    let both = measure(true, long)?;
    for (name, ns) in [("communication", communication), ("compute", compute), ("both", both)] {
        facts.value(name, ns / 1e9);
    }
    Ok(())
}

fn compute(long: Duration) {
    if long == Duration::ZERO {
        return;
    }
    let (begun, mut sum) = (Instant::now(), 0.0);
    while begun.elapsed() < long {
        for at in 1..8 {
            sum = black_box(sum + 1.0 / f64::from(at));
        }
    }
}

/// The total size of a rank's buffers in bytes, unless 4 buffers or more exceed it.
const BUFFERS: usize = 64 << 20;

/// Round trips between buffers that no message has used before, between the same buffers again, between buffers of the
/// library that were used before, and between such buffers taken for the message.
pub fn registration(world: &World, bytes: usize, facts: &mut Facts) -> Outcome {
    let len = bytes / 8;
    let count = (BUFFERS / bytes).clamp(4, 64);
    // Writing makes the system allocate the pages.
    let mut buffers: Vec<_> = (0..count).map(|_| Buffer::new(len, pattern)).collect();
    // A few messages first, so that only the buffers are new to the library.
    let mut warm = Buffer::new(len, pattern);
    for _ in 0..100 {
        round_trip(world, &mut warm)?;
    }
    for name in ["first", "again"] {
        let times: Vec<f64> = buffers.iter_mut().map(|buffer| round_trip(world, buffer)).collect::<Result<_, _>>()?;
        facts.value(name, median(&times) / 2.0);
    }
    let is_whole = |buffer: &[u64]| buffer.iter().enumerate().all(|(at, element)| *element == pattern(at));
    let mut right = buffers.iter().all(|buffer| is_whole(buffer));
    drop(buffers);
    let take = || -> Result<(transom::Buffer<u64>, f64), transom::Error> {
        let begun = Instant::now();
        let mut buffer = world.buffer(len)?;
        let took = begun.elapsed().as_nanos() as f64;
        buffer.iter_mut().enumerate().for_each(|(at, element)| *element = pattern(at));
        Ok((buffer, took))
    };
    // Taken for the second time, after all were dropped: a working set of this size.
    drop((0..count).map(|_| take()).collect::<Result<Vec<_>, _>>()?);
    let (mut held, mut times) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (mut buffer, took) = take()?;
        times.push(took + round_trip(world, &mut buffer)?);
        held.push(buffer);
    }
    facts.value("taken", median(&times) / 2.0);
    let times: Vec<f64> = held.iter_mut().map(|buffer| round_trip(world, buffer)).collect::<Result<_, _>>()?;
    facts.value("leased", median(&times) / 2.0);
    facts.value("buffers", count as f64);
    right &= held.iter().all(|buffer| is_whole(buffer));
    facts.check(right, || "the messages delivered wrong elements".into());
    world.barrier()?;
    Ok(())
}

/// The nanoseconds of a message from the buffer and one back into it. Rank 1 is ready first.
fn round_trip(world: &World, buffer: &mut [u64]) -> Result<f64, Error> {
    let mut took = 0.0;
    if world.rank() == 0 {
        world.recv_into(1, READY, &mut [0])?;
        let begun = Instant::now();
        world.send(1, DATA, buffer)?;
        world.recv_into(1, DATA, buffer)?;
        took = begun.elapsed().as_nanos() as f64;
    } else if world.rank() == 1 {
        world.send(0, READY, &[1])?;
        world.recv_into(0, DATA, buffer)?;
        world.send(0, DATA, buffer)?;
    }
    Ok(took)
}
