//! Two ranks on two hosts: the first accesses memory of the second, which only serves it.

use super::finding::{Finding, Rail, Report};
use std::convert::Infallible;
use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};
use transom::World;
use transom::variables::RANK;
use transom::windows::OobExchange;

/// Arguments of this program that [access] by all rails.
const ARGS: [&str; 2] = ["doctor-rank", "pair"];
/// Variable that selects the rails of a rank.
const DEVICE: &str = "TRANSOM_VERBS_DEVICE";
/// Accesses whose fastest is reported.
const ACCESSES: usize = 20;
/// Length of each put and get in words: 64 KiB, so that full packets pass in both directions with any MTU.
const WORDS: usize = 8192;

/// Starts this program anew in this process, to [access] by one rail alone. `rails` has that of each rank.
pub fn access_by(rails: &[String]) -> Result<Infallible, Box<dyn Error>> {
    let rank = RANK.get::<usize>()?.unwrap_or(0);
    let rail = rails.get(rank).ok_or_else(|| format!("--rails has no rail of rank {rank}"))?;
    // A process must not change its own variables.
    Err(Command::new(std::env::current_exe()?).args(ARGS).env(DEVICE, rail).exec().into())
}

/// Called by both ranks. An error names the reason why the network does not connect them.
pub fn access() -> Result<(), Box<dyn Error>> {
    let world = transom::init()?;
    // The doctor needs the rails above all if the accesses fail.
    Report::Rails(rails(&world)).print()?;
    let mut window = world.allocate::<u64>(WORDS)?;
    if world.rank() > 0 {
        // The reason of a failure is in the error of rank 0.
        let _ = world.provider().barrier();
        return Ok(());
    }
    let epoch = window.lock_exclusive(1)?;
    let (mut fastest, mut found) = (Duration::MAX, vec![0; WORDS]);
    for number in 1..=ACCESSES as u64 {
        let values: Vec<u64> = (0..WORDS as u64).map(|word| number << 32 | word).collect();
        epoch.put(0, &values)?;
        epoch.flush()?;
        epoch.get(0, &mut found)?;
        if let Some(word) = (0..WORDS).find(|&word| found[word] != values[word]) {
            let (found, put) = (found[word], values[word]);
            return Err(
                format!("word {word} of the other rank's memory is {found:#x}, but {put:#x} was put there").into()
            );
        }
        let began = Instant::now();
        epoch.get_one(0)?;
        fastest = fastest.min(began.elapsed());
    }
    epoch.unlock()?;
    world.provider().barrier()?;
    Report::Found(Finding::ok("access", format!("a get takes {:.1} us", fastest.as_secs_f64() * 1e6))).print()?;
    Ok(())
}

/// The rails of this rank, in order; none if its network has none to select.
#[cfg(feature = "verbs")]
fn rails(world: &World) -> Vec<Rail> {
    let transom::provider::Chosen::Verbs(verbs) = world.provider().inner() else { return Vec::new() };
    let rails = verbs.network().rails().into_iter();
    rails.map(|rail| Rail { name: rail.name, is_roce: rail.is_roce }).collect()
}

#[cfg(not(feature = "verbs"))]
fn rails(_: &World) -> Vec<Rail> {
    Vec::new()
}
