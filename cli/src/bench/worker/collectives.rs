//! Collectives of all ranks.

use super::arguments::{Measurement, Worker};
use super::facts::{Facts, Outcome};
use super::sampling;
use crate::bench::buffer::Buffer;
use std::hint::black_box;
use transom::messages::Error;
use transom::{Op, World};

/// The element of a rank at an index. Sums of these are exact.
fn element(rank: usize, at: usize) -> f64 {
    ((rank + 1) * (at % 1000 + 1)) as f64
}

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let (me, n, len) = (world.rank(), world.size(), worker.bytes / 8);
    let blocks = matches!(worker.measurement, Measurement::AllGather | Measurement::AllToAll);
    let given = if worker.measurement == Measurement::AllToAll { n * len } else { len };
    // Repeated sums of zeros stay finite.
    let (mut data, mut into) = (Buffer::new(given, |_| 0.0), Buffer::new(if blocks { n * len } else { 0 }, |_| 0.0));
    let (data, into) = (&mut data[..], &mut into[..]);
    let call = |data: &mut [f64], into: &mut [f64]| -> Result<(), Error> {
        match worker.measurement {
            Measurement::Broadcast => world.broadcast(0, data),
            Measurement::Reduce => world.reduce(0, data, Op::Sum),
            Measurement::AllReduce => world.all_reduce(data, Op::Sum),
            Measurement::Scan => world.scan(data, Op::Sum),
            Measurement::AllGather => world.all_gather_into(data, into),
            _ => world.all_to_all(data, into),
        }
    };
    let samples = sampling::to_the_last(world, worker.time(), 1, |count| {
        Ok((0..count).try_for_each(|_| call(black_box(&mut *data), black_box(&mut *into)))?)
    })?;
    facts.samples(&samples);
    // One more call, with data that can be checked.
    data.iter_mut().enumerate().for_each(|(at, data)| *data = element(me, at));
    call(data, into)?;
    let sum = |ranks: usize, at: usize| (0..ranks).map(|rank| element(rank, at)).sum::<f64>();
    let expected = |at: usize| match worker.measurement {
        Measurement::Broadcast => element(0, at),
        Measurement::Reduce if me > 0 => element(me, at),
        Measurement::Reduce | Measurement::AllReduce => sum(n, at),
        Measurement::Scan => sum(me + 1, at),
        Measurement::AllGather => element(at / len, at % len),
        _ => element(at / len, me * len + at % len),
    };
    let got: &[f64] = if blocks { into } else { data };
    let wrong = got.iter().enumerate().filter(|(at, got)| **got != expected(*at)).count();
    let wrong = world.all_reduce_one(wrong as u64, Op::Sum)?;
    facts.check(wrong == 0, || format!("{wrong} elements are wrong"));
    Ok(())
}
