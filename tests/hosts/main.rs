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

/// Runs the behaviours of this program on hosts `a` and `b`, with one and with two ranks on each, in both orders.
#[test]
fn behaviours_hold_between_hosts_of_one_machine() {
    if std::env::var_os("TEST_HOSTS").is_some() {
        return; // the run below, or one by hand
    }
    let ssh = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ranks/local-ssh");
    // With one rank on each host, both orders are the same.
    for (map, ranks) in [("slot", "2,4"), ("node", "4")] {
        let mut run = Command::new(std::env::current_exe().unwrap());
        run.args(["--test-threads=2"]).envs([("TEST_HOSTS", "a,b"), ("TEST_RANKS", ranks), ("TEST_MAP", map)]);
        let ended = run.env("TRANSOM_SSH", ssh).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
        assert!(ended.status.success(), "{map}: {out}\n{err}");
    }
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
