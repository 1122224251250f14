//! A variable set under its former name is refused with its present name, by the part that reads it.

use crate::copies::outside_batch_job;
use std::process::Command;

fn transom(args: &[&str], name: &str) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    outside_batch_job(command.args(args).env(name, "1")).output().unwrap()
}

#[test]
fn former_variable_of_launcher_is_refused() {
    let ended = transom(&["run", "-n", "1", "true"], "TRANSOM_TAG");
    assert_eq!(ended.status.code(), Some(2));
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("TRANSOM_TAG=\"1\": this variable is called TRANSOM_OUTPUT_PREFIX now; expected"), "{text}");
}

#[test]
fn former_variable_of_ranks_is_refused() {
    let ended = transom(&["run", "-n", "2", env!("CARGO_BIN_EXE_transom"), "bench"], "TRANSOM_SPIN");
    assert!(!ended.status.success());
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(text.contains("TRANSOM_SPIN=\"1\": this variable is called TRANSOM_SPIN_US now"), "{text}");
}
