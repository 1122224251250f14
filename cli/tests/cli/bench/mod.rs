//! `transom bench` as a user calls it: its list, its output, and wrong command lines. Modules have the comparison with
//! other libraries, and the programs that are built with them. No test here depends on a time.

mod command;
mod compare;
mod hosts;
mod mpi_reference;
mod nas;
mod simulated;

use command::{cores, json, succeeds, texts, transom};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const ALL: [&str; 47] = [
    "put",
    "get",
    "eight_gets",
    "accumulate",
    "get_accumulate",
    "fetch_and_op",
    "compare_and_swap",
    "put_bw",
    "get_bw",
    "lock",
    "value",
    "random",
    "element_get",
    "element_put",
    "element_fetch",
    "contended",
    "readers_writer",
    "barrier",
    "broadcast",
    "reduce",
    "all_reduce",
    "scan",
    "all_gather",
    "all_to_all",
    "pingpong",
    "stream",
    "bidirectional",
    "message_rate",
    "overhead",
    "overlap_messages",
    "overlap_collectives",
    "registration",
    "polling_set",
    "poll_cost",
    "threshold",
    "ring_slots",
    "rendezvous",
    "pipe",
    "pipe_chunk",
    "rails",
    "kernel",
    "lu",
    "lu_outside",
    "overlap",
    "pipeline",
    "startup",
    "connections",
];
const MESSAGES: [&str; 7] =
    ["pingpong", "stream", "bidirectional", "message_rate", "overhead", "overlap_messages", "registration"];
/// Measurements in several configurations, with their bytes and ranks.
type Sweep = (&'static str, &'static [&'static str], &'static [usize], usize);
const SWEEPS: [Sweep; 8] = [
    (
        "rails",
        &["stripe_from=4294967295", "stripe=even", "stripe=weighted", "stripe=adaptive", "stripe=pull"],
        &[8, 4096],
        2,
    ),
    ("polling_set", &["rings=0", "rings=1", "order=sequential", "order=circular", "order=recent"], &[8], 4),
    (
        "poll_cost",
        &[
            "ring_after=1,rings=1",
            "ring_after=1,rings=4",
            "ring_after=1,rings=128",
            "ring_after=1,rings=128,order=recent",
        ],
        &[8],
        17,
    ),
    ("threshold", &["eager=0", "eager=1024", "eager=4096", "eager=8192"], &[8, 4096], 2),
    (
        "ring_slots",
        &[
            "ring_slots=2,window=2",
            "ring_slots=4,window=4",
            "ring_slots=8,window=8",
            "ring_slots=16,window=16",
            "ring_slots=32,window=32",
            "ring_slots=64,window=64",
        ],
        &[8, 4096],
        2,
    ),
    (
        "rendezvous",
        &["eager=0,zero_copy_from=1", "eager=0,zero_copy_from=1,read_waiting=yes", "eager=0,zero_copy_from=4294967296"],
        &[8, 4096],
        2,
    ),
    ("pipe", &["pipe=basic", "pipe=piggyback", "pipe=pipeline", "pipe=read", "pipe=write"], &[8, 4096], 2),
    (
        "pipe_chunk",
        &[
            "pipe=pipeline,pipe_chunk=1024",
            "pipe=pipeline,pipe_chunk=2048",
            "pipe=pipeline,pipe_chunk=4096",
            "pipe=pipeline,pipe_chunk=8192",
            "pipe=pipeline,pipe_chunk=16384",
            "pipe=pipeline,pipe_chunk=32768",
            "pipe=pipeline,pipe_chunk=65536",
        ],
        &[8, 4096],
        2,
    ),
];
const COLLECTIVES: [&str; 6] = ["broadcast", "reduce", "all_reduce", "scan", "all_gather", "all_to_all"];
const SYNCS: [&str; 7] = ["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw"];

/// The measurement of a row, of which there may be several in different modes: `put flush 8 B 2 ranks`, followed by
/// its configuration if it has one.
fn measured(rows: &[Value]) -> BTreeSet<String> {
    let of = |row: &Value| {
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        let what = format!("{} {} {} B {} ranks", text("measurement"), text("sync"), row["bytes"], row["ranks"]);
        format!("{what} {}", text("config")).trim_end().to_owned()
    };
    rows.iter().map(of).collect()
}

/// A measurement of messages in configurations.
fn in_each<'a>(
    measurement: &'a str,
    configs: &'a [&str],
    sizes: &'a [usize],
    ranks: usize,
) -> impl Iterator<Item = String> + 'a {
    configs.iter().flat_map(move |config| {
        sizes
            .iter()
            .map(move |bytes| format!("{measurement} messages {bytes} B {ranks} ranks {config}").trim_end().to_owned())
    })
}

