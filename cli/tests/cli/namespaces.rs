//! Ranks in a PID or user namespace of their own are refused with an error that names the namespace.

use crate::copies::outside_batch_job;
use crate::ranks::full_name;
use std::process::{Command, Output, Stdio};

/// Runs two ranks, each in a namespace of its own. Returns `None` if this machine has no such namespaces for this
/// user.
fn in_own(namespace: &[&str], test: &str) -> Option<Output> {
    let can = Command::new("unshare").args(namespace).arg("true").stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("NOT RUN: `unshare {namespace:?}` does not work here");
        return None;
    }
    let ranks = outside_batch_job(&mut Command::new(env!("CARGO_BIN_EXE_transom")))
        .args(["run", "-n", "2", "unshare"])
        .args(namespace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &full_name(test), "--nocapture", "--test-threads=1"])
        .env("TEST_ROLE", "rank")
        .stdin(Stdio::null())
        .output();
    Some(ranks.unwrap())
}

fn is_named(namespace: &[&str], test: &str, parts: &[&str]) {
    if std::env::var_os("TEST_ROLE").is_some() {
        let error = transom::init().map(drop).unwrap_err();
        return println!("told: {error}");
    }
    let Some(Output { stdout, stderr, .. }) = in_own(namespace, test) else { return };
    let said = [stdout, stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
}

#[test]
fn differing_pid_namespace_is_named() {
    let parts = ["told: ", "another PID namespace than the launcher"];
    is_named(&["--user", "--map-current-user", "--pid", "--fork"], "differing_pid_namespace_is_named", &parts);
}

#[test]
fn differing_user_namespace_is_named() {
    let parts = ["told: ", "another user namespace than the launcher"];
    is_named(&["--user", "--map-current-user"], "differing_user_namespace_is_named", &parts);
}
