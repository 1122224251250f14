//! `transom verify`: the verdict, the bounds, and mistakes in the mix.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
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
    let (status, said, _) = verify(&["W | R", "--svg", "/no/such/file.svg"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("/no/such/file.svg not written: there is no violation to draw"), "{said}");
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
    assert!(said.contains("rank 0 waits for go of rank 0 at lock 1 (0)") && said.contains("repeats it"), "{said}");
    assert!(std::fs::read_to_string(path).unwrap().contains("waits for"));
}

#[test]
fn mistake_in_the_mix_is_explained() {
    let (status, _, said) = verify(&["W | Q"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("Q is no request; write W, R, TW, TR, DW, DR, A, barrier"), "{said}");
    let (_, _, said) = verify(&["W7 | R"]);
    assert!(said.contains("W7 names a rank that does not exist; there are 2 rows"), "{said}");
}

#[test]
fn barrier_and_epochs_are_verified() {
    let (status, said, _) = verify(&["post1 wait barrier | start0 complete barrier", "--delivery", "deferred"]);
    assert_eq!(status, Some(0), "{said}");
    for expected in ["no deadlock, barriers and epochs in order", "| barrier | | | 1 |", "| post 1 | | | 1 |"] {
        assert!(said.contains(expected), "{said}");
    }
    let (status, said, _) = verify(&["W+barrier | W barrier"]);
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("rank 0 waits for barrier round 0 of rank 0 (0)"), "{said}");
}

#[test]
fn rows_that_repeat_starve_no_rank() {
    let (status, said, _) = verify(&["W * | R"]);
    assert_eq!(status, Some(0), "{said}");
    for expected in ["no starvation", "schedules   endless", "no deaths, counts of 3 bits"] {
        assert!(said.contains(expected), "{said}");
    }
    let (status, _, said) = verify(&["W | *"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("row 1 repeats no request; write a request before *"), "{said}");
    assert_eq!(verify(&["W *", "--table"]).0, Some(2));
}

#[test]
fn deaths_are_refused_until_modelled() {
    assert_eq!(verify(&["W", "--deaths", "0"]).0, Some(0));
    let (status, _, said) = verify(&["W | R", "--deaths", "1"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("--deaths 1: the model has no deaths yet; leave the option out or write 0"), "{said}");
}

/// A stand-in for TLC: prints its arguments, and ends with the given status.
fn tlc(folder: &Path, status: i32) -> String {
    let path = folder.join("tlc");
    std::fs::write(&path, format!("#!/bin/sh\necho \"$@: 46 distinct states found\"\nexit {status}\n")).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.to_str().unwrap().into()
}

#[test]
fn mix_is_exported_and_checked_by_tlc() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mix.tla");
    let export = |tlc: &str| verify(&["W | R", "--tla", file.to_str().unwrap(), "--tlc", tlc]);
    let (status, said, _) = export("/no/such/tlc");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("TLC         not run: cannot start /no/such/tlc"), "{said}");
    assert!(std::fs::read_to_string(&file).unwrap().starts_with("---- MODULE mix ----"));
    let (status, said, _) = export(&tlc(folder.path(), 0));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("TLC         no error: -cleanup -metadir") && said.contains("mix.cfg"), "{said}");
    let (status, said, _) = export(&tlc(folder.path(), 12));
    assert_eq!(status, Some(1), "{said}");
    assert!(said.contains("TLC         failed (exit status: 12)"), "{said}");
}

#[test]
fn mix_that_cannot_be_exported_is_refused() {
    let (status, _, said) = verify(&["W | R", "--tla", "a-b.tla"]);
    assert_eq!(status, Some(2));
    assert!(said.contains("the file name is no module name"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    for (mix, why) in [
        ("DW | R", "rank 0 makes a request with a deadline"),
        ("R barrier | barrier", "rank 0 calls a barrier or opens an epoch; the export has locks only"),
        ("W * | R", "rank 0 repeats its row for ever"),
    ] {
        let (status, _, said) = verify(&[mix, "--tla", folder.path().join("mix.tla").to_str().unwrap()]);
        assert_eq!(status, Some(2), "{mix}: {said}");
        assert!(said.contains(why), "{mix}: {said}");
    }
    for (mix, status, why) in
        [("W0+W1 | W1+W0", 1, "not written: VIOLATION"), ("W W | W W", 3, "not written: INCOMPLETE")]
    {
        let file = folder.path().join("mix.tla");
        let (ended, said, _) = verify(&[mix, "--max-states", "200", "--tla", file.to_str().unwrap()]);
        assert_eq!(ended, Some(status), "{mix}: {said}");
        assert!(said.starts_with(why) && !file.exists(), "{mix}: {said}");
    }
}
