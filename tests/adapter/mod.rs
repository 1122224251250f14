//! Runs tests of the provider `verbs` on ranks that are processes, if the machine has a device.
#![allow(dead_code, reason = "each test file uses what it needs")]

mod library;
#[path = "../ranks/name.rs"]
mod name;

use library::fake_library;
use name::{full_name, has_run};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use transom::verbs::{Verbs, probe};
use transom::{Error, Launch, Outcome, World, provider::Chosen};

pub const ROLE: &str = "TEST_ROLE";
pub const DEADLINE: Duration = Duration::from_secs(100);

/// Selects the first rail if no device is named: the counts are those of one rail.
pub fn one_rail() -> Vec<(&'static str, String)> {
    const DEVICE: &str = "TRANSOM_VERBS_DEVICE";
    let first = || probe().ok()?.split(',').next().map(|name| (DEVICE, name.to_owned()));
    // Ranks inherit the variables that they are started with.
    let is_said = std::env::var_os(DEVICE).is_some() || std::env::var_os(ROLE).is_some();
    if is_said { Vec::new() } else { first().into_iter().collect() }
}

/// Runs `body` on ranks that are processes and use the adapter, with some variables set.
#[track_caller]
pub fn on_verbs(size: usize, name: &str, variables: &[(&str, &str)], body: impl Fn(World)) {
    let one = one_rail();
    let one = one.iter().map(|(name, value)| (*name, &**value));
    // Later variables override earlier ones.
    let forced = one.chain([("TRANSOM_FABRIC", "verbs")]).chain(variables.iter().copied()).collect::<Vec<_>>();
    if let Some(outcome) = run(size, name, &forced, || body(transom::init().expect("a rank can join its job"))) {
        let output = outputs(&outcome);
        assert!(outcome.success(), "{outcome}\n{output}");
        // Figures, for `tests/soft-roce/figures`.
        output.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}"));
    }
}

/// Runs `body` on ranks that are processes and use the fake adapter of `fake.c`, with some variables set.
#[track_caller]
pub fn on_fake(hosts: Option<&str>, size: usize, name: &str, variables: &[(&str, &str)], body: impl Fn(World)) {
    let join = || body(transom::init().expect("a rank can join its job"));
    if let Some(outcome) = run_fake(hosts, size, name, variables, join) {
        assert!(outcome.success(), "{variables:?}: {outcome}\n{}", outputs(&outcome));
    }
}

/// Runs `body` in processes with the fake adapter, as [`run`] does.
#[track_caller]
pub fn run_fake(
    hosts: Option<&str>,
    size: usize,
    name: &str,
    variables: &[(&str, &str)],
    body: impl Fn(),
) -> Option<Outcome> {
    launch_fake(hosts, size, name, variables, |launch| launch, body)
}

