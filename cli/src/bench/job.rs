//! Runs a worker, ours or a peer's, and reads its report.

use super::interrupt;
use super::limits::{self, Bare};
use super::protocol::{Report, ReportError, Task};
use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, pidfd_open, waitid};
use std::error::Error;
use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The time limit of a worker on a slow machine: start-up; ten times the requested measuring time, because results are
/// checked too; copies of two hundred times the size; and the factorization of a matrix.
fn patience(task: &Task) -> Duration {
    const START: Duration = Duration::from_secs(20);
    /// Bytes copied per second.
    const BYTES: f64 = 2e8;
    /// Floating-point operations per second.
    const OPERATIONS: f64 = 2e8;
    let rows = if task.worker().starts_with("lu") { task.n as f64 } else { 0.0 };
    let work = task.bytes as f64 * 200.0 / BYTES + rows.powi(3) / OPERATIONS;
    START + 10 * Duration::from_millis(task.millis) + Duration::from_secs_f64(work)
}

/// The most bytes of output that are read.
const MOST_OUTPUT: u64 = 64 << 20;

/// One run of a worker.
pub struct Run {
    pub report: Report,
    /// From its start to its end.
    pub wall: Duration,
    /// The machine's times, the smaller of those just before and just after the run.
    pub bare: Bare,
}