/// Every combination of these.
fn all_of<'a>(
    measurements: &'a [&str],
    syncs: &'a [&str],
    sizes: &'a [usize],
    ranks: &'a [usize],
) -> impl Iterator<Item = String> + 'a {
    measurements.iter().flat_map(move |measurement| {
        syncs.iter().flat_map(move |sync| {
            sizes.iter().flat_map(move |bytes| {
                ranks.iter().map(move |ranks| format!("{measurement} {sync} {bytes} B {ranks} ranks"))
            })
        })
    })
}

/// Rules for the measured ranks, in a usable form; alone, and as ranks of a job.
#[test]
fn tuned_rules_file_is_accepted() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("rules");
    let own = format!("bench tune -n 3 --sizes 8,64 --millis 1 -o {}", file.display());
    assert_eq!(succeeds(transom(&own)).0, "");
    let text = fs::read_to_string(&file).unwrap();
    let calls = [
        "broadcast",
        "reduce",
        "all_reduce",
        "reduce_scatter",
        "scan",
        "gather",
        "scatter",
        "all_gather",
        "all_to_all",
    ];
    for call in calls {
        let last = text.lines().rev().find(|line| line.split_whitespace().next() == Some(call));
        let last = last.unwrap_or_else(|| panic!("no rule of {call} in\n{text}"));
        assert!(
            last.starts_with(&format!("{call} ranks=3 hosts=1 = ")),
            "expected a last rule for any size, found: {last}"
        );
    }
    text.parse::<transom::collective::Rules>().unwrap();

    let program = env!("CARGO_BIN_EXE_transom");
    let mut job = transom(&format!("run -n 2 -- {program} bench tune -n 7 scan --sizes 4096 --millis 1"));
    job.env("TRANSOM_COLLECTIVES", &file);
    let text = succeeds(job).0;
    let rules: Vec<_> = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert!(rules.len() == 1 && rules[0].starts_with("scan ranks=2 hosts=1 = "), "{text}");

    let (out, err) = texts(&transom("bench tune everything").output().unwrap());
    assert!(out.is_empty() && err.contains("expected one of broadcast, reduce"), "{err}");
}

#[test]
fn list_has_all_measurements_with_synchronizations() {
    let (out, _) = succeeds(transom("bench list"));
    for name in ALL {
        assert!(out.lines().any(|line| line.split_whitespace().next() == Some(name)), "{name} is not in\n{out}");
    }
    let put = out.lines().find(|line| line.trim_start().starts_with("put ")).unwrap();
    for sync in SYNCS {
        assert!(put.contains(sync), "{sync} is not in {put}");
    }
}

