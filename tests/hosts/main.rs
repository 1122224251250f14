//! Behaviours between hosts of one machine: a script stands for ssh, and the ranks of each host share memory. The hosts
//! are connected by TCP. Ranks are placed in blocks, and in turn.

#[path = "../arithmetic/mod.rs"]
mod arithmetic;
#[path = "../ranks/mod.rs"]
mod ranks;

#[path = "../rma/atomics.rs"]
mod atomics;
#[path = "../messages/basic.rs"]
mod basic;
mod footprint;
mod networks;
#[path = "../rma/put_get.rs"]
mod put_get;
#[path = "../collectives/random.rs"]
mod random;
mod stopped;

use ranks::SIZES;
use std::process::Command;

/// Runs the behaviours of this program on hosts `a` and `b`, with one and with two ranks on each, and some of them in the
/// other order.
#[test]
fn behaviours_hold_between_hosts_of_one_machine() {
    run_on("a,b", "slot", "2,4", &["--test-threads=2"]);
    // With one rank on each host, both orders are the same. `tests/full` runs all behaviours in this order.
    run_on("a,b", "node", "4", &["--test-threads=2", "put_get::", "random::", "placed"]);
}

/// The largest job of which every rank is connected to every other host's.
#[test]
#[ignore = "64 processes slow other tests down; tests/full runs it alone"]
fn footprint_holds_for_64_ranks_on_four_hosts() {
    run_on("a,b,c,d", "slot", "64", &["footprint_of_a_rank_follows_its_formula"]);
}

/// Runs this program again, as ranks on hosts of this machine.
fn run_on(hosts: &str, map: &str, ranks: &str, arguments: &[&str]) {
    if std::env::var_os("TEST_HOSTS").is_some() {
        return; // the run below, or one by hand
    }
    let ssh = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ranks/local-ssh");
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(arguments).envs([("TEST_HOSTS", hosts), ("TEST_RANKS", ranks), ("TEST_MAP", map), ("TRANSOM_SSH", ssh)]);
    let ended = run.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{map}: {out}\n{err}");
}

#[test]
fn ranks_are_placed_as_mapped() {
    ranks::on(&SIZES, "ranks_are_placed_as_mapped", |world| {
        let (hosts, n) = (world.hosts(), world.size());
        let placed: Vec<_> = (0..n).map(|rank| hosts.host(rank)).collect();
        let expected = |rank| match std::env::var("TEST_MAP").as_deref() {
            _ if std::env::var_os("TEST_HOSTS").is_none() => 0,
            Ok("node") => rank % 2,
            _ => rank * 2 / n,
        };
        assert_eq!(placed, (0..n).map(expected).collect::<Vec<_>>());
    });
}
