//! Runs a test's body on ranks, with a deadline: jobs of 1 and 3 processes, then of 3 threads of one process. Reports
//! which rank failed and how. `TEST_RANKS=1,2,3,4,8` sets the sizes of jobs, as processes and as threads.
//! `TEST_HOSTS=a,b` runs the processes on several hosts, by `transom run --hosts`, with at least one rank each; by
//! `--map-by node` with `TEST_MAP=node`.
//!
//! The test starts copies of its own program, told by the environment to run the same test as a rank.

mod name;

#[allow(unused_imports, reason = "each test file uses what it needs")]
pub use name::{full_name, has_run};

use rustix::process::{Pid, Signal, kill_process};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::{Duration, Instant};
use transom::{Failure, HostList, Launch, Outcome, Status, Window, World, messages};

/// Set to the sizes of jobs, with commas between.
const RANKS: &str = "TEST_RANKS";
/// The sizes of jobs of a test that runs on any.
pub static SIZES: LazyLock<Vec<usize>> = LazyLock::new(|| match std::env::var(RANKS) {
    Ok(sizes) => sizes.split(',').map(|size| size.trim().parse().expect("TEST_RANKS is a list of numbers")).collect(),
    Err(_) => vec![1, 3],
});
const DEADLINE: Duration = Duration::from_secs(60);
/// Set for a copy: `rank`, or the number of threads to run.
const ROLE: &str = "TEST_ROLE";
/// Slow-down factor where the network is emulated: tests do less by this factor, and run no threads.
const SLOW: &str = "TEST_SLOW";

/// The hosts of the ranks, if not this machine.
const HOSTS: &str = "TEST_HOSTS";
/// The order in which ranks take the places of hosts.
const MAP: &str = "TEST_MAP";

/// Returns whether ranks are on several hosts, or use a network although they could share memory.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn over_network() -> bool {
    // Threads of one process share memory whatever the variable says.
    let are_threads = std::env::var(ROLE).is_ok_and(|role| role != "rank");
    let is_forced = ["verbs", "tcp"].iter().any(|network| is_set("TRANSOM_FABRIC", network));
    is_forced && !are_threads || hosts().is_some()
}

/// Returns whether every rank reaches the memory of all others by loads and stores.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn share_memory(world: &World) -> bool {
    let network = over_network() && !is_set("TRANSOM_INTRANODE", "on");
    world.size() == 1 || !(hosts().is_some() || network || is_set("TRANSOM_FABRIC", "delayed"))
}

/// Returns whether ranks are processes, and not threads of one process.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn are_processes() -> bool {
    is_set(ROLE, "rank")
}

fn is_set(name: &str, to: &str) -> bool {
    std::env::var(name).is_ok_and(|value| value == to)
}

fn hosts() -> Option<HostList> {
    std::env::var(HOSTS).ok().map(|hosts| hosts.parse().expect("TEST_HOSTS is a list of hosts"))
}

fn slow() -> usize {
    std::env::var(SLOW).map_or(1, |slow| slow.parse().expect("TEST_SLOW is a number above 0"))
}

/// A time limit, extended on slow machines.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn within(time: Duration) -> Duration {
    if slow() == 1 { time } else { 15 * time }
}

/// A number of rounds, reduced on slow machines.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn rounds(many: usize) -> usize {
    if cfg!(miri) {
        return 3.min(many);
    }
    (many / slow()).max(10.min(many))
}

/// The rank that dies, in tests with a death.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub const VICTIM: usize = 1;
/// Time within which the other ranks must learn of a death.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub const IN_TIME: Duration = Duration::from_secs(1);

/// Ends this process without leaving the job.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn die() -> ! {
    kill_process(Pid::from_raw(std::process::id() as i32).unwrap(), Signal::KILL).unwrap();
    unreachable!("SIGKILL cannot be survived");
}