#[test]
fn full_bench_reports_each_figure_with_its_limit() {
    let dir = TempDir::new().unwrap();
    let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
    let mut bench = transom("bench --millis 1 --rounds 1 --sizes 8,4KiB --lu-n 50 --lu-block 7 --grid 64");
    bench.arg("--json").arg(&file).arg("--svg").arg(&picture);
    let (out, _) = succeeds(bench);
    for name in ALL {
        assert!(out.lines().any(|line| line.starts_with(&format!("{name}: "))), "{name} is not in\n{out}");
    }
    let all = json(&file);
    assert!(all["machine"]["cores"].as_u64().unwrap() >= 1);
    let rows = all["rows"].as_array().unwrap();
    let expected = all_of(&["put", "get", "accumulate", "get_accumulate"], &SYNCS, &[8, 4096], &[2])
        .chain(all_of(&["get"], &["two_sided"], &[8, 4096], &[2]))
        .chain(all_of(&["eight_gets"], &["lock", "lock_all", "two_sided"], &[8, 4096], &[2]))
        .chain(all_of(&["fetch_and_op", "compare_and_swap"], &SYNCS, &[8], &[2]))
        .chain(all_of(&["put_bw", "get_bw"], &["flush"], &[8, 4096], &[2]))
        .chain(all_of(&["lock"], &["lock", "lock_exclusive"], &[8], &[2]))
        .chain(all_of(&["value"], &["mutex"], &[8], &[2]))
        .chain(all_of(&["random"], &["sum", "xor", "or", "and", "replace", "scattered"], &[8], &[2]))
        .chain(all_of(&["element_get", "element_put", "element_fetch"], &["window", "cyclic", "tiles"], &[8], &[2]))
        .chain(all_of(&["contended"], &["lock_exclusive"], &[8], &[2, 3, 4, 8]))
        .chain(all_of(&["readers_writer"], &["lock"], &[8], &[3]))
        .chain(all_of(&["barrier"], &["barrier"], &[8], &[2]))
        .chain(all_of(&COLLECTIVES, &["collective"], &[8, 4096], &[2]))
        .chain(all_of(&["overlap_collectives"], &["collective"], &[8, 4096], &[2]))
        .chain(all_of(&MESSAGES, &["messages"], &[8, 4096], &[2]))
        .chain(all_of(&["pingpong", "stream", "bidirectional"], &["buffers"], &[8, 4096], &[2]))
        .chain(all_of(&["pingpong"], &["gaps"], &[8, 4096], &[2]))
        .chain(SWEEPS.iter().flat_map(|(name, configs, sizes, ranks)| in_each(name, configs, sizes, *ranks)))
        .chain(all_of(&["kernel"], &["none"], &[8], &[1]))
        .chain(all_of(&["lu", "lu_outside"], &["lock", "two_sided", "flush", "shared"], &[8], &[2]))
        .chain(all_of(&["overlap"], &["lock", "lock_all", "two_sided"], &[8], &[2]))
        .chain(all_of(&["pipeline"], &["one_sided", "two_sided"], &[8], &[2]))
        .chain(all_of(&["startup"], &["none"], &[8], &[2]))
        .chain(all_of(&["connections"], &["messages"], &[8], &[2, 4, 8]));
    assert_eq!(measured(rows), expected.collect());
    let cores = cores().len() as u64;
    for row in rows {
        let (name, ranks) = (row["measurement"].as_str().unwrap(), row["ranks"].as_u64().unwrap());
        let number = |name: &str| row[name].as_f64().unwrap_or_else(|| panic!("{name} of {row}"));
        assert!(number("atomic_ns") > 0.0 && number("copy_ns") > 0.0 && row["limit_wrong"] == false, "{row}");
        assert!(!row["figures"].as_object().unwrap().is_empty(), "{row}");
        // Distances of the cores before and after each job.
        let jobs = number("jobs") as usize;
        let pairs = |name: &str| {
            let pairs = row[name].as_array().unwrap().iter();
            pairs.map(|pair| [0, 1].map(|at| pair[at].as_f64().unwrap())).collect::<Vec<_>>()
        };
        let (crossings, slowdowns) = (pairs("crossings_ns"), pairs("slowdowns"));
        if ranks == 1 || ["startup", "connections"].contains(&name) {
            assert!(row["mode"] == "alone" && crossings.is_empty() && slowdowns.is_empty(), "{row}");
        } else {
            assert!(row["mode"] != "alone" && number("crossing_ns") > 0.0, "{row}");
            assert!(jobs > 0 && crossings.len() == jobs && slowdowns.len() == jobs, "{row}");
            assert!(crossings.iter().chain(&slowdowns).flatten().all(|&number| number > 0.0), "{row}");
        }
        if row["latency_ns"].is_object() {
            let at = |name: &str| row["latency_ns"][name].as_f64().unwrap();
            let order = ["min", "median", "p90", "p99", "p99_9", "max"].map(at);
            assert!(order[0] >= 0.0 && order.is_sorted() && at("samples") >= 1.0, "{row}");
        }
        // A limit, or the reason for its absence.
        let waits = ["contended", "poll_cost"].contains(&name)
            || ["fence", "pscw", "barrier", "collective"].contains(&row["sync"].as_str().unwrap());
        if waits && ranks > cores {
            assert!(row["limit"] == "none: ranks share cores" && row["times_limit"].is_null(), "{row}");
        } else if row["latency_ns"].is_object() || name == "contended" {
            assert!(!row["limit"].as_str().unwrap().is_empty() && number("times_limit") > 0.0, "{row}");
        }
    }
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    let drawn = ["put: latency", "get_accumulate: bandwidth", "pscw", "8 B", "threshold: latency", "messages, eager=0"];
    for text in drawn.into_iter().chain(["pipe: ns", "pipe: GB/s", "messages, pipe=write"]) {
        assert!(picture.contains(text), "{text} is not in the picture");
    }
}

