//! Runs a test's body on ranks: real processes of 1, 2, 3, 4 and 8 ranks (more than these machines have cores), then
//! as many threads of one process, each within a deadline; and says which rank failed and how.
//!
//! The test starts copies of its own program, told by the environment to run the same test as a rank.

use std::time::Duration;
use transom::{Launch, Outcome, World};

pub const SIZES: [usize; 5] = [1, 2, 3, 4, 8];
const DEADLINE: Duration = Duration::from_secs(60);
/// Set for a copy: `ranks`, or how many threads to run.
const ROLE: &str = "TEST_ROLE";
/// How many times slower things may be, where the network is emulated: so much less is done, and no threads are run.
const SLOW: &str = "TEST_SLOW";

/// Whether ranks are forced to a network where they could share memory.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn over_network() -> bool {
    std::env::var("TRANSOM_FABRIC").is_ok_and(|fabric| fabric == "verbs")
}

fn slow() -> usize {
    std::env::var(SLOW).map_or(1, |slow| slow.parse().expect("TEST_SLOW is a number above 0"))
}

/// How long something may take, or longer where things are slow.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn within(time: Duration) -> Duration {
    if slow() == 1 { time } else { 15 * time }
}

/// So many rounds, or fewer where things are slow.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn rounds(many: usize) -> usize {
    (many / slow()).max(10.min(many))
}

/// Runs `body` on every number of ranks. `name` is the test's own, as the test program knows it.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn on_all_sizes(name: &str, body: impl Fn(World) + Sync) {
    on(&SIZES, name, body);
}

/// Runs `body` on the given numbers of ranks.
pub fn on(sizes: &[usize], name: &str, body: impl Fn(World) + Sync) {
    if cfg!(miri) {
        // No processes there: threads, and few.
        return (1..=3).for_each(|size| drop(transom::threads(size, &body).expect("threads can be ranks")));
    }
    match std::env::var(ROLE).as_deref() {
        Ok("rank") => body(transom::init().expect("a rank can join its job")),
        Ok(threads) => {
            let threads = threads.parse().expect("a number of threads");
            transom::threads(threads, body).expect("threads can be ranks");
        }
        Err(_) => {
            let few = |size: &&usize| slow() == 1 || **size <= 4;
            for &size in sizes.iter().filter(few) {
                passed(&format!("{size} processes"), &outcome(size, name, "rank"));
            }
            if slow() > 1 {
                return; // threads share memory, whatever the network
            }
            for size in sizes {
                passed(&format!("{size} threads"), &outcome(1, name, &size.to_string()));
            }
        }
    }
}

/// Runs `body` on processes only, and hands over what became of them: for tests in which ranks are to die.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn outcome_of(size: usize, name: &str, body: impl Fn(World)) -> Option<Outcome> {
    if std::env::var_os(ROLE).is_some() {
        body(transom::init().expect("a rank can join its job"));
        return None;
    }
    Some(outcome(size, name, "rank"))
}

fn outcome(size: usize, name: &str, role: &str) -> Outcome {
    let deadline = if slow() > 1 { 3 * DEADLINE } else { DEADLINE };
    let copies = Launch::new(std::env::current_exe().expect("this test program"), size)
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("RUST_BACKTRACE", "0")
        // Survivors of a death say themselves whether they were told in time.
        .grace(deadline)
        .deadline(deadline)
        .capture(true);
    copies.run().expect("copies of the test program start")
}

fn passed(what: &str, outcome: &Outcome) {
    if !outcome.success() {
        let outputs: String = (0..outcome.statuses().len())
            .map(|rank| format!("--- rank {rank}\n{}", String::from_utf8_lossy(outcome.output(rank))))
            .collect();
        panic!("on {what}: {outcome}\n{outputs}");
    }
}
