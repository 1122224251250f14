//! Behaviours between hosts of one machine: a script stands for ssh, and the ranks of each host share memory. The hosts
//! are connected by TCP.

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
mod stopped;

use std::process::Command;

/// Runs the behaviours of this program on hosts `a` and `b`, with one and with two ranks on each.
#[test]
fn behaviours_hold_between_hosts_of_one_machine() {
    if std::env::var_os("TEST_HOSTS").is_some() {
        return; // the run below, or one by hand
    }
    let ssh = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ranks/local-ssh");
    let mut run = Command::new(std::env::current_exe().unwrap());
    run.args(["--test-threads=2"]).envs([("TEST_HOSTS", "a,b"), ("TEST_RANKS", "2,4"), ("TRANSOM_SSH", ssh)]);
    let ended = run.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{out}\n{err}");
}
