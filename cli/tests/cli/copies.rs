//! Copies of a test program that run one of its tests in a role, as a user starts programs, with a deadline and a
//! limit of processes. A mark in their environment identifies and counts them.

use crate::ranks::full_name;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// More processes than any of these tests needs at once.
const MOST_PROCESSES: usize = 150;
/// Set for a copy: its role. The name's beginning makes the launcher pass it to other hosts.
const ROLE: &str = "RUST_TEST_ROLE";
const MARK: &str = "RUST_TEST_MARK";
/// Replaces `ssh`: runs its command on this machine, in an empty environment.
const SSH: &str = "#!/bin/sh\ncd / && exec env -i RUST_TEST_MARK=\"$RUST_TEST_MARK\" PATH=/usr/bin:/bin sh -c \"$2\"\n";

/// The role of this process, if it is a copy.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The command line by which a copy of this program runs the test `name` of the calling file.
#[track_caller]
pub fn copy(name: &str) -> [String; 5] {
    let program = std::env::current_exe().unwrap().display().to_string();
    [program, "--exact".into(), full_name(name), "--nocapture".into(), "--test-threads=1".into()]
}

/// The script that replaces `ssh`, for TRANSOM_SSH.
pub fn ssh() -> tempfile::TempPath {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    let mut script = tempfile::NamedTempFile::new().unwrap();
    script.write_all(SSH.as_bytes()).unwrap();
    script.as_file().set_permissions(PermissionsExt::from_mode(0o755)).unwrap();
    script.into_temp_path()
}

/// Removes the variables that name the hosts of a batch job, so that a test within one starts its ranks here.
pub fn outside_batch_job(command: &mut Command) -> &mut Command {
    let names = ["SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "LSB_HOSTS", "PE_HOSTFILE"];
    names.into_iter().fold(command, |command, name| command.env_remove(name))
}

/// The outcome of a command.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// The lines of stdout that begin with `word`, sorted; the test harness may have written before it on its line.
    #[allow(dead_code, reason = "each test file uses what it needs")]
    pub fn said(&self, word: &str) -> Vec<String> {
        let mut lines: Vec<_> =
            self.stdout.lines().filter_map(|line| line.find(word).map(|at| line[at..].to_owned())).collect();
        lines.sort();
        lines
    }
}

/// Runs a command to its end. Fails if that takes too long or too many processes; leaves no process behind.
pub fn run(command: &mut Command, role: &str) -> Ended {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let mark = format!("{}-{}", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
    command.env(ROLE, role).env(MARK, &mark).env("RUST_BACKTRACE", "0").env_remove("TRANSOM_LOG");
    outside_batch_job(command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let until = Instant::now() + LIMIT;
    let output = loop {
        match receive.recv_timeout(Duration::from_millis(2)) {
            Ok(output) => break output.unwrap(),
            Err(_) => {
                let processes = marked(&mark).len();
                if processes > MOST_PROCESSES || Instant::now() > until {
                    // Ranks end with their launcher, so all end with the first.
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                    end(&mark);
                    panic!(
                        "{command:?} has not ended after {LIMIT:?}, or has more processes ({processes}) than it needs"
                    );
                }
            }
        }
    };
    end(&mark);
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Waits until no process is left.
fn end(mark: &str) {
    let until = Instant::now() + LIMIT;
    while !marked(mark).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", marked(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The command lines of processes that carry a mark.
fn marked(mark: &str) -> Vec<String> {
    let mark = format!("{MARK}={mark}\0");
    let read = |process: &Path, name: &str| std::fs::read(process.join(name)).unwrap_or_default();
    let processes = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let marked = processes
        .filter(|process| read(process, "environ").windows(mark.len()).any(|window| window == mark.as_bytes()))
        .map(|process| String::from_utf8_lossy(&read(&process, "cmdline")).replace('\0', " "));
    marked.filter(|command| !command.is_empty()).collect()
}
