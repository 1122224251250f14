//! `--timeout`: the job ends, with a message and the status of `timeout`.

use super::*;

const DEAF: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

#[test]
fn timeout_ends_the_job_with_status_124() {
    for hosts in [&[][..], &["--hosts", "a,b"]] {
        let polite = "exec 2>/dev/null; trap 'echo told; exit 0' TERM; [ $TRANSOM_RANK = 1 ] && exit 0; while :; do sleep 0.05; done";
        let ended = run(&[hosts, &["-n", "3", "--timeout", "2", "sh", "-c", polite]].concat());
        assert_eq!((ended.code, ended.lines.as_slice()), (Some(124), &["told".to_owned(), "told".to_owned()][..]));
        assert_eq!(ended.stderr, "transom: the deadline passed; ranks 0, 2 had not ended\n");
        let ended = run(&[hosts, &["-n", "2", "--timeout", "2", "sh", "-c", DEAF]].concat());
        assert_eq!((ended.code, ended.lines.len()), (Some(124), 2), "{ended:?}");
    }
    assert_eq!(run(&["-n", "2", "--timeout", "3600", "true"]).code, Some(0));
}

#[test]
fn malformed_timeout_is_refused() {
    for (time, why) in [("0", "expected a time above 0"), ("-1", "not between"), ("1h", "not a number of seconds")] {
        let ended = run(&["-n", "1", "--timeout", time, "true"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(&format!("'{time}' for '--timeout <SECONDS>': {why}")), "{ended:?}");
    }
}
