//! Puts and gets with origin memory other than a slice borrowed for the call.

use super::arguments::{From, Measurement, Worker};
use super::facts::{Facts, Outcome};
use super::memory::window;
use super::operations::{IN_A_ROW, partner, pattern};
use super::sampling;
use std::hint::black_box;
use transom::{Buffer, Error, Target, World};

enum Moved {
    Buffer(Buffer<u64>),
    Owned(Vec<u64>),
}

impl Moved {
    fn put(&mut self, target: &Target<u64>) -> Result<(), Error> {
        match self {
            Moved::Buffer(buffer) => target.put(0, black_box(buffer)),
            Moved::Owned(elements) => {
                *elements = target.rput(0, std::mem::take(elements))?.wait()?;
                Ok(())
            }
        }
    }

    fn get(&mut self, target: &Target<u64>) -> Result<(), Error> {
        match self {
            Moved::Buffer(buffer) => target.get(0, black_box(buffer)),
            Moved::Owned(elements) => {
                *elements = target.rget(0, elements.len())?.wait()?;
                Ok(())
            }
        }
    }

    fn elements(&mut self) -> &mut [u64] {
        match self {
            Moved::Buffer(buffer) => buffer,
            Moved::Owned(elements) => elements,
        }
    }
}

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let len = worker.bytes / 8;
    let mut window = window::<u64>(world, len)?;
    let mut moved = match worker.from {
        From::Buffer => Moved::Buffer(world.buffer(len)?),
        _ => Moved::Owned(vec![0; len]),
    };
    let puts = matches!(worker.measurement, Measurement::Put | Measurement::PutBw);
    let in_a_row = if matches!(worker.measurement, Measurement::PutBw | Measurement::GetBw) { IN_A_ROW } else { 1 };
    let elements: Vec<u64> = (0..len).map(pattern).collect();
    match puts {
        true => moved.elements().copy_from_slice(&elements),
        false => window.local().write(0, &elements)?,
    }
    world.barrier()?;
    if world.rank() == 0 {
        let epoch = window.lock_all()?;
        let target = epoch.target(partner(world))?;
        let samples = sampling::alone(worker.time(), in_a_row, |count| {
            for _ in 0..count / in_a_row {
                for _ in 0..in_a_row {
                    if puts { moved.put(&target)? } else { moved.get(&target)? }
                }
                target.flush()?;
            }
            Ok(())
        })?;
        facts.samples(&samples);
        let mut there = vec![0; len];
        target.get(0, &mut there)?;
        facts.check(there == elements, || "the target has wrong elements".into());
        facts.check(*moved.elements() == elements, || "get delivered wrong elements".into());
    }
    // Keeps the target unchanged until it has been checked.
    world.barrier()?;
    Ok(())
}
