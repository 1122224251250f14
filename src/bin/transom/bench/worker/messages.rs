//! Messages between ranks 0 and 1: how long one takes, how many there can be.

use super::arguments::{Measurement, Worker};
use super::facts::{Facts, Outcome};
use super::operations::pattern;
use super::sampling;
use crate::bench::buffer::Buffer;
use std::hint::black_box;
use transom::World;
use transom::messages::{Error, Tag};

const DATA: Tag<u64> = Tag::new(1);
const ANSWER: Tag<u8> = Tag::new(2);
/// Messages before an answer, as in OSU.
const IN_A_ROW: usize = 64;

pub fn measure(worker: &Worker, world: &World, facts: &mut Facts) -> Outcome {
    let len = worker.bytes / 8;
    let (source, mut into) = (Buffer::new(len, pattern), Buffer::new(len, |_| 0));
    let (source, into) = (&source[..], &mut into[..]);
    let (me, other) = (world.rank(), 1 - world.rank().min(1));
    // What is received goes back, so that at the end rank 0 sees what rank 1 got.
    let round_trip = |into: &mut [u64]| -> Result<(), Error> {
        if me == 0 {
            world.send(other, DATA, black_box(source))?;
            world.recv_into(other, DATA, into)?;
        } else if me == 1 {
            world.recv_into(other, DATA, into)?;
            world.send(other, DATA, into)?;
        }
        Ok(())
    };
    let unit = if worker.measurement == Measurement::Pingpong { 2 } else { IN_A_ROW };
    let samples = sampling::together(world, worker.time(), unit, |count| {
        match worker.measurement {
            _ if me > 1 => {}
            Measurement::Pingpong => (0..count / 2).try_for_each(|_| round_trip(into))?,
            Measurement::Bidirectional => {
                for _ in 0..count {
                    world.sendrecv(other, DATA, black_box(source), other, DATA, into)?;
                }
            }
            _ => {
                for _ in 0..count / IN_A_ROW {
                    if me == 0 {
                        (0..IN_A_ROW).try_for_each(|_| world.send(other, DATA, black_box(source)))?;
                        world.recv_into(other, ANSWER, &mut [0])?;
                    } else {
                        (0..IN_A_ROW).try_for_each(|_| world.recv_into(other, DATA, into).map(drop))?;
                        world.send(other, ANSWER, &[1])?;
                    }
                }
            }
        }
        Ok(())
    })?;
    facts.samples(&samples);
    into.fill(0);
    round_trip(into)?;
    facts.check(me != 0 || into == source, || "the messages brought other elements".into());
    Ok(())
}
