//! Comparisons of `transom bench compare` with other libraries, which scripts imitate.

use super::command::{cores, json, succeeds, texts, transom};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn missing_mpi_libraries_are_named_and_skipped() {
    let (out, err) = succeeds(transom("bench compare startup overlap --rounds 1 --millis 1"));
    for name in ["Open MPI 4", "Open MPI 5", "MPICH 4", "MPICH 5"] {
        let line = out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} is not in\n{out}"));
        assert!(line.contains("skipped") && line.contains("install"), "{line}");
    }
    assert!(out.contains("ours alone") && out.contains("overlap"), "{out}\n{err}");
}

/// A directory that looks like an MPI: its mpicc makes an empty program, and its mpirun runs the given script in place
/// of a program.
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

/// An MPI whose program is ours: it runs its ranks by `transom`, after the given commands.
fn ourselves(dir: &TempDir, name: &str, version: &str, first: &str) -> PathBuf {
    let transom = env!("CARGO_BIN_EXE_transom");
    let run = format!(
        "while [ \"$1\" != -n ]; do shift; done\nranks=$2\nwhile [ \"${{1#/}}\" = \"$1\" ]; do shift; done\nshift\n{first}\n\
         exec {transom} run -n $ranks -- {transom} bench-worker \"$@\""
    );
    library(dir, name, version, &run)
}

#[test]
fn faulty_mpi_libraries_are_reported() {
    let dir = TempDir::new().unwrap();
    let open = |version: &str| format!("mpirun (Open MPI) {version}");
    let good = library(&dir, "good", &open("9.1"), "echo value rss 1048576; echo check ok");
    let others = [
        (
            library(&dir, "garbage", &open("9.2"), "echo Welcome to this machine"),
            "\"Welcome to this machine\", is not `crossing",
        ),
        (library(&dir, "number", &open("9.3"), "echo value rss lots; echo check ok"), "expected a number"),
        (library(&dir, "unchecked", &open("9.4"), "echo value rss 1"), "does not say whether the result was right"),
        (library(&dir, "bad", "HYDRA\n Version: 9.5", "echo check bad byte 7 is 3; exit 1"), "wrong: byte 7 is 3"),
        (library(&dir, "dies", &open("9.6"), "echo no slots >&2; exit 3"), "exit status: 3: no slots"),
        (library(&dir, "silent", &open("9.7"), "echo check ok"), "has no `value rss`"),
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
    // The two libraries go first in turn.
    let first: Vec<_> =
        row["each"].as_array().unwrap().iter().map(|each| each["ours_first"].as_bool().unwrap()).collect();
    assert_eq!(first, [true, false], "{row}");
    let ratio = |name: &str| row["ratio"][name].as_f64().unwrap();
    assert!(ratio("min") > 0.0 && [ratio("min"), ratio("median"), ratio("max")].is_sorted(), "{row}");
    assert_eq!(row["reached"], ratio("median") >= row["target"].as_f64().unwrap());
    let picture = fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("Open MPI 9.1"));
}

/// Each measurement once, with the requested ranks and sizes; these have no targets.
#[test]
fn requested_ranks_and_sizes_are_compared() {
    let dir = TempDir::new().unwrap();
    let peer = ourselves(&dir, "ourselves", "mpirun (Open MPI) 9.1", "");
    let file = dir.path().join("all.json");
    let mut compare =
        transom("bench compare broadcast barrier --ranks 1,3 --sizes 16,4KiB --rounds 1 --millis 1 --json");
    compare.arg(&file).arg("--mpi").arg(peer);
    // Cores may move in each pair on a busy machine. The requested values are in the rows all the same, or among the
    // failures.
    let (out, err) = texts(&compare.output().unwrap());
    let all = json(&file);
    let mut rows: Vec<_> = all["rows"]["compared"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| {
            assert!(row["target"].is_null(), "{row}");
            (
                row["measurement"].as_str().unwrap().to_owned(),
                row["ranks"].as_u64().unwrap(),
                row["bytes"].as_u64().unwrap(),
            )
        })
        .collect();
    let failed = all["rows"]["failed"].as_array().unwrap().len();
    rows.sort();
    rows.dedup();
    let asked = [
        ("barrier", 1, 8),
        ("barrier", 3, 8),
        ("broadcast", 1, 16),
        ("broadcast", 1, 4096),
        ("broadcast", 3, 16),
        ("broadcast", 3, 4096),
    ];
    assert!(rows.iter().all(|(name, ranks, bytes)| asked.contains(&(name, *ranks, *bytes))), "{rows:?}");
    assert_eq!(rows.len() + failed, asked.len(), "{out}{err}");
    let few = transom("bench compare overlap --ranks 1").output().unwrap();
    assert_eq!(few.status.code(), Some(2));
    assert!(texts(&few).1.contains("overlap takes 2 ranks or more, not 1; use --ranks 2"), "{few:?}");
}

/// Compilers are started in another directory.
#[test]
fn relative_mpirun_path_is_accepted() {
    let dir = TempDir::new().unwrap();
    library(&dir, "good", "mpirun (Open MPI) 9.1", "echo value rss 1048576; echo check ok");
    let mut compare = transom("bench compare startup --rounds 1 --mpi good");
    compare.current_dir(dir.path());
    let (out, _) = succeeds(compare);
    assert!(out.lines().any(|line| line.starts_with("startup ") && line.contains("Open MPI 9.1")), "{out}");
}

