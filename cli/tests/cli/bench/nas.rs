//! `transom bench nas` with programs that stand for the example `nas` and for NPB, and print the rates that a test
//! expects.

use super::command::{succeeds, texts, transom};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

/// The words of the table's rows of a kernel.
fn rows(out: &str, kernel: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(String::from).collect::<Vec<_>>();
    out.lines().map(words).filter(|words| words.first().is_some_and(|word| word == kernel)).collect()
}

#[test]
fn nas_configurations_and_npb_take_turns() {
    let dir = TempDir::new().unwrap();
    let log = dir.path().join("log");
    let ours = format!(
        "echo \"$TRANSOM_MESSAGES $*\" >> {}\n\
         case $TRANSOM_MESSAGES in rings=0) rate=50;; *) rate=100;; esac\n\
         echo \"MG class A by messages, ranks 1: 4 iterations, 0.1 s, $rate.00 Mop/s\"\n\
         echo VERIFICATION SUCCESSFUL",
        log.display()
    );
    let program = script(dir.path(), "nas", &ours);
    let npb = "echo ' Mop/s total     =    125.00'; echo ' Verification    =      SUCCESSFUL'";
    script(dir.path(), "mg.A.1", &format!("echo npb >> {}; {npb}", log.display()));
    let mpirun = script(dir.path(), "mpirun", "[ \"$1 $2\" = '-np 1' ] && exec \"$3\"");
    let args = format!(
        "bench nas mg -n 1 --class A --rounds 2 --config rings=0 --config rings=8 --program {} --npb {} --mpirun {}",
        program.display(),
        dir.path().display(),
        mpirun.display()
    );
    let (out, _) = succeeds(transom(&args));
    let expected = [
        ["mg", "rings=0", "50.0", "50.0", "50.0", "1.00"],
        ["mg", "rings=8", "100", "100", "100", "2.00"],
        ["mg", "NPB", "125", "125", "125", "2.50"],
    ];
    assert_eq!(rows(&out, "mg"), expected, "{out}");
    let round = "rings=0 mg --class A --by messages\nrings=8 mg --class A --by messages\nnpb\n";
    assert_eq!(fs::read_to_string(log).unwrap(), round.repeat(2));
}

#[test]
fn nas_without_names_runs_kernels_of_the_form() {
    let dir = TempDir::new().unwrap();
    let program = script(dir.path(), "nas", "echo '1.00 Mop/s'; echo VERIFICATION SUCCESSFUL");
    for (by, kernels) in
        [("messages", &["ep", "is", "cg", "mg", "ft"][..]), ("one-sided", &["is", "ft"]), ("pipes", &["is", "ft"])]
    {
        let args = format!("bench nas -n 1 --rounds 1 --by {by} --program {}", program.display());
        let (out, _) = succeeds(transom(&args));
        let found: Vec<&str> = out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(found, kernels, "{out}");
    }
}

#[test]
fn nas_result_that_is_wrong_fails_the_bench() {
    let dir = TempDir::new().unwrap();
    for (text, says) in [
        ("echo '1.00 Mop/s'; echo VERIFICATION FAILED; exit 1", "its result is not verified"),
        ("echo '1.00 Mop/s'", "its result is not verified"),
        ("echo VERIFICATION SUCCESSFUL", "its output has no Mop/s"),
        ("echo 'transom: a rank is gone' >&2; exit 3", "exit status: 3: transom: a rank is gone"),
    ] {
        let program = script(dir.path(), "nas", text);
        let output = transom(&format!("bench nas cg -n 1 --program {}", program.display())).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{text}: {err}");
        assert!(err.contains("cg class W, default: ") && err.contains(says), "{text}: {err}");
    }
}

#[test]
fn nas_with_wrong_command_line_is_refused() {
    for (args, says) in [
        ("bench nas --program /nonexistent/nas", "build the example `nas`"),
        ("bench nas bt", "possible values: ep, is, cg, mg, ft"),
        ("bench nas --class D", "possible values: S, W, A"),
        ("bench nas --config rnigs=0", "rnigs"),
    ] {
        let output = transom(args).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{args}: {err}");
        assert!(err.contains(says), "{args}: {err}");
    }
}
