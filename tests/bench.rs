//! `transom bench` as a user calls it: what it lists, what it writes, how it takes wrong command lines, and what it makes
//! of other libraries, played by scripts. Nothing here depends on how long anything takes.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const ALL: [&str; 17] = [
    "put",
    "get",
    "accumulate",
    "get_accumulate",
    "fetch_and_op",
    "compare_and_swap",
    "put_bw",
    "get_bw",
    "lock",
    "contended",
    "readers_writer",
    "barrier",
    "lu",
    "lu_outside",
    "overlap",
    "pipeline",
    "startup",
];
const SYNCS: [&str; 7] = ["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw"];

fn transom(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.args(args.split_whitespace()).stdin(Stdio::null());
    // No other MPI is found by itself.
    command.env("PATH", "/nonexistent").env_remove("VIRTUAL_ENV");
    command
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[track_caller]
fn succeeds(mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    (out, err)
}

/// As [`succeeds`], where cores may move: on a busy machine they may seem to in each job of something, which is said.
#[track_caller]
fn measures(mut command: Command) -> (String, String) {
    let output = command.output().unwrap();
    let (out, err) = texts(&output);
    let moved = [&out, &err].iter().any(|text| text.contains("the cores moved in each of"));
    assert_eq!(output.status.code(), Some(i32::from(moved)), "{out}\n{err}");
    (out, err)
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn list_has_all_measurements_with_their_synchronisations() {
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
fn everything_is_measured_and_every_figure_stands_beside_its_limit() {
    let dir = TempDir::new().unwrap();
    let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
    let mut bench = transom("bench --millis 1 --rounds 1 --sizes 8,4KiB --lu-n 50 --lu-block 7 --grid 64");
    bench.arg("--json").arg(&file).arg("--svg").arg(&picture);
    let (out, err) = measures(bench);
    for name in ALL {
        assert!(out.lines().any(|line| line.starts_with(&format!("{name}: "))), "{name} is not in\n{out}");
    }
    let all = json(&file);
    assert!(all["machine"]["cores"].as_u64().unwrap() >= 1);
    let rows = all["rows"].as_array().unwrap();
    for name in ALL {
        let rows: Vec<_> = rows.iter().filter(|row| row["measurement"] == name).collect();
        // On a busy machine the cores may seem to move in each job; that is said.
        assert!(!rows.is_empty() || err.contains(&format!("{name} --sync")), "no row of {name}\n{err}");
        for row in rows {
            let crossing = row["crossing_ns"].as_f64();
            assert!(row["mode"] == "-" || row["mode"] == "alone" || crossing.unwrap() > 0.0, "{row}");
            assert!(row["atomic_ns"].as_f64().unwrap() > 0.0 && row["copy_ns"].as_f64().unwrap() > 0.0, "{row}");
            assert!(!row["figures"].as_object().unwrap().is_empty(), "{row}");
            if row["latency_ns"].is_object() {
                let at = |name: &str| row["latency_ns"][name].as_f64().unwrap();
                let order = ["min", "median", "p90", "p99", "p99_9", "max"].map(at);
                assert!(order[0] >= 0.0 && order.is_sorted() && at("samples") >= 1.0, "{row}");
                assert!(row["times_limit"].as_f64().unwrap() > 0.0, "{row}");
            }
        }
    }
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for text in ["put: latency", "get_accumulate: bandwidth", "pscw", "8 B"] {
        assert!(picture.contains(text), "{text} is not in the picture");
    }
}

#[test]
fn more_ranks_than_cores_are_measured_too() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("some.json");
    let mut bench = transom(
        "bench contended readers_writer barrier lu pipeline put --sync lock_exclusive,lock,barrier,two-sided,one_sided,fence",
    );
    bench
        .args("--ranks 8 --millis 1 --rounds 1 --sizes 8 --lu-n 32 --lu-block 8 --grid 16 --json".split(' '))
        .arg(&file);
    let (_, err) = measures(bench);
    let all = json(&file);
    let contended = all["rows"].as_array().unwrap().iter().find(|row| row["measurement"] == "contended");
    let Some(contended) = contended else { return assert!(err.contains("contended"), "{err}") };
    let shares: f64 = (0..8).map(|rank| contended["figures"][format!("share.{rank}")].as_f64().unwrap()).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{contended}");
}

#[test]
fn a_worker_answers_in_facts() {
    let exe = env!("CARGO_BIN_EXE_transom");
    let worker = |ranks: usize, args: &str| transom(&format!("run -n {ranks} -- {exe} bench-worker {args}"));
    for (ranks, crossings) in [(1, 0), (2, 2), (3, 2)] {
        let (out, _) = succeeds(worker(ranks, "get_accumulate --sync pscw --bytes 64 --millis 2"));
        let count = |key: &str| out.lines().filter(|line| line.starts_with(key)).count();
        assert_eq!((count("crossing "), count("check ok")), (crossings, 1), "{out}");
        assert!(count("sample ") > 0 && count("") == count("sample ") + crossings + 1, "{out}");
    }
    for measurement in ["accumulate", "get_accumulate"] {
        let (out, _) = succeeds(worker(2, &format!("{measurement} --sync flush --type f64 --bytes 64 --millis 2")));
        assert!(out.contains("sample ") && out.contains("check ok"), "{out}");
    }
    for (args, says) in [
        ("put --sync barrier", "not measured by"),
        ("readers_writer --sync lock", "3 ranks or more"),
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
fn wrong_command_lines_are_answered_with_advice() {
    for (args, says) in [
        ("nonsense", "there is no such measurement; there are put, get"),
        ("put --sizes 7", "multiple of 8 bytes"),
        ("put --sizes 99999999999999999999MiB", "multiple of 8 bytes"),
        ("put --sync magic", "there are barrier, fence"),
        ("put --sync barrier", "it is by lock, lock_exclusive"),
        ("put --ranks 0", "1..=1024"),
        ("put --millis 0", "1..=60000"),
        ("put --rounds 0", "1..=1000"),
        ("readers_writer --ranks 2", "use --ranks 3"),
        ("pipeline --grid 4 --ranks 8", "use --grid 16 or more"),
        ("lu --lu-n 8 --lu-block 16", "larger than the matrix"),
        ("put --json /nonexistent/file", "cannot be written"),
        ("put --svg /nonexistent/file", "cannot be written"),
        ("list put", "unexpected argument"),
        ("compare nonsense", "there is no such measurement"),
        ("compare get", "not compared with others"),
        ("compare --mpi /nonexistent", "no bin/mpirun with a bin/mpicc"),
        ("compare --sizes 8", "--sizes"),
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

#[test]
fn a_reader_that_goes_away_ends_it_quietly() {
    for args in ["bench list", "bench startup --rounds 1", "bench compare startup --rounds 1"] {
        let mut child = transom(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut err = String::new();
        child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        assert!(child.wait().unwrap().success(), "{args}: {err}");
        // What is said of the machine and the build is no error.
        let expected = |line: &str| line.contains("busy") || line.contains("debug build");
        assert!(err.lines().all(expected), "{args}: {err}");
    }
}

#[test]
fn without_other_libraries_each_is_named_and_skipped() {
    let (out, err) = measures(transom("bench compare startup overlap --rounds 1 --millis 1"));
    for name in ["Open MPI 4", "Open MPI 5", "MPICH 4", "MPICH 5"] {
        let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{out}"));
        assert!(line.contains("skipped") && line.contains("install"), "{line}");
    }
    assert!(out.contains("ours alone") && out.contains("overlap"), "{out}\n{err}");
}

/// A directory that looks like an MPI: its mpicc makes an empty program, its mpirun does as told when it runs one.
fn library(dir: &TempDir, name: &str, version: &str, run: &str) -> PathBuf {
    let bin = dir.path().join(name).join("bin");
    fs::create_dir_all(&bin).unwrap();
    let script = |name: &str, text: &str| {
        let path = bin.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    script("mpicc", "while [ \"$1\" != -o ]; do shift; done\n: > \"$2\"");
    script("mpirun", &format!("if [ \"$1\" = --version ]; then echo '{version}'; exit; fi\n{run}"));
    bin.parent().unwrap().to_owned()
}

#[test]
fn other_libraries_are_compared_and_what_is_wrong_with_them_is_told() {
    let dir = TempDir::new().unwrap();
    let open = |version: &str| format!("mpirun (Open MPI) {version}");
    let good = library(&dir, "good", &open("9.1"), "echo value rss 1048576; echo check ok");
    let others = [
        (
            library(&dir, "garbage", &open("9.2"), "echo Welcome to this machine"),
            "\"Welcome to this machine\", is not `crossing",
        ),
        (library(&dir, "number", &open("9.3"), "echo value rss lots; echo check ok"), "a number is expected"),
        (library(&dir, "unchecked", &open("9.4"), "echo value rss 1"), "does not say whether the result was right"),
        (library(&dir, "bad", "HYDRA\n Version: 9.5", "echo check bad byte 7 is 3; exit 1"), "wrong: byte 7 is 3"),
        (library(&dir, "dies", &open("9.6"), "echo no slots >&2; exit 3"), "exit status: 3: no slots"),
        (library(&dir, "silent", &open("9.7"), "echo check ok"), "did not say `value rss`"),
    ];
    let (file, picture) = (dir.path().join("all.json"), dir.path().join("all.svg"));
    let mut compare = transom("bench compare startup --rounds 2 --millis 1");
    compare.arg("--json").arg(&file).arg("--svg").arg(&picture).arg("--mpi").arg(&good);
    for (other, _) in &others {
        compare.arg("--mpi").arg(other);
    }
    let output = compare.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let (out, _) = texts(&output);
    let all = json(&file);
    let failed = all["rows"]["failed"].as_array().unwrap();
    for (number, (_, says)) in others.iter().enumerate() {
        assert!(out.contains(says), "{says:?} is not in\n{out}");
        assert!(failed[number].as_str().unwrap().contains(says), "{failed:?}");
    }
    let compared = all["rows"]["compared"].as_array().unwrap();
    let [row] = &compared[..] else { panic!("{compared:?}") };
    assert!(row["peer"] == "Open MPI 9.1" && row["pairs"] == 2 && row["measurement"] == "startup", "{row}");
    let ratio = |name: &str| row["ratio"][name].as_f64().unwrap();
    assert!(ratio("min") > 0.0 && [ratio("min"), ratio("median"), ratio("max")].is_sorted(), "{row}");
    assert_eq!(row["reached"], ratio("median") >= row["target"].as_f64().unwrap());
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("Open MPI 9.1"));
}

#[test]
fn an_operation_in_which_another_library_crashes_is_named_and_no_failure() {
    let dir = TempDir::new().unwrap();
    let crash = "echo check bad unsupported: the MPI library crashed; exit 139";
    let other = library(&dir, "other", "mpirun (Open MPI) 9.9", crash);
    let (out, _) = succeeds({
        let mut compare = transom("bench compare startup --rounds 1 --mpi");
        compare.arg(other);
        compare
    });
    assert!(out.contains("Open MPI 9.9: it cannot do it: unsupported"), "{out}");
}

#[test]
fn what_is_no_mpi_is_refused() {
    let dir = TempDir::new().unwrap();
    let other = library(&dir, "other", "something else 1.0", "");
    let output = transom("bench compare startup --mpi").arg(&other).output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(2) && err.contains("neither of Open MPI nor of MPICH"), "{err}");
}

#[test]
fn a_signal_ends_the_job_that_runs_and_leaves_nothing() {
    // By nohup, whoever runs this ignores SIGHUP, and so do those it starts.
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let hang_up = u64::from_str_radix(ignored, 16).unwrap() & 1 == 0;
    for signal in [Signal::TERM, Signal::QUIT].into_iter().chain(hang_up.then_some(Signal::HUP)) {
        ended_by(signal);
    }
}

fn ended_by(signal: Signal) {
    let dir = TempDir::new().unwrap();
    let mark = dir.path().join("mark");
    let run = format!("echo $$ > {0}.new; /bin/mv {0}.new {0}; exec /bin/sleep 1000", mark.display());
    let slow = library(&dir, "slow", "mpirun (Open MPI) 9.8", &run);
    let temporary = dir.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let mut compare = transom("bench compare startup --mpi");
    let mut child = compare.arg(slow).env("TMPDIR", &temporary).stdout(Stdio::null()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(30);
    let wait = |what: &str, is: &dyn Fn() -> bool| {
        while !is() {
            assert!(Instant::now() < limit, "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    wait("the other library is not started", &|| mark.exists());
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 1);
    kill_process(Pid::from_child(&child), signal).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + signal.as_raw()));
    assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0);
    let status = PathBuf::from(format!("/proc/{}/status", fs::read_to_string(mark).unwrap().trim()));
    // Gone, or dead and not yet waited for by whoever inherited it.
    wait("its job lives on", &|| fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ")));
}
