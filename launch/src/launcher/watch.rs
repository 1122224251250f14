//! The launcher's event loop: it sleeps until a rank ends or writes, a signal arrives, or a time is reached.

use super::control_plane::ControlPlane;
use super::orphans::Orphans;
use super::outcome::{Failure, LaunchError, Listed, Outcome, Status};
use super::output::Output;
use super::ranks::{Of, Ranks};
use super::signals::{Received, Signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Signal, getpid, getrlimit, kill_process};
use signal_hook::consts::SIGINT;
use std::io;
use std::time::{Duration, Instant};
use transom_locks::Rank;

/// Time that a rank has to end after SIGTERM.
const TERM_TO_KILL: Duration = Duration::from_secs(1);
/// Time that a rank on another host has to end after SIGKILL, before its `ssh` is killed.
const KILL_TO_CUT: Duration = Duration::from_secs(2);
/// Time for the rest of the output after the user has requested the end.
const LAST_OUTPUT: Duration = Duration::from_secs(1);

/// A running job. Fields are dropped in order: ranks before orphans, because processes that ranks started may become
/// orphans.
pub(super) struct Watch {
    control_plane: ControlPlane,
    ranks: Ranks,
    output: Output,
    signals: Option<Signals>,
    orphans: Option<Orphans>,
    grace: Duration,
    deadline: Option<Instant>,
    phase: Phase,
    /// First failure, until the status of its cause is known.
    failed: Option<Failed>,
    failure: Option<Failure>,
    /// A signal that ends the job has arrived.
    interrupted: bool,
    /// Time at which the launcher stops waiting for the reader of its output.
    give_up_output: Option<Instant>,
}

/// The first failure that the launcher has seen.
#[derive(Clone, Copy)]
struct Failed {
    /// Rank whose process ended first, and its status.
    rank: Rank,
    status: Status,
    /// Rank that died first, as recorded by other ranks; else `rank`.
    cause: Rank,
}

/// Steps taken to end the ranks.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// A rank failed. The others may run until this time, or without limit, to report their own errors.
    Grace(Option<Instant>),
    /// SIGTERM is sent. SIGKILL follows at this time.
    Terminating(Instant),
    /// SIGKILL is sent. The `ssh` of hosts that do not answer is killed at this time.
    Killed(Instant),
    Cut,
}

/// An event that woke the launcher.
enum Event {
    Signal,
    Writable,
    Of(Of),
    Readable(usize),
}

impl Watch {
    pub fn new(
        control_plane: ControlPlane,
        ranks: Ranks,
        output: Output,
        signals: Option<Signals>,
        orphans: Option<Orphans>,
        grace: Duration,
        deadline: Option<Instant>,
    ) -> Self {
        Watch {
            control_plane,
            ranks,
            output,
            signals,
            orphans,
            grace,
            deadline,
            phase: Phase::Running,
            failed: None,
            failure: None,
            interrupted: false,
            give_up_output: None,
        }
    }

    pub fn until_the_end(mut self) -> Result<Outcome, LaunchError> {
        let statuses = loop {
            if let Some(statuses) = self.ranks.statuses() {
                break statuses;
            }
            self.step()?;
        };
        self.settle_failure(true);
        self.ranks.end_hosts();
        self.orphans.iter().for_each(Orphans::end);
        self.output.close();
        self.write()?;
        while self.output.awaited().is_some() && self.give_up_output.is_none_or(|until| Instant::now() < until) {
            self.step()?;
        }
        Ok(Outcome { statuses, failure: self.failure, output: self.output.kept() })
    }

    /// Sleeps until an event, and handles it.
    fn step(&mut self) -> Result<(), LaunchError> {
        let events = self.sleep().map_err(|source| LaunchError::System { what: "waiting for the ranks", source })?;
        self.hear_signals();
        let happened: Vec<Of> =
            events.iter().filter_map(|event| if let Event::Of(of) = event { Some(*of) } else { None }).collect();
        self.check_reaching()?;
        let room = self.has_room();
        let ended = self.ranks.step(&happened, room, &mut self.output)?;
        self.reap(ended);
        if events.iter().any(|event| matches!(event, Event::Signal)) {
            self.orphans.iter().for_each(|orphans| orphans.reap(|| self.ranks.processes()));
        }
        for event in events {
            if let Event::Readable(pipe) = event {
                self.output.read(pipe);
            }
        }
        self.keep_time();
        self.write()
    }

