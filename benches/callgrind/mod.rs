//! Instructions of calls of a benchmark, counted by valgrind.

use std::process::Command;

/// What callgrind collects from this program, run with one call.
pub fn collected(call: &str, times: &str) -> Result<u64, Box<dyn std::error::Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).arg(std::env::current_exe()?);
    let output = valgrind.args([call, times]).output().map_err(|error| format!("cannot run valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count =
        text.lines().find_map(|line| line.split_once("Collected : ")).and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| format!("callgrind collected nothing:\n{text}").into())
}
