//! The agent: starts the ranks of its host, and passes everything on.

use super::command::{self, Command};
use super::rank::{Common, DESCRIPTORS, RankHere};
use super::{KILLED_RANKS, ignore_in_this_process, lost, named};
use crate::descriptors::{self, TooFew};
use crate::launcher::binding;
use crate::launcher::child::advice;
use crate::launcher::host_job::{HostJob, NO_FOLDER};
use crate::launcher::outcome::Status;
use crate::launcher::queue::{Queue, READ, Stream};
use crate::launcher::records::{BLOCK, head};
use crate::process::is_stopped;
use crate::tcp::Uplink;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, getppid, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
};
use rustix::stdio::stdin;
use signal_hook::consts::{SIGUSR1, SIGUSR2};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::Path;
use std::process::ChildStdin;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Descriptors beside those of the ranks.
const OTHERS: usize = 16;
/// Longest job, in bytes.
const LONGEST_JOB: usize = 256 << 20;
/// Time in which killed ranks and the rest of their output are reported, if the launcher still reads.
const LAST_REPORT: Duration = Duration::from_secs(1);
/// Time that the guard may be stopped. The launcher asks every two seconds.
const STOPPED: Duration = Duration::from_secs(3);

/// Starts the ranks that the launcher describes on stdin, and serves the launcher until all have ended. Returns the exit
/// status. `guard` is the process that [`guard`](super::guard()) is called in.
///
/// # Errors
/// A failed system call, or a malformed job. Ranks that were started are killed.
///
/// # Examples
/// ```no_run
/// let status = transom::host_agent::serve("node1", std::os::unix::process::parent_id())?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn serve(host: &str, guard: u32) -> io::Result<u8> {
    try_serve(host, guard).map_err(|error| named(host, error))
}

fn try_serve(host: &str, guard: u32) -> io::Result<u8> {
    // A stopped agent goes on if the guard ends, and notices that.
    set_parent_process_death_signal(Some(Signal::CONT))?;
    ignore_in_this_process(&[SIGUSR1, SIGUSR2])?;
    let guard = Pid::from_raw(guard as i32).filter(|guard| getppid() == Some(*guard));
    let Some(guard) = guard else { return Err(io::Error::other("the process that started this agent has ended")) };
    // The guard has executed this program by a path that ends in `exe`.
    let _ = rustix::thread::set_name(c"transom");
    let pidfd = pidfd_open(guard, PidfdFlags::empty())?;
    let guard = Guard { process: guard, pidfd, stopped_since: None, checked: None };
    let job = read_job()?;
    if std::env::set_current_dir(&job.folder).is_err() {
        let refusal = format!("transom: host {host}: {}: {NO_FOLDER}\n", job.folder.display());
        io::stderr().write_all(refusal.as_bytes())?;
        return Ok(126);
    }
    let least = DESCRIPTORS * job.ranks.len() + OTHERS;
    // Without room for them, each rank connects to the hub itself.
    let carries = descriptors::make_room(least + Uplink::descriptors(job.ranks.len())).is_ok();
    descriptors::make_room(least).map_err(|TooFew { need, limit }| {
        let ranks = job.ranks.len();
        io::Error::other(format!(
            "host {host}: {ranks} ranks need {need} open files, but the limit is {limit}; raise it (`ulimit -n`), or start \
             them by a script (TRANSOM_AGENT=off)"
        ))
    })?;
    let mut agent = Agent {
        host,
        guard,
        ranks: Vec::new(),
        input: Input { pipe: None, unwritten: VecDeque::new(), has_ended: false },
        queue: Queue::new()?,
        received: Vec::new(),
        buffer: vec![0; READ],
        ending: None,
    };
    // The ranks' connections to the hub end with it.
    let _uplink = agent.start(&job, carries)?;
    agent.run()
}

/// Reads the job: a line with its length, and no byte more.
fn read_job() -> io::Result<HostJob> {
    let wrong = |why: &str| io::Error::other(format!("the launcher sent a malformed job: {why}"));
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        match retry_on_intr(|| rustix::io::read(stdin(), &mut byte))? {
            1 if line.len() < 20 => line.push(byte[0]),
            1 => return Err(wrong("its length has more than 20 digits")),
            _ => return Err(wrong("the connection ended before it")),
        }
    }
    let len = std::str::from_utf8(&line).ok().and_then(|text| text.trim_end().parse().ok());
    let len: usize =
        len.filter(|len| *len <= LONGEST_JOB).ok_or_else(|| wrong("its length is no number up to 256 MiB"))?;
    let (mut bytes, mut done) = (vec![0; len], 0);
    while done < len {
        match retry_on_intr(|| rustix::io::read(stdin(), &mut bytes[done..]))? {
            0 => return Err(wrong("the connection ended within it")),
            read => done += read,
        }
    }
    HostJob::decode(&bytes).map_err(|why| wrong(&why))
}