    /// Returns whether to read output of ranks on hosts. Exit statuses follow the output in the same stream, so after
    /// SIGKILL everything is read; little output remains then.
    fn has_room(&self) -> bool {
        self.output.has_room() || matches!(self.phase, Phase::Killed(_) | Phase::Cut)
    }

    fn sleep(&self) -> io::Result<Vec<Event>> {
        let mut watched: Vec<(Event, PollFd<'_>)> = Vec::new();
        let event = |event, fd, flags| (event, PollFd::from_borrowed_fd(fd, flags));
        watched.extend(self.signals.iter().map(|signals| event(Event::Signal, signals.fd(), PollFlags::IN)));
        watched.extend(self.output.awaited().map(|fd| event(Event::Writable, fd, PollFlags::OUT)));
        watched.extend(self.ranks.awaited(self.has_room()).map(|(of, fd)| (Event::Of(of), fd)));
        watched.extend(self.output.pipes().map(|(pipe, fd)| event(Event::Readable(pipe), fd, PollFlags::IN)));
        let (events, mut fds): (Vec<Event>, Vec<PollFd<'_>>) = watched.into_iter().unzip();
        let left = self.next_time().map(|time| time.saturating_duration_since(Instant::now()));
        // A duration too long for `poll` means no timeout.
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match poll(&mut fds, left.as_ref()) {
            Ok(_) => {}
            // A signal interrupted `poll`.
            Err(rustix::io::Errno::INTR) => return Ok(vec![Event::Signal]),
            Err(error) => return Err(error.into()),
        }
        let happened = events.into_iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
        Ok(happened.map(|(event, _)| event).collect())
    }

    /// The next time at which the loop must wake without an event.
    fn next_time(&self) -> Option<Instant> {
        let running = self.ranks.running().next().is_some();
        let next = match self.phase {
            Phase::Grace(until) if running => until,
            Phase::Terminating(until) | Phase::Killed(until) if running => Some(until),
            _ => None,
        };
        let give_up = self.give_up_output.filter(|_| !running);
        [next, give_up, self.deadline, self.ranks.next_time(), self.output.next_time()].into_iter().flatten().min()
    }

    fn keep_time(&mut self) {
        let now = Instant::now();
        self.output.keep_time(now);
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.give_up_output = Some(now + TERM_TO_KILL + LAST_OUTPUT);
            self.settle_failure(true);
            let running = self.ranks.running().collect();
            self.fail(Failure::Deadline { running });
            self.terminate();
        }
        match self.phase {
            Phase::Grace(Some(until)) if until <= now => {
                self.settle_failure(true);
                let running: Vec<Rank> = self.ranks.running().collect();
                if !running.is_empty() {
                    let (ranks, grace) = (Listed(&running), self.grace);
                    self.output.say(&format!(
                        "{ranks} had not ended {grace:?} after the first failure; sent SIGTERM (TRANSOM_GRACE)"
                    ));
                }
                self.terminate();
            }
            Phase::Terminating(until) if until <= now => self.kill(),
            Phase::Killed(until) if until <= now => {
                self.ranks.cut();
                self.phase = Phase::Cut;
            }
            _ => {}
        }
    }

    fn hear_signals(&mut self) {
        let heard: Vec<Received> = self.signals.iter_mut().flat_map(Signals::pending).collect();
        for received in heard {
            tracing::debug!(?received, "the launcher got a signal");
            let signal = match received {
                Received::End(signal) => signal,
                Received::Forward(signal) => {
                    self.ranks.signal(signal);
                    continue;
                }
                Received::Stop => {
                    // SIGTSTP has no effect in the session of a rank on a host, where no shell could continue it.
                    self.ranks.signal(Signal::STOP);
                    let _ = kill_process(getpid(), Signal::STOP);
                    continue;
                }
            };
            self.settle_failure(true);
            // A terminal sends the signal to the ranks too, and the launcher may see a rank killed by it first.
            if matches!(self.failure, Some(Failure::Rank { status: Status::Killed(by), .. }) if by == signal) {
                self.failure = Some(Failure::Interrupted { signal });
            }
            self.fail(Failure::Interrupted { signal });
            if self.interrupted && signal == SIGINT {
                self.kill();
                self.give_up_output = Some(Instant::now());
            } else {
                self.terminate();
                self.give_up_output.get_or_insert(Instant::now() + TERM_TO_KILL + LAST_OUTPUT);
            }
            self.interrupted = true;
        }
    }

    /// A job that ends before all its hosts are reached is an error, not an outcome.
    fn check_reaching(&mut self) -> Result<(), LaunchError> {
        if self.ranks.are_reached() || self.failed.is_some() || self.failure.is_some() && !self.interrupted {
            return Ok(());
        }
        match self.failure {
            Some(Failure::Interrupted { signal }) => Err(LaunchError::Interrupted { signal }),
            _ if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) => Err(LaunchError::Deadline),
            _ => Ok(()),
        }
    }