#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("cannot start `{program}`: {source}")]
    Start { program: String, source: io::Error },
    #[error("cannot wait for its end: {0}")]
    Watch(#[source] io::Error),
    #[error("it did not end within {} s and was killed; shorten the job (--sizes, --lu-n, --millis) unless it hangs", .0.as_secs())]
    Deadline(Duration),
    #[error("it ended with {status}{}", said(.stderr))]
    Failed { status: ExitStatus, stderr: String },
    #[error(transparent)]
    Report(#[from] ReportError),
}

/// Our own worker: this program, started as ranks.
pub fn ours(task: &Task) -> io::Result<Command> {
    let mut command = launch(task.ranks, task.hosts)?;
    command.arg(own_program()?).arg("bench-worker").args(task.args());
    if !task.config.is_empty() {
        command.env("TRANSOM_MESSAGES", &task.config);
    } else if task.by_itself {
        command.env_remove("TRANSOM_MESSAGES");
    }
    Ok(command)
}

/// `transom run`, to which the caller adds a program and its arguments. With more than one host the ranks have that many
/// host names, and reach each other over TCP.
pub fn launch(ranks: usize, hosts: usize) -> io::Result<Command> {
    let mut command = Command::new(own_program()?);
    // Measures this machine, inside a batch job too.
    let mut names = "none".to_owned();
    if hosts > 1 {
        names = (1..=hosts).map(|host| format!("host{host}")).collect::<Vec<_>>().join(",");
        // The launcher is this program. A path of its own might contain spaces.
        command.env("TRANSOM_SSH", format!("/proc/self/exe {LOCAL_SHELL}")).env("TRANSOM_FABRIC", "tcp");
    }
    // Standard output must stay untagged, because it is parsed; standard error is tagged. The option overrides
    // TRANSOM_OUTPUT_PREFIX.
    command.args(["run", "--hosts", &names, "-n", &ranks.to_string(), "--output-prefix=stderr", "--"]);
    Ok(command)
}

/// Name of the hidden command of this program that stands for ssh to a host name of this machine.
pub const LOCAL_SHELL: &str = "local-shell";

/// Takes the arguments that ssh takes, and runs the command on this machine, whatever the host.
#[derive(Args)]
pub struct LocalShell {
    host: String,
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

impl LocalShell {
    /// Replaces this process. Returns only an error.
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        Err(Command::new("sh").args(["-c", &self.command.join(" ")]).exec().into())
    }
}

fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Runs a worker to its end.
pub fn run(mut command: Command, task: &Task) -> Result<Run, JobError> {
    let bare = || limits::bare(task.bytes, task.worker() == "random");
    let before = bare();
    let begun = Instant::now();
    let (status, stdout, stderr) = execute(&mut command, patience(task))?;
    let wall = begun.elapsed();
    if !status.success() {
        // A report of a wrong result is more specific than the exit status.
        return match stdout.parse::<Report>() {
            Err(wrong @ (ReportError::Wrong(_) | ReportError::Unsupported(_))) => Err(wrong.into()),
            _ => Err(JobError::Failed { status, stderr }),
        };
    }
    let report: Report = stdout.parse()?;
    let stream = |name| report.values.get(name).copied().unwrap_or_default();
    let bare = Bare {
        one_way: stream("stream.one_way"),
        round_trip: stream("stream.round_trip"),
        asleep: stream("stream.asleep"),
        ..before.least(bare())
    };
    Ok(Run { report, wall, bare })
}

/// Runs a command to its end, which it must reach in time. Returns its status, standard output and standard error.
pub fn execute(command: &mut Command, most: Duration) -> Result<(ExitStatus, String, String), JobError> {
    let begun = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = interrupt::spawn(command).map_err(|source| {
        let program = command.get_program().to_string_lossy().into_owned();
        JobError::Start { program, source }
    })?;
    end(child, begun + most).map_err(JobError::Watch)?.ok_or(JobError::Deadline(most))
}

/// Waits for the end of the job. `None` if the deadline passed.
fn end(mut child: Child, deadline: Instant) -> io::Result<Option<(ExitStatus, String, String)>> {
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let in_time = ended_by(&child, deadline);
    if !matches!(in_time, Ok(true)) {
        stop(&mut child);
    }
    interrupt::ended();
    let status = child.wait()?;
    // Processes left by the job may keep its pipes open. Waits for the readers 2 s at most.
    let text = |from: mpsc::Receiver<String>| from.recv_timeout(Duration::from_secs(2)).unwrap_or_default();
    Ok(in_time?.then(|| (status, text(stdout), text(stderr))))
}

fn ended_by(child: &Child, deadline: Instant) -> io::Result<bool> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return Ok(false),
            Ok(_) => return Ok(true),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Terminates the job, at last by SIGKILL. The caller reaps it.
fn stop(child: &mut Child) {
    // On SIGTERM a launcher ends its ranks; on SIGKILL it cannot.
    let pid = Pid::from_child(child);
    let _ = kill_process(pid, Signal::TERM);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let limit = Instant::now() + Duration::from_secs(3);
    while matches!(waitid(WaitId::Pid(pid), look), Ok(None)) && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
}

fn reader(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            // After a read error, uses the bytes read so far.
            let _ = pipe.take(MOST_OUTPUT).read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

/// The most informative line of an error output: the last error line of a rank, else of the launcher, else the last
/// line.
fn said(stderr: &str) -> String {
    let lines = || stderr.lines().rev().map(str::trim).filter(|line| line.chars().any(char::is_alphanumeric));
    let of_rank = lines().filter_map(untagged).find(|line| is_error(line));
    let line = of_rank.or_else(|| lines().find(|line| is_error(line))).or_else(|| lines().next());
    line.map_or(String::new(), |line| format!(": {}", line.chars().take(200).collect::<String>()))
}

/// A rank's line without its tag; `None` for other lines.
fn untagged(line: &str) -> Option<&str> {
    let (rank, line) = line.strip_prefix('[')?.split_once("] ")?;
    rank.parse::<usize>().is_ok().then_some(line)
}

/// True if the line is an error of transom, not a report that a rank waits.
fn is_error(line: &str) -> bool {
    line.starts_with("transom:") && !line.contains(" has waited ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn stopped_job_ends_by_sigterm_unreaped() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        stop(&mut child);
        assert_eq!(child.wait().unwrap().signal(), Some(15));
    }

    #[test]
    fn error_output_yields_most_informative_line() {
        let debug = "[0] 2026-11-26T22:27:14Z  INFO transom::start: joined the job rank=0 size=2";
        let waits = "[1] transom: rank 1 has waited 5s in barrier for rank 0";
        let (why, launcher) =
            ("[0] transom: a block is larger than the matrix", "transom: rank 0 exited with status 1");
        let after = "[0] 2026-11-26T22:27:15Z DEBUG transom_shm_loopback: left the job rank=0";
        let all = |lines: &[&str]| said(&lines.join("\n"));
        assert_eq!(all(&[debug, waits, why, launcher, waits, after]), ": transom: a block is larger than the matrix");
        assert_eq!(all(&[debug, waits, launcher, after]), format!(": {launcher}"));
        assert_eq!(all(&["----", "mpirun was unable to start", "no slots", "----"]), ": no slots");
        assert_eq!(all(&["", "--"]), "");
    }

    #[test]
    fn run_past_deadline_kills_job() {
        let mut sleep = Command::new("sleep");
        let child = sleep.arg("1000").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        assert!(end(child, Instant::now()).unwrap().is_none());
    }
}
