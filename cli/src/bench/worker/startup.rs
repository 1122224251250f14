//! An empty job, whose time is measured from outside.

use super::facts::{Facts, Outcome};
use transom::World;

pub fn measure(world: &World, facts: &mut Facts) -> Outcome {
    world.barrier()?;
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse().ok());
    let kib: f64 = kib.ok_or("/proc/self/status has no VmRSS")?;
    facts.value("rss", kib * 1024.0);
    Ok(())
}