#[test]
fn more_ranks_than_cores_are_measured() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("some.json");
    let mut bench = transom(
        "bench contended readers_writer barrier lu pipeline put --sync lock_exclusive,lock,barrier,two-sided,one_sided,fence",
    );
    bench
        .args("--ranks 8 --millis 1 --rounds 1 --sizes 8 --lu-n 32 --lu-block 8 --grid 16 --json".split(' '))
        .arg(&file);
    let (out, _) = succeeds(bench);
    let all = json(&file);
    let rows = all["rows"].as_array().unwrap();
    let expected = all_of(&["contended"], &["lock_exclusive"], &[8], &[8])
        .chain(all_of(&["readers_writer"], &["lock"], &[8], &[8]))
        .chain(all_of(&["barrier"], &["barrier"], &[8], &[8]))
        .chain(all_of(&["lu"], &["lock", "two_sided"], &[8], &[8]))
        .chain(all_of(&["pipeline"], &["one_sided", "two_sided"], &[8], &[8]))
        .chain(all_of(&["put"], &["lock_exclusive", "lock", "fence"], &[8], &[8]));
    assert_eq!(measured(rows), expected.collect());
    let contended = rows.iter().find(|row| row["measurement"] == "contended").unwrap();
    let shares: f64 = (0..8).map(|rank| contended["figures"][format!("share.{rank}")].as_f64().unwrap()).sum();
    // Each is a median; if the cores moved, of several jobs.
    assert!((shares - 1.0).abs() < 0.1, "{contended}");
    // The printed table shows it too.
    let none = out.lines().filter(|line| line.contains("none: ranks share cores")).count();
    assert_eq!(none >= 3, cores().len() < 8, "contended, barrier, put by fence:\n{out}");
}

/// A job has the configuration that was asked for, and the first of several is the one that the others are compared
/// with.
#[test]
fn messages_are_measured_in_each_requested_config() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("some.json");
    let mut bench = transom("bench pingpong pipe --sync messages --millis 2 --rounds 1 --sizes 64");
    bench.args("--config window=9 --config rings=0,offer=no --config".split(' ')).arg("").arg("--json").arg(&file);
    let (out, _) = succeeds(bench);
    let asked = ["window=9", "rings=0,offer=no", ""];
    let steps = ["basic", "piggyback", "pipeline", "read", "write"];
    let pipe = steps.iter().flat_map(|step| asked.map(|asked| format!("pipe={step},{asked}")));
    let pipe: Vec<_> = pipe.map(|config| config.trim_end_matches(',').to_owned()).collect();
    let pipe: Vec<_> = pipe.iter().map(String::as_str).collect();
    let expected = in_each("pingpong", &asked, &[64], 2).chain(in_each("pipe", &pipe, &[64], 2));
    let all = json(&file);
    assert_eq!(measured(all["rows"].as_array().unwrap()), expected.collect());
    let line = |config: &str| out.lines().find(|line| line.split_whitespace().nth(1) == Some(config)).unwrap();
    assert!(out.lines().any(|line| line.contains(" x first ")), "{out}");
    assert!(line("window=9").split_whitespace().any(|cell| cell == "1"), "{out}");
    // Before a job begins.
    let output = transom("bench pingpong --millis 1 --sizes 8 --config eager=9999999999").output().unwrap();
    let (_, err) = texts(&output);
    assert!(!output.status.success() && err.contains("eager is 9999999999, expected"), "{err}");
}

