//! How long a cache line takes from one core to another: what every hand-over between ranks costs at least.

use super::{Facts, Outcome};
use std::time::Instant;
use transom::{Window, World};

const BATCHES: usize = 21;
const ROUND_TRIPS: u64 = 200;
/// Tests in vain after which the other rank may need this core to go on.
const PATIENCE: u32 = 20_000;

/// Collective: ranks 0 and 1 pass a ball in a cache line of rank 0; the others wait. Where the two share no memory, no line
/// crosses: over a network nothing is measured.
pub(super) fn take(world: &World, facts: &mut Facts) -> Outcome {
    if world.size() < 2 {
        return Ok(());
    }
    let mut window = world.allocate::<u64>(8)?;
    world.barrier()?;
    if world.rank() < 2 && window.local().of(1 - world.rank()).is_ok() {
        // Ranks that are not bound, being more than cores, are for this: on one core nothing crosses.
        super::on_core(world.rank(), || play(world.rank() as u64, &mut window, facts))?;
    }
    world.barrier()?;
    Ok(())
}

fn play(me: u64, window: &mut Window<u64>, facts: &mut Facts) -> Outcome {
    let epoch = window.lock_all()?;
    let line = epoch.target(0)?;
    let mut times = Vec::with_capacity(BATCHES);
    // Even is rank 0's turn.
    let mut mine = me;
    for _ in 0..BATCHES {
        let begun = Instant::now();
        for _ in 0..ROUND_TRIPS {
            let mut vain = 0;
            while line.get_one(0)? != mine {
                vain += 1;
                if vain % PATIENCE == 0 {
                    std::thread::yield_now();
                }
                std::hint::spin_loop();
            }
            line.put(0, &[mine + 1])?;
            mine += 2;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64);
    }
    times.sort_by(f64::total_cmp);
    facts.crossing(times[BATCHES / 2]);
    Ok(epoch.unlock()?)
}
