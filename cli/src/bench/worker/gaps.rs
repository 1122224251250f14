//! A ping-pong in which each rank computes for a random time before it sends. Otherwise the ranks may lock into a
//! rhythm in which each message arrives at the same moment of the other's wait, such as just before or just after a
//! pause.

use super::arguments::Worker;
use super::facts::{Facts, Outcome};
use super::messages::Messages;
use super::sampling;
use crate::bench::limits::Random;
use crate::bench::statistics::median;
use std::hint::black_box;
use std::time::Instant;
use transom::messages::{Error, Tag};

const TIME: Tag<f64> = Tag::new(3);
/// The longest gap in nanoseconds. Gaps are uniformly distributed below it.
const LONGEST: f64 = 400.0;
/// The number of different gaps of a rank, which then repeat.
const TABLE: usize = 4096;
/// The round trips of a batch, and the batches whose median is a sample. The gaps of a batch take 6 us of a rank.
/// Meanwhile the other rank waits as in round trips, because a wait spins for 20 us before it yields.
const TRIPS: usize = 32;
const BATCHES: usize = 11;
/// The number of turns that are timed, and how often, to find the turns per nanosecond.
const SPEED_TURNS: u32 = 20_000;
const SPEEDS: usize = 5;

pub fn measure(worker: &Worker, world: &transom::World, facts: &mut Facts) -> Outcome {
    let mut messages = Messages::new(worker, world, 1)?;
    let turns = turns(world.rank(), turns_in_a_nanosecond());
    let (mut gaps, mut samples) = (turns.chunks_exact(TRIPS).cycle(), Vec::new());
    let measured = sampling::together(world, worker.time(), 2 * TRIPS * BATCHES, |count| {
        let gaps = gaps.by_ref().take(count / (2 * TRIPS));
        let batches: Vec<f64> = gaps.map(|gaps| batch(&mut messages, gaps)).collect::<Result<_, _>>()?;
        samples.push(median(&batches));
        Ok(())
    })?;
    // Drops the samples of the warm-up.
    report(&samples[samples.len() - measured.len()..], facts);
    messages.verify(facts)
}

/// Reports impossible samples as an error, and then no samples.
fn report(samples: &[f64], facts: &mut Facts) {
    let right = samples.iter().all(|&ns| ns > 0.0);
    facts.check(right, || "gaps took as long as the round trips that contain them".into());
    facts.samples(if right { samples } else { &[] });
}

/// The gaps of a rank in turns of the loop, one for each of its sends.
fn turns(rank: usize, in_a_nanosecond: f64) -> Vec<u32> {
    let mut random = Random(1 + rank as u64);
    let most = (LONGEST * in_a_nanosecond).max(1.0) as u64;
    (0..TABLE).map(|_| (random.next() % most) as u32).collect()
}

fn turns_in_a_nanosecond() -> f64 {
    let speeds = (0..SPEEDS).map(|_| {
        let begun = Instant::now();
        compute(SPEED_TURNS);
        f64::from(SPEED_TURNS) / nanoseconds(begun)
    });
    median(&speeds.collect::<Vec<_>>())
}

/// Each turn waits for the store of the previous one, and the following code waits for the last store, because no
/// processor can predict its value.
#[inline(never)]
fn compute(turns: u32) {
    let mut left = turns;
    while left > 0 {
        left = black_box(left - 1);
    }
}

fn nanoseconds(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64
}

/// At rank 0, the nanoseconds of one-way messages: round trips with these gaps, minus the time of the gaps.
fn batch(messages: &mut Messages, gaps: &[u32]) -> Result<f64, Error> {
    let begun = Instant::now();
    for &turns in gaps {
        messages.there_and_back(|| compute(turns))?;
    }
    let took = nanoseconds(begun);
    Ok((took - time_of_gaps(messages, gaps)?) / (2 * TRIPS) as f64)
}

/// At rank 0, the time that these gaps take at both ranks, one after the other. As in round trips, one rank computes
/// while the other waits for its message, which slows a shared core. Each times its own gaps, during which no message
/// is in flight.
fn time_of_gaps(messages: &Messages, gaps: &[u32]) -> Result<f64, Error> {
    let &Messages { world, me, other, .. } = messages;
    let time_of_mine = || {
        let begun = Instant::now();
        gaps.iter().for_each(|&turns| compute(turns));
        nanoseconds(begun)
    };
    let (mut mine, mut others) = (0.0, [0.0]);
    if me == 0 {
        mine = time_of_mine();
        world.send(other, TIME, &[mine])?;
        world.recv_into(other, TIME, &mut others)?;
    } else if me == 1 {
        world.recv_into(other, TIME, &mut others)?;
        mine = time_of_mine();
        world.send(other, TIME, &[mine])?;
    }
    Ok(mine + others[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_random_per_rank_and_bounded() {
        let [of_0, of_1] = [0, 1].map(|rank| turns(rank, 0.5));
        assert_ne!(of_0, of_1);
        for turns in [of_0, of_1] {
            assert!(turns.len() == TABLE && turns.len().is_multiple_of(TRIPS));
            let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
            assert_eq!((*least, *most), (0, 199));
            let mean = turns.iter().sum::<u32>() as f64 / TABLE as f64;
            assert!((mean - 99.5).abs() < 3.0, "{mean}");
        }
        // Also with a very slow clock or processor.
        assert_eq!(turns(0, 0.0), [0; TABLE]);
    }

    #[test]
    fn report_of_impossible_time_is_wrong() {
        let text = |samples: &[f64]| {
            let mut facts = Facts::default();
            report(samples, &mut facts);
            facts.text().unwrap()
        };
        assert_eq!(text(&[60.0, 61.0]), "sample 60.000\nsample 61.000\ncheck ok\n");
        for wrong in [0.0, -1.0, f64::NAN] {
            assert_eq!(text(&[60.0, wrong]), "check bad gaps took as long as the round trips that contain them\n");
        }
    }
}
