//! `transom verify`: the verdict, the bounds, and mistakes in the mix.

use std::process::Command;

/// Exit status, stdout and stderr of `transom verify` with these arguments.
fn verify(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_transom")).arg("verify").args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn mix_is_verified_with_bounds() {
    let (status, said, _) = verify(&["W | R"]);
    assert_eq!(status, Some(0), "{said}");
    for expected in ["mix         W | R\n", "network     2 ranks", "no violation", "every schedule"] {
        assert!(said.contains(expected), "{said}");
    }
    // A stale guess where the reader is inside, and another where it has left since.
    assert!(said.contains("| acquire 0 exclusive | 3 | 0 | 3 |"), "{said}");
}

#[test]
fn row_is_repeated_for_each_rank() {
    let (status, said, _) = verify(&["W", "--ranks", "3", "--delivery", "watched", "--table"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.starts_with("| call | verbs until placed |"), "{said}");
    let (status, _, said) = verify(&["W | R", "--ranks", "3"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("--ranks 3 repeats one row"), "{said}");
    for ranks in ["0", "65"] {
        assert_eq!(verify(&["W", "--ranks", ranks]).0, Some(2), "{ranks} ranks");
    }
}

#[test]
fn bound_makes_the_verdict_incomplete() {
    let (status, said, _) = verify(&["W W | W W | W W", "--max-states", "1000"]);
    assert_eq!(status, Some(3), "{said}");
    assert!(said.contains("INCOMPLETE  1001 states"), "{said}");
}

#[test]
fn deadlock_of_two_orders_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deadlock.svg");
    let (status, said, _) = verify(&["W0+W1 | W1+W0", "--svg", path.to_str().unwrap()]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("rank 0 waits on its word") && said.contains("repeats it"), "{said}");
    assert!(std::fs::read_to_string(path).unwrap().contains("waits for"));
}

#[test]
fn mistake_in_the_mix_is_explained() {
    let (status, _, said) = verify(&["W | Q"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("Q is no request; write W, R, TW, TR, DW, DR or A"), "{said}");
    let (_, _, said) = verify(&["W7 | R"]);
    assert!(said.contains("W7 names a rank that does not exist; there are 2 rows"), "{said}");
}
