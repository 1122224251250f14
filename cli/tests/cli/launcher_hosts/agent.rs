//! The agent of a host: `transom` starts the ranks there, in two processes. Where it is not installed, or on request, a
//! shell script does.

use super::*;

/// Parent and process group of a process.
fn parent_and_group(process: &str) -> Option<(String, String)> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit(')').next()?.split_whitespace().skip(1).map(str::to_owned);
    Some((fields.next()?, fields.next()?))
}

/// The processes of a group.
fn members(group: &str) -> Vec<String> {
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
    all.filter(|process| parent_and_group(process).is_some_and(|(_, of)| of == group)).collect()
}

/// A call whose hosts have an agent.
fn with_agent(args: &[&str]) -> Call {
    Call::start_with(args, |command| _ = command.env_remove("TRANSOM_AGENT").stdin(Stdio::piped()))
}

/// Reads a line of each rank: its number, and the process that started it. Returns the latter by rank.
fn parents(call: &mut Call, ranks: usize) -> Vec<String> {
    let mut lines = BufReader::new(call.child.stdout.as_mut().unwrap()).lines();
    let mut lines: Vec<_> = (0..ranks).map(|_| lines.next().unwrap().unwrap()).collect();
    lines.sort();
    lines.iter().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
}

#[test]
fn host_has_two_processes_for_all_its_ranks() {
    let mut call = with_agent(&["a,b", "-n", "9", "sh", "-c", "echo $TRANSOM_RANK $PPID; exec sleep 1000"]);
    let agents = parents(&mut call, 9);
    assert!(agents[..5].iter().all(|agent| *agent == agents[0]), "{agents:?}");
    assert!(agents[5..].iter().all(|agent| *agent == agents[8]), "{agents:?}");
    for agent in [&agents[0], &agents[8]] {
        let (guard, group) = parent_and_group(agent).unwrap();
        let (mut found, mut expected) = (members(&group), vec![agent.clone(), guard]);
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }
    call.signal(Signal::TERM);
    assert_eq!(call.end().code, Some(143));
}

/// Connections of this machine to the job's hub, as a rank sees them.
fn connections_to_hub() -> usize {
    let hub = std::env::var("TRANSOM_HUB").unwrap();
    let port: u16 = hub.rsplit(':').next().unwrap().parse().unwrap();
    let is_to_hub = |line: &str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[2].ends_with(&format!(":{port:04X}")) && fields[3] == "01"
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines().skip(1)).filter(|line| is_to_hub(line)).count()
}

#[test]
fn ranks_of_a_host_share_its_connection_to_the_hub() {
    let name = "ranks_of_a_host_share_its_connection_to_the_hub";
    if std::env::var_os(ROLE).is_some() {
        let world = transom::init().unwrap();
        world.barrier().unwrap();
        if world.rank() == 0 {
            println!("connections: {}", connections_to_hub());
        }
        return world.barrier().unwrap();
    }
    let program = copy(name);
    let args = [&["a,b", "-n", "6"][..], &program.each_ref().map(String::as_str)].concat();
    for (agent, connections) in [(env!("CARGO_BIN_EXE_transom"), 2), ("off", 6)] {
        let ended = Call::start_with(&args, |command| _ = command.env(ROLE, "rank").env("TRANSOM_AGENT", agent)).end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let said = format!("connections: {connections}");
        assert!(ended.lines.iter().any(|line| line.contains(&said)), "{agent}: {ended:?}");
    }
}

