//! The ranks of one host, all started through one `ssh`. The remote command only prints [`READY`], reads one line from
//! its stdin and executes it ([`script`]). That line carries everything else, including the secret, so none of it
//! appears in a process list.
//!
//! Nothing in this module blocks: the launcher's loop waits for the descriptors.

use super::child;
use super::outcome::{LaunchError, Status};
use super::script;
use super::shell::Shells;
use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Printed by the host when it can read the line.
const READY: &[u8] = b"transom: ready";
const ASK: &str = "exec sh -c 'echo transom: ready; IFS= read -r _transom_line && eval \"$_transom_line\"'";
/// Longest time for a login.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longest time for an `ssh` to end after it closed its stdout.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Interval at which a host checks its helper processes.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Most bytes that a login may print before [`READY`].
const MOST_CHATTER: usize = 1 << 20;
/// Bytes of stderr kept until the host is ready; the oldest are dropped.
const COMPLAINT: usize = 4 << 10;
/// Longest head line of a record, in bytes.
const LONGEST_HEAD: usize = 64;

/// An event from a host.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// A rank wrote to its stdout (0) or stderr (1). An empty message means that the stream has ended.
    Wrote(Rank, usize, Vec<u8>),
    /// Part of a rank's output is lost.
    Lost(Rank),
    Exited(Rank, Status),
    /// This many bytes of stdin have been written to rank 0.
    Fed(usize),
    /// `ssh` itself, or the login, wrote to stderr.
    Complained(Vec<u8>),
    /// The connection to the host failed, with the reason.
    Broken(String),
}

/// A host and the `ssh` to it. Dropping it kills the `ssh`.
pub(super) struct Host {
    pub name: String,
    /// Advice of the error if it cannot be reached.
    remedy: String,
    /// In ascending order; at least one.
    pub ranks: Vec<Rank>,
    child: Child,
    pub pidfd: OwnedFd,
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
    /// Bytes not yet written to stdin.
    unsent: Vec<u8>,
    received: Vec<u8>,
    /// Last bytes on stderr before the host was ready.
    complaint: Vec<u8>,
    /// Deadline for sending the line; `None` once it is sent.
    until: Option<Instant>,
    /// Time of the next check of its helper processes.
    check_at: Instant,
    /// The line, until it is queued for sending.
    line: Option<Vec<u8>>,
    /// The `ssh` has ended, and all its output has been read.
    pub ended: bool,
    /// The host sent a malformed record, or its connection failed.
    broken: bool,
}

