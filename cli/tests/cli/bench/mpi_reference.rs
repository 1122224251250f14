//! The MPI programs, built with each real MPI of this machine and run once: every measurement, and every
//! synchronisation. Missing MPIs are named on stderr and skipped; `.ci/install` installs them.

use super::command::{cores, succeeds, texts, transom};
use rustix::process::Signal;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// Each measurement with its synchronisations, and its number of ranks. Operations share their ways of completion.
const RUNS: [(&str, &[&str], usize); 37] = [
    ("put", &["lock", "lock_exclusive", "lock_all", "flush", "flush_local", "fence", "pscw", "shared"], 2),
    ("put", &["fence"], 1),
    ("put", &["pscw"], 3),
    ("get", &["flush", "pscw"], 2),
    ("accumulate", &["flush", "fence"], 2),
    ("put", &["shared"], 1),
    ("get_accumulate", &["lock", "fence"], 2),
    ("fetch_and_op", &["flush", "shared"], 2),
    ("compare_and_swap", &["flush"], 2),
    ("put_bw", &["flush", "shared"], 2),
    ("get_bw", &["flush"], 2),
    ("lock", &["lock", "lock_exclusive"], 2),
    ("barrier", &["barrier"], 2),
    ("broadcast", &["collective"], 3),
    ("reduce", &["collective"], 3),
    ("all_reduce", &["collective"], 2),
    ("all_reduce", &["collective"], 3),
    ("scan", &["collective"], 3),
    ("all_gather", &["collective"], 3),
    ("all_to_all", &["collective"], 3),
    ("pingpong", &["messages", "gaps"], 3),
    ("stream", &["messages"], 2),
    ("bidirectional", &["messages"], 2),
    ("message_rate", &["messages"], 2),
    ("message_rate", &["messages"], 3),
    ("overhead", &["messages"], 3),
    ("overlap_messages", &["messages"], 3),
    ("overlap_collectives", &["collective"], 3),
    ("contended", &["lock_exclusive"], 2),
    ("readers_writer", &["lock"], 3),
    ("kernel", &["none"], 1),
    ("lu", &["lock", "flush", "shared"], 2),
    ("lu", &["lock", "flush", "shared"], 4),
    ("lu_outside", &["lock", "flush", "shared"], 2),
    ("overlap", &["lock"], 2),
    ("pipeline", &["one_sided", "two_sided", "shared"], 2),
    ("startup", &["none"], 2),
];

/// The values that a measurement must print.
fn values(measurement: &str) -> &'static [&'static str] {
    match measurement {
        "contended" => &["seconds", "acquired.0", "acquired.1", "longest_wait"],
        "readers_writer" => &["seconds", "wanted", "writes", "reads.0", "reads.2", "longest_write_wait"],
        "kernel" => &["kernel"],
        "lu" => &["seconds", "kernel"],
        "lu_outside" => &["seconds", "kernel", "outside_kernel", "waiting"],
        "overlap" | "overlap_messages" | "overlap_collectives" => &["compute", "communication", "both"],
        "overhead" => &["send", "recv", "one_way", "clock_step"],
        "pipeline" => &["mflops"],
        "startup" => &["rss"],
        _ => &[],
    }
}

struct Mpi {
    mpirun: PathBuf,
    mpicc: PathBuf,
    /// Open MPI, whose mpirun has other options than MPICH's.
    open: bool,
}

/// Every MPI in PATH, each once, that can compile. Prints a message for each of Debian's that is missing.
fn installed() -> Vec<Mpi> {
    let mut found: Vec<Mpi> = Vec::new();
    for suffix in [".openmpi", ".mpich", ""] {
        match find(suffix) {
            Ok(mpi) if found.iter().any(|known| real(&known.mpirun) == real(&mpi.mpirun)) => {}
            Ok(mpi) => found.push(mpi),
            Err(_) if suffix.is_empty() => {}
            Err(why) => say(&format!(
                "NOT RUN: the MPI reference programs of mpirun{suffix}: {why}; .ci/install installs what is missing"
            )),
        }
    }
    found
}

fn find(suffix: &str) -> Result<Mpi, String> {
    let tool = |name: &str| {
        let paths = std::env::var_os("PATH").unwrap_or_default();
        let path =
            std::env::split_paths(&paths).map(|dir| dir.join(format!("{name}{suffix}"))).find(|path| path.exists());
        path.ok_or_else(|| format!("{name}{suffix} is not installed here"))
    };
    let (mpirun, mpicc) = (tool("mpirun")?, tool("mpicc")?);
    let version = Command::new(&mpirun).arg("--version").output().map_err(|error| error.to_string())?;
    let open = texts(&version).0.contains("open-mpi.org");
    // The compiler may be here without the library's headers.
    let dir = TempDir::new().map_err(|error| error.to_string())?;
    let source = dir.path().join("least.c");
    std::fs::write(&source, "#include <mpi.h>\nint main(void) { return MPI_Finalize(); }\n")
        .map_err(|error| error.to_string())?;
    let compiled = Command::new(&mpicc).arg("-o").arg(dir.path().join("least")).arg(source).output();
    let compiled = compiled.map_err(|error| error.to_string())?;
    if !compiled.status.success() {
        let (_, err) = texts(&compiled);
        return Err(format!("{} compiles nothing: {}", mpicc.display(), err.lines().next().unwrap_or_default()));
    }
    Ok(Mpi { mpirun, mpicc, open })
}

fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn say(text: &str) {
    // Bypasses the capture of a test's output.
    let _ = std::io::stderr().write_all(format!("\n*** {text} ***\n").as_bytes());
}

impl Mpi {
    /// The build follows the README of the MPI programs.
    fn build(&self, dir: &TempDir) -> PathBuf {
        let twin = dir.path().join("twin");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/mpi_reference");
        let sources = std::fs::read_dir(sources).unwrap().map(|entry| entry.unwrap().path());
        let sources = sources.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
        let mut mpicc = Command::new(&self.mpicc);
        mpicc.args(["-O3", "-Wall", "-Wextra", "-o"]).arg(&twin).args(sources).arg("-lm");
        let output = mpicc.output().unwrap();
        let (_, err) = texts(&output);
        assert!(output.status.success(), "{}: {err}", self.mpicc.display());
        twin
    }

    fn run(&self, twin: &Path, measurement: &str, sync: &str, ranks: usize) -> Output {
        let cores: Vec<_> = cores().iter().map(ToString::to_string).collect();
        // MPICH's mpirun is now and then killed by its own SIGPIPE (`mpirun -n 1 true` once in fifty): then it is run
        // again.
        for _ in 0..5 {
            let mut mpirun = Command::new(&self.mpirun);
            mpirun.args(["-n", &ranks.to_string()]);
            // Open MPI 4 fails when two jobs create its folder of session files at once, and another test runs it too.
            mpirun.env("TMPDIR", twin.parent().unwrap());
            if self.open {
                mpirun.args(["--oversubscribe", "--bind-to", "none"]);
                mpirun.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            } else {
                mpirun.args(["-bind-to", "none"]);
            }
            mpirun.arg(twin).args([
                measurement,
                "--sync",
                sync,
                "--bytes",
                "64",
                "--millis",
                "2",
                "--n",
                "50",
                "--block",
            ]);
            mpirun.args(["7", "--grid", "64", "--ranks", &ranks.to_string(), "--cores", &cores.join(",")]);
            let output = mpirun.output().unwrap();
            if output.status.signal() != Some(Signal::PIPE.as_raw()) || !output.stdout.is_empty() {
                return output;
            }
        }
        panic!("{} was killed by SIGPIPE in every run", self.mpirun.display())
    }
}

#[test]
fn mpi_reference_moves_right_data_with_each_mpi() {
    for mpi in installed() {
        let dir = TempDir::new().unwrap();
        let twin = mpi.build(&dir);
        for (measurement, syncs, ranks) in RUNS {
            for sync in syncs {
                let output = mpi.run(&twin, measurement, sync, ranks);
                let (out, err) = texts(&output);
                let what = format!(
                    "{}: {measurement} --sync {sync} on {ranks}: {}\n{out}\n{err}",
                    mpi.mpirun.display(),
                    output.status
                );
                // Some Open MPI 4.1 crash in this one, by a fault of their own.
                if measurement == "compare_and_swap" && out.contains("check bad unsupported") {
                    say(&format!("{} cannot do compare_and_swap", mpi.mpirun.display()));
                    continue;
                }
                assert!(output.status.success() && out.ends_with("check ok\n"), "{what}");
                let count = |key: &str| out.lines().filter(|line| line.starts_with(key)).count();
                let apart = if ranks > 1 && measurement != "startup" { 2 } else { 0 };
                assert_eq!([count("crossing "), count("slowdown ")], [apart; 2], "{what}");
                for name in values(measurement) {
                    assert_eq!(count(&format!("value {name} ")), 1, "{name} of {what}");
                }
                assert!(!values(measurement).is_empty() || count("sample ") > 0, "{what}");
                if measurement != "startup" && ranks <= cores().len() {
                    for (rank, core) in cores().iter().take(ranks).enumerate() {
                        assert!(out.contains(&format!("value cpu.{rank} {core}\n")), "{what}");
                    }
                }
            }
        }
    }
}

/// Users have the MPI in PATH.
#[test]
fn installed_mpis_are_found_built_and_compared() {
    let peers = installed().len();
    let mut compare = transom("bench compare startup --rounds 1 --millis 1");
    compare.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let (out, err) = succeeds(compare);
    let compared = out.lines().filter(|line| line.starts_with("startup ") && line.contains("process ms")).count();
    // Open MPI 4 twice.
    assert!(compared >= peers, "compared {compared} of {peers} MPIs:\n{out}\n{err}");
}