#[test]
fn worker_reports_measured_facts() {
    let exe = env!("CARGO_BIN_EXE_transom");
    let worker = |ranks: usize, args: &str| transom(&format!("run -n {ranks} -- {exe} bench-worker {args}"));
    let (last, cores) = (*cores().last().unwrap(), cores().len());
    for (ranks, crossings) in [(1, 0), (2, 2), (3, 2)] {
        let (out, _) = succeeds(worker(ranks, "get_accumulate --sync pscw --bytes 64 --millis 2"));
        let count = |key: &str| out.lines().filter(|line| line.starts_with(key)).count();
        let counts = ["crossing ", "slowdown ", "check ok", "value cpu."].map(count);
        assert_eq!(counts, [crossings, crossings, 1, if ranks <= cores { ranks } else { 0 }], "{out}");
        assert!(count("sample ") > 0 && count("") == count("sample ") + counts.iter().sum::<usize>(), "{out}");
    }
    // Ranks are on the named cores.
    let (out, _) = succeeds(worker(1, &format!("put --sync flush --millis 2 --cores {last}")));
    assert!(out.contains(&format!("value cpu.0 {last}\n")), "{out}");
    for measurement in ["accumulate", "get_accumulate"] {
        let (out, _) = succeeds(worker(2, &format!("{measurement} --sync flush --type f64 --bytes 64 --millis 2")));
        assert!(out.contains("sample ") && out.contains("check ok"), "{out}");
    }
    for (args, says) in [
        ("put --sync barrier", "not measured by"),
        ("readers_writer --sync lock", "3 ranks or more"),
        ("kernel --sync lock", "not measured by"),
        ("put --sync flush --bytes 7", "multiple of 8"),
        ("accumulate --sync flush --type f32", "i64, f64"),
        ("lu --sync lock --n 8 --block 16", "larger than the matrix"),
        ("pipeline --sync one_sided --grid 2", "larger --grid"),
    ] {
        let output = worker(2, args).output().unwrap();
        let (_, err) = texts(&output);
        assert!(!output.status.success() && err.contains(says) && !err.contains("panicked"), "{args}: {err}");
    }
}

#[test]
fn invalid_command_line_fails_with_advice() {
    for (args, says) in [
        ("nonsense", "no such measurement; expected one of put, get"),
        ("put --sizes 7", "multiple of 8 bytes"),
        ("put --sizes 99999999999999999999MiB", "multiple of 8 bytes"),
        ("put --sync magic", "expected one of and, barrier, buffers, collective, cyclic, fence"),
        ("put --sync barrier", "expected one of lock, lock_exclusive"),
        ("put --ranks 0", "1..=1024"),
        ("put --millis 0", "1..=60000"),
        ("put --rounds 0", "1..=1000"),
        ("stream --config ring_solts=2", "unknown field \"ring_solts\"; expected one of eager, ring_slots"),
        ("stream --config window=1", "window is 1, expected 2 to 1024"),
        ("ring_slots --config ring_slots=3", "combined with its own ring_slots=2,window=2, ring_slots is set twice"),
        ("put --config eager=0", "it sends no messages"),
        ("readers_writer --ranks 2", "use --ranks 3"),
        ("pipeline --grid 4 --ranks 8", "use --grid 16 or more"),
        ("lu --lu-n 8 --lu-block 16", "larger than the matrix"),
        ("put barrier --sync flush,barrier,mutex", "--sync mutex: no chosen measurement has this synchronization"),
        ("put --json /nonexistent/file", "cannot write"),
        ("put --json same --svg ./same", "--json and --svg name the same file"),
        ("put --svg /nonexistent/file", "cannot write"),
        ("list put", "unexpected argument"),
        ("compare nonsense", "no such measurement"),
        ("compare get", "not compared with others"),
        ("compare startup random value", "random is not compared with others"),
        ("compare startup value", "value is not compared with others"),
        ("compare --mpi /nonexistent", "no bin/mpirun with a bin/mpicc"),
        ("compare --sizes 7", "multiple of 8 bytes"),
        ("compare --ranks 0", "1..=1024"),
        ("compare --sync flush", "--sync"),
    ] {
        let output = transom(&format!("bench {args}")).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(2), "{args}\n{err}");
        assert!(err.contains(says) && !err.contains("panicked"), "{args} does not say {says:?}:\n{err}");
    }
    for args in ["bench --help", "bench list --help", "bench compare --help"] {
        succeeds(transom(args));
    }
}

/// Blocks belong to a matrix, and a kernel has none.
#[test]
fn kernel_ignores_matrix_and_block_sizes() {
    succeeds(transom("bench kernel --lu-n 8 --lu-block 16 --rounds 1 --millis 1"));
}

