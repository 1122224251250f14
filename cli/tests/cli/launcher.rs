//! The launcher with real processes: `transom run` and `transom info` as a user calls them, and `transom::Launch`.
//! Every job ends in bounded time, names the cause, and leaves no process behind.

use crate::copies::outside_batch_job;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use transom::variables::{SetBy, TABLE};
use transom::{Failure, Launch, LaunchError, OutputPrefix, Status};

/// Time limit of each call; the test fails beyond it.
const LIMIT: Duration = Duration::from_secs(30);
const FOREVER: &str = "exec sleep 1000";
const IGNORES_TERM: &str = "trap '' TERM; echo ready; while :; do sleep 0.1; done";

/// A call of the launcher. A mark identifies its processes.
struct Call {
    child: Child,
    mark: String,
    since: Instant,
}

fn mark() -> String {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    format!("LAUNCHER_TEST=call-{}-{}-", std::process::id(), CALLS.fetch_add(1, Ordering::Relaxed))
}

impl Call {
    fn start(command: &mut Command) -> Self {
        hear_ignored_signals();
        let mark = mark();
        let (name, value) = mark.split_once('=').unwrap();
        let child = command.env(name, value).stdin(Stdio::null()).spawn().unwrap();
        Call { child, mark, since: Instant::now() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until `ranks` ranks have reported that they are ready.
    fn ready(&mut self, ranks: usize) {
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        (0..ranks).for_each(|_| assert_eq!(lines.next().unwrap().unwrap(), "ready"));
    }

    /// Waits for the end, and checks that no process is left.
    fn end(self) -> Ended {
        let Call { child, mark, since } = self;
        let pid = Pid::from_child(&child);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(child.wait_with_output()));
        let Ok(output) = receive.recv_timeout(LIMIT) else {
            let _ = kill_process(pid, Signal::KILL);
            panic!("the launcher has not ended after {LIMIT:?}");
        };
        let took = since.elapsed();
        assert_eq!(left(&mark), Vec::<String>::new(), "processes left");
        let Output { status, stdout, stderr } = output.unwrap();
        Ended { code: status.code(), stdout, stderr: String::from_utf8_lossy(&stderr).into_owned(), took }
    }
}

struct Ended {
    code: Option<i32>,
    stdout: Vec<u8>,
    stderr: String,
    took: Duration,
}

/// A signal that this process ignores since its start would be ignored by its children too, unless it is handled here.
pub fn hear_ignored_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap().trim();
    let ignored = u64::from_str_radix(ignored, 16).unwrap();
    for signal in [Signal::INT, Signal::HUP].map(Signal::as_raw) {
        if ignored & (1 << (signal - 1)) != 0 {
            signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).unwrap();
        }
    }
}

/// The command lines of processes that carry a mark.
fn left(mark: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let marked = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    });
    let command = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).replace('\0', " ");
    marked.map(|process| command(process.path().join("cmdline"))).filter(|command| !command.is_empty()).collect()
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env_remove("TRANSOM_LOG").env_remove("TRANSOM_GRACE").env_remove("TRANSOM_OUTPUT_PREFIX");
    outside_batch_job(&mut command);
    command
}

fn run(args: &[&str]) -> Ended {
    let args: Vec<_> = ["run"].iter().chain(args).copied().collect();
    Call::start(&mut command(&args)).end()
}

/// Runs a shell script on `ranks` ranks.
fn script(ranks: &str, script: &str) -> Ended {
    run(&["-n", ranks, "--grace", "0.2", "sh", "-c", script])
}

fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<_> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    lines.sort();
    lines
}

#[test]
fn successful_job_passes_arguments_and_output() {
    let ended = script("3", "echo $TRANSOM_RANK of $TRANSOM_SIZE");
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(lines(&ended.stdout), [b"0 of 3\n", b"1 of 3\n", b"2 of 3\n"]);
    // Arguments behind the program are the program's, options too.
    for ranks in ["-n2", "-n=2", "--ranks=2"] {
        let ended = run(&[ranks, "echo", "-n", "x", "--output-prefix", "--", "-y"]);
        assert_eq!(
            (ended.code, ended.stdout.as_slice()),
            (Some(0), &b"x --output-prefix -- -y\nx --output-prefix -- -y\n"[..])
        );
    }
}