/// The call fails in time and names the victim.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn fails_in_time<T>(what: &str, call: impl FnOnce() -> Result<T, messages::Error>) {
    let begun = Instant::now();
    let error = call().err().unwrap_or_else(|| panic!("{what} succeeded, expected the death of rank {VICTIM}"));
    assert!(matches!(error, messages::Error::PeerDied { rank: VICTIM }), "{what}: {error}");
    assert!(begun.elapsed() < within(IN_TIME), "{what} took {:?}", begun.elapsed());
}

/// Bytes that depend on `seed` and their own index.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 17 + i / 251) as u8).collect()
}

/// Collective: the values of all ranks, by rank.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn told<T: bytemuck::Pod>(world: &World, mine: T) -> Vec<T> {
    let mut names: Window<T> = world.allocate(1).unwrap();
    names.local().set(0, mine).unwrap();
    names.fence().unwrap();
    let epoch = names.lock_all().unwrap();
    let all = (0..world.size()).map(|rank| epoch.target(rank).unwrap().get_one(0).unwrap()).collect();
    epoch.unlock().unwrap();
    names.fence().unwrap();
    all
}

/// All ways to run a test, one after the other. A copy that runs the test was started for one of them.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn each<T>(ways: &[T]) -> &[T] {
    if std::env::var_os(ROLE).is_some() { &ways[..1] } else { ways }
}

/// A thread that is about to wait. Other threads of its process act only when it does.
#[allow(dead_code, reason = "each test file uses what it needs")]
#[derive(Default)]
pub struct Waiter(AtomicI32);

#[allow(dead_code, reason = "each test file uses what it needs")]
impl Waiter {
    /// Called by that thread, just before the call that will wait.
    pub fn asks(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
    }

    /// Returns once the thread has called and sleeps: three looks in a row, so that it does not sleep for a page or a
    /// lock of the system.
    pub fn until_it_waits(&self) {
        let sleeps = || match self.0.load(SeqCst) {
            0 => false,
            thread => {
                let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"))
                    .expect("the stat file of a thread should be readable");
                stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
            }
        };
        let mut looks = 0;
        while looks < 3 {
            std::thread::sleep(Duration::from_millis(1));
            looks = if sleeps() { looks + 1 } else { 0 };
        }
    }
}

/// Makes collectives use messages where they would use shared memory.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub const BY_MESSAGES: &[(&str, &str)] = &[(
    "TRANSOM_COLLECTIVES",
    "broadcast=binomial,reduce=binomial,all_reduce=recursive_doubling,scan=recursive_doubling,gather=direct,\
     scatter=direct,all_gather=direct,all_to_all=pairwise",
)];

/// Runs `body` on every number of ranks. `name` is the test's name in the calling file.
#[allow(dead_code, reason = "each test file uses what it needs")]
#[track_caller]
pub fn on_all_sizes(name: &str, body: impl Fn(World) + Sync) {
    on(&SIZES, name, body);
}

/// Runs `body` on the given numbers of ranks.
#[track_caller]
pub fn on(sizes: &[usize], name: &str, body: impl Fn(World) + Sync) {
    on_with(&[], sizes, name, body);
}

