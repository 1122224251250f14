//! Calls on single elements of a window and of arrays, which compute the element's rank and offset.

use super::arguments::{Measurement, Sync, Worker};
use super::facts::{Facts, Outcome};
use super::memory::window;
use super::sampling;
use std::hint::black_box;
use transom::{Distribution, Error, World};

/// The number of elements of all ranks together, and of those in a row of a two-dimensional array.
const ALL: usize = 4096;
const ROW: usize = 64;

/// Rank 0 accesses elements of all ranks in turn.
pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let ranks = world.size();
    let mut window = window::<u64>(world, ALL)?;
    let mut line = world.array::<u64, 1>([ALL], Distribution::Cyclic)?;
    let mut plane = world.array::<u64, 2>([ALL / ROW, ROW], Distribution::BlockCyclic([16, 16]))?;
    if world.rank() == 0 {
        match worker.sync {
            Sync::Window => {
                let places: Vec<_> = (0..ALL).map(|i| (i % ranks, i / ranks)).collect();
                let epoch = window.lock_all()?;
                let at = |i: usize| epoch.target(places[i].0).map(|target| (target, places[i].1));
                sample(
                    worker,
                    facts,
                    |i| at(i).and_then(|(target, offset)| target.get_one(offset)),
                    |i, value| at(i).and_then(|(target, offset)| target.put_one(offset, value)),
                    |i| at(i).and_then(|(target, offset)| target.fetch_add(offset, 1)),
                )?;
            }
            Sync::Cyclic => {
                let array = line.lock_all()?;
                let put = |i, value| array.put_one(i, value);
                sample(worker, facts, |i| array.get_one(i), put, |i| array.fetch_add(i, 1))?;
            }
            _ => {
                let array = plane.lock_all()?;
                let at = |i| [i / ROW, i % ROW];
                let put = |i, value| array.put_one(at(i), value);
                sample(worker, facts, |i| array.get_one(at(i)), put, |i| array.fetch_add(at(i), 1))?;
            }
        }
    }
    world.barrier()?;
    Ok(())
}

fn sample(
    worker: &Worker,
    facts: &mut Facts,
    get: impl Fn(usize) -> Result<u64, Error>,
    put: impl Fn(usize, u64) -> Result<(), Error>,
    add: impl Fn(usize) -> Result<u64, Error>,
) -> Outcome {
    (0..ALL).try_for_each(|i| put(i, i as u64))?;
    // Successive accesses are not adjacent.
    let mut calls = (0..).map(|call: usize| black_box(call * 5 % ALL));
    let (mut sum, mut done) = (0, 0);
    let samples = sampling::alone(worker.time(), ALL, |count| {
        done += count as u64;
        let mut calls = calls.by_ref().take(count);
        match worker.measurement {
            Measurement::ElementGet => calls.try_for_each(|i| get(i).map(|found| sum += black_box(found)))?,
            Measurement::ElementPut => calls.try_for_each(|i| put(i, !(i as u64)))?,
            _ => calls.try_for_each(|i| add(i).map(|found| _ = black_box(found)))?,
        }
        Ok(())
    })?;
    facts.samples(&samples);
    let laps = done / ALL as u64;
    let right = match worker.measurement {
        Measurement::ElementGet => sum == laps * (0..ALL as u64).sum::<u64>(),
        Measurement::ElementPut => get(5)? == !5,
        _ => get(5)? == 5 + laps,
    };
    facts.check(right, || "the elements are wrong".into());
    Ok(())
}
