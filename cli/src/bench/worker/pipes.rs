//! Bytes between ranks 0 and 1 by a pipe.

use super::facts::{Facts, Outcome};
use super::sampling;
use crate::bench::buffer::Buffer;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::time::Duration;
use transom::World;
use transom::pipe::Pipe;

/// Messages before a reply.
const IN_A_ROW: usize = 64;

/// Half of the time is for round trips, half for back-to-back messages.
pub fn measure(world: &World, bytes: usize, time: Duration, facts: &mut Facts) -> Outcome {
    let (me, source) = (world.rank(), Buffer::new(bytes, |at| (at * 31 + at / 251) as u8));
    let mut into = Buffer::new(bytes, |_| 0_u8);
    let pipe = if me < 2 { Some(world.pipe(1 - me)?) } else { None };
    let mut messages = 0;
    let samples = sampling::together(world, time / 2, 2, |count| {
        messages += count / 2;
        let Some(pipe) = &pipe else { return Ok(()) };
        (0..count / 2).try_for_each(|_| round_trip(pipe, me, &source, &mut into))
    })?;
    facts.samples(&samples);
    if let Some(pipe) = &pipe {
        facts.value("writes", pipe.count().writes as f64 / messages as f64);
        into.fill(0);
        round_trip(pipe, me, &source, &mut into)?;
        facts.check(into[..] == source[..], || "the pipe delivered wrong bytes".into());
    }
    let rows = sampling::together(world, time / 2, IN_A_ROW, |count| {
        let Some(mut pipe) = pipe.as_ref() else { return Ok(()) };
        for _ in 0..count / IN_A_ROW {
            if me == 0 {
                (0..IN_A_ROW).try_for_each(|_| pipe.write_all(black_box(&source)))?;
                pipe.read_exact(&mut [0])?;
            } else {
                (0..IN_A_ROW).try_for_each(|_| pipe.read_exact(&mut into))?;
                pipe.write_all(&[1])?;
            }
        }
        Ok(())
    })?;
    facts.value("stream", median(&rows));
    Ok(())
}

fn round_trip(mut pipe: &Pipe, me: usize, source: &[u8], into: &mut [u8]) -> Outcome {
    if me == 0 {
        pipe.write_all(black_box(source))?;
        pipe.read_exact(into)?;
    } else {
        pipe.read_exact(into)?;
        pipe.write_all(into)?;
    }
    Ok(())
}
