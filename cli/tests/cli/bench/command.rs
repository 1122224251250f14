//! Calls `transom` as a user does, in an environment where it finds no other library.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

pub fn transom(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.args(args.split_whitespace()).stdin(Stdio::null());
    command.env("PATH", "/nonexistent").env_remove("VIRTUAL_ENV");
    command
}

pub fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
pub fn succeeds(mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    (out, err)
}

pub fn json(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The cores that this process may run on.
pub fn cores() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}