/// LU is not compared with a library whose block operation is slower or faster than ours: that would compare
/// compilers.
#[test]
fn lu_with_differing_kernels_is_not_compared() {
    let dir = TempDir::new().unwrap();
    let other = |name: &str, version: &str, speed: &str| {
        let cpu = "while [ \"$1\" != --cores ]; do shift; done; echo value cpu.0 ${2%%,*}";
        library(&dir, name, version, &format!("{cpu}; echo value kernel {speed}; echo value seconds 1; echo check ok"))
    };
    let (slow, fast) =
        (other("slow", "mpirun (Open MPI) 9.1", "0.001"), other("fast", "mpirun (Open MPI) 9.2", "1000000"));
    let file = dir.path().join("all.json");
    let mut compare = transom("bench compare lu --rounds 1 --millis 1");
    compare.arg("--mpi").arg(slow).arg("--mpi").arg(fast).arg("--json").arg(&file);
    let output = compare.output().unwrap();
    let (out, _) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}");
    let all = json(&file);
    let failed: Vec<_> =
        all["rows"]["failed"].as_array().unwrap().iter().map(|why| why.as_str().unwrap().to_owned()).collect();
    // The kernel, and LU by lock, flush and shared.
    assert_eq!(failed.len(), 2 * 4, "{failed:?}");
    for (at, why) in failed.iter().enumerate() {
        let what = ["kernel --sync none, 1 ranks", "lu --sync lock", "lu --sync flush", "lu --sync shared"][at / 2];
        assert!(why.starts_with(what) && why.contains(["Open MPI 9.1", "Open MPI 9.2"][at % 2]), "{why}");
        assert!(why.contains("LU's kernels differ: ours ") && why.contains("GFLOP/s"), "{why}");
        assert!(out.contains(why), "{why:?} is not in\n{out}");
    }
    let compared = all["rows"]["compared"].as_array().unwrap();
    assert!(compared.len() == 2 && compared.iter().all(|row| row["measurement"] == "kernel"), "{compared:?}");
}

#[test]
fn kernel_of_equal_speed_is_compared() {
    let dir = TempDir::new().unwrap();
    let peer = ourselves(&dir, "ourselves", "mpirun (Open MPI) 9.1", "");
    // Noise may make one reading of the two differ, but not each of several.
    let out = (0..5).find_map(|_| {
        let output = transom("bench compare kernel --rounds 1 --mpi").arg(&peer).output().unwrap();
        let (out, _) = texts(&output);
        output.status.success().then_some(out)
    });
    let out = out.expect("a kernel differed from itself in five runs");
    assert!(out.lines().any(|line| line.starts_with("kernel ") && line.contains("Open MPI 9.1")), "{out}");
}

/// Both sides are on the same cores, or there is no comparison.
#[test]
fn ranks_on_other_cores_are_not_compared() {
    if cores().len() < 2 {
        return eprintln!("only one core here, so ranks cannot be on others");
    }
    let dir = TempDir::new().unwrap();
    // Removes the first core of the list.
    let first =
        "for word; do shift; [ \"$last\" = --cores ] && word=${word#*,}; set -- \"$@\" \"$word\"; last=$word; done";
    let others = [
        (ourselves(&dir, "elsewhere", "mpirun (Open MPI) 9.1", first), "its rank 0 was on core "),
        (
            library(&dir, "silent", "mpirun (Open MPI) 9.2", "echo value kernel 1; echo check ok"),
            "has no `value cpu.0`",
        ),
    ];
    let mut compare = transom("bench compare kernel --rounds 1");
    for (other, _) in &others {
        compare.arg("--mpi").arg(other);
    }
    let output = compare.output().unwrap();
    let (out, _) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{out}");
    for (_, says) in others {
        assert!(out.contains(says), "{says:?} is not in\n{out}");
    }
}

#[test]
fn crash_of_mpi_library_is_reported_as_unsupported() {
    let dir = TempDir::new().unwrap();
    let crash = "echo check bad unsupported: the MPI library crashed; exit 139";
    let other = library(&dir, "other", "mpirun (Open MPI) 9.9", crash);
    let (out, _) = succeeds({
        let mut compare = transom("bench compare startup --rounds 1 --mpi");
        compare.arg(other);
        compare
    });
    assert!(out.contains("Open MPI 9.9: it does not support this: unsupported"), "{out}");
}

#[test]
fn program_other_than_mpirun_is_refused() {
    let dir = TempDir::new().unwrap();
    let other = library(&dir, "other", "something else 1.0", "");
    let output = transom("bench compare startup --mpi").arg(&other).output().unwrap();
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(2) && err.contains("neither of Open MPI nor of MPICH"), "{err}");
}

#[test]
fn signal_ends_the_running_job_without_leftovers() {
    // Under nohup, the caller of this test ignores SIGHUP, and so do its children.
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
    // The process is gone, or dead and not yet reaped by its new parent.
    wait("its job lives on", &|| fs::read_to_string(&status).map_or(true, |text| text.contains("State:\tZ")));
}
