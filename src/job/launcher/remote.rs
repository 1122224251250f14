//! Ranks on other hosts: one `ssh` for each. What runs there needs `sh`, `setsid` and the program, no transom.
//!
//! The command that `ssh` carries only says that it is there and reads one line from its stdin; that line has all else,
//! the secret too, so nothing of it is seen in a list of processes. The connection then is the way by which signals
//! come; when it ends, whatever ended it, the rank ends, and what it started in its session. What left that session is
//! not found any more, and `ssh` stays while it holds the rank's stdout or stderr.

use super::signals::Signals;
use super::{Launch, LaunchError};
use crate::job::variables::{SetBy, TABLE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// What is said when the other side is there.
const READY: &[u8] = b"transom: ready";
const ASK: &str = "exec sh -c 'echo transom: ready; IFS= read -r line && eval \"$line\"'";
const SSH: &str = "ssh -oBatchMode=yes -oServerAliveInterval=5";
/// More that are about to log in at once are turned away by many hosts.
const AT_ONCE: usize = 8;
/// How long an `ssh` that says no more may take to end.
const END_WITHIN: Duration = Duration::from_secs(1);
/// How long logging in may take.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// What a login may print before that.
const MOST_CHATTER: usize = 1 << 20;
/// What goes to the other hosts of this process's environment, by the beginning of the name; and what transom reads.
const CARRIED: [&str; 3] = ["RUST_", "OMP_", "LD_LIBRARY_PATH"];

/// Runs a line on a host, without a terminal.
fn ssh(host: &str) -> Command {
    let own = rustix::system::uname();
    let here = host == "localhost" || own.nodename().to_bytes() == host.as_bytes();
    let words = match std::env::var("TRANSOM_SSH") {
        Ok(words) if !words.trim().is_empty() => words,
        _ if here => {
            let mut command = Command::new("sh");
            command.args(["-c", ASK]);
            return command;
        }
        _ => SSH.to_owned(),
    };
    let mut words = words.split_ascii_whitespace();
    let mut command = Command::new(words.next().unwrap_or("ssh"));
    command.args(words).args([host, ASK]);
    command
}

/// Starts a rank on each of the hosts named, with the variables that it is given, all before the deadline. None is left
/// running after an error.
pub(super) fn start(
    launch: &Launch,
    hosts: &[&str],
    variables: impl Fn(Rank) -> Vec<(&'static str, String)>,
    mut signals: Option<&mut Signals>,
    deadline: Option<Instant>,
) -> Result<Vec<Child>, LaunchError> {
    let folder =
        std::env::current_dir().map_err(|source| LaunchError::System { what: "finding this folder", source })?;
    let mut ready: Vec<Option<Waiting>> = hosts.iter().map(|_| None).collect();
    let (mut started, mut waiting) = (0, Vec::<Waiting>::new());
    while started < hosts.len() || !waiting.is_empty() {
        while let Some(host) = hosts.get(started) {
            if waiting.iter().filter(|other| other.host == *host).count() >= AT_ONCE {
                break;
            }
            let begun = Waiting::begin(started, host);
            waiting.push(begun.map_err(|source| unreachable(started, host, source.to_string()))?);
            started += 1;
        }
        if let Some(signal) = sleep(&waiting, &mut signals, deadline) {
            return Err(LaunchError::Interrupted { signal });
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Err(LaunchError::Deadline);
        }
        for mut other in std::mem::take(&mut waiting) {
            let rank = other.rank;
            let line = || line(launch, folder.as_os_str(), variables(rank));
            match other.step(line) {
                Ok(false) => waiting.push(other),
                Ok(true) => {
                    tracing::debug!(rank, host = other.host, "rank started");
                    ready[rank] = Some(other);
                }
                Err(why) => return Err(unreachable(rank, &other.host, why)),
            }
        }
    }
    Ok(ready.into_iter().flatten().filter_map(Waiting::into_child).collect())
}

/// Passes a signal on to the rank at the other end, and to what it has started.
pub(super) fn signal(child: &mut Child, signal: Signal) {
    let name = if signal == Signal::KILL { "KILL" } else { "TERM" };
    // A few bytes of a pipe that nobody fills; if nobody reads it, the rank is gone.
    let _ = child.stdin.as_mut().map(|control| control.write_all(format!("{name}\n").as_bytes()));
}

fn unreachable(rank: Rank, host: &str, why: String) -> LaunchError {
    LaunchError::Host { rank, host: host.to_owned(), why }
}

/// A rank that has not been told all on its host. Killed when it is dropped.
struct Waiting {
    rank: Rank,
    host: String,
    child: Option<Child>,
    received: Vec<u8>,
    /// What it is still to be told, once its host has said that it is there.
    unsent: Option<Vec<u8>>,
    until: Instant,
}

impl Waiting {
    fn begin(rank: Rank, host: &str) -> io::Result<Self> {
        let mut command = ssh(host);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A terminal's Ctrl-C is for the launcher, which passes it on.
        command.process_group(0);
        let launcher = getpid();
        let die_with_launcher = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // A launcher that died before the call above sends nothing.
            if getppid() == Some(launcher) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
        };
        // SAFETY: between fork and exec it makes two system calls and nothing else: it does not allocate, lock, or
        // touch what another thread may have been changing.
        unsafe { command.pre_exec(die_with_launcher) };
        let child = command.spawn().map_err(|source| {
            let program = command.get_program().display();
            io::Error::new(source.kind(), format!("cannot start {program}: {source}"))
        })?;
        let (host, until) = (host.to_owned(), Instant::now() + READY_WITHIN);
        Ok(Waiting { rank, host, child: Some(child), received: Vec::new(), unsent: None, until })
    }

    fn child(&self) -> &Child {
        self.child.as_ref().expect("it is there until it is taken")
    }

    /// Reads what is there, and tells the line once the other side is; whether all of it has been told.
    fn step(&mut self, line: impl FnOnce() -> io::Result<Vec<u8>>) -> Result<bool, String> {
        if self.unsent.is_none() && self.is_there()? {
            self.unsent = Some(line().map_err(|error| error.to_string())?);
        }
        if self.unsent.is_some() && self.tell().map_err(|error| error.to_string())? {
            return Ok(true);
        }
        if Instant::now() >= self.until {
            return Err(format!("no answer within {} seconds{}", READY_WITHIN.as_secs(), self.complaint()));
        }
        Ok(false)
    }

    fn is_there(&mut self) -> Result<bool, String> {
        let stdout = self.child.as_mut().and_then(|child| child.stdout.as_mut()).ok_or("no pipe")?;
        if readable(stdout) {
            let mut chunk = [0; 4096];
            match stdout.read(&mut chunk) {
                Ok(0) => return Err(self.last_words()),
                Ok(read) => self.received.extend_from_slice(&chunk[..read]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // Nothing comes after it before we answer.
        if self.received.split(|byte| *byte == b'\n').any(|line| line == READY) && self.received.ends_with(b"\n") {
            return Ok(true);
        }
        if self.received.len() > MOST_CHATTER {
            return Err("it prints without end when one logs in".into());
        }
        Ok(false)
    }

    /// Tells as much as goes without waiting; whether that was all.
    fn tell(&mut self) -> io::Result<bool> {
        let (control, unsent) = (self.child.as_mut().and_then(|child| child.stdin.as_mut()), self.unsent.as_mut());
        let (control, unsent) = control.zip(unsent).ok_or_else(|| io::Error::other("no pipe"))?;
        rustix::io::ioctl_fionbio(&*control, true)?;
        while !unsent.is_empty() {
            match control.write(unsent) {
                Ok(written) => drop(unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Why it ended; or that it has not, although it says no more.
    fn last_words(&mut self) -> String {
        let until = Instant::now() + END_WITHIN;
        let status = loop {
            let status = self.child.as_mut().map(Child::try_wait);
            match status {
                Some(Ok(None)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                Some(Ok(Some(status))) => break status.to_string(),
                // Killed when this is dropped.
                _ => break "it closed its stdout and does not end".to_owned(),
            }
        };
        format!("it cannot be reached ({status}){}", self.complaint())
    }

    /// What is on stderr.
    fn complaint(&mut self) -> String {
        let Some(stderr) = self.child.as_mut().and_then(|child| child.stderr.as_mut()) else { return String::new() };
        let mut chunk = [0; 2048];
        let read = if readable(stderr) { stderr.read(&mut chunk).unwrap_or(0) } else { 0 };
        let said = String::from_utf8_lossy(&chunk[..read]).trim().replace(['\r', '\n'], " ");
        if said.is_empty() { said } else { format!(": {said}") }
    }

    fn into_child(mut self) -> Option<Child> {
        self.child.take()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn readable(pipe: &impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(pipe, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Until something is to be read or can be told, or a while has passed; a signal that asks for the end, if one came.
fn sleep(waiting: &[Waiting], signals: &mut Option<&mut Signals>, deadline: Option<Instant>) -> Option<i32> {
    let mut fds: Vec<PollFd<'_>> = Vec::new();
    fds.extend(waiting.iter().filter_map(|other| match &other.unsent {
        None => Some(PollFd::new(other.child().stdout.as_ref()?, PollFlags::IN)),
        Some(_) => Some(PollFd::new(other.child().stdin.as_ref()?, PollFlags::OUT)),
    }));
    fds.extend(signals.iter().map(|signals| PollFd::from_borrowed_fd(signals.fd(), PollFlags::IN)));
    let left = deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
    let _ = poll(&mut fds, Timespec::try_from(left.min(Duration::from_secs(1))).ok().as_ref());
    drop(fds);
    signals.as_mut().and_then(|signals| signals.pending().next())
}

/// What the other side is to do, in one line.
fn line(launch: &Launch, folder: &OsStr, variables: Vec<(&'static str, String)>) -> io::Result<Vec<u8>> {
    // By the host's own PATH, which the rank's need not hold.
    let mut line = Vec::from(b"t=$(command -v setsid || echo setsid); nl=$(printf '\\nx'); nl=${nl%x}; cd ".as_slice());
    quote(&mut line, folder);
    line.extend_from_slice(b" || exit 126; unset TRANSOM_SHM; export");
    let ours = |name: &str| {
        let read = TABLE.iter().any(|row| row.set_by == SetBy::User && row.name == name && name != "TRANSOM_SSH");
        read || CARRIED.iter().any(|carried| name.starts_with(carried))
    };
    let carried = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours));
    let told = variables.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    for (name, value) in carried.chain(launch.env.iter().cloned()).chain(told) {
        let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
        if name.is_empty() || !name.as_bytes().iter().all(word) || name.as_bytes()[0].is_ascii_digit() {
            let why = format!("a variable of the name {name:?} cannot be given to a rank on another host");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        line.push(b' ');
        line.extend_from_slice(name.as_bytes());
        line.push(b'=');
        quote(&mut line, &value);
    }
    // What is here by PATH is there too, if the hosts are alike.
    let given = launch.env.iter().any(|(name, _)| name == "PATH");
    if let Some(path) = std::env::var_os("PATH").filter(|_| !given) {
        line.extend_from_slice(b" PATH=\"$PATH\":");
        quote(&mut line, &path);
    }
    // Whence this host was reached, this host can reach back.
    line.extend_from_slice(
        b"; c=${SSH_CONNECTION%% *}; case $c in *%*) c=;; *:*) c=[$c];; esac; \
          if [ -n \"$c\" ]; then TRANSOM_HUB=\"$c:${TRANSOM_HUB##*:},$TRANSOM_HUB\"; fi; set --",
    );
    for word in std::iter::once(launch.program.as_os_str()).chain(launch.args.iter().map(OsString::as_os_str)) {
        line.push(b' ');
        quote(&mut line, word);
    }
    // The rank in a session of its own; beside it who listens for signals, and for the end.
    line.extend_from_slice(
        b"; exec 3<&0 </dev/null; \"$t\" \"$@\" 3<&- & p=$!; \
          k() { kill -\"$1\" -\"$p\" || kill -\"$1\" \"$p\"; }; \
          (while IFS= read -r s; do k \"$s\"; done; k KILL) <&3 >/dev/null 2>&1 & w=$!; exec 3<&- 2>/dev/null; \
          wait \"$p\"; e=$?; kill -KILL \"$w\"; kill -KILL -\"$p\"; exit \"$e\"\n",
    );
    if line.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in an argument or a variable"));
    }
    Ok(line)
}

/// A word as `sh` reads it back, without a newline.
fn quote(line: &mut Vec<u8>, word: &OsStr) {
    line.push(b'\'');
    for byte in OsString::from(word).into_vec() {
        match byte {
            b'\'' => line.extend_from_slice(b"'\\''"),
            b'\n' => line.extend_from_slice(b"'\"$nl\"'"),
            byte => line.push(byte),
        }
    }
    line.push(b'\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_word_comes_through_a_shell() {
        for word in ["", "a b", "it's", "$HOME `id` \"x\" \\ ! * ;", "two\nlines\n", "ä\u{1f980}", "'\n'", "-n"] {
            let mut line = Vec::from(b"nl=$(printf '\\nx'); nl=${nl%x}; printf '%s' ".as_slice());
            quote(&mut line, word.as_ref());
            assert!(!line.contains(&b'\n'));
            let said = Command::new("sh").args(["-c", std::str::from_utf8(&line).unwrap()]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word);
        }
    }

    #[test]
    fn what_no_shell_can_be_told_is_refused() {
        let line = |launch: Launch| line(&launch, "/".as_ref(), Vec::new());
        assert!(line(Launch::new("true", 1)).is_ok());
        for name in ["", "A B", "A;id", "1A", "ä"] {
            assert!(line(Launch::new("true", 1).env(name, "x")).is_err(), "{name}");
        }
        assert!(line(Launch::new("true", 1).args(["a\0b"])).is_err());
    }
}
