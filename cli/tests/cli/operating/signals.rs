//! Signals to the launcher that all ranks get: SIGUSR1, SIGUSR2, and SIGTSTP and SIGCONT of a shell's job control.

use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::CommandExt;
use std::process::ChildStdout;
use std::time::Instant;

const HERE_AND_THERE: [&[&str]; 2] = [&["-n", "3"], &["-n", "3", "--hosts", "a,b"]];

/// A running job whose ranks write lines.
struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _folder: TempDir,
}

impl Running {
    /// The launcher has a process group of its own, as a shell's job has.
    fn start(args: &[&str], script: &str) -> Self {
        let Job { mut command, folder } = job(&[args, &["sh", "-c", script]].concat());
        let mut child = command.process_group(0).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines, _folder: folder }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line of each rank, sorted.
    fn next(&mut self) -> Vec<String> {
        let mut lines: Vec<_> = (0..3).map(|_| self.lines.next().unwrap().unwrap()).collect();
        lines.sort();
        lines
    }
}

#[test]
fn usr1_and_usr2_reach_all_ranks() {
    let script = "exec 2>/dev/null; trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo ready; while :; do sleep 0.05; done";
    for args in HERE_AND_THERE {
        let mut running = Running::start(args, script);
        assert_eq!(running.next(), ["ready"; 3]);
        running.signal(Signal::USR1);
        assert_eq!(running.next(), ["one"; 3]);
        running.signal(Signal::USR2);
        assert_eq!(running.next(), ["two"; 3]);
        let ended = end(running.child);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    }
}

/// Waits until all processes are stopped, or none.
fn await_stopped(processes: &[String], stopped: bool) {
    let until = Instant::now() + LIMIT;
    let state = |process: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().starts_with('T')
    };
    while processes.iter().any(|process| state(process) != stopped) {
        assert!(
            Instant::now() < until,
            "stopped: {:?}, expected {stopped}",
            processes.iter().map(state).collect::<Vec<_>>()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn tstp_stops_all_ranks_until_cont() {
    for args in HERE_AND_THERE {
        // A shell that starts processes may be stopped within vfork, where its state is not T.
        let mut running = Running::start(args, "echo $$; exec sleep 1000");
        let mut processes = running.next();
        processes.push(running.child.id().to_string());
        for _ in 0..2 {
            running.signal(Signal::TSTP);
            await_stopped(&processes, true);
            running.signal(Signal::CONT);
            await_stopped(&processes, false);
        }
        running.signal(Signal::TERM);
        assert_eq!(end(running.child).code, Some(143));
    }
}

/// The launcher ignores SIGTSTP, as the kernel does for a program without a handler, if no shell could continue it.
#[test]
fn tstp_without_a_shell_is_ignored() {
    for wrapper in [&["setsid"][..], &["setsid", "sh", "-c", "\"$@\"; exit $?", "sh"]] {
        let script = "exec 2>/dev/null; trap 'echo one' USR1; echo $PPID; while :; do sleep 0.05; done";
        let Job { command, folder } = job(&["-n", "1", "sh", "-c", script]);
        let mut wrapped = Command::new(wrapper[0]);
        wrapped.args(&wrapper[1..]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        let mut child = wrapped.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let launcher = Pid::from_raw(lines.next().unwrap().unwrap().parse().unwrap()).unwrap();
        // The second round begins after the launcher has got the first SIGTSTP.
        for _ in 0..2 {
            kill_process(launcher, Signal::TSTP).unwrap();
            kill_process(launcher, Signal::USR1).unwrap();
            assert_eq!(lines.next().unwrap().unwrap(), "one");
        }
        kill_process(launcher, Signal::TERM).unwrap();
        assert_eq!(end(child).code, Some(143), "{wrapper:?}");
        drop(folder);
    }
}