#[test]
fn first_failure_is_named_and_ends_other_ranks() {
    let ended = script("3", "[ $TRANSOM_RANK = 1 ] && exit 3; exec sleep 1000");
    let others = "transom: ranks 0, 2 had not ended 200ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n";
    assert_eq!((ended.code, ended.stderr), (Some(3), format!("transom: rank 1 exited with status 3\n{others}")));
    let ended = script("2", "[ $TRANSOM_RANK = 1 ] && kill -KILL $$; exec sleep 1000");
    let [killed, other] = [
        "transom: rank 1 was killed by signal 9 (SIGKILL)\n",
        "transom: rank 0 had not ended 200ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n",
    ];
    assert_eq!((ended.code, ended.stderr), (Some(137), format!("{killed}{other}")));
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
}

/// A rank that exits may have noticed the death of a killed one; the reverse is impossible.
#[test]
fn killed_rank_is_the_cause_if_two_end_at_once() {
    let both = "echo ready; sleep 0.7; [ $TRANSOM_RANK = 1 ] && kill -KILL $$; exit 3";
    let mut call = Call::start(&mut command(&["run", "-n", "2", "sh", "-c", both]));
    call.ready(2);
    // Both end while the launcher is stopped, so that it sees both ends at once.
    call.signal(Signal::STOP);
    std::thread::sleep(Duration::from_millis(1500));
    call.signal(Signal::CONT);
    let ended = call.end();
    assert_eq!(ended.stderr, "transom: rank 1 was killed by signal 9 (SIGKILL)\n");
    assert_eq!(ended.code, Some(137));
}

#[test]
fn last_rank_output_precedes_launcher_message() {
    let ended = script("2", "[ $TRANSOM_RANK = 1 ] && printf 'out of luck' >&2 && exit 1; exec sleep 1000");
    let other = "transom: rank 0 had not ended 200ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n";
    assert_eq!(ended.stderr, format!("[1] out of luck\ntransom: rank 1 exited with status 1\n{other}"));
}