/// A job that cannot start, because it needs more files than the limit; earlier jobs can.
fn too_many_ranks(args: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", "ulimit -n 100; exec \"$0\" bench $1", env!("CARGO_BIN_EXE_transom"), args]);
    shell.env("PATH", "/nonexistent").env_remove("VIRTUAL_ENV").stdin(Stdio::null());
    shell
}

#[test]
fn results_before_a_failed_job_are_written() {
    let dir = TempDir::new().unwrap();
    let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
    let run = |ranks: &str| {
        let files = format!("--json {} --svg {}", file.display(), picture.display());
        let output = too_many_ranks(&format!("startup --rounds 1 --ranks {ranks} {files}")).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{err}");
        // The number of descriptors beyond three per rank depends on those that are open here already.
        assert!(
            err.contains("a launcher of 1000 ranks needs 3") && err.contains("open files, but the limit is 100"),
            "{err}"
        );
    };
    fs::write(&file, "before").unwrap();
    run("1000");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    assert!(!picture.exists());
    run("1,1000");
    let all = json(&file);
    assert_eq!(measured(all["rows"].as_array().unwrap()), BTreeSet::from(["startup none 8 B 1 ranks".to_owned()]));
    assert!(all["error"].as_str().unwrap().contains("open files"), "{}", all["error"]);
    assert!(fs::read_to_string(picture).unwrap().starts_with("<svg"));
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
}

#[test]
fn unwritable_output_is_named() {
    let says = |args: &str, says: &str| {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = transom(args).stdout(full).output().unwrap();
        let (_, err) = texts(&output);
        assert_eq!(output.status.code(), Some(1), "{args}\n{err}");
        assert!(err.contains(&format!("transom: {says}: No space left on device")), "{args}: {err}");
    };
    says("bench list", "stdout");
    says("bench startup --rounds 1 --millis 1", "stdout");
    says("bench tune scan --sizes 8 --millis 1 -o /dev/full", "`/dev/full`");
    let output = transom("bench startup --rounds 1 --json /dev/full").output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(1) && err.contains("transom: `/dev/full`: No space left"), "{err}");
}

/// The report has the variables that the user set for programs. They do not change what is read from jobs, and a job
/// that is to run without them does not get them.
#[test]
fn user_variables_are_reported_and_removed_from_jobs() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("some.json");
    let mut bench = transom("bench pingpong --sync messages --millis 1 --rounds 1 --sizes 8 --config");
    bench.arg("").arg("--json").arg(&file).env("TRANSOM_MESSAGES", "nonsense=1");
    bench
        .env("TRANSOM_OUTPUT_PREFIX", "all")
        .env("TRANSOM_SECRET", "12,34")
        .env("TRANSOM_SSH", "sshpass -p secret ssh");
    succeeds(bench);
    let set = serde_json::json!({ "TRANSOM_MESSAGES": "nonsense=1", "TRANSOM_OUTPUT_PREFIX": "all" });
    assert_eq!(json(&file)["machine"]["variables"], set);

    let mut tune = transom("bench tune scan --sizes 8 --millis 1");
    let (out, _) = succeeds({
        tune.env("TRANSOM_OUTPUT_PREFIX", "all");
        tune
    });
    out.parse::<transom::collective::Rules>().unwrap();
}

/// A file is measured to its end.
#[test]
fn closed_stdout_still_writes_result_files() {
    let dir = TempDir::new().unwrap();
    for command in ["bench startup --rounds 1", "bench compare overlap --rounds 1 --millis 1"] {
        let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
        let args = format!("{command} --json {} --svg {}", file.display(), picture.display());
        let mut child = transom(&args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{args}: {}", texts(&output).1);
        assert!(json(&file)["rows"].is_array() || json(&file)["rows"]["alone"].is_array(), "{args}");
        assert!(fs::read_to_string(&picture).unwrap().starts_with("<svg"), "{args}");
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn closed_stdout_ends_bench_quietly() {
    for args in ["bench list", "bench startup --rounds 1", "bench compare startup --rounds 1"] {
        let mut child = transom(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(child.wait().unwrap().success(), "{args}: {err}");
        // Warnings about the machine and the build are no errors.
        let expected = |line: &str| line.contains("busy") || line.contains("debug build");
        assert!(err.lines().all(expected), "{args}: {err}");
    }
}
