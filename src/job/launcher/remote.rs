//! Ranks on other hosts: one `ssh` for each. The host needs `sh`, `setsid` and the program, but no transom.
//!
//! The command that `ssh` gets as an argument only prints [`READY`], reads one line from its stdin and executes it. That
//! line has all else, the secret too, so nothing of it is seen in a list of processes. Afterwards stdin carries signals.
//! When it ends, for whatever reason, the rank and what it started in its session are killed. Processes that left the
//! session are not found, and `ssh` stays while they hold the rank's stdout or stderr.

use super::outcome::LaunchError;
use super::settings::Settings;
use super::signals::Signals;
use crate::job::variables::{SetBy, TABLE, removed_for_ranks};
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

/// What the host prints when it can read the line.
const READY: &[u8] = b"transom: ready";
const ASK: &str = "exec sh -c 'echo transom: ready; IFS= read -r line && eval \"$line\"'";
const SSH: &str = "ssh -oBatchMode=yes -oServerAliveInterval=5";
/// How many may log in to a host at once; many hosts refuse more.
const AT_ONCE: usize = 8;
/// How long an `ssh` that has closed its stdout may take to end.
const END_WITHIN: Duration = Duration::from_secs(1);
/// How long logging in may take.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How many bytes a login may print before [`READY`].
const MOST_CHATTER: usize = 1 << 20;
/// Gives a name to a newline, which `$(..)` would cut off at the end of what is printed.
const NEWLINE: &[u8] = b"_transom_newline=$(printf '\\nx'); _transom_newline=${_transom_newline%x}; ";
/// Variables of this process's environment whose names begin so are set for ranks on other hosts, and those that
/// transom reads,
const CARRIED: [&str; 3] = ["RUST_", "OMP_", "LD_LIBRARY_PATH"];
/// except this, which is for the launcher.
const NOT_CARRIED: &str = "TRANSOM_SSH";

/// The command that executes a line on a host.
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

/// Starts a rank on each of the hosts named, with the variables of that rank, all before the deadline. None is left
/// running after an error.
pub(super) fn start(
    settings: &Settings,
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
            let line = || line(settings, folder.as_os_str(), variables(rank));
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
    // The pipe has room for these few bytes. An error means that `ssh` has ended.
    let _ = child.stdin.as_mut().map(|control| control.write_all(format!("{name}\n").as_bytes()));
}

fn unreachable(rank: Rank, host: &str, why: String) -> LaunchError {
    LaunchError::Host { rank, host: host.to_owned(), why }
}

/// An `ssh` that has not got the whole line. It is killed when this is dropped.
struct Waiting {
    rank: Rank,
    host: String,
    child: Option<Child>,
    received: Vec<u8>,
    /// What is left of the line, once the host is ready to read it.
    unsent: Option<Vec<u8>>,
    until: Instant,
}

