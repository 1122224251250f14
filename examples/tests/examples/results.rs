//! The examples print right results, also with more ranks than cores, and answer invalid arguments with advice.

use crate::built;
use std::process::{Command, Output};

fn example(name: &str, args: &str) -> Output {
    let path = built::example(name);
    let output = Command::new("timeout").arg("120").arg(&path).args(args.split_whitespace()).output();
    output.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[track_caller]
pub fn succeeds(name: &str, args: &str, says: &[&str]) -> String {
    let output = example(name, args);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name} {args}: {}\n{out}{err}", output.status);
    for word in says {
        assert!(out.contains(word), "{name} {args} does not say {word:?}:\n{out}");
    }
    out.into_owned()
}

#[track_caller]
pub fn refuses(name: &str, args: &str, says: &[&str]) {
    let output = example(name, args);
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{name} {args}\n{err}");
    for word in says {
        assert!(err.contains(word), "{name} {args} does not say {word:?}:\n{err}");
    }
}

#[test]
fn hello_greets_from_every_rank() {
    for ranks in [1, 2, 3, 8] {
        let out = succeeds("hello", &format!("--ranks {ranks}"), &[&format!("{ranks} ranks were counted")]);
        assert_eq!(out.matches("hello from rank").count(), ranks);
    }
}

#[test]
fn ping_sends_all_lengths_up_to_the_longest() {
    for (longest, lengths) in
        [("5", &["5"][..]), ("8", &["8"]), ("100", &["8", "32", "100"]), ("128", &["8", "32", "128"])]
    {
        let out = succeeds("ping", &format!("--longest {longest} --rounds 3"), &["us one way"]);
        let sent: Vec<_> = out.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(sent, lengths, "{out}");
    }
}

#[test]
fn lu_of_any_size_block_and_ranks_is_correct() {
    for args in [
        "--ranks 1 -n 1 --block 1",
        "--ranks 2 -n 64",
        "--ranks 3 -n 50 --block 7",
        "--ranks 4 -n 256 --block 32",
        "--ranks 7 -n 97 --block 13",
        "--ranks 8 -n 33 --block 33",
        "--ranks 64 -n 130 --block 8",
    ] {
        succeeds("lu", args, &["(good: at most 10)", "GFLOP/s", "gets", "puts", "locks", "atomics"]);
    }
}

#[test]
fn fair_lock_finds_grants_in_request_order() {
    for args in ["--ranks 1", "--ranks 2 --shared 0", "--ranks 4 --shared 50", "--ranks 8 --shared 90"] {
        succeeds("fair_lock", &format!("{args} --seconds 0.3"), &["grants came in request order", "longest wait", "#"]);
    }
}

#[test]
fn stencil_by_every_exchange_is_correct() {
    for args in
        ["--ranks 1 -n 5 --steps 3", "--ranks 2 -n 64", "--ranks 3 -n 50 --steps 20", "--ranks 8 -n 8 --steps 9"]
    {
        let out = succeeds("stencil", args, &["by array", "by neighbours", "by fence", "by pscw", "by signal"]);
        assert_eq!(out.matches("every point is right").count(), 5, "{out}");
    }
    succeeds("stencil", "--ranks 4 -n 40 --by pscw", &["every point is right"]);
}

#[test]
fn ocean_finds_the_known_solution() {
    for args in ["--ranks 1 -n 8", "--ranks 2 -n 64", "--ranks 3 -n 32", "--ranks 10 -n 16"] {
        succeeds("ocean", args, &["every point is right"]);
    }
}

#[test]
fn ocean_on_ranks_and_threads_sweeps_equally_often() {
    for members in [1, 2, 3] {
        let on = |by| {
            let out = succeeds("ocean", &format!("--ranks {members} -n 64 --by {by}"), &["every point is right"]);
            out.split(", ").skip(3).map(String::from).collect::<Vec<_>>()
        };
        let [ranks, threads] = ["ranks", "threads"].map(on);
        assert_eq!(ranks, threads, "{members} of each");
        assert_eq!(ranks[..2], ["121 sweeps", "residual 7.7e-8"]);
    }
}

