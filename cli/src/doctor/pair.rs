//! Two ranks on two hosts: the first accesses memory of the second, which only serves it.

use super::finding::{Finding, Report};
use std::error::Error;
use std::time::{Duration, Instant};
use transom::windows::OobExchange;

/// Accesses whose fastest is reported.
const ACCESSES: usize = 20;

/// Both ranks. An error names the reason why the network does not connect them.
pub fn access() -> Result<(), Box<dyn Error>> {
    let world = transom::init()?;
    let mut window = world.allocate::<u64>(1)?;
    if world.rank() > 0 {
        // The reason of a failure is in the error of rank 0.
        let _ = world.provider().barrier();
        return Ok(());
    }
    let epoch = window.lock_exclusive(1)?;
    epoch.put(0, &[1])?;
    let mut fastest = Duration::MAX;
    for number in 1..=ACCESSES as u64 {
        let began = Instant::now();
        if epoch.get_one(0)? != number {
            return Err("memory of the other rank does not have the value that was put there".into());
        }
        fastest = fastest.min(began.elapsed());
        epoch.put(0, &[number + 1])?;
        epoch.flush()?;
    }
    epoch.unlock()?;
    world.provider().barrier()?;
    Report::Found(Finding::ok("access", format!("a get takes {:.1} us", fastest.as_secs_f64() * 1e6))).print()?;
    Ok(())
}
