//! TRANSOM_LOG selects log output, which goes to stderr only.

use crate::built;
use std::process::Command;

fn hello(log: Option<&str>) -> (bool, String) {
    let hello = built::example("hello");
    let mut command = Command::new(hello);
    command.args(["--ranks", "2"]).env_remove("TRANSOM_LOG");
    if let Some(log) = log {
        command.env("TRANSOM_LOG", log);
    }
    let output = command.output().expect("hello is built with the tests");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn log_filter_unset_logs_nothing() {
    assert_eq!(hello(None), (true, String::new()));
}

#[test]
fn events_are_logged_by_level_and_crate() {
    let (ran, log) = hello(Some("debug"));
    assert!(ran, "{log}");
    for event in ["joined the job", "window created", "left the job"] {
        assert!(log.contains(event), "no {event:?} in:\n{log}");
    }
    let (ran, log) = hello(Some("off,transom_windows=debug"));
    assert!(ran && log.contains("window created") && !log.contains("joined the job"), "{log}");
}

#[test]
fn malformed_log_filter_is_refused() {
    for wrong in ["transom=loud", "debg", "transom", "info,debg"] {
        let (ran, log) = hello(Some(wrong));
        assert!(!ran && log.contains(&format!("TRANSOM_LOG={wrong:?}")), "{wrong}: {log}");
        assert!(log.contains("off, error, warn, info, debug, trace"), "{wrong}: {log}");
    }
}

#[test]
fn unknown_variable_is_reported_once() {
    let output =
        Command::new(built::example("hello")).args(["--ranks", "2"]).env("TRANSOM_MESAGES", "eager=0").output();
    let output = output.expect("hello is built with the tests");
    let line = "[0] transom: unknown variable TRANSOM_MESAGES has no effect; `transom info` lists all variables\n";
    assert_eq!((output.status.success(), String::from_utf8_lossy(&output.stderr).as_ref()), (true, line));
}
