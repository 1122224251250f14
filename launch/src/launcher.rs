//! The launcher: starts the ranks of a job, on this machine or on several, and watches them until all have ended.

mod child;
mod control_plane;
mod hosts;
mod orphans;
mod outcome;
mod output;
mod ranks;
mod remote;
mod script;
mod settings;
mod signals;
mod tag;
mod watch;

pub use hosts::{HostList, HostListError};
pub use outcome::{Failure, LaunchError, Outcome, Status};
pub use tag::Tag;

use crate::descriptors::{self, TooFew};
use crate::tcp::Hub;
use crate::variables::{GRACE, Seconds, TAG};
use control_plane::ControlPlane;
use orphans::Orphans;
use output::Output;
use ranks::Ranks;
use settings::Settings;
use signals::Signals;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::Watch;

/// A job to be started: so many ranks of one program, on this machine or on [several](Launch::hosts).
///
/// Each rank's stdout and stderr are forwarded by whole lines, so that lines of different ranks never mix; if the last line
/// of a rank has no newline, it gets one. Lines of stderr begin with the [tag](Launch::tag) of their rank if there are
/// several. Rank 0 has this process's stdin, the others an empty one. When a rank fails, the others have a
/// [grace](Launch::grace) and are then ended. A rank ends when this process ends, for whatever reason, and when the thread
/// ends that called [`run`](Launch::run); processes that a rank started may go on if this process is killed.
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
pub struct Launch(Settings);

impl Launch {
    /// So many ranks of a program, which is found as a shell finds it: by `PATH`, unless there is a `/` in it.
    pub fn new(program: impl Into<PathBuf>, ranks: usize) -> Self {
        Launch(Settings { program: program.into(), ranks, ..Settings::default() })
    }

    /// More arguments for the program.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.0.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Where the ranks run, if not on this machine. Those of a host are started through one `ssh`, or what the variable
    /// `TRANSOM_SSH` names, in this folder; the host needs the program there, `sh`, coreutils and `setsid`. `localhost` and this machine's own name need no
    /// `ssh`. Ranks get, of this process's environment: those that begin with `TRANSOM_` but for the launcher's own, `RUST_` and
    /// `OMP_` variables, `LD_LIBRARY_PATH`, and `PATH` behind the host's own, unless [`env`](Launch::env) sets it. All
    /// stdins are empty. A status above 128 is taken for the end by a signal, as shells report it.
    ///
    /// Ranks end with their connection, so also with this process, for whatever reason it ends. Ranks of a host that is
    /// cut off go on until its `sshd` notices; their calls, and those of the others, fail within ten seconds.
    ///
    /// A process that a rank leaves behind on another host ends with the rank, unless it made a session or a process group
    /// of its own. Then it goes on, and while it has the rank's stdout or stderr open, the rank has not ended. Redirect
    /// both, e.g. `setsid daemon >/dev/null 2>&1 &`.
    ///
    /// # Examples
    /// ```no_run
    /// let outcome = transom::Launch::new("./program", 4).hosts("node1,node2".parse()?).run()?; // two on each
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hosts(mut self, hosts: HostList) -> Self {
        self.0.hosts = Some(hosts);
        self
    }