impl Waiting {
    fn begin(rank: Rank, host: &str) -> io::Result<Self> {
        let mut command = ssh(host);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The terminal sends SIGINT to the launcher only, which passes it on.
        command.process_group(0);
        let launcher = getpid();
        let die_with_launcher = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // If the launcher died before the call above, no signal comes.
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

    /// Reads what is there, and sends the line once the host is ready; whether all of it is sent.
    fn step(&mut self, line: impl FnOnce() -> io::Result<Vec<u8>>) -> Result<bool, String> {
        if self.unsent.is_none() && self.is_ready()? {
            self.unsent = Some(line().map_err(|error| error.to_string())?);
        }
        if self.unsent.is_some() && self.send().map_err(|error| error.to_string())? {
            return Ok(true);
        }
        if Instant::now() >= self.until {
            return Err(format!("no answer within {} seconds{}", READY_WITHIN.as_secs(), self.complaint()));
        }
        Ok(false)
    }

    fn is_ready(&mut self) -> Result<bool, String> {
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
        // The host prints no more before it has read the line.
        if self.received.split(|byte| *byte == b'\n').any(|line| line == READY) && self.received.ends_with(b"\n") {
            return Ok(true);
        }
        if self.received.len() > MOST_CHATTER {
            return Err("its login prints without end".into());
        }
        Ok(false)
    }

    /// Sends as much as goes without waiting; whether that was all.
    fn send(&mut self) -> io::Result<bool> {
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

    /// Why it ended, or that it has not, although it has closed its stdout.
    fn last_words(&mut self) -> String {
        let until = Instant::now() + END_WITHIN;
        let status = loop {
            let status = self.child.as_mut().map(Child::try_wait);
            match status {
                Some(Ok(None)) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                Some(Ok(Some(status))) => break status.to_string(),
                // It is killed when this is dropped.
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

/// Waits until something can be read or sent, a second at most. Returns a signal that ends the job, if one has come.
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

/// The commands that start a rank on its host, in one line.
fn line(settings: &Settings, folder: &OsStr, variables: Vec<(&'static str, String)>) -> io::Result<Vec<u8>> {
    // The commands' own names begin with `_transom_`, so that the program's variables can have all others. `setsid` is
    // found by the host's own PATH; the rank's need not have it.
    let mut line = Vec::from(b"_transom_setsid=$(command -v setsid || echo setsid); ".as_slice());
    line.extend_from_slice(NEWLINE);
    line.extend_from_slice(b"cd ");
    quote(&mut line, folder);
    line.extend_from_slice(b" || exit 126; unset");
    removed_for_ranks().for_each(|name| line.extend([b" ", name.as_bytes()].concat()));
    line.extend_from_slice(b"; export");
    let ours = |name: &str| {
        let read = TABLE.iter().any(|row| row.set_by == SetBy::User && row.name == name);
        name != NOT_CARRIED && (read || CARRIED.iter().any(|carried| name.starts_with(carried)))
    };
    let carried = std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours));
    let kept = |(name, _): &(OsString, OsString)| removed_for_ranks().all(|removed| name != removed);
    let set = variables.into_iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    for (name, value) in carried.chain(settings.env.iter().cloned()).filter(kept).chain(set) {
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
    // Programs in this PATH are found there too, if the hosts have the same folders.
    let given = settings.env.iter().any(|(name, _)| name == "PATH");
    if let Some(path) = std::env::var_os("PATH").filter(|_| !given) {
        line.extend_from_slice(b" PATH=\"$PATH\":");
        quote(&mut line, &path);
    }
    // The address from which `ssh` reached the host is one at which the host can reach the hub.
    line.extend_from_slice(
        b"; _transom_here=${SSH_CONNECTION%% *}; \
          case $_transom_here in *%*) _transom_here=;; *:*) _transom_here=[$_transom_here];; esac; \
          if [ -n \"$_transom_here\" ]; then TRANSOM_HUB=\"$_transom_here:${TRANSOM_HUB##*:},$TRANSOM_HUB\"; fi; set --",
    );
    for word in std::iter::once(settings.program.as_os_str()).chain(settings.args.iter().map(OsString::as_os_str)) {
        line.push(b' ');
        quote(&mut line, word);
    }
    // The rank runs in a session of its own. Beside it, a loop reads signals and the end of stdin.
    line.extend_from_slice(
        b"; exec 3<&0 </dev/null; \"$_transom_setsid\" \"$@\" 3<&- & _transom_rank=$!; \
          _transom_kill() { kill -\"$1\" -\"$_transom_rank\" || kill -\"$1\" \"$_transom_rank\"; }; \
          (while IFS= read -r _transom_signal; do _transom_kill \"$_transom_signal\"; done; _transom_kill KILL) \
          <&3 >/dev/null 2>&1 & _transom_reader=$!; exec 3<&- 2>/dev/null; \
          wait \"$_transom_rank\"; _transom_status=$?; \
          kill -KILL \"$_transom_reader\"; kill -KILL -\"$_transom_rank\"; exit \"$_transom_status\"\n",
    );
    if line.contains(&0) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a zero byte in an argument or a variable"));
    }
    Ok(line)
}

/// Appends a word so that `sh` reads it unchanged; there is no newline in what is appended.
fn quote(line: &mut Vec<u8>, word: &OsStr) {
    line.push(b'\'');
    for byte in OsString::from(word).into_vec() {
        match byte {
            b'\'' => line.extend_from_slice(b"'\\''"),
            b'\n' => line.extend_from_slice(b"'\"$_transom_newline\"'"),
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
            let mut line = [NEWLINE, b"printf '%s' "].concat();
            quote(&mut line, word.as_ref());
            assert!(!line.contains(&b'\n'));
            let said = Command::new("sh").args(["-c", std::str::from_utf8(&line).unwrap()]).output().unwrap();
            assert_eq!(String::from_utf8_lossy(&said.stdout), word);
        }
    }

    fn line_of(env: &[(&str, &str)], args: &[&str]) -> io::Result<Vec<u8>> {
        let mut settings = Settings::new("true".into(), 1);
        settings.env = env.iter().map(|(name, value)| (name.into(), value.into())).collect();
        settings.args = args.iter().map(Into::into).collect();
        line(&settings, "/".as_ref(), vec![("TRANSOM_RANK", "0".into())])
    }

    #[test]
    fn what_no_shell_can_be_told_is_refused() {
        assert!(line_of(&[], &[]).is_ok());
        for name in ["", "A B", "A;id", "1A", "ä"] {
            assert!(line_of(&[(name, "x")], &[]).is_err(), "{name}");
        }
        assert!(line_of(&[], &["a\0b"]).is_err());
    }

    #[test]
    fn variables_of_the_launcher_are_its_own() {
        let given = [("TRANSOM_BOOTSTRAP", "none"), ("TRANSOM_RANK", "7"), ("TRANSOM_SHM", "1,2,3"), ("MINE", "yes")];
        let line = String::from_utf8(line_of(&given, &[]).unwrap()).unwrap();
        let (unset, set) = line.split_once("; export").unwrap();
        for name in
            ["TRANSOM_BOOTSTRAP", "TRANSOM_RANK", "TRANSOM_SIZE", "TRANSOM_SHM", "TRANSOM_HUB", "TRANSOM_NESTING"]
        {
            assert!(unset.split(' ').any(|word| word == name), "{unset}");
        }
        assert!(set.contains(" MINE='yes'") && set.contains(" TRANSOM_RANK='0'"), "{set}");
        assert!(!set.contains("TRANSOM_BOOTSTRAP") && !set.contains("TRANSOM_SHM") && !set.contains("'7'"), "{set}");
    }
}
