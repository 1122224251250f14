//! The cost of silent ranks' rings for the ranks that communicate.

use super::facts::{Facts, Outcome};
use super::sampling;
use std::time::Duration;
use transom::World;
use transom::messages::{Error, Source, Tag};

const HOT: Tag<u64> = Tag::new(1);
const HELLO: Tag<u64> = Tag::new(2);
const END: Tag<u64> = Tag::new(3);
/// The number of messages with which each rank gets a ring at ranks 0 and 1 (more than any setting needs).
const HELLOS: usize = 64;

/// Ranks 0 and 1 get rings for each other and, as far as the number suffices, for all others; then only these two
/// communicate.
pub fn measure(world: &World, time: Duration, facts: &mut Facts) -> Outcome {
    let (me, n) = (world.rank(), world.size());
    match me {
        0 | 1 => {
            // The rings for each other come first.
            for from in std::iter::once(1 - me).chain(2..n) {
                for _ in 0..HELLOS {
                    if from < 2 {
                        world.sendrecv(from, HELLO, &[1], from, HELLO, &mut [0])?;
                    } else {
                        world.recv_into(from, HELLO, &mut [0])?;
                    }
                }
            }
        }
        _ => {
            for to in 0..2 {
                (0..HELLOS).try_for_each(|_| world.send(to, HELLO, &[1]))?;
            }
            world.recv_into(0, END, &mut [0])?;
        }
    }
    if me == 1 {
        let mut said = [1];
        while said[0] != 0 {
            world.recv_into(Source::Any, HOT, &mut said)?;
            world.send(0, HOT, &said)?;
        }
    }
    if me == 0 {
        let round_trip = |said: u64| -> Result<(), Error> {
            let mut answer = [0];
            world.send(1, HOT, &[said])?;
            world.recv_into(Source::Any, HOT, &mut answer)?;
            assert_eq!(answer, [said], "the reply repeats the message");
            Ok(())
        };
        let samples = sampling::alone(time, 2, |count| Ok((0..count / 2).try_for_each(|_| round_trip(1))?))?;
        facts.samples(&samples);
        round_trip(0)?;
        let turns = sampling::alone(time / 4, 1, |count| Ok((0..count).try_for_each(|_| world.progress())?))?;
        facts.value("turn", crate::bench::statistics::median(&turns));
        (2..n).try_for_each(|to| world.send(to, END, &[1]))?;
    }
    world.barrier()?;
    Ok(())
}
