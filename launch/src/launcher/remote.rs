//! The ranks of one host, all started through one `ssh`. The remote command only prints [`READY`], reads one line from
//! its stdin and executes it: the [`offer`]. The host answers which program starts the ranks, and gets the job, which the
//! [`agent`](super::agent) reads, or the [`script`]. Both travel by stdin and contain the secret, so that it appears in no
//! process list.
//!
//! Nothing in this module blocks: the launcher's loop waits for the descriptors.

use super::child;
use super::host_job::HostJob;
use super::offer::{self, Offer, Starter};
use super::outcome::{LaunchError, Status};
use super::records::{SIGNALS, Told, take_records};
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

/// Printed by the host when it can read the offer.
const READY: &[u8] = b"transom: ready";
const ASK: &str = "exec sh -c 'echo transom: ready; IFS= read -r _transom_line && eval \"$_transom_line\"'";
/// Longest time for a login.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// Longest time for an `ssh` to end after it closed its stdout.
const END_WITHIN: Duration = Duration::from_secs(1);
/// Time in which a host ends after its last record. An agent that was killed leaves processes, which the host kills first.
const LINGER: Duration = Duration::from_secs(10);
/// Interval at which a host checks its helper processes.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Most bytes that a login may print before [`READY`].
const MOST_CHATTER: usize = 1 << 20;
/// Bytes of stderr kept until the host is ready; the oldest are dropped.
const COMPLAINT: usize = 4 << 10;

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
    /// Deadline for sending the job; `None` once it is sent.
    until: Option<Instant>,
    /// Time of the next check of its helper processes.
    check_at: Instant,
    /// Time at which the `ssh` must have ended, once its stdout has.
    end_by: Option<Instant>,
    /// The offer and the job, until they are queued for sending.
    offer: Option<Vec<u8>>,
    job: Option<HostJob>,
    /// The program that starts the ranks, once the host has answered.
    pub starter: Option<Starter>,
    /// The `ssh` has ended, and all its output has been read.
    pub ended: bool,
    /// The host sent a malformed record, or its connection failed.
    broken: bool,
}

impl Host {
    pub fn start(shells: &Shells, offer: &Offer, name: &str, job: HostJob) -> Result<Self, LaunchError> {
        let ranks: Vec<Rank> = job.ranks.iter().map(|(rank, _)| *rank).collect();
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
            end_by: None,
            check_at: Instant::now() + CHECK_EVERY,
            offer: Some(offer.line(name)),
            job: Some(job),
            starter: None,
            ended: false,
            broken: false,
        })
    }

    /// Returns whether a rank is on this host.
    pub fn has(&self, rank: Rank) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }

    /// Returns whether the host has received the job, so that its ranks run.
    pub fn is_reached(&self) -> bool {
        self.until.is_none()
    }

    /// Process identifier of the `ssh`.
    pub fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// The time at which the host needs attention without an event.
    pub fn until(&self) -> Option<Instant> {
        self.until.or(self.end_by)
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
        let failed = self.try_turn(room, &mut told).err();
        // The host's shell has answered, and the `transom` that it asks has not.
        let has_shell = failed.is_none() && self.offer.is_none() && self.job.is_some();
        let why = failed.or_else(|| {
            let late = self.until.is_some_and(|until| until <= Instant::now());
            let who = if has_shell { "its `transom` gave " } else { "" };
            late.then(|| format!("{who}no answer within {} seconds", READY_WITHIN.as_secs()))
        });
        match why {
            Some(why) if !self.is_reached() => {
                self.hear_complaint();
                let said = String::from_utf8_lossy(&self.complaint).trim().replace(['\r', '\n'], " ");
                let remedy =
                    if has_shell { "; TRANSOM_AGENT=off starts the ranks by a script" } else { self.remedy.as_str() };
                let why = if said.is_empty() { why } else { format!("{why}: {said}") } + remedy;
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
        if self.offer.is_some() {
            if self.is_ready()? {
                self.received.clear();
                self.unsent = self.offer.take().unwrap_or_default();
                self.send()?;
            }
        } else if self.job.is_some()
            && let Some(starter) = offer::answer(&self.received)?
        {
            self.received.clear();
            self.unsent = self.job.take().map_or(Ok(Vec::new()), |job| encoded(&job, &starter))?;
            self.starter = Some(starter);
            self.send()?;
        }
        if self.job.is_none() && self.unsent.is_empty() && self.until.take().is_some() {
            tracing::debug!(host = self.name, ranks = self.ranks.len(), "ranks started");
        }
        if self.stdout.is_none() && !self.ended {
            self.end()?;
            // Its last words: it wrote them before it ended.
            if room {
                self.hear_complaint();
            }
        }
        if self.is_reached() {
            if !self.complaint.is_empty() {
                told.push(Told::Complained(std::mem::take(&mut self.complaint)));
            }
            take_records(&mut self.received, &self.ranks, told)?;
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
        // The host prints nothing after READY until it has read the offer. READY may follow login output that lacks a
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
            None => {
                let until = *self.end_by.get_or_insert_with(|| Instant::now() + LINGER);
                if until <= Instant::now() {
                    return Err("it closed its stdout and does not end".into());
                }
            }
            Some(status) => {
                (self.ended, self.end_by) = (true, None);
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
        let name = SIGNALS.iter().find(|(_, named)| *named == signal).map_or("TERM", |(name, _)| name);
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
        (self.until, self.end_by, self.offer, self.job, self.ended) = (None, None, None, None, true);
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

/// The form of a job for the program that starts its ranks.
fn encoded(job: &HostJob, starter: &Starter) -> Result<Vec<u8>, String> {
    match starter {
        Starter::Agent(_) => {
            let bytes = job.encode();
            Ok([format!("{}\n", bytes.len()).into_bytes(), bytes].concat())
        }
        Starter::Script => script::line(job).map_err(|error| error.to_string()),
    }
}
