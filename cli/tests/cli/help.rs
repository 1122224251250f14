//! `--help` of the commands: after the options it has the exit status and examples.

use std::process::Command;

#[test]
fn help_shows_exit_status_and_examples() {
    for (command, status, example) in [
        ("run", "124      the time of --timeout passed", "transom run -n 4 ./program --size 1000 "),
        ("doctor", "1    a check has failed", "transom doctor --hosts node1,node2 "),
    ] {
        let help = Command::new(env!("CARGO_BIN_EXE_transom")).args([command, "--help"]).output().unwrap();
        let text = String::from_utf8_lossy(&help.stdout);
        let [_, after] = text.split("\nExit status:\n").collect::<Vec<_>>()[..] else { panic!("{command}: {text}") };
        let [statuses, examples] = after.split("\nExamples:\n").collect::<Vec<_>>()[..] else {
            panic!("{command}: {text}")
        };
        let has = |part: &str, line: &str| part.lines().any(|found| found.trim_start().starts_with(line));
        assert!(help.status.success() && has(statuses, status) && has(examples, example), "{command}: {text}");
    }
}