#[test]
fn radix_of_any_size_sorts_all_keys() {
    for args in ["--ranks 1 -n 1", "--ranks 2 -n 1000 --bits 3", "--ranks 3 -n 12345", "--ranks 8 -n 5 --bits 16"] {
        succeeds("radix", args, &["every key is right"]);
    }
}

#[test]
fn tree_search_finds_all_solutions() {
    for (args, solutions) in
        [("--ranks 1 -n 1", 1), ("--ranks 2 -n 8", 92), ("--ranks 3 -n 9", 352), ("--ranks 8 -n 10", 724)]
    {
        succeeds("tree_search", args, &[&format!(": {solutions} solutions, which is right")]);
    }
}

#[test]
fn pipeline_of_any_shape_computes_the_corner() {
    for args in [
        "--ranks 1 --rows 20 --columns 30 --iterations 3",
        "--ranks 2 --rows 100 --columns 50 --iterations 5",
        "--ranks 3 --rows 2 --columns 6 --iterations 4",
        "--ranks 8 --rows 64 --columns 33 --group 10 --iterations 3",
        "--ranks 4 --rows 10 --columns 10 --group 100 --iterations 3",
        "--ranks 1 --rows 20 --columns 30 --iterations 3 --messages",
        "--ranks 2 --rows 100 --columns 50 --iterations 5 --messages",
        "--ranks 8 --rows 64 --columns 33 --group 10 --iterations 3 --messages",
    ] {
        succeeds("pipeline", args, &["(right)"]);
    }
}

#[test]
fn histogram_counts_every_value_once() {
    for args in ["--ranks 1 --values 1000", "--ranks 8 --bins 7 --values 1000 --chunk 33", "--ranks 3 --values 2000"] {
        succeeds("histogram", args, &["both agree with a sequential recount"]);
    }
}

#[test]
fn table_inserts_each_key_once_until_it_is_full() {
    for args in ["--ranks 1 --keys 10", "--ranks 8 --keys 10 --inserts 5000", "--ranks 4 --inserts 3000"] {
        succeeds("table", args, &["each once"]);
    }
    let output = example("table", "--ranks 2 --keys 1000 --slots 100");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && err.contains("slots hold other keys"), "{err}");
}

#[test]
fn invalid_options_are_refused_with_advice() {
    refuses("lu", "-n 0", &["a whole number of at least 1"]);
    refuses("lu", "-n -5", &["a whole number of at least 1"]);
    refuses("lu", "-n 16 --block 17", &["larger than the matrix", "--block 16 or less"]);
    refuses("lu", "--block x", &["a whole number of at least 1"]);
    refuses("fair_lock", "--shared 101", &["101"]);
    refuses("fair_lock", "--seconds 0", &["seconds above 0"]);
    refuses("stencil", "-n 3 --ranks 4", &["use -n 4 or more"]);
    refuses("stencil", "--by magic", &["fence", "pscw", "signal"]);
    refuses("ocean", "-n 100", &["a power of two from 8"]);
    refuses("ocean", "--tolerance 0", &["a residual of at least 1e-8"]);
    refuses("pipeline", "--columns 7 --ranks 4", &["at least two for each rank"]);
    for name in ["hello", "lu", "fair_lock", "stencil", "ocean", "pipeline", "histogram", "table"] {
        refuses(name, "--ranks 0", &["ranks"]);
        refuses(name, "--ranks 99999999", &["32767"]);
        refuses(name, "--rnaks 4", &["--ranks"]);
        succeeds(name, "--help", &["Examples:", "--ranks"]);
    }
}

#[test]
fn lu_matrix_too_large_for_memory_is_refused() {
    for n in ["4000000000", "18446744073709551615", "3000000"] {
        let output = example("lu", &format!("--ranks 2 -n {n}"));
        let err = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{err}");
        assert!(err.contains("lu:") && !err.contains("panicked"), "{err}");
    }
}