impl Host {
    pub fn start(shells: &Shells, name: &str, ranks: Vec<Rank>, line: Vec<u8>) -> Result<Self, LaunchError> {
        let remedy = shells.remedy(name);
        let failed = |why: String| LaunchError::Host { rank: ranks[0], host: name.to_owned(), why: why + &remedy };
        let mut command = shells.command(name, ASK);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // The terminal's SIGINT must reach only the launcher, which passes it on.
        command.process_group(0);
        child::prepare(&mut command, None);
        let mut child = command
            .spawn()
            .map_err(|why| failed(format!("cannot start {}: {why}", command.get_program().display())))?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let prepared = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).and_then(|pidfd| {
            stdin.as_ref().map_or(Ok(()), |pipe| rustix::io::ioctl_fionbio(pipe, true))?;
            stdout.as_ref().map_or(Ok(()), |pipe| rustix::io::ioctl_fionbio(pipe, true))?;
            stderr.as_ref().map_or(Ok(()), |pipe| rustix::io::ioctl_fionbio(pipe, true))?;
            Ok(pidfd)
        });
        let pidfd = prepared.map_err(|why| {
            let _ = child.kill();
            let _ = child.wait();
            failed(format!("cannot watch its ssh: {why}"))
        })?;
        tracing::debug!(host = name, ranks = ranks.len(), "connecting to a host");
        Ok(Host {
            name: name.to_owned(),
            remedy,
            ranks,
            child,
            pidfd,
            stdin,
            stdout,
            stderr,
            unsent: Vec::new(),
            received: Vec::new(),
            complaint: Vec::new(),
            until: Some(Instant::now() + READY_WITHIN),
            check_at: Instant::now() + CHECK_EVERY,
            line: Some(line),
            ended: false,
            broken: false,
        })
    }

    /// Returns whether a rank is on this host.
    pub fn has(&self, rank: Rank) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }

    /// Returns whether the host has received the line, so that its ranks run.
    pub fn is_reached(&self) -> bool {
        self.until.is_none()
    }

    /// Process identifier of the `ssh`.
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The time at which the host needs attention without an event.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// The descriptors to wait for. Output is read only if there is `room`.
    pub fn awaited(&self, room: bool) -> impl Iterator<Item = PollFd<'_>> {
        let wanted = |fd, flags| PollFd::from_borrowed_fd(fd, flags);
        let stdout = self.stdout.as_ref().filter(|_| room).map(|pipe| wanted(pipe.as_fd(), PollFlags::IN));
        let stderr = self.stderr.as_ref().filter(|_| room).map(|pipe| wanted(pipe.as_fd(), PollFlags::IN));
        let unsent = (!self.unsent.is_empty()).then_some(self.stdin.as_ref()).flatten();
        let stdin = unsent.map(|pipe| wanted(pipe.as_fd(), PollFlags::OUT));
        // The pipes are read to their ends before the exit of the `ssh` is awaited.
        let process = (!self.ended && self.stdout.is_none()).then(|| wanted(self.pidfd.as_fd(), PollFlags::IN));
        [stdout, stderr, stdin, process].into_iter().flatten()
    }

    /// Reads and writes as much as possible without blocking. An error means that the host cannot be reached, with the
    /// reason.
    pub fn step(&mut self, room: bool) -> Result<Vec<Told>, LaunchError> {
        let mut told = Vec::new();
        let why = self.try_turn(room, &mut told).err().or_else(|| {
            let late = self.until.is_some_and(|until| until <= Instant::now());
            late.then(|| format!("no answer within {} seconds", READY_WITHIN.as_secs()))
        });
        match why {
            Some(why) if !self.is_reached() => {
                self.hear_complaint();
                let said = String::from_utf8_lossy(&self.complaint).trim().replace(['\r', '\n'], " ");
                let why = if said.is_empty() { why } else { format!("{why}: {said}") } + &self.remedy;
                Err(LaunchError::Host { rank: self.ranks[0], host: self.name.clone(), why })
            }
            Some(why) => {
                tracing::error!(host = self.name, why, "the connection to a host failed");
                self.cut();
                // Malformed bytes would be parsed again at the next call.
                self.received.clear();
                self.broken = true;
                told.push(Told::Broken(why));
                Ok(told)
            }
            None => Ok(told),
        }
    }

    fn try_turn(&mut self, room: bool, told: &mut Vec<Told>) -> Result<(), String> {
        let mut chunk = vec![0; 64 << 10];
        if room {
            self.hear_complaint();
            if let Some(read) = read(&mut self.stdout, &mut chunk) {
                self.received.extend_from_slice(&chunk[..read]);
            }
        }
        self.send()?;
        if self.line.is_some() && self.is_ready()? {
            self.received.clear();
            self.unsent = self.line.take().unwrap_or_default();
            self.send()?;
        }
        if self.line.is_none() && self.unsent.is_empty() && self.until.take().is_some() {
            tracing::debug!(host = self.name, ranks = self.ranks.len(), "ranks started");
        }
        if self.is_reached() {
            if !self.complaint.is_empty() {
                told.push(Told::Complained(std::mem::take(&mut self.complaint)));
            }
            take_records(&mut self.received, &self.ranks, told)?;
        }
        if self.stdout.is_none() && !self.ended {
            self.end()?;
        }
        Ok(())
    }

    /// Reads stderr. Until the host is ready, only the last bytes are kept.
    fn hear_complaint(&mut self) {
        let mut chunk = [0; COMPLAINT];
        while let Some(read) = read(&mut self.stderr, &mut chunk) {
            self.complaint.extend_from_slice(&chunk[..read]);
            if self.is_reached() {
                break;
            }
            let much = self.complaint.len().saturating_sub(COMPLAINT);
            self.complaint.drain(..much);
        }
    }

    fn is_ready(&self) -> Result<bool, String> {
        // The host prints nothing after READY until it has read the line. READY may follow login output that lacks a
        // newline.
        if self.received.split(|byte| *byte == b'\n').any(|line| line.ends_with(READY))
            && self.received.ends_with(b"\n")
        {
            return Ok(true);
        }
        if self.received.len() > MOST_CHATTER {
            Err("its login printed more than 1 MiB; silence the shell's startup files".into())
        } else {
            Ok(false)
        }
    }

    /// Sends as much as possible without blocking.
    fn send(&mut self) -> Result<(), String> {
        while let Some(stdin) = self.stdin.as_mut().filter(|_| !self.unsent.is_empty()) {
            match stdin.write(&self.unsent) {
                Ok(written) => drop(self.unsent.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The exit status of the `ssh`, read later, gives the reason.
                Err(_) => {
                    self.stdin = None;
                    if self.is_reached() {
                        self.unsent.clear();
                    }
                }
            }
        }
        Ok(())
    }

    /// Handles the end of stdout.
    fn end(&mut self) -> Result<(), String> {
        let status = self.child.try_wait().map_err(|error| error.to_string())?;
        match status {
            None if !self.is_reached() => {
                // The `ssh` must exit soon after closing its stdout.
                let soon = Instant::now() + END_WITHIN;
                if self.until.is_some_and(|until| until > soon) {
                    self.until = Some(soon);
                }
                if self.until.is_some_and(|until| until <= Instant::now()) {
                    return Err("it cannot be reached (it closed its stdout and does not end)".into());
                }
            }
            None => {}
            Some(status) => {
                self.ended = true;
                if !self.is_reached() {
                    return Err(format!("it cannot be reached ({status})"));
                }
            }
        }
        Ok(())
    }

    /// Status for those ranks of an ended host whose status it did not report. `None` if its `ssh` was killed because
    /// of a malformed record.
    pub fn status(&mut self) -> Option<Status> {
        if self.broken {
            return None;
        }
        self.child.try_wait().ok().flatten().map(|status| Status::from(status).of_shell())
    }

    /// Passes a signal to a rank and its descendants.
    pub fn signal(&mut self, rank: Rank, signal: Signal) {
        let name = match signal {
            Signal::KILL => "KILL",
            Signal::USR1 => "USR1",
            Signal::USR2 => "USR2",
            Signal::STOP => "STOP",
            Signal::CONT => "CONT",
            _ => "TERM",
        };
        self.unsent.extend_from_slice(format!("{name} {rank}\n").as_bytes());
        let _ = self.send();
    }

    /// Makes the host check its helper processes, if it is time.
    pub fn check(&mut self, now: Instant) {
        if self.is_reached() && self.stdin.is_some() && self.unsent.is_empty() && self.check_at <= now {
            self.check_at = now + CHECK_EVERY;
            self.unsent.extend_from_slice(b"CHECK 0\n");
            let _ = self.send();
        }
    }

    /// The time of the next [`check`](Host::check).
    pub fn check_at(&self) -> Option<Instant> {
        (self.is_reached() && self.stdin.is_some() && self.unsent.is_empty()).then_some(self.check_at)
    }

    /// Passes bytes on to the stdin of rank 0; none mean its end.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.stdin.is_none() {
            return;
        }
        match bytes {
            [] => self.unsent.extend_from_slice(b"EOF 0\n"),
            bytes => {
                self.unsent.extend_from_slice(format!("IN {}\n", bytes.len()).as_bytes());
                self.unsent.extend_from_slice(bytes);
            }
        }
        let _ = self.send();
    }

    /// Closes the connection once all ranks of the host have ended.
    pub fn release(&mut self) {
        if self.stdin.is_none() {
            return;
        }
        self.unsent.extend_from_slice(b"END\n");
        let _ = self.send();
        self.stdin = None;
    }

    /// Gives up a host that is not yet reached.
    pub fn give_up(&mut self) {
        self.cut();
        let _ = self.child.wait();
        (self.until, self.line, self.ended) = (None, None, true);
        self.unsent.clear();
    }

    /// Closes the pipes, so that the host ends its ranks.
    pub fn close(&mut self) {
        (self.stdin, self.stdout, self.stderr) = (None, None, None);
    }

    /// Kills the `ssh` and ignores further output. If TRANSOM_SSH names a script or `timeout`, its children are unknown
    /// and may hold the pipes open for ever.
    pub fn cut(&mut self) {
        tracing::debug!(host = self.name, "killing its ssh");
        let _ = self.child.kill();
        self.close();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads once without blocking; `None` if nothing is available. A pipe that has ended is dropped.
fn read(pipe: &mut Option<impl Read>, chunk: &mut [u8]) -> Option<usize> {
    match pipe.as_mut()?.read(chunk) {
        Ok(0) => *pipe = None,
        Ok(read) => return Some(read),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
        Err(_) => *pipe = None,
    }
    None
}

/// Removes complete records from the bytes received from a host with these ranks, which ascend, and appends their events to `told`.
fn take_records(received: &mut Vec<u8>, ranks: &[Rank], told: &mut Vec<Told>) -> Result<(), String> {
    let mut taken = 0;
    while let Some(end) = received[taken..].iter().take(LONGEST_HEAD).position(|byte| *byte == b'\n') {
        let head = &received[taken..taken + end];
        let (kind, rank, number) = parse(head)
            .filter(|(_, rank, _)| ranks.binary_search(rank).is_ok())
            .ok_or_else(|| format!("it sent {:?}, which is not a record", String::from_utf8_lossy(head)))?;
        let begin = taken + end + 1;
        let len = if matches!(kind, b'x' | b'l' | b'i') { 0 } else { number };
        let Some(bytes) = received.get(begin..begin + len) else { break };
        told.push(match kind {
            b'x' => Told::Exited(rank, Status::Exited(number as i32).of_shell()),
            b'l' => Told::Lost(rank),
            b'i' => Told::Fed(number),
            _ => Told::Wrote(rank, usize::from(kind == b'e'), bytes.to_vec()),
        });
        taken = begin + len;
    }
    received.drain(..taken);
    if received.len() > LONGEST_HEAD && !received[..LONGEST_HEAD].contains(&b'\n') {
        return Err("it sent 64 bytes without a record's head".into());
    }
    Ok(())
}

/// Parses a record's head into kind, rank and number.
fn parse(head: &[u8]) -> Option<(u8, Rank, usize)> {
    let mut words = std::str::from_utf8(head).ok()?.split(' ');
    let (kind, rank, number) = (words.next()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let most = match kind {
        "o" | "e" | "i" => script::BLOCK,
        "x" => 255,
        "l" => 1,
        _ => return None,
    };
    (words.next().is_none() && number <= most).then_some((kind.as_bytes()[0], rank, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_record_heads_are_refused() {
        assert_eq!(parse(b"o 3 65536"), Some((b'o', 3, 65536)));
        assert_eq!(parse(b"x 0 137"), Some((b'x', 0, 137)));
        assert_eq!(parse(b"l 0 1"), Some((b'l', 0, 1)));
        assert_eq!(parse(b"i 0 65536"), Some((b'i', 0, 65536)));
        for wrong in [
            &b""[..],
            b"o 3",
            b"o 3 65537",
            b"x 3 256",
            b"l 3 2",
            b"y 3 1",
            b"o -1 1",
            b"o 1 1 1",
            b"o 1 \xff",
            b"ox 1 1",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn partial_and_foreign_records_are_not_taken() {
        let (mut received, mut told) = (b"o 2 3\nabce 3 0\nl 2 1\nx 3 7\no 2 5\nab".to_vec(), Vec::new());
        take_records(&mut received, &[0, 2, 3], &mut told).unwrap();
        let wrote = |rank, stream, bytes: &[u8]| Told::Wrote(rank, stream, bytes.to_vec());
        assert_eq!(told, [wrote(2, 0, b"abc"), wrote(3, 1, b""), Told::Lost(2), Told::Exited(3, Status::Exited(7))]);
        assert_eq!(received, b"o 2 5\nab");
        for (wrong, why) in
            [(&b"x 4 0\n"[..], "\"x 4 0\""), (b"o 1 1\na", "\"o 1 1\""), (&[b'o'; 100], "without a record")]
        {
            let error = take_records(&mut wrong.to_vec(), &[0, 2, 3], &mut told).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
