//! The first messages between each two ranks, and the memory that they leave in use.

use super::facts::{Facts, Outcome};
use super::startup::resident;
use std::time::Instant;
use transom::World;
use transom::messages::{Error, Tag};

/// Messages that each rank sends to each other rank, enough for connections and rings by the rules of most
/// configurations.
const MESSAGES: usize = 100;

pub fn measure(world: &World, facts: &mut Facts) -> Outcome {
    world.barrier()?;
    let (resident_before, free_before) = (resident()?, free()?);
    world.barrier()?;
    let start = Instant::now();
    to_all(world)?;
    world.barrier()?;
    facts.value("seconds", start.elapsed().as_secs_f64());
    (1..MESSAGES).try_for_each(|_| to_all(world))?;
    world.barrier()?;
    let (resident_after, free_after) = (resident()?, free()?);
    facts.value("rss", resident_after);
    facts.value("rss_growth", resident_after - resident_before);
    // Other programs may have given back more.
    facts.value("machine_growth", (free_before - free_after).max(0.0));
    Ok(())
}

/// Each rank exchanges a message with each other rank, one after the other.
fn to_all(world: &World) -> Result<(), Error> {
    let (me, n) = (world.rank(), world.size());
    (1..n).try_for_each(|distance| {
        let (to, from) = ((me + distance) % n, (me + n - distance) % n);
        world.sendrecv(to, Tag::<u8>::new(1), &[], from, Tag::<u8>::new(1), &mut []).map(drop)
    })
}

/// Bytes of the machine's memory that programs can still have.
fn free() -> Outcome<f64> {
    super::startup::bytes("/proc/meminfo", "MemAvailable:")
}