/// [`on`], with these variables.
#[track_caller]
pub fn on_with(variables: &[(&str, &str)], sizes: &[usize], name: &str, body: impl Fn(World) + Sync) {
    if cfg!(miri) {
        // No processes under Miri: threads, and few of them.
        return (1..=3).for_each(|size| drop(transom::threads(size, &body).expect("threads can be ranks")));
    }
    match std::env::var(ROLE).as_deref() {
        Ok("rank") => body(transom::init().expect("a rank can join its job")),
        Ok(threads) => {
            let threads = threads.parse().expect("TEST_ROLE is `rank` or a number of threads");
            transom::threads(threads, body).expect("threads can be ranks");
        }
        Err(_) => {
            let least = hosts().map_or(1, |hosts| hosts.names().count());
            let most = if slow() == 1 { usize::MAX } else { 4 };
            let here: Vec<_> = sizes.iter().filter(|size| (least..=most).contains(size)).collect();
            // A test of one rank needs no second host.
            assert!(!here.is_empty() || least > 1, "none of {sizes:?} ranks can be tested here");
            for &size in here {
                passed(&format!("{size} processes"), &outcome(size, name, "rank", variables));
            }
            if slow() > 1 || hosts().is_some() {
                return; // threads share memory, whatever the network
            }
            // Threads differ from processes by their memory only, whatever their number.
            let threads = if std::env::var_os(RANKS).is_some() { sizes } else { &sizes[sizes.len() - 1..] };
            for size in threads {
                passed(&format!("{size} threads"), &outcome(1, name, &size.to_string(), variables));
            }
        }
    }
}

/// Runs `body` on processes only, and returns their outcome: for tests in which ranks die.
#[allow(dead_code, reason = "each test file uses what it needs")]
#[track_caller]
pub fn outcome_of(size: usize, name: &str, body: impl Fn(World)) -> Option<Outcome> {
    outcome_with(&[], size, name, body)
}

/// [`outcome_of`], with these variables.
#[allow(dead_code, reason = "each test file uses what it needs")]
#[track_caller]
pub fn outcome_with(variables: &[(&str, &str)], size: usize, name: &str, body: impl Fn(World)) -> Option<Outcome> {
    if std::env::var_os(ROLE).is_some() {
        body(transom::init().expect("a rank can join its job"));
        return None;
    }
    Some(outcome(size, name, "rank", variables))
}

#[track_caller]
fn outcome(size: usize, name: &str, role: &str, variables: &[(&str, &str)]) -> Outcome {
    let full = full_name(name);
    let deadline = if slow() > 1 { 3 * DEADLINE } else { DEADLINE };
    let mut copies = Launch::new(std::env::current_exe().expect("the path of this test program"), size)
        .args(["--exact", &full, "--nocapture", "--include-ignored", "--test-threads=1"])
        .env(ROLE, role)
        .env("RUST_BACKTRACE", "0")
        // Survivors of a death check themselves that they learned of it in time.
        .grace(deadline)
        .deadline(deadline)
        .capture(true);
    copies = variables.iter().fold(copies, |copies, (name, value)| copies.env(name, value));
    if let Some(hosts) = hosts() {
        // The launcher does not pass these variables to other hosts.
        let ours = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TEST_"));
        copies = ours.fold(copies.hosts(hosts), |copies, (name, value)| copies.env(name, value));
        if let Ok(map) = std::env::var(MAP) {
            copies = copies.map_by(map.parse().expect("TEST_MAP is an order of --map-by"));
        }
    }
    let outcome = copies.run().expect("copies of the test program start");
    has_run(&full, &outcome);
    outcome
}

fn passed(what: &str, outcome: &Outcome) {
    if !outcome.success() {
        panic!("on {what}: {outcome}\n{}", outputs(outcome));
    }
}

/// One rank ended with this status, and first. All others ended with success, so their assertions held.
#[allow(dead_code, reason = "each test file uses what it needs")]
pub fn only_failed(outcome: &Outcome, victim: usize, end: Status) {
    let ended = |rank| if rank == victim { end } else { Status::Exited(0) };
    let as_expected = outcome.statuses().iter().enumerate().all(|(rank, status)| *status == ended(rank));
    let first = outcome.failure() == Some(&Failure::Rank { rank: victim, status: end });
    assert!(as_expected && first, "{outcome}; {:?}\n{}", outcome.statuses(), outputs(outcome));
}

fn outputs(outcome: &Outcome) -> String {
    let output = |rank| format!("--- rank {rank}\n{}", String::from_utf8_lossy(outcome.output(rank)));
    (0..outcome.statuses().len()).map(output).collect()
}
