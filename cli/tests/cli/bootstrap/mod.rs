//! Jobs of other launchers: mpirun of Open MPI (PMIx), mpiexec of MPICH (PMI-1), srun of Slurm (both), each the real
//! one. The test starts copies of its own program by them. Missing launchers are named on stderr and skipped;
//! `.ci/install` installs them.

mod slurm;

use crate::ranks::full_name;
use rustix::process::{Pid, Signal, kill_process_group};
use slurm::Slurm;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tempfile::TempDir;
use transom::{Bootstrap, Op, World};

const LIMIT: Duration = Duration::from_secs(90);
/// Set for a copy: its role.
const ROLE: &str = "TEST_ROLE";

/// The MPI of a launcher: the two differ in how they are called.
#[derive(Clone, Copy, PartialEq)]
enum Mpi {
    Open,
    Mpich,
}

impl Mpi {
    const ALL: [Mpi; 2] = [Mpi::Open, Mpi::Mpich];

    /// A command that starts ranks, if it is installed; the caller adds the program.
    fn command(self, ranks: usize) -> Option<Command> {
        let name = if self == Mpi::Open { "mpirun.openmpi" } else { "mpirun.mpich" };
        let mut command = installed(name)?;
        command.args(["-n", &ranks.to_string()]);
        if self == Mpi::Open {
            command.arg("--oversubscribe");
            command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        }
        Some(command)
    }
}

/// The command of this name. Prints a message if it is missing.
fn installed(name: &str) -> Option<Command> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&paths).chain(["/usr/sbin".into(), "/sbin".into()]);
    let Some(folder) = folders.find(|folder| folder.join(name).exists()) else {
        // Bypasses the capture of a test's output.
        let said = format!("\n*** NOT RUN: {name} is not installed here; .ci/install does that ***\n");
        let _ = std::io::stderr().write_all(said.as_bytes());
        return None;
    };
    Some(Command::new(folder.join(name)))
}

/// Adds a copy of this program, which runs the same test in a role.
fn copy(command: &mut Command, name: &str, role: &str) {
    command.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        &full_name(name),
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(ROLE, role).env("RUST_BACKTRACE", "0");
}

/// Runs it to its end. MPICH's mpirun is now and then killed by its own SIGPIPE (`mpirun -n 1 true` once in fifty):
/// then it is run again.
fn run(command: &mut Command) -> Output {
    let of_its_own =
        |output: &Output| output.status.signal() == Some(Signal::PIPE.as_raw()) && output.stdout.is_empty();
    let mut output = run_once(command);
    for _ in 0..5 {
        if of_its_own(&output) {
            output = run_once(command);
        }
    }
    output
}

/// Runs it to its end, or kills it and its process group.
fn run_once(command: &mut Command) -> Output {
    for name in ["TRANSOM_LOG", "TRANSOM_BOOTSTRAP", "TRANSOM_OUTPUT_PREFIX"] {
        if !command.get_envs().any(|(set, _)| set == name) {
            command.env_remove(name);
        }
    }
    // Open MPI 4 fails when two jobs create its folder of session files at once.
    let folder = TempDir::new().unwrap();
    command.env("TMPDIR", folder.path());
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let child = child.spawn().unwrap();
    let group = Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let Ok(output) = receive.recv_timeout(LIMIT) else {
        let _ = kill_process_group(group, Signal::KILL);
        let output = receive.recv_timeout(LIMIT).unwrap().unwrap();
        panic!("{command:?} has not ended after {LIMIT:?}:\n{}", shown(&output));
    };
    output.unwrap()
}

fn shown(output: &Output) -> String {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{}\n--- stdout\n{stdout}\n--- stderr\n{stderr}", output.status)
}