/// [`run_fake`] with a launcher that `adapt` changes.
#[track_caller]
pub fn launch_fake(
    hosts: Option<&str>,
    size: usize,
    name: &str,
    variables: &[(&str, &str)],
    adapt: impl Fn(Launch) -> Launch,
    body: impl Fn(),
) -> Option<Outcome> {
    if std::env::var_os(ROLE).is_some() {
        body();
        return None;
    }
    const SSH: &str = "TRANSOM_SSH";
    if hosts.is_some() && std::env::var_os(SSH).is_none() {
        // The launcher reads the variable in its own environment.
        let again = Command::new(std::env::current_exe().expect("the path of this test program"))
            .args(["--exact", &full_name(name), "--nocapture"])
            .env(SSH, concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ranks/local-ssh"))
            .status();
        assert!(again.as_ref().is_ok_and(|status| status.success()), "on hosts of this machine: {again:?}");
        return None;
    }
    let library = fake_library();
    let sockets = tempfile::tempdir().expect("a folder for sockets");
    let fake = [
        ("TRANSOM_FABRIC", "verbs"),
        ("LD_LIBRARY_PATH", library.to_str().expect("a path in UTF-8")),
        ("FAKE_ADAPTER", sockets.path().to_str().expect("a path in UTF-8")),
    ];
    let variables: Vec<_> = fake.into_iter().chain(variables.iter().copied()).collect();
    run_on(hosts, size, name, &variables, adapt, body)
}

/// Runs `body` in processes, as ranks that have not joined yet. Returns the outcome in the process that starts them.
#[track_caller]
pub fn run(size: usize, name: &str, variables: &[(&str, &str)], body: impl Fn()) -> Option<Outcome> {
    run_on(None, size, name, variables, |launch| launch, body)
}

/// [`run`] on several hosts, which may be names of this one, with a launcher that `adapt` changes.
#[track_caller]
fn run_on(
    hosts: Option<&str>,
    size: usize,
    name: &str,
    variables: &[(&str, &str)],
    adapt: impl Fn(Launch) -> Launch,
    body: impl Fn(),
) -> Option<Outcome> {
    if std::env::var_os(ROLE).is_some() {
        body();
        return None;
    }
    let full = full_name(name);
    let mut copies = Launch::new(std::env::current_exe().expect("the path of this test program"), size)
        .args(["--exact", &full, "--nocapture", "--test-threads=1"])
        .env(ROLE, "rank")
        .env("RUST_BACKTRACE", "0")
        .grace(DEADLINE)
        .deadline(DEADLINE)
        .capture(true);
    for (name, value) in variables {
        copies = copies.env(name, value);
    }
    if let Some(hosts) = hosts {
        copies = copies.hosts(hosts.parse().expect("a list of hosts"));
    }
    let outcome = adapt(copies).run().expect("copies of the test program start");
    has_run(&full, &outcome);
    Some(outcome)
}

pub fn outputs(outcome: &Outcome) -> String {
    let text = |rank| String::from_utf8_lossy(outcome.output(rank)).into_owned();
    (0..outcome.statuses().len()).map(|rank| format!("--- rank {rank}\n{}", text(rank))).collect()
}

/// Returns whether there is no device, and prints that. Fails if TEST_DEVICE promises a device.
pub fn skipped(what: &str) -> bool {
    if std::env::var_os(ROLE).is_some() {
        // A copy does what the test started it for, also without a device.
        return false;
    }
    match probe() {
        Ok(_) => false,
        Err(why) => {
            assert!(std::env::var_os("TEST_DEVICE").is_none(), "{what} needs an RDMA device: {why}");
            eprintln!("skipped: {what} needs an RDMA device: {why}");
            true
        }
    }
}

pub fn verbs(world: &World) -> &Verbs {
    match world.provider().inner() {
        Chosen::Verbs(far) => far.network(),
        _ => panic!("TRANSOM_FABRIC=verbs selected another provider"),
    }
}

/// The number that stands for all fake adapters of a process.
pub const ALL_ADAPTERS: u32 = u32::MAX;

/// Makes an event happen to a fake adapter of this process, with a new LID or 0.
pub fn happen(event: u32, lid: u32, adapter: u32) {
    let bytes = [event, lid, std::process::id(), adapter].map(u32::to_ne_bytes).concat();
    let socket = UnixDatagram::unbound().unwrap();
    for entry in std::fs::read_dir(std::env::var("FAKE_ADAPTER").unwrap()).unwrap() {
        // Some files are no sockets.
        let _ = socket.send_to(&bytes, entry.unwrap().path());
    }
}

/// Runs a command that must succeed.
pub fn shell(command: &str) {
    let ran = Command::new("sh").args(["-c", command]).status();
    assert!(ran.as_ref().is_ok_and(|status| status.success()), "{command}: {ran:?}");
}

/// Returns when all ranks are here. It uses the job's own exchange, and no adapter.
pub fn meet(world: &World) -> Result<(), Error> {
    Ok(transom::windows::OobExchange::barrier(world.provider())?)
}

/// Message bytes that this rank has written and read, and the part of these that other rails than the first moved.
pub fn moved(world: &World) -> (u64, u64) {
    let counters = world.counters().unwrap();
    (counters.written_bytes + counters.read_bytes, counters.other_rails_bytes)
}
