//! `TRANSOM_LOCAL_RANK` and `TRANSOM_LOCAL_SIZE`: the number of a rank among those of its host.

use super::*;

const TELL: [&str; 3] = ["sh", "-c", "echo $TRANSOM_RANK: $TRANSOM_LOCAL_RANK of $TRANSOM_LOCAL_SIZE"];

#[test]
fn local_rank_counts_within_each_host() {
    for (args, expected) in [
        (&["-n", "3"][..], &["0: 0 of 3", "1: 1 of 3", "2: 2 of 3"][..]),
        (&["-n", "3", "--hosts", "a,b"], &["0: 0 of 2", "1: 1 of 2", "2: 0 of 1"]),
        (&["-n", "4", "--hosts", "a:1,b:3"], &["0: 0 of 1", "1: 0 of 3", "2: 1 of 3", "3: 2 of 3"]),
        (&["-n", "2", "--hosts", "a,b,c"], &["0: 0 of 1", "1: 0 of 1"]),
    ] {
        let ended = run(&[args, &TELL].concat());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.lines, expected, "{args:?}");
    }
}

/// The ranks of a nested job have numbers of their own.
#[test]
fn local_rank_of_outer_job_is_replaced() {
    let inner = format!("[ $TRANSOM_RANK = 1 ] || exit 0; exec {} run -n 1 {}", env!("CARGO_BIN_EXE_transom"), {
        "sh -c 'echo $TRANSOM_LOCAL_RANK of $TRANSOM_LOCAL_SIZE'"
    });
    assert_eq!(run(&["-n", "2", "sh", "-c", &inner]).lines, ["0 of 1"]);
}
