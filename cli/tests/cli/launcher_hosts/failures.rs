//! Ends of a job on hosts: failing ranks, signals, hosts that cannot be reached or send malformed records, slow
//! readers.

use super::*;
use std::os::unix::fs::MetadataExt;

/// Makes a rank wait until all have started: ranks on a host that is not yet reached are given up when one fails.
const ALL: &str = "echo >$RUST_TEST_MARK/$TRANSOM_RANK; rank=0; while [ $rank -lt $TRANSOM_SIZE ]; do \
                   [ -e $RUST_TEST_MARK/$rank ] && rank=$((rank + 1)) || sleep 0.02; done; ";

fn after_start(hosts: &str, ranks: &str, then: &str) -> Ended {
    script(hosts, ranks, &(ALL.to_owned() + then))
}

#[test]
fn first_failure_is_named_and_ends_other_ranks() {
    let ended = after_start("a,b", "3", "[ $TRANSOM_RANK = 1 ] && exit 3; exec sleep 1000");
    let others = "transom: ranks 0, 2 had not ended 300ms after the first failure; sent SIGTERM (TRANSOM_GRACE)\n";
    assert_eq!((ended.code, ended.stderr), (Some(3), format!("transom: rank 1 exited with status 3\n{others}")));
    let ended = after_start("a,b", "3", "[ $TRANSOM_RANK = 2 ] && kill -KILL $$; exec sleep 1000");
    let others = others.replace("0, 2", "0, 1");
    assert_eq!(
        (ended.code, ended.stderr),
        (Some(137), format!("transom: rank 2 was killed by signal 9 (SIGKILL)\n{others}"))
    );
    let ended = script("a", "1", "echo out; echo err >&2; exit 4");
    assert_eq!(ended.lines, ["out"]);
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(4), "err\ntransom: rank 0 exited with status 4\n"));
}

#[test]
fn sigterm_comes_first_and_can_be_handled() {
    let polite = "[ $TRANSOM_RANK = 0 ] && exit 7; while :; do sleep 0.05; done";
    let ended = script("a,b", "2", &format!("trap 'echo told; exit 0' TERM; {ALL}{polite}"));
    assert_eq!((ended.code, ended.lines.as_slice()), (Some(7), &["told".to_owned()][..]), "{ended:?}");
    let ended = script("a,b", "2", "[ $TRANSOM_RANK = 0 ] && exit 7; trap '' TERM; while :; do sleep 0.1; done");
    assert_eq!(ended.code, Some(7), "{ended:?}");
}

#[test]
fn end_of_the_launcher_ends_all_ranks() {
    for signal in [Signal::INT, Signal::TERM] {
        let mut call = Call::start(&["a,b", "-n", "3", "sh", "-c", DEAF]);
        call.ready(3);
        call.signal(signal);
        assert_eq!(call.end().code, Some(128 + signal.as_raw()));
    }
    // A launcher that is killed ends its ranks, too.
    let mut call = Call::start(&["a,b", "-n", "3", "sh", "-c", DEAF]);
    call.ready(3);
    call.signal(Signal::KILL);
    assert_eq!(call.end().code, None);
}

