//! Helper processes of a host without an agent: one that is killed or stopped ends the job, and nothing is left on the
//! host.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::time::Instant;

/// Parent and process group of a process.
fn parent_and_group(process: &str) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1).map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

/// The processes that forward the streams of rank 0 and wait for it, by the process that waits.
fn helpers(run: &str) -> [Pid; 4] {
    let of_run = parent_and_group(run).unwrap();
    let until = Instant::now() + LIMIT;
    loop {
        let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        let helpers = all.filter(|process| parent_and_group(process) == Some(of_run.clone()));
        let mut helpers: Vec<i32> = helpers.map(|process| process.parse().unwrap()).collect();
        helpers.sort();
        // One for stdout, stderr, its end, and stdin each. The shell may not have started the last one yet, or may
        // still remove its folder.
        match <[i32; 4]>::try_from(helpers) {
            Ok(four) => return four.map(|helper| Pid::from_raw(helper).unwrap()),
            Err(others) => assert!(Instant::now() < until, "helpers: {others:?}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The job ends after this signal to one of the four helpers of rank 0.
fn ends(number: usize, signal: Signal, what: &str) {
    let script = "echo $TRANSOM_RANK $PPID; exec sleep 1000";
    let args = ["-n", "2", "--grace", "0", "--hosts", "a,b", "sh", "-c", script];
    let Job { mut command, folder } = job(&args).env("TRANSOM_AGENT", "off");
    // Stdin stays open, as a terminal does.
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let stdin = child.stdin.take();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines: Vec<_> = (0..2).map(|_| lines.next().unwrap().unwrap()).collect();
    let run = lines.iter().find_map(|line| line.strip_prefix("0 ")).unwrap();
    let group = parent_and_group(run).unwrap().1;
    kill_process(helpers(run)[number], signal).unwrap();
    let ended = end(child);
    drop((stdin, folder));
    assert!(ended.code.is_some_and(|code| code != 0), "{ended:?}");
    let said = format!("transom: host a: its ranks are ended: a process of the launcher there was {what}");
    assert!(ended.stderr.contains(&said), "{number} {ended:?}");
    let left = rustix::process::test_kill_process_group(Pid::from_raw(group.parse().unwrap()).unwrap());
    assert!(left.is_err(), "processes are left on the host");
}

#[test]
fn killed_or_stopped_helper_ends_the_job() {
    std::thread::scope(|scope| {
        for number in 0..4 {
            for (signal, what) in [(Signal::KILL, "killed"), (Signal::STOP, "stopped")] {
                scope.spawn(move || ends(number, signal, what));
            }
        }
    });
}

/// A batch system may stop all processes of a job for a while, and continue them one by one.
#[test]
fn helper_stopped_for_a_moment_is_no_failure() {
    let script = "echo $PPID; read -r line; echo $line";
    let Job { mut command, folder } = job(&["-n", "1", "--hosts", "a", "sh", "-c", script]).env("TRANSOM_AGENT", "off");
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let run = lines.next().unwrap().unwrap();
    for helper in helpers(&run) {
        kill_process(helper, Signal::STOP).unwrap();
        // One check comes while it is stopped.
        std::thread::sleep(Duration::from_millis(1900));
        kill_process(helper, Signal::CONT).unwrap();
    }
    stdin.write_all(b"go on\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "go on");
    let ended = end(child);
    drop((stdin, folder));
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
}

fn folders() -> HashSet<String> {
    let all = std::fs::read_dir("/dev/shm").unwrap().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("transom.")).collect()
}

/// Each folder of a host is gone in the end, whenever the launcher is killed.
#[test]
fn killed_launcher_leaves_no_folder() {
    let before = folders();
    for delay in 0..40 {
        let mut job = job(&["-n", "4", "--hosts", "localhost", "sleep", "1000"]).env("TRANSOM_AGENT", "off");
        let mut child = job.command.env_remove("TRANSOM_SSH").spawn().unwrap();
        std::thread::sleep(Duration::from_millis(2 + delay));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    // Folders of other tests appear and vanish.
    let mut left: HashSet<_> = folders().difference(&before).cloned().collect();
    let until = Instant::now() + LIMIT / 4;
    while !left.is_empty() {
        assert!(Instant::now() < until, "left: {left:?}");
        std::thread::sleep(Duration::from_millis(20));
        left = left.intersection(&folders()).cloned().collect();
    }
}
