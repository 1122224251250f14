//! Instructions of calls of a benchmark, counted by valgrind.

use std::process::Command;

/// The count that callgrind, with these options, collects from this program, run with these arguments.
pub fn collected(options: &[&str], args: &[&str]) -> Result<u64, Box<dyn std::error::Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]).args(options).arg(std::env::current_exe()?);
    // Waiting ranks spin: to sleep, rustix looks for the clock, which fails under valgrind 3.19.
    valgrind.env("TRANSOM_SPIN_US", "60000000");
    let output = valgrind.args(args).output().map_err(|error| format!("cannot run valgrind: {error}"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count =
        text.lines().find_map(|line| line.split_once("Collected : ")).and_then(|(_, count)| count.trim().parse().ok());
    count.ok_or_else(|| format!("callgrind collected nothing:\n{text}").into())
}