/// The lines that ranks print, which begin with this word.
fn said(output: &Output, word: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // Output of the test harness may precede it on its line.
    let lines = text.lines().filter_map(|line| line.find(word).map(|at| line[at..].to_owned()));
    lines.collect()
}

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Work of every rank, which shows that all are one job.
fn work(world: &World) {
    let mut window = world.allocate::<u64>(1).unwrap();
    for rank in 0..world.size() {
        window.lock_shared(rank).unwrap().fetch_and_op(0, Op::Sum, 1 + world.rank() as u64).unwrap();
    }
    window.fence().unwrap();
    let sum = (1..=world.size() as u64).sum::<u64>();
    assert_eq!(window.local().get(0).unwrap(), sum);
    // One write, so that lines stay complete through every launcher.
    let line = format!("joined as {} of {}\n", world.rank(), world.size());
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

fn all_joined(output: &Output, ranks: usize) {
    assert!(output.status.success(), "{}", shown(output));
    let said: BTreeSet<_> = said(output, "joined as").into_iter().collect();
    let expected: BTreeSet<_> = (0..ranks).map(|rank| format!("joined as {rank} of {ranks}")).collect();
    assert_eq!(said, expected, "{}", shown(output));
}

fn under(mpi: Mpi, name: &str, expected: Bootstrap) {
    if role().is_some() {
        assert_eq!(Bootstrap::detect().unwrap(), expected);
        return work(&transom::init().unwrap());
    }
    for ranks in [1, 2, 3, 4, 8] {
        let Some(mut command) = mpi.command(ranks) else { return };
        copy(&mut command, name, "rank");
        all_joined(&run(&mut command), ranks);
    }
}

#[test]
fn ranks_started_by_open_mpi_join() {
    under(Mpi::Open, "ranks_started_by_open_mpi_join", Bootstrap::Pmix);
}

#[test]
fn ranks_started_by_mpich_join() {
    under(Mpi::Mpich, "ranks_started_by_mpich_join", Bootstrap::Pmi);
}

#[test]
fn start_in_a_launched_rank_adds_no_ranks() {
    let name = "start_in_a_launched_rank_adds_no_ranks";
    if role().is_some() {
        return work(&transom::start(7).unwrap());
    }
    for mut command in Mpi::ALL.iter().filter_map(|mpi| mpi.command(3)) {
        copy(&mut command, name, "rank");
        all_joined(&run(&mut command), 3);
    }
}

#[test]
fn bootstrap_variable_overrides_detection() {
    let name = "bootstrap_variable_overrides_detection";
    match role().as_deref() {
        Some("none") => {
            let world = transom::init().unwrap();
            assert_eq!((world.rank(), world.size()), (0, 1));
            return work(&world);
        }
        Some(_) => panic!("{}", transom::init().map(drop).unwrap_err()),
        None => {}
    }
    for mut command in Mpi::ALL.iter().filter_map(|mpi| mpi.command(2)) {
        copy(command.env("TRANSOM_BOOTSTRAP", "none"), name, "none");
        let output = run(&mut command);
        assert!(output.status.success(), "{}", shown(&output));
        assert_eq!(said(&output, "joined as 0 of 1").len(), 2, "{}", shown(&output));
    }
    for (value, wrong) in [
        ("pmi", "PMI_FD: environment variable not found"),
        ("transom", "but transom's launcher did not start this process"),
        ("mpi", "it is not the name of a launcher; expected `transom`, `pmix`, `pmi`, or `none`"),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"]);
        let output = run(command.env(ROLE, "alone").env("TRANSOM_BOOTSTRAP", value));
        assert!(!output.status.success() && shown(&output).contains(wrong), "{}", shown(&output));
    }
}

#[test]
fn leftover_launcher_variables_are_refused() {
    let name = "leftover_launcher_variables_are_refused";
    if role().is_some() {
        panic!("{}", transom::init().map(drop).unwrap_err());
    }
    for (variables, wrong) in [
        (&[("PMI_FD", "987"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")][..], "leftover"),
        (&[("PMI_FD", "-1"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI_FD=\"-1\""),
        (&[("PMI_FD", "1"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")], "PMI_RANK=2 is not below PMI_SIZE=2"),
        (&[("PMI_FD", "0"), ("PMI_RANK", "0"), ("PMI_SIZE", "2")], "PMI cannot be used: init"),
        (&[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "gone")], "PMIx"),
        (&[("TRANSOM_HUB", "127.0.0.1:1")], "TRANSOM_SECRET"),
        (&[("TRANSOM_RANK", "0")], "TRANSOM_SIZE is not set"),
        (&[("TRANSOM_RANK", "1"), ("TRANSOM_SIZE", "1"), ("TRANSOM_SHM", "1,2,3")], "remove TRANSOM_RANK"),
        // A process that does not exist, and one that is no launcher.
        (&[("TRANSOM_RANK", "0"), ("TRANSOM_SIZE", "1"), ("TRANSOM_SHM", "4194305,5,1f")], "the launcher has ended"),
        (&[("TRANSOM_RANK", "0"), ("TRANSOM_SIZE", "1"), ("TRANSOM_SHM", "1,0,1f")], "the launcher has ended"),
        (&[("TRANSOM_HUB", "here"), ("TRANSOM_RANK", "0"), ("TRANSOM_SIZE", "1")], "TRANSOM_HUB=\"here\""),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"]);
        let output = run(command.env(ROLE, "rank").envs(variables.iter().copied()));
        assert!(!output.status.success() && shown(&output).contains(wrong), "{variables:?}: {}", shown(&output));
    }
}

/// The child inherits the variables of the rank, and must not talk to the launcher in the rank's name.
#[test]
fn child_of_mpich_rank_is_refused_with_advice() {
    let name = "child_of_mpich_rank_is_refused_with_advice";
    match role().as_deref() {
        Some("child") => {
            let line = format!("told: {}\n", transom::init().map(drop).unwrap_err());
            return std::io::stdout().write_all(line.as_bytes()).unwrap();
        }
        Some(_) => {
            let world = transom::init().unwrap();
            if world.rank() == 0 {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", &full_name(name), "--nocapture", "--test-threads=1"]).env(ROLE, "child");
                assert!(child.status().unwrap().success());
            }
            return work(&world);
        }
        None => {}
    }
    let Some(mut command) = Mpi::Mpich.command(2) else { return };
    copy(&mut command, name, "rank");
    let output = run(&mut command);
    all_joined(&output, 2);
    let told = said(&output, "told:");
    assert!(told.len() == 1 && told[0].contains("remove PMI_FD, PMI_RANK and PMI_SIZE"), "{}", shown(&output));
}

#[test]
fn own_launcher_inside_another_is_detected() {
    let name = "own_launcher_inside_another_is_detected";
    if role().is_some() {
        assert_eq!(Bootstrap::detect().unwrap(), Bootstrap::Transom);
        return work(&transom::init().unwrap());
    }
    for mut command in Mpi::ALL.iter().filter_map(|mpi| mpi.command(1)) {
        copy(command.args([env!("CARGO_BIN_EXE_transom"), "run", "-n", "3"]), name, "rank");
        all_joined(&run(&mut command), 3);
    }
}

#[test]
fn info_names_the_launcher() {
    for (mpi, told) in Mpi::ALL.into_iter().zip(["pmix", "pmi"]) {
        let Some(mut command) = mpi.command(1) else { continue };
        let output = run(command.args([env!("CARGO_BIN_EXE_transom"), "info"]));
        let line = said(&output, "started by").concat();
        assert!(output.status.success() && line.contains(told), "{}", shown(&output));
    }
    let output = run(Command::new(env!("CARGO_BIN_EXE_transom")).arg("info"));
    assert!(said(&output, "started by").concat().contains("none"), "{}", shown(&output));
}

/// mpirun ends all other ranks when one dies, unless an option forbids it: MPICH's has one.
#[test]
fn survivors_of_a_rank_death_are_notified() {
    let name = "survivors_of_a_rank_death_are_notified";
    if role().is_some() {
        let world = transom::init().unwrap();
        if world.rank() == 1 {
            std::process::exit(3); // without leaving
        }
        let line = format!("told: {}\n", world.barrier().unwrap_err());
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        return;
    }
    let Some(mut command) = installed("mpirun.mpich") else { return };
    copy(command.args(["-disable-auto-cleanup", "-n", "3"]), name, "rank");
    let output = run(&mut command);
    assert!(!output.status.success(), "{}", shown(&output));
    assert_eq!(said(&output, "told:"), ["told: rank 1 died"; 2], "{}", shown(&output));
}

/// Hosts that share no memory; here one machine that its launcher treats as two hosts.
#[test]
fn ranks_on_hosts_without_provider_are_refused() {
    let name = "ranks_on_hosts_without_provider_are_refused";
    if role().is_some() {
        let error = transom::init().map(drop).unwrap_err();
        let line = format!("told: {error}\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
        return;
    }
    for mpi in Mpi::ALL {
        let Some(mut command) = mpi.command(2) else { continue };
        copy(command.args(["env", "TRANSOM_FABRIC=shm", "TRANSOM_HOST=one"]), name, "rank");
        copy(command.args([":", "-n", "2", "env", "TRANSOM_FABRIC=shm", "TRANSOM_HOST=two"]), name, "rank");
        let output = run(&mut command);
        assert!(output.status.success(), "{}", shown(&output));
        let told = said(&output, "told:");
        assert_eq!(told.len(), 4, "{}", shown(&output));
        let who_is_where = |told: &String| told.contains("one (ranks 0, 1), two (ranks 2, 3)");
        assert!(told.iter().all(who_is_where), "{}", shown(&output));
    }
}

/// The same hosts, over TCP.
#[test]
fn ranks_on_hosts_join_over_tcp() {
    let name = "ranks_on_hosts_join_over_tcp";
    if role().is_some() {
        return work(&transom::init().unwrap());
    }
    for mpi in Mpi::ALL {
        let Some(mut command) = mpi.command(2) else { continue };
        copy(command.args(["env", "TRANSOM_FABRIC=tcp", "TRANSOM_HOST=one"]), name, "rank");
        copy(command.args([":", "-n", "2", "env", "TRANSOM_HOST=two"]), name, "rank");
        all_joined(&run(&mut command), 4);
    }
}

/// The launcher runs in a Slurm job, and its ranks in a step of that job. No `ssh` leads to the node, which has another name
/// than this machine.
#[test]
fn launcher_in_a_slurm_job_starts_a_step() {
    let name = "launcher_in_a_slurm_job_starts_a_step";
    if role().is_some() {
        // One write, so that lines stay complete.
        let step = format!(
            "in step {} of a job on {}\n",
            std::env::var("SLURM_STEP_ID").unwrap(),
            std::env::var("SLURM_JOB_NODELIST").unwrap()
        );
        std::io::stdout().write_all(step.as_bytes()).unwrap();
        return work(&transom::init().unwrap());
    }
    if ["munged", "slurmctld", "slurmd", "salloc", "srun"].iter().any(|name| installed(name).is_none()) {
        return;
    }
    let slurm = Slurm::start();
    let mut command = slurm.command("salloc");
    command.args(["-n", "2", "--overcommit", env!("CARGO_BIN_EXE_transom"), "run", "-n", "2", "-x", ROLE]);
    copy(command.env_remove("TRANSOM_SSH"), name, "rank");
    let output = run(&mut command);
    all_joined(&output, 2);
    assert_eq!(said(&output, "in step"), ["in step 0 of a job on one"; 2], "{}", shown(&output));
}

#[test]
fn ranks_started_by_slurm_join() {
    let name = "ranks_started_by_slurm_join";
    if role().is_some() {
        return work(&transom::init().unwrap());
    }
    if ["munged", "slurmctld", "slurmd", "srun"].iter().any(|name| installed(name).is_none()) {
        return;
    }
    let slurm = Slurm::start();
    for (mpi, ranks) in [("pmix", 1), ("pmix", 4), ("pmi2", 1), ("pmi2", 4)] {
        let mut command = slurm.command("srun");
        command.args([&format!("--mpi={mpi}"), "-n", &ranks.to_string(), "--overcommit"]);
        copy(&mut command, name, "rank");
        all_joined(&run(&mut command), ranks);
    }
    // Without a way to meet, each task is alone, and the first reports it.
    let mut command = slurm.command("srun");
    copy(command.args(["--mpi=none", "-n", "2", "--overcommit"]), name, "rank");
    let output = run(&mut command);
    assert_eq!(said(&output, "joined as 0 of 1").len(), 2, "{}", shown(&output));
    assert_eq!(shown(&output).matches("for one job of them all: srun --mpi=pmix").count(), 1, "{}", shown(&output));
}
