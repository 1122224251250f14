//! Calls timed beside a bare crossing: a line of shared memory that one rank hands to another.

use std::time::Instant;
use transom::{Error, World};

/// Nanoseconds per call in a row of `calls`: the shortest of several rows.
pub fn shortest(calls: usize, mut call: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let mut best = f64::MAX;
    for _ in 0..20 {
        let begun = Instant::now();
        (0..calls).try_for_each(|_| call())?;
        best = best.min(begun.elapsed().as_nanos() as f64 / calls as f64);
    }
    Ok(best)
}

/// Nanoseconds that a line takes from one of two ranks to the other. Both ranks call it.
pub fn crossing(world: &World) -> Result<f64, Error> {
    let (me, other) = (world.rank(), 1 - world.rank());
    // A word of each rank in a line of its own.
    let window = world.allocate_shared::<u64>(8)?;
    let (mine, theirs) = (window.local(), window.local().of(other)?);
    let mut turn = 0;
    world.barrier()?;
    let round_trip = shortest(5_000, || {
        turn += 1;
        if me == 0 {
            theirs.set(0, turn)?;
        }
        while mine.get(0)? != turn {
            std::hint::spin_loop();
        }
        if me == 1 {
            theirs.set(0, turn)?;
        }
        Ok(())
    })?;
    Ok(round_trip / 2.0)
}