    /// Sets a variable for the ranks; all others are those of this process. Variables by which the launcher tells a rank
    /// its job, and `TRANSOM_BOOTSTRAP`, cannot be set.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.0.env.push((name.into(), value.into()));
        self
    }

    /// Which lines of the output begin with the rank that wrote them, `[2] `. If nothing is said here, the variable
    /// `TRANSOM_TAG` decides, else [`Tag::Stderr`] for a job of several ranks and [`Tag::None`] for one; captured output is
    /// not tagged then.
    ///
    /// # Examples
    /// ```
    /// use transom::{Launch, Tag};
    ///
    /// let outcome = Launch::new("sh", 2).args(["-c", "echo a; echo b"]).tag(Tag::All).capture(true).run()?;
    /// assert_eq!(outcome.output(1), b"[1] a\n[1] b\n");
    /// # Ok::<(), transom::LaunchError>(())
    /// ```
    pub fn tag(mut self, tag: Tag) -> Self {
        self.0.tag = Some(tag);
        self
    }

    /// How long the others may go on after the first failure, to report their own errors. Then they get SIGTERM, and a
    /// second later SIGKILL. If nothing is said here, the variable `TRANSOM_GRACE` decides, else it is two seconds.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.0.grace = Some(grace);
        self
    }

    /// How long after [`run`](Launch::run) all ranks are killed that have not ended; never if nothing is said. If it passes
    /// before all hosts are reached, that is [`LaunchError::Deadline`].
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.0.deadline = deadline.into();
        self
    }

    /// Whether the ranks' output is kept for [`Outcome::output`] instead of being forwarded. Rank 0 then has an empty
    /// stdin, and failures are not reported on stderr.
    pub fn capture(mut self, capture: bool) -> Self {
        self.0.capture = capture;
        self
    }

    /// Whether processes that ranks started and left behind are killed at the end.
    ///
    /// Off by default, because it is only for a process that is a launcher and nothing else: while the job runs, orphans
    /// among all descendants of this process become its children, and at the end it kills and reaps all children that it
    /// did not have before, also those of another launch or another thread.
    pub fn reap_orphans(mut self, reap: bool) -> Self {
        self.0.reap_orphans = reap;
        self
    }

    /// Whether SIGINT, SIGTERM and SIGHUP to this process end the job (a second SIGINT at once). SIGINT and SIGHUP do not
    /// if they were ignored before, as `nohup` does.
    ///
    /// Off by default, because it is only for a process that is a launcher and nothing else: how a signal is handled is a
    /// property of the whole process, and afterwards these signals are ignored.
    pub fn handle_signals(mut self, handle: bool) -> Self {
        self.0.handle_signals = handle;
        self
    }

    /// Starts the ranks and waits until all have ended and their output is written. That a rank failed is an outcome, not
    /// an error.
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
        let settings = &self.0;
        let most = transom_locks::LockWord::<16>::MAX_RANKS;
        if settings.ranks == 0 || settings.ranks > most {
            return Err(LaunchError::Ranks { ranks: settings.ranks, most });
        }
        let grace = match settings.grace {
            Some(grace) => grace,
            None => GRACE.get::<Seconds>()?.map_or(Duration::from_secs(2), |seconds| seconds.0),
        };
        let tag = match settings.tag {
            Some(tag) => tag,
            None if settings.capture => Tag::None,
            None => {
                let default = if settings.ranks == 1 { Tag::None } else { Tag::Stderr };
                TAG.get()?.unwrap_or(default)
            }
        };
        let system = |what: &'static str| move |source: io::Error| LaunchError::System { what, source };
        let deadline = settings.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let control_plane = ControlPlane::create(settings)?;
        let hosts = control_plane.hosts().map(|hosts| hosts.len());
        let of_hub = hosts.map_or(0, |_| Hub::descriptors(settings.ranks));
        descriptors::make_room(Ranks::descriptors(settings.ranks, hosts) + of_hub)
            .map_err(|TooFew { need, limit }| LaunchError::OpenFiles { ranks: settings.ranks, need, limit })?;
        let orphans = settings.reap_orphans.then(Orphans::adopt).transpose().map_err(system("adopting orphans"))?;
        let signals = settings.handle_signals.then(Signals::handle).transpose().map_err(system("handling signals"))?;
        let (ranks, pipes) = Ranks::start(settings, &control_plane)?;
        let output = match control_plane.hosts() {
            None => Output::here(pipes, tag, settings.capture),
            Some(hosts) => {
                let names: Vec<&str> = hosts.iter().map(|(name, _)| *name).collect();
                Output::on_hosts(settings.ranks, &names, tag, settings.capture)
            }
        };
        let output = output.map_err(system("preparing the output"))?;
        Watch::new(control_plane, ranks, output, signals, orphans, grace, deadline).until_the_end()
    }
}