struct Agent<'a> {
    host: &'a str,
    guard: Guard,
    ranks: Vec<RankHere>,
    input: Input,
    /// Records for the launcher, and lines for its stderr.
    queue: Queue,
    /// Bytes from the launcher that are not a whole command.
    received: Vec<u8>,
    buffer: Vec<u8>,
    /// The ranks have been killed. The agent ends at this time at the latest.
    ending: Option<Instant>,
}

struct Guard {
    process: Pid,
    /// Readable once the guard has ended.
    pidfd: OwnedFd,
    stopped_since: Option<Instant>,
    /// Time of the last check.
    checked: Option<Instant>,
}

/// The stdin of rank 0. The launcher sends little at a time, and more once it is written.
struct Input {
    /// Does not block; `None` if the rank is elsewhere or has closed it.
    pipe: Option<ChildStdin>,
    unwritten: VecDeque<u8>,
    /// The launcher has sent everything.
    has_ended: bool,
}

#[derive(Clone, Copy)]
enum Event {
    Guard,
    Launcher,
    Writable,
    Input,
    Exited(usize),
    Readable(usize, usize),
}

impl Agent<'_> {
    /// Starts the ranks. Returns the host's connection to the hub, if it `carries` those of the ranks.
    fn start(&mut self, job: &HostJob, carries: bool) -> io::Result<Option<Uplink>> {
        let (common, count) = (Common::new(job, carries), job.ranks.len());
        let processors = binding::here(job.bind_to, count);
        for (number, (rank, _)) in job.ranks.iter().enumerate() {
            let processors = processors.as_ref().map(|processors| processors[number].as_slice());
            if job.report {
                let place = binding::describe(*rank, self.host, number, count, processors);
                self.queue.push(Stream::Stderr, &[format!("transom: {place}\n").as_bytes()]);
            }
            match common.start(number, processors.map(binding::set)) {
                Ok((started, stdin)) => {
                    if let Some(pipe) = stdin {
                        rustix::io::ioctl_fionbio(&pipe, true)?;
                        self.input.pipe = Some(pipe);
                    }
                    self.ranks.push(started);
                }
                Err(error) => self.report_unstarted(*rank, job, &error),
            }
        }
        Ok(common.uplink)
    }

    /// Reports a rank that could not be started as one that has said why and exited, with the status by which shells
    /// report it.
    fn report_unstarted(&mut self, rank: Rank, job: &HostJob, error: &io::Error) {
        let (host, program) = (rustix::system::uname(), Path::new(&job.program));
        let (host, advice) = (host.nodename().to_string_lossy(), advice(error, program, Path::new(&job.folder)));
        let line = format!("transom: cannot start `{}` on host {host}: {advice}\n", program.display());
        let line = &line.as_bytes()[..line.len().min(BLOCK)];
        self.record('e', rank, line.len(), line);
        self.record('e', rank, 0, b"");
        self.record('o', rank, 0, b"");
        self.record('x', rank, if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }, b"");
    }

    fn record(&mut self, kind: char, rank: Rank, number: usize, bytes: &[u8]) {
        self.queue.push(Stream::Stdout, &[head(kind, rank, number).as_bytes(), bytes]);
    }

    fn run(mut self) -> io::Result<u8> {
        loop {
            if self.ending.is_some_and(|until| until <= Instant::now()) || self.has_reported_the_end() {
                return Ok(KILLED_RANKS);
            }
            for event in self.sleep()? {
                match event {
                    Event::Guard => self.lose("killed"),
                    Event::Launcher if self.obey()? => return Ok(0),
                    Event::Launcher | Event::Writable => {}
                    Event::Input => self.write_input(),
                    Event::Exited(number) => self.reap(number)?,
                    Event::Readable(number, stream) => self.read(number, stream),
                }
            }
            // A launcher that does not read has ended.
            if self.queue.write().is_err() {
                self.end_ranks();
            }
        }
    }

    /// Returns whether the launcher knows the ends of all ranks, which have been killed.
    fn has_reported_the_end(&self) -> bool {
        let has_ended = |rank: &RankHere| rank.has_exited && rank.pipes.iter().all(Option::is_none);
        self.ending.is_some() && self.ranks.iter().all(has_ended) && self.queue.awaited().is_none()
    }

    fn sleep(&self) -> io::Result<Vec<Event>> {
        let mut watched: Vec<(Event, PollFd<'_>)> = Vec::new();
        let mut watch = |event, fd, flags| watched.push((event, PollFd::from_borrowed_fd(fd, flags)));
        if self.ending.is_none() {
            watch(Event::Guard, self.guard.pidfd.as_fd(), PollFlags::IN);
            watch(Event::Launcher, stdin(), PollFlags::IN);
        }
        self.queue.awaited().into_iter().for_each(|fd| watch(Event::Writable, fd, PollFlags::OUT));
        let input: Option<BorrowedFd<'_>> = self.input.pipe.as_ref().map(AsFd::as_fd);
        input
            .filter(|_| !self.input.unwritten.is_empty())
            .into_iter()
            .for_each(|fd| watch(Event::Input, fd, PollFlags::OUT));
        let has_room = self.queue.has_room();
        for (number, rank) in self.ranks.iter().enumerate() {
            if !rank.has_exited {
                watch(Event::Exited(number), rank.process.pidfd.as_fd(), PollFlags::IN);
            }
            for (stream, pipe) in rank.pipes.iter().enumerate().filter(|_| has_room) {
                pipe.iter().for_each(|pipe| watch(Event::Readable(number, stream), pipe.as_fd(), PollFlags::IN));
            }
        }
        let (events, mut fds): (Vec<Event>, Vec<PollFd<'_>>) = watched.into_iter().unzip();
        let left = self.ending.map(|until| until.saturating_duration_since(Instant::now()));
        match poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref()) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        }
        let happened = events.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(happened.map(|(event, _)| event).collect())
    }

    /// Executes the launcher's commands that have arrived. Returns whether the job has ended.
    fn obey(&mut self) -> io::Result<bool> {
        match rustix::io::read(stdin(), &mut self.buffer[..]) {
            Ok(0) => self.end_ranks(),
            Ok(read) => self.received.extend_from_slice(&self.buffer[..read]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        while self.ending.is_none() {
            match command::take(&mut self.received) {
                Ok(Some(Command::End)) => return Ok(true),
                Ok(Some(Command::Signal(signal, rank))) => {
                    self.ranks.iter().filter(|here| here.rank == rank).for_each(|here| here.signal(signal));
                }
                Ok(Some(Command::Input(bytes))) => self.input.unwritten.extend(bytes),
                Ok(Some(Command::EndOfInput)) => self.input.has_ended = true,
                Ok(Some(Command::Check)) => self.check(),
                Ok(None) => break,
                Err(why) => {
                    let line = format!("transom: host {}: the launcher sent {why}; the ranks are ended\n", self.host);
                    self.report(&line);
                    self.end_ranks();
                }
            }
        }
        self.write_input();
        Ok(false)
    }

    /// Writes as much to rank 0 as its pipe takes. What a rank does not read any more is dropped.
    fn write_input(&mut self) {
        let mut written = 0;
        while let (bytes @ [_, ..], _) = self.input.unwritten.as_slices() {
            let done = match &mut self.input.pipe {
                None => bytes.len(),
                Some(pipe) => match pipe.write(bytes) {
                    Ok(done) => done,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        self.input.pipe = None;
                        continue;
                    }
                },
            };
            self.input.unwritten.drain(..done);
            written += done;
        }
        if written > 0 {
            self.record('i', 0, written, b"");
        }
        if self.input.has_ended && self.input.unwritten.is_empty() {
            self.input.pipe = None;
        }
    }

    /// Reports a rank that has exited. Ends what is left in its process group first, while the rank's number is taken.
    fn reap(&mut self, number: usize) -> io::Result<()> {
        let rank = &mut self.ranks[number];
        rank.signal(Signal::KILL);
        if let Some(status) = rank.process.child.try_wait()? {
            rank.has_exited = true;
            let status = match Status::from(status) {
                Status::Exited(code) => code,
                Status::Killed(signal) => 128 + signal,
            };
            let rank = rank.rank;
            self.record('x', rank, status as usize, b"");
        }
        Ok(())
    }

    fn read(&mut self, number: usize, stream: usize) {
        let (rank, pipe) = (self.ranks[number].rank, &mut self.ranks[number].pipes[stream]);
        let Some(fd) = pipe else { return };
        let read = match rustix::io::read(fd, &mut self.buffer[..]) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            read => read.unwrap_or(0),
        };
        if read == 0 {
            *pipe = None;
        }
        let head = head(['o', 'e'][stream], rank, read);
        self.queue.push(Stream::Stdout, &[head.as_bytes(), &self.buffer[..read]]);
    }

    /// Checks whether the guard stays stopped.
    fn check(&mut self) {
        // The time in which this process was itself stopped does not count.
        let now = Instant::now();
        if self.guard.checked.replace(now).is_some_and(|last| now - last > STOPPED) {
            self.guard.stopped_since = None;
        }
        if !is_stopped(self.guard.process.as_raw_pid() as u32) {
            self.guard.stopped_since = None;
        } else if self.guard.stopped_since.get_or_insert_with(Instant::now).elapsed() >= STOPPED {
            let _ = pidfd_send_signal(&self.guard.pidfd, Signal::KILL);
            self.lose("stopped");
        }
    }

    /// Ends the ranks, because the guard was killed or stopped.
    fn lose(&mut self, what: &str) {
        self.report(&lost(self.host, what, self.guard.process.as_raw_pid()));
        self.end_ranks();
    }

    /// Reports why the ranks end, at once: records may wait for a launcher that does not read.
    fn report(&self, line: &str) {
        let _ = io::stderr().write_all(line.as_bytes());
    }

    fn end_ranks(&mut self) {
        self.ranks.iter().for_each(|rank| rank.signal(Signal::KILL));
        self.ending.get_or_insert_with(|| Instant::now() + LAST_REPORT);
    }
}
