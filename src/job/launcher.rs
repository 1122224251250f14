//! The launcher: starts the ranks of a job, on this machine or on several, and sees them through to their end.

mod hosts;
mod meeting;
mod orphans;
mod outcome;
mod output;
mod ranks;
mod remote;
mod signals;
mod watch;

pub use hosts::{HostList, HostListError};
pub use outcome::{Failure, LaunchError, Outcome, Status};

use crate::job::variables::{self, Seconds};
use meeting::Meeting;
use orphans::Orphans;
use output::Output;
use ranks::Ranks;
use signals::Signals;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::Watch;

/// A job to be started: so many ranks of one program, on this machine or on [several](Launch::hosts).
///
/// Each rank's stdout and stderr are forwarded by whole lines, so that lines of different ranks never mix; what a rank
/// wrote without a newline at its end gets one. Rank 0 has this process's stdin, the others an empty one. When a rank
/// fails, the others have a [grace](Launch::grace) and are then ended. A rank cannot outlive this process, however it
/// ends, nor the thread that called [`run`](Launch::run); what a rank itself started can, if this process is killed.
///
/// # Examples
/// ```
/// use transom::Launch;
///
/// let outcome = Launch::new("sh", 3).args(["-c", "echo rank $TRANSOM_RANK of $TRANSOM_SIZE"]).capture(true).run()?;
/// assert!(outcome.success());
/// assert_eq!(outcome.output(2), b"rank 2 of 3\n");
/// # Ok::<(), transom::LaunchError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is started before `run`"]
pub struct Launch {
    program: PathBuf,
    ranks: usize,
    hosts: Option<HostList>,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    grace: Option<Duration>,
    deadline: Option<Duration>,
    tag: bool,
    capture: bool,
    reap_orphans: bool,
    handle_signals: bool,
}

impl Launch {
    /// So many ranks of a program, which is found as a shell finds it: by `PATH`, unless there is a `/` in it.
    pub fn new(program: impl Into<PathBuf>, ranks: usize) -> Self {
        Launch {
            program: program.into(),
            ranks,
            hosts: None,
            args: Vec::new(),
            env: Vec::new(),
            grace: None,
            deadline: None,
            tag: false,
            capture: false,
            reap_orphans: false,
            handle_signals: false,
        }
    }

    /// More arguments for the program.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Where the ranks run, if not on this machine: each is started through `ssh` (or what the variable `TRANSOM_SSH`
    /// names), in this folder, and needs the program and `sh` there. `localhost` and this machine's own name need no
    /// `ssh`. Of this process's environment go along: what [`variables`] has for users to set, `RUST_` and `OMP_`
    /// variables, `LD_LIBRARY_PATH`, and `PATH` after the host's own, unless
    /// [`env`](Launch::env) has one. All stdins are empty. That a rank was ended by a
    /// signal is told by a status above 128, as a shell has it.
    ///
    /// Ranks end with their connection, so with this process too, whatever ends it. A host that is cut off keeps its
    /// ranks until its `sshd` notices; their calls, and the others', fail within ten seconds.
    ///
    /// What a rank leaves behind on another host ends with it, unless it made a session or a process group of its own:
    /// that goes on, and as long as it holds the rank's stdout or stderr, the rank has not ended. Redirect both, e.g.
    /// `setsid daemon >/dev/null 2>&1 &`.
    ///
    /// # Examples
    /// ```no_run
    /// let outcome = transom::Launch::new("./program", 4).hosts("node1,node2".parse()?).run()?; // two on each
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hosts(mut self, hosts: HostList) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// A variable for the ranks' environment, which is else this process's.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Whether each line begins with the rank that wrote it: `[2] `.
    pub fn tag(mut self, tag: bool) -> Self {
        self.tag = tag;
        self
    }

    /// How long the others may go on after the first failure, to report their own errors. Then they get SIGTERM, and a
    /// second later SIGKILL. Two seconds if nothing is said here or by the variable `TRANSOM_GRACE`.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// When all ranks are killed that have not ended by themselves, counted from [`run`](Launch::run). None if nothing
    /// is said. If it passes while hosts are still reached, that is [`LaunchError::Deadline`].
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.deadline = deadline.into();
        self
    }

    /// Whether the ranks' output is kept for [`Outcome::output`] instead of being forwarded. Rank 0 then has no stdin,
    /// and nothing is said on stderr about a failure.
    pub fn capture(mut self, capture: bool) -> Self {
        self.capture = capture;
        self
    }

    /// Whether processes that ranks started and left behind are killed at the end.
    ///
    /// Only for a process that is a launcher and nothing else, so off at first: while the job runs, orphans among all
    /// descendants of this process become its children, and at the end it kills and reaps all children that it did not
    /// have before; those of another launch, or of another thread, as well.
    pub fn reap_orphans(mut self, reap: bool) -> Self {
        self.reap_orphans = reap;
        self
    }

    /// Whether SIGINT, SIGTERM and SIGHUP to this process end the job (a second SIGINT at once); SIGINT and SIGHUP
    /// not if they were ignored before, as `nohup` has it.
    ///
    /// Only for a process that is a launcher and nothing else, so off at first: how a signal is handled is a property
    /// of the whole process, and afterwards these signals are ignored.
    pub fn handle_signals(mut self, handle: bool) -> Self {
        self.handle_signals = handle;
        self
    }

    /// Starts the ranks and waits until all have ended and their output is written. That a rank failed is an outcome
    /// and no error.
    ///
    /// # Errors
    /// [`LaunchError`] if not all ranks could be started, or watched; none is then left running.
    ///
    /// # Examples
    /// ```
    /// let outcome = transom::Launch::new("sh", 2).args(["-c", "exit $((3 * TRANSOM_RANK))"]).capture(true).run()?;
    /// assert_eq!(outcome.failure().unwrap().to_string(), "rank 1 exited with status 3");
    /// assert_eq!(outcome.exit_code(), 3);
    /// # Ok::<(), transom::LaunchError>(())
    /// ```
    pub fn run(&self) -> Result<Outcome, LaunchError> {
        let most = transom_locks::LockWord::<16>::MAX_RANKS;
        if self.ranks == 0 || self.ranks > most {
            return Err(LaunchError::Ranks { ranks: self.ranks, most });
        }
        let grace = match self.grace {
            Some(grace) => grace,
            None => variables::get::<Seconds>("TRANSOM_GRACE")?.map_or(Duration::from_secs(2), |seconds| seconds.0),
        };
        let system = |what: &'static str| move |source: io::Error| LaunchError::System { what, source };
        let deadline = self.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let orphans = self.reap_orphans.then(Orphans::adopt).transpose().map_err(system("adopting orphans"))?;
        let mut signals = self.handle_signals.then(Signals::handle).transpose().map_err(system("handling signals"))?;
        let meeting = Meeting::of(self)?;
        let (ranks, pipes) = Ranks::start(self, &meeting, signals.as_mut(), deadline)?;
        let output = Output::new(self.ranks, pipes, self.tag, self.capture).map_err(system("preparing the output"))?;
        Watch::new(meeting, ranks, output, signals, orphans, grace, deadline).until_the_end()
    }
}
