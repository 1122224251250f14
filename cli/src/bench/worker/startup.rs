//! An empty job, whose time is measured from outside.

use super::facts::{Facts, Outcome};
use transom::World;

pub fn measure(world: &World, facts: &mut Facts) -> Outcome {
    world.barrier()?;
    facts.value("rss", resident()?);
    Ok(())
}

/// Bytes of this process in memory.
pub fn resident() -> Outcome<f64> {
    bytes("/proc/self/status", "VmRSS:")
}

/// The number of bytes that a line of this file in /proc has in KiB.
pub fn bytes(file: &str, line: &str) -> Outcome<f64> {
    let text = std::fs::read_to_string(file)?;
    let kib = text.lines().find_map(|text| text.strip_prefix(line)?.trim().strip_suffix("kB")?.trim().parse().ok());
    let kib: f64 = kib.ok_or_else(|| format!("{file} has no {line}"))?;
    Ok(kib * 1024.0)
}
