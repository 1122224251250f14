//! `transom run --hosts`: ranks on other hosts. A script replaces `ssh` and runs its command on this machine, in
//! another folder and an almost empty environment, so that two names are two hosts. One test uses the real `sshd`.

mod agent;
mod failures;
mod hub;
mod secrets;

use crate::ranks::full_name;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use transom::{Launch, Op};

const LIMIT: Duration = Duration::from_secs(60);
/// Set for a copy of this program. The name's beginning makes the launcher pass it to other hosts.
const ROLE: &str = "RUST_TEST_ROLE";
/// In the environment of all processes of a call.
const MARK: &str = "RUST_TEST_MARK";

/// A file with this text, in a folder.
fn file(folder: &TempDir, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

/// A call of `transom run --hosts` with the script for `ssh`.
struct Call {
    child: Child,
    mark: String,
    _folder: TempDir,
}

const SCRIPT: &str = "#!/bin/sh
[ $# = 2 ] || exit 99
echo $1 >>$0.calls
[ \"$1\" = loud ] && { i=0; while [ $i -lt 2000 ]; do echo 'a line of fifty bytes, as a login may well print it' >&2; i=$((i + 1)); done; }
[ \"$1\" = slow ] && exec sleep 1000
[ \"$1\" = unreachable ] && { echo \"ssh: no route to $1\" >&2; exit 255; }
[ \"$1\" = closed ] && exec sleep 1000 >&-
[ \"$1\" = full ] && { echo transom: ready; echo >\"$0.there\"; exec sleep 1000; }
[ \"$1\" = silent ] && { echo >\"$0.there\"; exec sleep 1000; }
[ \"$1\" = small ] && ulimit -f 8
[ \"$1\" = mute ] && { echo transom: ready; read -r line; echo transom: script; read -r line; echo >\"$0.there\"; sleep 1000; exit 1; }
[ \"$1\" = chatty ] && printf 'Welcome!\\nnews: none\\n'
[ \"$1\" = titled ] && printf 'a title without a newline'
[ \"$1\" = few ] && {
    exec setpriv --reuid=54321 --regid=54321 --clear-groups prlimit --nproc=$LIMIT \\
        env -i RUST_TEST_MARK=\"$RUST_TEST_MARK\" PATH=/usr/bin:/bin sh -c \"$2\"
}
cd / && exec env -i line=of-the-host RUST_TEST_MARK=\"$RUST_TEST_MARK\" PATH=/usr/bin:/bin sh -c \"$2\"
";

const DEAF: &str =
    "trap '' TERM HUP; (trap '' TERM HUP; sleep 1000; sleep 1000) & echo ready; while :; do sleep 1; done";

impl Call {
    fn start(args: &[&str]) -> Self {
        Self::start_with(args, |_| {})
    }

    fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Self {
        crate::launcher::hear_ignored_signals();
        let folder = TempDir::new().unwrap();
        let ssh = file(&folder, "ssh", SCRIPT, 0o755);
        let mark = folder.path().display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_transom"));
        command
            .args(["run", "--hosts"])
            .args(args)
            .env("TRANSOM_SSH", &ssh)
            .env(MARK, &mark)
            .env("RUST_BACKTRACE", "0");
        command.env_remove("TRANSOM_LOG").env_remove("TRANSOM_GRACE");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        change(&mut command);
        // A process group of its own, as for a shell's job.
        Call { child: command.process_group(0).spawn().unwrap(), mark, _folder: folder }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits until `ranks` ranks have reported that they are ready.
    fn ready(&mut self, ranks: usize) {
        let mut lines = BufReader::new(self.child.stdout.as_mut().unwrap()).lines();
        (0..ranks).for_each(|_| assert_eq!(lines.next().unwrap().unwrap(), "ready"));
    }

    /// Waits until a host is reached, which writes a file then.
    fn there(&self) {
        let (there, until) = (self._folder.path().join("ssh.there"), Instant::now() + LIMIT);
        while !there.exists() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the end, and checks that no process is left.
    fn end(self) -> Ended {
        self.ended_with(|| ()).0
    }

    /// Waits for the end, and calls `look` while the folder of the call still exists.
    fn ended_with<R>(self, look: impl FnOnce() -> R) -> (Ended, R) {
        let Call { child, mark, _folder } = self;
        let pid = Pid::from_child(&child);
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || send.send(child.wait_with_output()));
        let Ok(output) = receive.recv_timeout(LIMIT) else {
            let _ = kill_process(pid, Signal::KILL);
            panic!("the launcher has not ended after {LIMIT:?}");
        };
        nothing_left(&mark);
        let Output { status, stdout, stderr } = output.unwrap();
        let mut lines: Vec<_> = String::from_utf8_lossy(&stdout).lines().map(str::to_owned).collect();
        lines.sort();
        (Ended { code: status.code(), lines, stderr: String::from_utf8_lossy(&stderr).into_owned() }, look())
    }
}

#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    /// Lines of stdout, sorted.
    lines: Vec<String>,
    stderr: String,
}

/// Processes of other hosts end when they learn of it, perhaps a moment later.
fn nothing_left(mark: &str) {
    let until = Instant::now() + LIMIT;
    while !left(mark).is_empty() {
        assert!(Instant::now() < until, "left: {:?}", left(mark));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The command lines of processes that carry a mark.
fn left(mark: &str) -> Vec<String> {
    let mark = format!("{MARK}={mark}\0");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let marked = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    });
    marked.map(|process| command_line(&process.path())).filter(|command| !command.is_empty()).collect()
}

fn command_line(process: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(process.join("cmdline")).unwrap_or_default()).replace('\0', " ")
}

fn run(args: &[&str]) -> Ended {
    Call::start(args).end()
}

fn script(hosts: &str, ranks: &str, script: &str) -> Ended {
    run(&[hosts, "-n", ranks, "--grace", "0.3", "sh", "-c", script])
}

/// The arguments by which a copy of this program runs one test of the calling file.
#[track_caller]
fn copy(name: &str) -> [String; 5] {
    let program = std::env::current_exe().unwrap().display().to_string();
    [program, "--exact".into(), full_name(name), "--nocapture".into(), "--test-threads=1".into()]
}

#[test]
fn ranks_are_placed_on_hosts_and_know_their_host() {
    let tell = "echo rank $TRANSOM_RANK of $TRANSOM_SIZE on $TRANSOM_HOST in $PWD";
    let here = std::env::current_dir().unwrap().display().to_string();
    let expected = |hosts: &[&str]| {
        let size = hosts.len();
        let lines = hosts.iter().enumerate().map(|(rank, host)| format!("rank {rank} of {size} on {host} in {here}"));
        lines.collect::<Vec<_>>()
    };
    for (hosts, ranks, placed) in [
        ("a,b", "4", &["a", "a", "b", "b"][..]),
        ("a,b,chatty", "4", &["a", "a", "b", "chatty"]),
        ("a,titled", "2", &["a", "titled"]),
        ("a:3,b:2", "4", &["a", "a", "a", "b"]),
        ("a,a", "2", &["a", "a#2"]),
    ] {
        let ended = script(hosts, ranks, tell);
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
        assert_eq!(ended.lines, expected(placed));
    }
}

#[test]
fn more_ranks_than_ssh_logins_per_host_start() {
    let ended = script("a,b", "40", "echo $TRANSOM_RANK");
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 40), "{ended:?}");
}

#[test]
fn each_host_gets_one_ssh_connection() {
    let call = Call::start(&["a:20,b:20", "-n", "40", "sh", "-c", "echo $TRANSOM_RANK"]);
    let calls = call._folder.path().join("ssh.calls");
    let (ended, calls) = call.ended_with(|| std::fs::read_to_string(&calls).unwrap());
    assert_eq!((ended.code, ended.lines.len()), (Some(0), 40), "{ended:?}");
    let mut calls: Vec<_> = calls.lines().collect();
    calls.sort();
    assert_eq!(calls, ["a", "b"]);
}

/// The launcher does not wait for a login that writes, nor for a host that does not answer after the job has failed.
#[test]
fn noisy_login_or_slow_host_delays_no_job() {
    let begun = Instant::now();
    let ended = script("loud,a", "2", "echo $TRANSOM_RANK");
    assert_eq!((ended.code, ended.lines.as_slice()), (Some(0), &["0".to_owned(), "1".to_owned()][..]));
    let ended = script("a,slow", "2", "echo out of luck >&2; exit 3");
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert_eq!(ended.stderr, "[0] out of luck\ntransom: rank 0 exited with status 3\n");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn output_over_ssh_keeps_lines_and_bytes() {
    // Many short lines, one that is longer than a record, and bytes that are no text, on each stream of four ranks.
    let write = "letter=$(printf '%b' \\\\14$TRANSOM_RANK); long=$letter; i=0
        while [ $i -lt 18 ]; do long=$long$long; i=$((i + 1)); done
        i=0; while [ $i -lt 300 ]; do echo $letter$letter; echo $letter >&2; i=$((i + 1)); done
        printf '%s\\000\\377\\n' $letter; echo $long; echo $long >&2; printf end >&2";
    let mut call = Call::start(&["a:2,b:2", "-n", "4", "--output-prefix=none", "sh", "-c", write]);
    let (mut out, mut err) = (call.child.stdout.take().unwrap(), call.child.stderr.take().unwrap());
    let read = |pipe: &mut dyn std::io::Read| {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        let mut lines: Vec<_> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        lines.sort();
        lines
    };
    let (out, err) = std::thread::scope(|scope| {
        let out = scope.spawn(|| read(&mut out));
        let err = read(&mut err);
        (out.join().unwrap(), err)
    });
    let expected = |of_rank: &dyn Fn(u8) -> Vec<Vec<u8>>| {
        let mut lines: Vec<_> = (0..4).flat_map(|rank| of_rank(b'`' + rank)).chain([Vec::new()]).collect();
        lines.sort();
        lines
    };
    let of_err = |letter| [vec![vec![letter]; 300], vec![vec![letter; 1 << 18], b"end".to_vec()]].concat();
    let of_out = |letter| [vec![vec![letter; 2]; 300], vec![vec![letter, 0, 255], vec![letter; 1 << 18]]].concat();
    assert!(err == expected(&of_err), "stderr: {} lines", err.len());
    assert!(out == expected(&of_out), "stdout: {} lines", out.len());
    assert_eq!(call.end().code, Some(0));
}

/// The ranks' hub needs a descriptor for each rank.
#[test]
fn open_file_limit_is_raised_or_named() {
    let run = format!("exec {} run --hosts localhost -n 150", env!("CARGO_BIN_EXE_transom"));
    let limited = |limit: &str, what: &str| {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit {limit}; {run} {what}")]).env_remove("TRANSOM_SSH");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let raised = limited("-Sn 128", "sh -c 'ulimit -Sn'");
    assert!(raised.status.success(), "{}", String::from_utf8_lossy(&raised.stderr));
    // The ranks have the limit that their user set.
    assert_eq!(String::from_utf8_lossy(&raised.stdout), "128\n".repeat(150));
    let begun = Instant::now();
    let refused = limited("-n 128", "true");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(126), "{said}");
    assert!(
        said.contains("150 ranks needs") && said.contains("the limit is 128") && said.contains("ulimit -n"),
        "{said}"
    );
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[test]
fn arguments_and_environment_arrive_unchanged() {
    let call = Call::start_with(
        &["a", "-n", "1", "printf", "%s|", "it's", "two\nlines", "$HOME `id` \"\\", "", "-n"],
        |command| _ = command.env("OMP_X", "y"),
    );
    let ended = call.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
    assert_eq!(ended.lines, ["it's|two", "lines|$HOME `id` \"\\||-n|"]);

    let show = "echo \"$OMP_NUM_THREADS-$TRANSOM_LOG-$SOMETHING-$TRANSOM_SHM-$TRANSOM_SSH-\"; cat";
    let call = Call::start_with(&["a", "-n", "1", "sh", "-c", show], |command| {
        command.env("OMP_NUM_THREADS", "3 'or' 4").env("TRANSOM_LOG", "off").env("SOMETHING", "not carried");
    });
    assert_eq!(call.end().lines, ["3 'or' 4-off----"]);
}

/// Runs a copy of this program for one test. Returns the last of its lines that begin with `said: `.
#[track_caller]
fn said(name: &str, role: &str, change: impl FnOnce(&mut Command)) -> String {
    let folder = TempDir::new().unwrap();
    let [program, args @ ..] = copy(name);
    let mut command = Command::new(program);
    command.args(args).env(ROLE, role).env("TRANSOM_SSH", file(&folder, "ssh", SCRIPT, 0o755));
    command.env(MARK, folder.path().display().to_string());
    change(&mut command);
    let Output { stdout, stderr, .. } = command.output().unwrap();
    nothing_left(&folder.path().display().to_string());
    let stdout = String::from_utf8_lossy(&stdout).into_owned();
    let said = stdout.rsplit_once("said: ").and_then(|(_, rest)| rest.lines().next());
    said.unwrap_or_else(|| panic!("{stdout}{}", String::from_utf8_lossy(&stderr))).to_owned()
}

#[test]
fn launch_options_apply_on_hosts() {
    let name = "launch_options_apply_on_hosts";
    let launch = |host: &str| Launch::new("/bin/sh", 1).hosts(host.parse().unwrap()).capture(true);
    match std::env::var(ROLE).as_deref() {
        Ok("path") => {
            let launch = launch("a").args(["-c", "echo said: $PATH"]).env("PATH", "/nowhere");
            std::io::stdout().write_all(launch.run().unwrap().output(0)).unwrap();
        }
        Ok("names") => {
            // The commands that start a rank must have other names than those of programs.
            let names = ["t", "line", "_transom_setsid", "_transom_newline", "_transom_hub", "HOME", "ENV", "LC_ALL"];
            let print = format!("echo said: {}", names.map(|name| format!("$(printenv {name})")).join("-"));
            let launch = launch("a").args(["-c", &print]);
            let launch = names.iter().fold(launch, |launch, name| launch.env(name, format!("my{name}")));
            std::io::stdout().write_all(launch.run().unwrap().output(0)).unwrap();
        }
        Ok("deadline") => {
            let error = launch("silent").deadline(Duration::from_millis(100)).run().unwrap_err();
            println!("said: {error}");
        }
        _ => {
            assert_eq!(said(name, "path", |_| {}), "/nowhere");
            let names = "myt-myline-my_transom_setsid-my_transom_newline-my_transom_hub-myHOME-myENV-myLC_ALL";
            assert_eq!(said(name, "names", |_| {}), names);
            assert_eq!(said(name, "deadline", |_| {}), "the deadline passed before all hosts were reached");
        }
    }
}

#[test]
fn too_many_ranks_are_refused() {
    let name = "too_many_ranks_are_refused";
    if std::env::var_os(ROLE).is_some() {
        return println!("said: {}", transom::init().map(drop).unwrap_err());
    }
    for size in [1 << 15, 1 << 32, usize::MAX] {
        let said = said(name, "rank", |command| {
            command.env("TRANSOM_HUB", "127.0.0.1:9").env("TRANSOM_SECRET", "1,3").env("TRANSOM_HOST", "a");
            command.env("TRANSOM_RANK", "0").env("TRANSOM_SIZE", size.to_string());
        });
        assert!(said.contains(&format!("the launcher reports {size} ranks, but a job has at most 32767")), "{said}");
    }
}

/// Work of every rank, which shows that all are one job.
fn work() {
    let world = transom::init().unwrap();
    let mut window = world.allocate::<u64>(1).unwrap();
    for rank in 0..world.size() {
        window.lock_shared(rank).unwrap().fetch_and_op(0, Op::Sum, 1 + world.rank() as u64).unwrap();
    }
    window.fence().unwrap();
    assert_eq!(window.local().get(0).unwrap(), (1..=world.size() as u64).sum::<u64>());
    // One write, so that it stays one line.
    std::io::stdout().write_all(format!("joined as {} of {}\n", world.rank(), world.size()).as_bytes()).unwrap();
}

fn all_joined(ended: &Ended, ranks: usize) {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    for rank in 0..ranks {
        let joined = format!("joined as {rank} of {ranks}");
        assert!(ended.lines.iter().any(|line| line.ends_with(&joined)), "{ended:?}");
    }
}

#[test]
fn ranks_on_one_remote_host_share_memory() {
    let name = "ranks_on_one_remote_host_share_memory";
    if std::env::var_os(ROLE).is_some() {
        return work();
    }
    for ranks in [1, 2, 3, 4, 8] {
        let program = copy(name);
        let count = ranks.to_string();
        let args = [&["elsewhere", "-n", &count][..], &program.each_ref().map(String::as_str)].concat();
        all_joined(&Call::start_with(&args, |command| _ = command.env(ROLE, "rank")).end(), ranks);
    }
}

/// The ranks meet at the hub, where each waits for all.
#[test]
fn rank_late_in_init_is_reported() {
    let name = "rank_late_in_init_is_reported";
    if std::env::var_os(ROLE).is_some() {
        if std::env::var("TRANSOM_RANK").as_deref() == Ok("1") {
            std::thread::sleep(Duration::from_millis(1500));
        }
        return work();
    }
    let program = copy(name);
    let args = [&["a", "-n", "2", "--output-prefix=none"][..], &program.each_ref().map(String::as_str)].concat();
    let ended =
        Call::start_with(&args, |command| _ = command.env(ROLE, "rank").env("TRANSOM_WAIT_REPORT", "0.3")).end();
    all_joined(&ended, 2);
    let waited: Vec<_> = ended.stderr.lines().filter(|line| line.contains(" has waited ")).collect();
    assert!(waited.len() == 1 && waited[0].starts_with("transom: rank 0 has waited"), "{ended:?}");
    let call = "in a collective call (creating a window, value or team), called at ./tests/cli/launcher_hosts/mod.rs:";
    assert!(waited[0].contains(call), "{ended:?}");
}

/// This machine needs no `ssh`.
#[test]
fn localhost_needs_no_ssh() {
    let call = Call::start_with(&["localhost", "-n", "2", "sh", "-c", "echo $TRANSOM_HOST"], |command| {
        command.env_remove("TRANSOM_SSH");
    });
    let ended = call.end();
    assert_eq!((ended.code, ended.lines), (Some(0), vec!["localhost".to_owned(); 2]));
    // The ssh connection of the user does not come from the hub.
    let call = Call::start_with(&["localhost", "-n", "1", "sh", "-c", "echo $TRANSOM_HUB"], |command| {
        command.env_remove("TRANSOM_SSH").env("SSH_CONNECTION", "192.0.2.7 50000 192.0.2.8 22");
    });
    let ended = call.end();
    assert!(ended.code == Some(0) && !ended.lines[0].contains("192.0.2.7"), "{ended:?}");
}

#[test]
fn hosts_beyond_the_chosen_provider_are_reported() {
    let name = "hosts_beyond_the_chosen_provider_are_reported";
    if std::env::var_os(ROLE).is_some() {
        let line = format!("told: {}\n", transom::init().map(drop).unwrap_err());
        return std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
    let program = copy(name);
    let args = [&["a,b", "-n", "4"][..], &program.each_ref().map(String::as_str)].concat();
    let ended = Call::start_with(&args, |command| _ = command.env(ROLE, "rank").env("TRANSOM_FABRIC", "shm")).end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let told: Vec<_> = ended.lines.iter().filter(|line| line.contains("told:")).collect();
    assert_eq!(told.len(), 4, "{ended:?}");
    assert!(told.iter().all(|told| told.contains("a (ranks 0, 1), b (ranks 2, 3)")), "{ended:?}");
}

#[test]
fn ranks_started_by_installed_ssh_join() {
    let name = "ranks_started_by_installed_ssh_join";
    if std::env::var_os(ROLE).is_some() {
        return work();
    }
    let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|path| Path::new(path).exists());
    let (Some(sshd), true) = (sshd, Path::new("/usr/bin/ssh").exists()) else {
        // Bypasses the capture of a test's output.
        let said = "\n*** NOT RUN: sshd and ssh are not installed here; .ci/install does that ***\n";
        return std::io::stderr().write_all(said.as_bytes()).unwrap();
    };
    let folder = TempDir::new().unwrap();
    let key = |name: &str| {
        let path = folder.path().join(name);
        let made =
            Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&path).status().unwrap();
        assert!(made.success());
        path
    };
    let (host_key, my_key) = (key("host_key"), key("my_key"));
    std::fs::copy(my_key.with_extension("pub"), folder.path().join("authorized_keys")).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = format!(
        "ListenAddress 127.0.0.1:{port}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
         PasswordAuthentication no\nPermitRootLogin yes\nPidFile none\n",
        host_key.display(),
        folder.path().join("authorized_keys").display()
    );
    if rustix::process::getuid().is_root() {
        std::fs::create_dir_all("/run/sshd").unwrap(); // sshd confines itself to this folder
    }
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let mut daemon = Command::new(sshd);
    daemon.args(["-D", "-e", "-f"]).arg(file(&folder, "sshd_config", &config, 0o600));
    let mut daemon = daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
    let until = Instant::now() + LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
    let ssh = format!(
        "ssh -F none -oBatchMode=yes -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR \
         -oIdentitiesOnly=yes -i {} -p {port}",
        my_key.display()
    );
    let with_ssh = |args: &[&str], change: &dyn Fn(&mut Command)| {
        Call::start_with(args, |command| change(command.env("TRANSOM_SSH", &ssh)))
    };
    let program = copy(name);
    let args = [&["127.0.0.1", "-n", "4"][..], &program.each_ref().map(String::as_str)].concat();
    let joined = with_ssh(&args, &|command| _ = command.env(ROLE, "rank")).end();
    let failed = with_ssh(&["127.0.0.1", "-n", "2", "sh", "-c", "exit $((5 * TRANSOM_RANK))"], &|_| {}).end();
    let mut call = with_ssh(&["127.0.0.1", "-n", "2", "sh", "-c", DEAF], &|_| {});
    call.ready(2);
    call.signal(Signal::KILL);
    call.end(); // and nothing is left
    // The default with a user whose ssh connections are shared: the job makes no connection that others would share
    // and lose with it.
    let config = format!(
        "ControlMaster auto\nControlPersist yes\nControlPath {0}/control\nStrictHostKeyChecking no\n\
         UserKnownHostsFile /dev/null\nLogLevel ERROR\nIdentitiesOnly yes\nIdentityFile {0}/my_key\nPort {port}\n",
        folder.path().display()
    );
    let config = file(&folder, "config", &config, 0o600);
    file(&folder, "ssh", &format!("#!/bin/sh\nexec /usr/bin/ssh -F {} \"$@\"\n", config.display()), 0o755);
    let look = format!("test -S {}/control && echo shared || echo its own", folder.path().display());
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let own = with_ssh(&["127.0.0.1", "-n", "1", "sh", "-c", &look], &|command| {
        command.env_remove("TRANSOM_SSH").env("PATH", &path);
    });
    let own = own.end();
    let _ = daemon.kill();
    let _ = daemon.wait();
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    assert_eq!(failed.code, Some(5), "{failed:?}\n{log}");
    assert_eq!(own.lines, ["its own"], "{own:?}\n{log}");
    all_joined(&joined, 4);
}