/// The launcher's own core time, in clock ticks.
fn ticks(process: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// All ranks have ended, and their output is not read: the launcher sleeps.
#[test]
fn launcher_sleeps_while_output_is_unread() {
    let call = Call::start(&["a,b", "-n", "2", "sh", "-c", "yes a line | head -n 60000"]);
    std::thread::sleep(Duration::from_secs(2));
    let before = ticks(&call.child);
    std::thread::sleep(Duration::from_secs(1));
    let spent = ticks(&call.child) - before;
    let ended = call.end();
    assert_eq!((ended.code, ended.lines.len(), ended.stderr.as_str()), (Some(0), 120_000, ""));
    assert!(spent < 20, "used {spent} ticks (10 ms) of processor time in one second of waiting");
}

#[test]
fn stalled_reader_does_not_block_launcher_exit() {
    for by in [Signal::TERM, Signal::INT] {
        let mut call = Call::start(&["a,b", "-n", "2", "sh", "-c", "trap '' TERM; while :; do echo ready; done"]);
        call.ready(1);
        std::thread::sleep(Duration::from_secs(1)); // all pipes are full now
        let unread = call.child.stdout.take();
        call.signal(by);
        if by == Signal::INT {
            std::thread::sleep(Duration::from_millis(100));
            call.signal(by);
        }
        assert_eq!(call.end().code, Some(128 + by.as_raw()));
        drop(unread);
    }
}

/// A host sends a malformed record as its connection is lost, while its ranks run.
#[test]
fn malformed_record_ends_the_ranks_of_its_host() {
    let folder = TempDir::new().unwrap();
    let ssh = "#!/bin/sh\nexec 3<&0\nsh -c \"$2\" <&3 3<&- &\nsleep 1\necho ssh to $1 failed\nexec sleep 1000\n";
    let ssh = file(&folder, "ssh", ssh, 0o755);
    let ended = Call::start_with(&["a", "-n", "1", "sh", "-c", "echo one; sleep 1000"], |command| {
        command.env("TRANSOM_SSH", &ssh);
    })
    .end();
    assert_eq!((ended.code, ended.lines), (Some(255), vec!["one".to_owned()]), "{}", ended.stderr);
    let said = "transom: host a: it sent \"ssh to a failed\", which is not a record; its ranks are being ended";
    assert!(ended.stderr.lines().any(|line| line == said), "{}", ended.stderr);
}

/// Files are limited to 4 KiB there, as on a full disk. Output passes through files where there is no agent.
#[test]
fn output_beyond_host_disk_space_ends_its_rank() {
    let write = "head -c 20000 /dev/zero | tr '\\0' x; [ $TRANSOM_SIZE = 1 ] || exec sleep 1000";
    for (hosts, ranks) in [("small", "1"), ("a,small", "2")] {
        let args = [hosts, "-n", ranks, "--grace", "0.3", "sh", "-c", write];
        let ended = Call::start_with(&args, |command| _ = command.env("TRANSOM_AGENT", "off")).end();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        let said =
            format!("transom: the output of rank {} is lost: host small cannot", ranks.parse::<u8>().unwrap() - 1);
        assert!(ended.stderr.starts_with(&said), "{ended:?}");
    }
}

/// Any start of a process may fail: the first, one for a rank, and one for later output.
#[test]
fn failed_process_start_on_a_host_ends_its_ranks() {
    if !rustix::process::getuid().is_root() {
        // The limit is for all processes of a user, so the test needs a user without other processes.
        let said = "\n*** NOT RUN: this test needs root ***\n";
        return std::io::stderr().write_all(said.as_bytes()).unwrap();
    }
    let folders = || {
        let all = std::fs::read_dir("/dev/shm")
            .unwrap()
            .flatten()
            .filter(|entry| entry.metadata().is_ok_and(|of| of.uid() == 54321));
        all.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let by_script = [20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 25, 30, 34].map(|limit| ("off", limit));
    let by_agent = (1..8).map(|limit| (env!("CARGO_BIN_EXE_transom"), limit));
    for (agent, limit) in by_script.into_iter().chain(by_agent) {
        let call =
            Call::start_with(&["few", "-n", "6", "sh", "-c", "sleep 0.5; echo line; exec sleep 1000"], |command| {
                command.env("LIMIT", limit.to_string()).env("TRANSOM_AGENT", agent).current_dir("/");
            });
        let ended = call.end();
        assert!(ended.code != Some(0) && !ended.stderr.is_empty(), "{agent} {limit}: {ended:?}");
        assert_eq!(folders(), Vec::<PathBuf>::new(), "{agent} {limit}: {ended:?}");
    }
}

#[test]
fn cut_connection_ends_the_ranks_of_its_host() {
    let folder = TempDir::new().unwrap();
    let cut = format!("{DEAF} 3>&-");
    let mut call = Call::start_with(&["a,b", "-n", "2", "--grace", "0.3", "sh", "-c", &cut], |command| {
        // A process in between, as `ssh` is; its death leaves the other side alone with a closed pipe.
        let between = "#!/bin/sh\nmkfifo $0.$$; exec 4<&0; cat <&4 >$0.$$ & echo $! >>$0.pids\n\
                       exec sh -c \"$2\" <$0.$$ 4<&-\n";
        command.env("TRANSOM_SSH", file(&folder, "between", between, 0o755));
    });
    call.ready(2);
    let pids = std::fs::read_to_string(folder.path().join("between.pids")).unwrap();
    let pid = Pid::from_raw(pids.lines().next().unwrap().parse().unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let ended = call.end();
    assert_eq!(ended.code, Some(137), "{ended:?}");
}

/// Its `ssh` is a script that has started a process that holds the pipes.
#[test]
fn silent_host_does_not_block_launcher_exit() {
    for signal in [Signal::TERM, Signal::INT] {
        let call = Call::start(&["mute", "-n", "2", "true"]);
        call.there();
        call.signal(signal);
        let ended = call.end();
        assert_eq!(ended.code, Some(128 + signal.as_raw()), "{ended:?}");
    }
}

#[test]
fn unreachable_hosts_are_named() {
    for (hosts, ssh, said) in [
        (
            "a,unreachable",
            None,
            "rank 1: host unreachable: it cannot be reached (exit status: 255): ssh: no route to unreachable",
        ),
        ("closed", None, "host closed: it cannot be reached (it closed its stdout and does not end)"),
        ("a", Some("./no-such-ssh"), "rank 0: host a: cannot start ./no-such-ssh"),
        ("a", Some("true"), "host a: it cannot be reached"),
        ("a", Some("yes"), "printed more than 1 MiB"),
    ] {
        let call = Call::start_with(&[hosts, "-n", "2", "sleep", "1000"], |command| {
            ssh.map(|ssh| command.env("TRANSOM_SSH", ssh));
        });
        let ended = call.end();
        assert_eq!(ended.code, Some(1));
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
    let ended = run(&["a", "-n", "1", "no-such-program"]);
    assert_eq!(ended.code, Some(127), "{ended:?}");
    assert!(ended.stderr.contains("transom: cannot start `no-such-program` on host "), "{ended:?}");
    for (hosts, said) in [
        ("a:1,b:2", "4 ranks do not fit the 3 places of the hosts; give more"),
        ("a,", "the name of a host is missing"),
        ("-x", "--hosts"),
    ] {
        let ended = run(&[hosts, "-n", "4", "true"]);
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
}

#[test]
fn signal_while_connecting_to_hosts_ends_the_job() {
    // One host does not answer. The other answers, and then reads none of much output.
    for (host, signal, much) in
        [("silent", Signal::TERM, 1), ("silent", Signal::INT, 1), ("full", Signal::TERM, 100_000)]
    {
        let call = Call::start(&[host, "-n", "2", "echo", &"x".repeat(much)]);
        call.there();
        call.signal(signal);
        let ended = call.end();
        assert_eq!(ended.code, Some(128 + signal.as_raw()), "{host}: {ended:?}");
        assert!(ended.stderr.contains("before all hosts were reached"), "{host}: {ended:?}");
    }
}