    fn reap(&mut self, mut statuses: Vec<(Rank, Status)>) {
        // A rank that fails because of another death has recorded that death before. A rank that left before any
        // recorded death failed on its own, and ranks that waited for it may follow. Otherwise, of several ranks that
        // ended at once, a killed one is more likely the cause than one that exited.
        let noticed = self.control_plane.first_death();
        let has_left = |rank: Rank| self.control_plane.has_left_first(rank);
        statuses.sort_by_key(|&(rank, status)| (!has_left(rank), !matches!(status, Status::Killed(_))));
        for &(rank, status) in &statuses {
            self.control_plane.ended(rank, status.success());
            tracing::debug!(rank, %status, "rank ended");
            self.output.finish(rank);
        }
        if let Some(&(rank, status)) = statuses.iter().find(|(_, status)| !status.success()) {
            self.hear_signals();
            let cause = noticed.filter(|_| !self.control_plane.has_left_first(rank)).unwrap_or(rank);
            self.failed.get_or_insert(Failed { rank, status, cause });
            if let Phase::Running = self.phase {
                self.phase = Phase::Grace(Instant::now().checked_add(self.grace));
            }
            // A rank that has not started has no error to report.
            for (rank, status) in self.ranks.reach_no_more() {
                self.control_plane.ended(rank, status.success());
            }
        }
        self.settle_failure(false);
    }

    /// Decides which rank made the job fail: the first that died according to the other ranks, which may not be the
    /// first whose process was seen to end. Waits for that rank's status unless `urgent`.
    fn settle_failure(&mut self, urgent: bool) {
        let Some(Failed { rank: failed, status, cause }) = self.failed else { return };
        let failure = match self.ranks.status(cause) {
            None if !urgent => return,
            Some(Status::Exited(0)) => Failure::ExitedWithoutLeaving { rank: cause, failed, status },
            Some(status) => Failure::Rank { rank: cause, status },
            None => Failure::Rank { rank: failed, status },
        };
        self.failed = None;
        self.fail(failure);
    }

    fn write(&mut self) -> Result<(), LaunchError> {
        if let Some(error) = self.output.file_error() {
            return Err(LaunchError::Output(error));
        }
        while let Err(error) = self.output.write() {
            if error.kind() != io::ErrorKind::BrokenPipe {
                return Err(LaunchError::Output(with_limit(error)));
            }
            // Queued lines for stdout are dropped now; those for stderr are still written.
            self.fail(Failure::OutputClosed);
            self.terminate();
        }
        Ok(())
    }

    /// Records a failure and reports it on stderr, unless an earlier one is recorded.
    fn fail(&mut self, failure: Failure) {
        if self.failure.is_none() {
            if failure != Failure::OutputClosed {
                self.output.say(&failure.to_string());
            }
            self.failure = Some(failure);
        }
    }

    fn terminate(&mut self) {
        if let Phase::Running | Phase::Grace(_) = self.phase {
            self.ranks.signal(Signal::TERM);
            self.phase = Phase::Terminating(Instant::now() + TERM_TO_KILL);
        }
    }

    fn kill(&mut self) {
        self.ranks.signal(Signal::KILL);
        self.phase = Phase::Killed(Instant::now() + KILL_TO_CUT);
    }
}

/// Adds the limit of file sizes to an error that it caused.
fn with_limit(error: io::Error) -> io::Error {
    let most = getrlimit(Resource::Fsize).current;
    match (rustix::io::Errno::from_io_error(&error), most) {
        (Some(rustix::io::Errno::FBIG), Some(most)) => io::Error::new(
            error.kind(),
            format!("the output file reached the limit of {most} bytes (RLIMIT_FSIZE); raise it with `ulimit -f`"),
        ),
        _ => error,
    }
}