/// The agent runs on, and tells the hub at once.
#[test]
fn dead_rank_beside_a_living_one_is_named() {
    let name = "dead_rank_beside_a_living_one_is_named";
    if std::env::var_os(ROLE).is_some() {
        let world = transom::init().unwrap();
        if world.rank() == 2 {
            kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
        }
        let line = format!("told: {}\n", world.barrier().unwrap_err());
        return std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
    let program = copy(name);
    let args = [&["a,b", "-n", "4"][..], &program.each_ref().map(String::as_str)].concat();
    let ended = Call::start_with(&args, |command| _ = command.env(ROLE, "rank").env_remove("TRANSOM_AGENT")).end();
    let told: Vec<_> = ended.lines.iter().filter(|line| line.contains("told: ")).collect();
    assert_eq!(told.len(), 3, "{ended:?}");
    assert!(told.iter().all(|told| told.contains("rank 2")), "{ended:?}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum To {
    Agent,
    Guard,
}

/// The job ends after these signals to the agent of host a and to its guard, and nothing is left: neither what a rank has
/// started nor, if the agent alone is lost, what has left the rank's session. A message names the host and says how the
/// first of these processes was lost, unless `what` is `None`: the process that would report it was stopped.
fn ends(signals: &[(To, Signal)], what: Option<&str>) {
    let lost = signals[0].0;
    let is_agent_alone = lost == To::Agent && signals.len() == 1;
    let stray = if is_agent_alone { "setsid sleep 1000 >/dev/null 2>&1 & " } else { "" };
    let script = format!("sleep 1000 & {stray}echo $TRANSOM_RANK $PPID; exec sleep 1000");
    let mut call = with_agent(&["a,b", "-n", "3", "--grace", "0", "sh", "-c", &script]);
    let agent = parents(&mut call, 3).swap_remove(0);
    let guard = parent_and_group(&agent).unwrap().0;
    let process = |to| if to == To::Agent { &agent } else { &guard };
    for (to, signal) in signals {
        kill_process(Pid::from_raw(process(*to).parse().unwrap()).unwrap(), *signal).unwrap();
    }
    let ended = call.end();
    assert!(ended.code.is_some_and(|code| code != 0), "{signals:?} {ended:?}");
    let Some(what) = what else { return };
    let said = format!(
        "transom: host a: its ranks are ended: a process of the launcher there was {what} (process {})\n",
        process(lost)
    );
    assert!(ended.stderr.contains(&said), "{signals:?} {ended:?}");
}

#[test]
fn killed_or_stopped_agent_ends_the_job() {
    let cases: [(&[(To, Signal)], _); 7] = [
        (&[(To::Agent, Signal::KILL)], Some("killed")),
        (&[(To::Agent, Signal::STOP)], Some("stopped")),
        (&[(To::Guard, Signal::KILL)], Some("killed")),
        (&[(To::Guard, Signal::STOP)], Some("stopped")),
        // `killall transom` sends these. The guard outlives the agent.
        (&[(To::Agent, Signal::TERM), (To::Guard, Signal::TERM)], Some("killed")),
        // A stopped agent goes on. An agent that is stopped within the milliseconds after its guard's death does not.
        (&[(To::Agent, Signal::STOP), (To::Guard, Signal::KILL)], None),
        // A stopped guard ends nothing.
        (&[(To::Agent, Signal::KILL), (To::Guard, Signal::STOP)], None),
    ];
    std::thread::scope(|scope| cases.iter().for_each(|(signals, what)| drop(scope.spawn(|| ends(signals, *what)))));
}

/// The launcher's reader does not read until the agent has ended, so that records wait.
#[test]
fn lost_guard_is_reported_beside_unread_output() {
    let mut call = with_agent(&["a", "-n", "1", "sh", "-c", "echo 0 $PPID; exec yes"]);
    let agent = parents(&mut call, 1).swap_remove(0);
    let guard = parent_and_group(&agent).unwrap().0;
    // Until the records have no room.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(Pid::from_raw(guard.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    std::thread::sleep(Duration::from_secs(2));
    let ended = call.end();
    assert!(ended.stderr.contains(&format!("was killed (process {guard})")), "{}", ended.stderr);
}

/// A batch system may stop all processes of a job for a while, and continue them one by one.
#[test]
fn agent_stopped_for_a_moment_is_no_failure() {
    let mut call = with_agent(&["a", "-n", "1", "sh", "-c", "echo 0 $PPID; read -r line; echo $line"]);
    let agent = parents(&mut call, 1).swap_remove(0);
    let (guard, _) = parent_and_group(&agent).unwrap();
    for process in [agent, guard] {
        let process = Pid::from_raw(process.parse().unwrap()).unwrap();
        kill_process(process, Signal::STOP).unwrap();
        // One check comes while it is stopped.
        std::thread::sleep(Duration::from_millis(2100));
        kill_process(process, Signal::CONT).unwrap();
    }
    call.child.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    let ended = call.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    assert_eq!(ended.lines, ["go on"]);
}

/// Neither the launcher nor the agent keeps the output: the rank blocks.
#[test]
fn unread_output_blocks_its_rank() {
    let folder = TempDir::new().unwrap();
    let (started, done) = (folder.path().join("started"), folder.path().join("done"));
    let head = format!("echo $$ >{}; exec head -n 5000000", started.display());
    let write = format!("yes a line | sh -c '{head}'; echo >{}", done.display());
    let mut call = with_agent(&["a", "-n", "1", "sh", "-c", &write]);
    // Written by `head`, until it writes no more.
    let written = || {
        let process = std::fs::read_to_string(&started).ok()?;
        let io = std::fs::read_to_string(format!("/proc/{}/io", process.trim())).ok()?;
        io.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok())
    };
    let until = Instant::now() + LIMIT;
    let mut before = None;
    while before.is_none() || before != written() {
        assert!(Instant::now() < until && !done.exists(), "35 MB have been read, or none: {before:?}");
        before = written();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(before < Some(8 << 20), "{before:?} bytes have been read");
    let mut lines = BufReader::new(call.child.stdout.take().unwrap()).lines();
    assert_eq!(lines.by_ref().take(5_000_000).filter(|line| line.as_ref().unwrap() == "a line").count(), 5_000_000);
    assert!(lines.next().is_none() && done.exists());
    assert_eq!(call.end().code, Some(0));
}

/// A process in the rank's group ends with the rank. One in a session of its own goes on, whichever program has started
/// the rank. (Here all hosts are this machine, and `transom run` kills what is left on it; a program that launches does
/// not.)
#[test]
fn process_of_another_session_outlives_its_rank() {
    let name = "process_of_another_session_outlives_its_rank";
    if let Ok(file) = std::env::var(ROLE) {
        let stray = format!("setsid sh -c 'echo >{file}; exec sleep 1000 </dev/null >/dev/null 2>&1' &");
        let script = format!("sleep 1000 & echo $!; {stray} echo $!; until [ -e {file} ]; do sleep 0.02; done");
        let launch =
            Launch::new("sh", 1).hosts("a".parse().unwrap()).args(["-c", &script]).capture(true).deadline(LIMIT / 2);
        let outcome = launch.run().unwrap();
        assert!(outcome.success(), "{outcome}");
        let ids = String::from_utf8_lossy(outcome.output(0)).into_owned();
        let [member, other]: [&str; 2] = ids.lines().collect::<Vec<_>>().try_into().unwrap();
        let runs = |process: &str| !command_line(&Path::new("/proc").join(process)).is_empty();
        let until = Instant::now() + LIMIT;
        while runs(member) {
            assert!(Instant::now() < until, "a process of the rank's group runs on");
        }
        println!("said: {}", runs(other));
        return kill_process(Pid::from_raw(other.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    }
    for agent in [env!("CARGO_BIN_EXE_transom"), "off"] {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("there").display().to_string();
        assert_eq!(said(name, &file, |command| _ = command.env("TRANSOM_AGENT", agent)), "true", "{agent}");
    }
}

/// Hosts with no `transom`, or another program of that name.
#[test]
fn host_without_agent_starts_ranks_by_a_script() {
    for agent in ["off", "/no/such/transom", "/bin/true", "/"] {
        let call =
            Call::start_with(&["a,b", "-n", "3", "-v", "sh", "-c", "echo $TRANSOM_RANK $TRANSOM_HOST"], |command| {
                command.env("TRANSOM_AGENT", agent);
            });
        let ended = call.end();
        assert_eq!((ended.code, &ended.lines[..]), (Some(0), &["0 a".to_owned(), "1 a".into(), "2 b".into()][..]));
        for said in
            ["host a: reached; a shell script starts ranks 0, 1\n", "host b: reached; a shell script starts rank 2\n"]
        {
            assert!(ended.stderr.contains(said), "{agent} {ended:?}");
        }
    }
    let ended =
        Call::start_with(&["a", "-n", "1", "true"], |command| _ = command.env("TRANSOM_AGENT", "transom")).end();
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let said =
        "TRANSOM_AGENT=\"transom\": neither a path from the root nor `off`; expected a path that begins with `/`";
    assert!(ended.stderr.contains(said), "{ended:?}");
}

#[test]
fn agent_refuses_malformed_jobs() {
    for (job, why) in [
        (&b""[..], "the connection ended before it"),
        (b"x\n", "its length is no number up to 256 MiB"),
        (b"268435457\n", "its length is no number up to 256 MiB"),
        (b"123456789012345678901", "its length has more than 20 digits"),
        (b"3\nab", "the connection ended within it"),
        (b"3\nabc", "its last word has no end"),
    ] {
        let mut agent = Command::new(env!("CARGO_BIN_EXE_transom"));
        agent.args(["host-agent", "--host=a"]).env_remove("TRANSOM_LOG");
        agent.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut agent = agent.spawn().unwrap();
        agent.stdin.take().unwrap().write_all(job).unwrap();
        let Output { status, stdout, stderr } = agent.wait_with_output().unwrap();
        let said = format!("transom: the launcher sent a malformed job: {why}\n");
        assert_eq!((status.code(), stdout, String::from_utf8_lossy(&stderr).as_ref()), (Some(1), vec![], &said[..]));
    }
}