/// A full disk, or a closed terminal, does not change the status.
#[test]
fn unread_error_message_keeps_the_exit_status() {
    let missing = run(&["-n", "1", "./no-such-program"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let unread = Call::start(command(&["run", "-n", "1", "./no-such-program"]).stderr(full)).end();
    assert_eq!((unread.code, missing.code), (Some(127), Some(127)), "{}", missing.stderr);
}

#[test]
fn rank_exiting_with_0_leaves_others_running() {
    let ended = script("2", "[ $TRANSOM_RANK = 0 ] && exit 0; sleep 0.7; echo done");
    assert_eq!((ended.code, ended.stdout.as_slice()), (Some(0), b"done\n".as_slice()));
}

#[test]
fn survivors_get_the_grace_period_as_needed() {
    let survivor = "[ $TRANSOM_RANK = 0 ] && exit 7; sleep 0.6; echo rank 0 is gone; exit 4";
    let ended = run(&["-n", "2", "--grace", "20", "sh", "-c", survivor]);
    assert_eq!((ended.code, ended.stdout.as_slice()), (Some(7), b"rank 0 is gone\n".as_slice()));
    assert!(ended.took < Duration::from_secs(10), "{:?}", ended.took);
    // The variable sets the grace too; SIGTERM follows it.
    let polite = "[ $TRANSOM_RANK = 0 ] && exit 7; trap 'echo told; exit 0' TERM; while :; do sleep 0.05; done";
    let ended = Call::start(command(&["run", "-n", "2", "sh", "-c", polite]).env("TRANSOM_GRACE", "0.3")).end();
    assert_eq!((ended.code, ended.stdout.as_slice()), (Some(7), b"told\n".as_slice()));
    assert!(ended.took > Duration::from_millis(300), "{:?}", ended.took);
}

#[test]
fn rank_ignoring_sigterm_is_killed() {
    let ended = script("2", &format!("[ $TRANSOM_RANK = 0 ] && exit 7; {IGNORES_TERM}"));
    assert_eq!(ended.code, Some(7));
    assert!(ended.took > Duration::from_secs(1) && ended.took < Duration::from_secs(5), "{:?}", ended.took);
}

#[test]
fn signal_to_the_launcher_ends_all_ranks() {
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM"), (Signal::HUP, "SIGHUP")] {
        let mut call = Call::start(&mut command(&["run", "-n", "3", "sh", "-c", &format!("echo ready; {FOREVER}")]));
        call.ready(3);
        call.signal(signal);
        let (ended, number) = (call.end(), signal.as_raw());
        assert_eq!(ended.code, Some(128 + number));
        assert_eq!(ended.stderr, format!("transom: ended by signal {number} ({name})\n"));
    }
}

#[test]
fn second_sigint_skips_the_grace_period() {
    let mut call = Call::start(&mut command(&["run", "-n", "2", "--grace", "30", "sh", "-c", IGNORES_TERM]));
    call.ready(2);
    call.signal(Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    let second = Instant::now();
    call.signal(Signal::INT);
    assert_eq!(call.end().code, Some(130));
    assert!(second.elapsed() < Duration::from_secs(10), "{:?}", second.elapsed());
}

#[test]
fn inherited_ignored_signals_stay_ignored() {
    let nohup = format!(
        "trap '' HUP CHLD; exec {} run -n 1 sh -c 'echo ready; sleep 1; exit 5'",
        env!("CARGO_BIN_EXE_transom")
    );
    let mut call = Call::start(Command::new("sh").args(["-c", &nohup]).stdout(Stdio::piped()).stderr(Stdio::piped()));
    call.ready(1);
    call.signal(Signal::HUP);
    assert_eq!(call.end().code, Some(5));
}

#[test]
fn ranks_die_with_a_killed_launcher() {
    let mut call = Call::start(&mut command(&["run", "-n", "3", "sh", "-c", &format!("echo ready; {FOREVER}")]));
    call.ready(3);
    call.signal(Signal::KILL);
    call.child.wait().unwrap();
    let until = Instant::now() + LIMIT;
    while !left(&call.mark).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", left(&call.mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn orphans_of_ranks_are_killed_without_waiting() {
    let ended = script("2", "sleep 1000 & (setsid sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' &) ; exit 3");
    assert_eq!(ended.code, Some(3));
    assert!(ended.took < Duration::from_secs(5), "{:?}", ended.took);
    // If orphans do not become the launcher's children, they live on, but do not delay it by open pipes.
    let since = Instant::now();
    let outcome = Launch::new("sh", 2).args(["-c", "sleep 4 & echo here"]).capture(true).run().unwrap();
    assert_eq!((outcome.output(1), outcome.exit_code()), (b"here\n".as_slice(), 0));
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

#[test]
fn concurrent_output_lines_stay_whole() {
    // Each line is one letter repeated, written in two halves. Every seventh is longer than any pipe, every other goes
    // to stderr.
    let writer = "letter=$(printf '%b' \\\\14$TRANSOM_RANK)
        half=; for i in 1 2 3 4 5 6 7 8; do half=$half$letter$letter$letter$letter$letter; done
        long=$half; for i in 1 2 3 4 5 6 7 8 9 10 11; do long=$long$long; done
        i=0
        while [ $i -lt 2000 ]; do
            text=$half; [ $((i % 400)) = 7 ] && text=$long
            if [ $((i % 2)) = 0 ]; then printf %s $text; echo $text; else printf %s $text >&2; echo $text >&2; fi
            i=$((i + 1))
        done";
    let (mut reader, stdout) = std::io::pipe().unwrap();
    let mut call = command(&["run", "-n", "4", "sh", "-c", writer]);
    call.stderr(stdout.try_clone().unwrap()).stdout(stdout);
    let call_ended = Call::start(&mut call);
    drop(call); // ends of the pipe that this process holds
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert_eq!(call_ended.end().code, Some(0));
    let (lines, mut long) = (lines(&all), 0);
    assert_eq!(lines.len(), 4 * 2000);
    for line in lines {
        let text = line.strip_suffix(b"\n").expect("expected a whole line");
        // Lines of stderr have the tag of the rank that wrote their letter.
        let rank = text.last().unwrap() - 0o140;
        let text = text.strip_prefix(format!("[{rank}] ").as_bytes()).unwrap_or(text);
        assert!(
            text.iter().all(|byte| *byte == text[0]),
            "two lines were mixed: {:?}",
            String::from_utf8_lossy(&text[..80])
        );
        assert!(text.len() == 80 || text.len() == 80 << 11, "unexpected line length {}", text.len());
        long += usize::from(text.len() > 80);
    }
    assert_eq!(long, 4 * 5);
}

#[test]
fn tags_partial_lines_and_any_bytes() {
    let ended = run(&["-n", "2", "--output-prefix", "sh", "-c", "printf 'a\\n\\n\\377\\0b'; printf 'err' >&2"]);
    let expected: [&[u8]; 6] = [b"[0] \n", b"[0] a\n", b"[0] \xff\0b\n", b"[1] \n", b"[1] a\n", b"[1] \xff\0b\n"];
    assert_eq!(lines(&ended.stdout), expected);
    assert_eq!(lines(ended.stderr.as_bytes()), [b"[0] err\n", b"[1] err\n"]);
}

/// Every rank is named once, in the line that it wrote first or in the one for the others.
#[test]
fn long_line_of_all_ranks_is_written_twice() {
    let text = "x".repeat(300);
    let speak = format!("echo near >&2; echo {text} >&2; echo {text}");
    // A rank that starts late has a line of its own.
    let joined = (0..20).any(|_| {
        let ended = run(&["-n", "4", "sh", "-c", &speak]);
        let long: Vec<&str> = ended.stderr.lines().filter_map(|line| line.strip_suffix(&text)).collect();
        let mut named: Vec<usize> = long.iter().flat_map(|ranks| named(ranks)).collect();
        named.sort_unstable();
        assert_eq!(named, [0, 1, 2, 3], "{}", ended.stderr);
        assert_eq!(ended.stderr.matches("near").count(), 4, "a short line was joined: {}", ended.stderr);
        assert_eq!(lines(&ended.stdout).len(), 4, "lines on stdout were joined");
        long.len() == 2
    });
    assert!(joined, "no job of 20 joined the line of three ranks");
    for args in [&["--output-prefix=none"][..], &["--timestamps"]] {
        let ended = run(&[&["-n", "4"], args, &["sh", "-c", &speak]].concat());
        assert_eq!(ended.stderr.matches(&text).count(), 4, "{args:?}: {}", ended.stderr);
    }
}

/// The ranks of a prefix such as `[0, 2-3] `.
fn named(prefix: &str) -> Vec<usize> {
    let ranks = prefix.strip_prefix('[').and_then(|rest| rest.strip_suffix("] ")).expect("a prefix");
    let run = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        first.parse().unwrap()..=last.parse::<usize>().unwrap()
    };
    ranks.split(", ").flat_map(run).collect()
}

#[test]
fn stderr_lines_are_tagged_by_default() {
    let speak = "echo out; echo err >&2; echo more >&2";
    let tagged: [&[u8]; 4] = [b"[0] err\n", b"[0] more\n", b"[1] err\n", b"[1] more\n"];
    let plain: [&[u8]; 4] = [b"err\n", b"err\n", b"more\n", b"more\n"];
    let out: [&[u8]; 2] = [b"out\n", b"out\n"];
    let all: [&[u8]; 2] = [b"[0] out\n", b"[1] out\n"];
    for (args, variable, stdout, stderr) in [
        (&[][..], None, out, tagged),
        (&["--output-prefix=stderr"], None, out, tagged),
        (&["--output-prefix=none"], None, out, plain),
        (&["--output-prefix=all"], None, all, tagged),
        (&["--output-prefix"], None, all, tagged),
        (&[], Some("none"), out, plain),
        (&[], Some("all"), all, tagged),
        (&["--output-prefix=stderr"], Some("all"), out, tagged),
    ] {
        let args = [&["run", "-n", "2"], args, &["sh", "-c", speak]].concat();
        let mut command = command(&args);
        variable.map(|value| command.env("TRANSOM_OUTPUT_PREFIX", value));
        let ended = Call::start(&mut command).end();
        assert_eq!(lines(&ended.stdout), stdout, "{args:?} {variable:?}");
        assert_eq!(lines(ended.stderr.as_bytes()), stderr, "{args:?} {variable:?}");
    }
    // The only rank needs no tag, and gets one on request.
    let alone = |args: &[&str]| run(&[&["-n", "1"], args, &["sh", "-c", speak]].concat());
    assert_eq!(alone(&[]).stderr, "err\nmore\n");
    assert_eq!(alone(&["--output-prefix=stderr"]).stderr, "[0] err\n[0] more\n");
    // Captured output is stored by rank, unchanged.
    let launch = Launch::new("sh", 2).args(["-c", speak]).capture(true);
    assert_eq!(launch.run().unwrap().output(1), b"out\nerr\nmore\n");
    assert_eq!(launch.output_prefix(OutputPrefix::Stderr).run().unwrap().output(1), b"out\n[1] err\n[1] more\n");
    // Invalid values.
    let ended = run(&["-n", "2", "--output-prefix=both", "true"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("possible values: all, stderr, none"), "{}", ended.stderr);
    let ended = Call::start(command(&["run", "-n", "2", "true"]).env("TRANSOM_OUTPUT_PREFIX", "both")).end();
    assert!(ended.code == Some(2) && ended.stderr.contains("expected `none`, `stderr` or `all`"), "{}", ended.stderr);
}

#[test]
fn stdin_is_for_rank_0() {
    let mut command = command(&["run", "-n", "3", "--output-prefix", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    assert_eq!(child.wait_with_output().unwrap().stdout, b"[0] hello\n");
}

#[test]
fn program_that_cannot_start_is_explained() {
    for (args, code, said) in [
        (&["-n", "2", "no-such-program"][..], 127, "cannot start `no-such-program`: no such program in PATH"),
        (&["-n", "2", "./no-such-program"], 127, "there is no such file"),
        (&["-n", "2", "Cargo.toml"], 127, "the program in this folder is `./Cargo.toml`"),
        (&["-n", "2", "./Cargo.toml"], 126, "chmod +x ./Cargo.toml"),
        (&["-n", "2", "./src"], 126, "it is a folder"),
        (&["-n", "0", "true"], 2, "a job has 1 to 32767 ranks, not 0"),
        (&["-n", "32768", "true"], 2, "a job has 1 to 32767 ranks, not 32768"),
        (&["-n", "2", "--grace", "-1", "true"], 2, "grace"),
        (&["-n", "2"], 2, "PROGRAM"),
        (&["--bogus", "-n", "2", "true"], 2, "unexpected argument '--bogus'"),
        (&["-n", "2", "--bogus", "true"], 2, "unexpected argument '--bogus'"),
        (&["-np", "two", "true"], 2, "invalid value 'two' for '--ranks"),
        (&["-n", "p", "true", "-np"], 2, "invalid value 'p' for '--ranks"),
        (&["-N", "2", "-n", "2", "true"], 2, "name the nodes (--hosts a,b)"),
        (&["true"], 2, "--ranks"),
    ] {
        let ended = run(args);
        assert_eq!(ended.code, Some(code), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
    let ended = Call::start(command(&["run", "-n", "1", "true"]).env("TRANSOM_GRACE", "soon")).end();
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("TRANSOM_GRACE=\"soon\"") && ended.stderr.contains("seconds"), "{}", ended.stderr);
}

#[test]
fn many_ranks_run_with_few_descriptors() {
    for ranks in ["64", "200"] {
        let limited = format!("ulimit -n 1024; exec {} run -n {ranks} true", env!("CARGO_BIN_EXE_transom"));
        let call = Call::start(Command::new("sh").args(["-c", &limited]).stderr(Stdio::piped()));
        let ended = call.end();
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    }
    // Too few processes: those that were started are ended.
    let limited = format!("ulimit -n 40; exec {} run -n 64 sleep 1000", env!("CARGO_BIN_EXE_transom"));
    let ended = Call::start(Command::new("sh").args(["-c", &limited]).stderr(Stdio::piped())).end();
    assert_eq!(ended.code, Some(126));
    assert!(ended.stderr.contains("ulimit -n"), "{}", ended.stderr);
}

#[test]
fn closed_stdout_ends_the_job_quietly() {
    let mut call = Call::start(&mut command(&["run", "-n", "4", "sh", "-c", "while :; do echo ready; done"]));
    call.ready(1);
    drop(call.child.stdout.take());
    let ended = call.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(141), ""));
}

#[test]
fn stalled_reader_does_not_block_launcher_exit() {
    let mut call = Call::start(&mut command(&["run", "-n", "4", "sh", "-c", "while :; do echo ready; done"]));
    call.ready(1);
    std::thread::sleep(Duration::from_millis(300)); // all pipes are full now
    let unread = call.child.stdout.take();
    call.signal(Signal::TERM);
    assert_eq!(call.end().code, Some(143));
    drop(unread);
}

/// Orphans of ranks become children of the launcher, which reaps them.
#[test]
fn orphans_of_ranks_leave_no_zombies() {
    let script = "i=0; while [ $i -lt 60 ]; do sh -c 'true &'; i=$((i + 1)); done; sleep 0.5; echo;
        for status in /proc/[0-9]*/status; do
            grep -qs \"^PPid:[[:space:]]*$PPID\\$\" $status && grep -s '^State:.*Z' $status
        done | wc -l";
    let ended = Call::start(&mut command(&["run", "-n", "1", "sh", "-c", script])).end();
    let zombies: usize = String::from_utf8(ended.stdout).unwrap().trim().parse().unwrap();
    // A process may have ended just now.
    assert!(zombies < 10, "{zombies} zombies, {}", ended.stderr);
}

#[test]
fn concurrent_launches_are_independent() {
    let launch = |status: usize| {
        let mark = mark();
        let (name, value) = mark.split_once('=').unwrap();
        let script = format!("echo $TRANSOM_RANK; [ $TRANSOM_RANK = 1 ] && exit {status}; sleep 0.3");
        let launch = Launch::new("sh", 3).args(["-c", &script]).env(name, value).deadline(LIMIT).capture(true);
        let outcome = launch.run().unwrap();
        assert_eq!((outcome.exit_code() as usize, outcome.output(2)), (status, b"2\n".as_slice()));
        assert_eq!(outcome.statuses(), [Status::Exited(0), Status::Exited(status as i32), Status::Exited(0)]);
    };
    std::thread::scope(|scope| (0..8).for_each(|status| drop(scope.spawn(move || launch(status)))));
}

/// Longer than any clock can show: the launcher waits for the other ranks until they end.
#[test]
fn unlimited_grace_waits_for_all_ranks() {
    let script = "[ $TRANSOM_RANK = 1 ] && exit 7; sleep 0.3";
    let outcome = Launch::new("sh", 2).args(["-c", script]).grace(Duration::MAX).deadline(LIMIT).run().unwrap();
    assert_eq!(outcome.statuses(), [Status::Exited(0), Status::Exited(7)]);
}

#[test]
fn deadline_ends_the_job() {
    let launch =
        Launch::new("sh", 3).args(["-c", &format!("[ $TRANSOM_RANK = 1 ] && exit 0; {IGNORES_TERM}")]).capture(true);
    let outcome = launch.deadline(Duration::from_secs(1)).run().unwrap();
    assert_eq!(outcome.failure(), Some(&Failure::Deadline { running: vec![0, 2] }));
    assert_eq!((outcome.exit_code(), outcome.output(2)), (124, b"ready\n".as_slice()));
    assert_eq!(outcome.to_string(), "the deadline passed; ranks 0, 2 had not ended");
    assert_eq!(outcome.statuses(), [Status::Killed(9), Status::Exited(0), Status::Killed(9)]);
    assert!(matches!(Launch::new("true", 0).run(), Err(LaunchError::Ranks { ranks: 0, .. })));
}

#[test]
fn variable_table_lists_every_variable() {
    let mut folders: Vec<_> =
        ["src", "launch/src", "network/src", "tcp/src", "verbs/src", "shm-loopback/src", "windows/src", "locks/src"]
            .map(|name| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name))
            .into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.ends_with("variables/renamed.rs") {
                // Former names are in no table.
            } else if let Ok(text) = std::fs::read_to_string(&entry) {
                let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
                found.extend(
                    words.filter(|word| word.len() > "TRANSOM_".len() && !word.ends_with('_')).map(str::to_owned),
                );
            }
        }
    }
    for name in found.iter().filter(|word| word.starts_with("TRANSOM_")) {
        let of_verbs = name.starts_with("TRANSOM_VERBS_");
        assert!(
            TABLE.iter().any(|row| row.name == name) != (of_verbs && !cfg!(feature = "verbs")),
            "{name}: its row in the table does not fit the feature `verbs`"
        );
    }
    let set_by_launcher: Vec<_> =
        TABLE.iter().filter(|row| row.set_by == SetBy::Launcher).map(|row| row.name).collect();
    assert!(transom_shm_loopback::Invitation::VARIABLES.iter().all(|name| set_by_launcher.contains(name)));
}

#[test]
fn info_prints_all_sections_and_variables() {
    let mut wrong = command(&["info"]);
    wrong
        .env("TRANSOM_GRACE", "soon")
        .env("TRANSOM_GARCE", "1")
        .env("TRANSOM_LOG", "debg")
        .env("TRANSOM_SPIN_US", "20us");
    wrong.env("TRANSOM_MESSAGES", "window=1").env("TRANSOM_FABRIC", "vebs").env("TRANSOM_PROGRESS", "threads");
    wrong.env("TRANSOM_COLLECTIVES", "reduce=fast");
    let ended = Call::start(&mut wrong).end();
    let text = String::from_utf8(ended.stdout).unwrap();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    for said in [
        "  shm-loopback  available",
        "  verbs ",
        "  tcp           available: ",
        "32767",
        "open files",
        "cores",
        "memory",
        "  TRANSOM_GARCE\n",
    ] {
        assert!(text.contains(said), "no {said} in\n{text}");
    }
    assert!(TABLE.iter().all(|row| text.contains(row.name) && text.contains(row.meaning)));
    for (name, said) in [
        ("TRANSOM_GRACE", "= soon (not a number of seconds)"),
        ("TRANSOM_LOG", "= debg (`debg` is neither a level nor crate=level)"),
        ("TRANSOM_SPIN_US", "= 20us (not a number of microseconds)"),
        ("TRANSOM_MESSAGES", "= window=1 (window is 1, expected 2 to 1024)"),
        ("TRANSOM_FABRIC", "= vebs (no such provider)"),
        ("TRANSOM_PROGRESS", "= threads (neither `calls` nor `thread`)"),
        ("TRANSOM_SSH", "not set; ssh -oBatchMode=yes -oServerAliveInterval=5 -oControlMaster=no"),
    ] {
        // All values of a section begin in one column, behind the longest name.
        let longest = TABLE.iter().filter(|row| row.set_by == SetBy::User).map(|row| row.name.len()).max().unwrap();
        assert!(text.contains(&format!("\n  {name:<longest$}  {said}\n")), "{name} in\n{text}");
    }
    let rules = "= reduce=fast (line 1, column 8: ";
    assert!(text.contains(rules), "no {rules} in\n{text}");
    let memory: Vec<_> = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten().collect();
    assert!(!memory.iter().any(|entry| entry.file_name().to_string_lossy().contains("transom")), "{memory:?}");
}
