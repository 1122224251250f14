//! The launcher starts the ranks of a job, on this machine or on several, and watches them until all have ended.

pub mod agent;
pub(crate) mod agent_path;
mod binding;
mod child;
mod control_plane;
mod files;
mod host_job;
mod hosts;
mod input;
mod offer;
mod orphans;
mod outcome;
mod output;
mod prefix;
mod queue;
mod ranks;
mod records;
mod remote;
mod repeats;
mod script;
mod settings;
mod shell;
mod signals;
mod stamp;
mod watch;

pub use binding::BindTo;
pub use hosts::{HostList, HostListError, HostSourceError, MapBy};
pub use outcome::{Failure, LaunchError, Outcome, Status};
pub use prefix::OutputPrefix;

use crate::descriptors::{self, TooFew};
use crate::tcp::Hub;
use crate::variables::{GRACE, OUTPUT_PREFIX, Seconds};
use control_plane::ControlPlane;
use orphans::Orphans;
use output::{Format, Output};
use ranks::Ranks;
use settings::Settings;
use signals::Signals;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use watch::Watch;

/// A job to start: a number of ranks of one program, on this machine or on [several hosts](Launch::hosts).
///
/// The launcher forwards each rank's stdout and stderr by whole lines, so lines of different ranks never mix. It
/// completes a last line that has no newline. With several ranks, lines of stderr begin with the
/// [prefix](Launch::output_prefix) of their rank. Rank 0 has this process's stdin, on hosts too; the others have an empty
/// one.
///
/// When a rank fails, the others have a [grace](Launch::grace) period and are then ended. All ranks end when this
/// process ends, for whatever reason, and when the thread that called [`run`](Launch::run) ends. Processes that a rank
/// started may outlive this process if it is killed.
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
    /// Describes a job of `ranks` ranks of `program`. A program without a `/` is searched in `PATH`, as in a shell.
    pub fn new(program: impl Into<PathBuf>, ranks: usize) -> Self {
        Launch(Settings { program: program.into(), ranks, ..Settings::default() })
    }

    /// Appends arguments for the program.
    pub fn args(mut self, args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.0.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Runs the ranks on hosts instead of this machine.
    ///
    /// The launcher starts all ranks of a host through one `ssh`, in the current folder or [another](Launch::current_dir). On a
    /// node of the Slurm job in which this process runs, `srun` replaces `ssh`; the command in `TRANSOM_SSH` replaces both. The host needs the program in that folder, `sh`, and
    /// [`transom`](Launch::agent), or coreutils and `setsid`. `localhost` and
    /// this machine's own name need no `ssh`.
    ///
    /// Ranks inherit part of this process's environment: variables that begin with `TRANSOM_` (except the launcher's
    /// own), `RUST_` or `OMP_`, and `LD_LIBRARY_PATH`. They get `PATH` too, after the host's own, unless
    /// [`env`](Launch::env) sets it. A status above 128 is reported as the end by a signal, as
    /// shells do.
    ///
    /// Ranks end with their connection, and so with this process, for whatever reason it ends. Ranks on a host that is
    /// cut off run until its `sshd` notices. Their calls, and those of the other ranks, fail within ten seconds.
    ///
    /// A process that a rank leaves behind on another host ends with the rank, unless it made its own session or
    /// process group. Such a process runs on, and while it has the rank's stdout or stderr open, the rank has not
    /// ended. Redirect both, e.g. `setsid daemon >/dev/null 2>&1 &`.
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

    /// Names the path of the program `transom` on hosts, from the root. It starts their ranks where it is installed, in two processes for
    /// each host. Elsewhere a shell script does, in five processes for each rank.
    ///
    /// A program of another version is not used, nor a file of another user than root. Hosts then try the `transom` in
    /// their `PATH`, which is the default. The variable `TRANSOM_AGENT` overrides the path.
    ///
    /// # Examples
    /// ```no_run
    /// let launch = transom::Launch::new("./program", 64).hosts("node1,node2".parse()?);
    /// let outcome = launch.agent("/opt/transom/bin/transom").run()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn agent(mut self, path: impl Into<PathBuf>) -> Self {
        self.0.agent = Some(path.into());
        self
    }

    /// Sets the order in which ranks fill the places of hosts; [`MapBy::Slot`] by default.
    ///
    /// # Examples
    /// ```no_run
    /// use transom::MapBy;
    /// let launch = transom::Launch::new("./program", 4).hosts("node1,node2".parse()?);
    /// let outcome = launch.map_by(MapBy::Node).run()?; // ranks 0 and 2 on node1
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn map_by(mut self, map: MapBy) -> Self {
        self.0.map_by = map;
        self
    }

    /// Sets an environment variable for the ranks, which otherwise inherit this process's variables.
    /// `TRANSOM_BOOTSTRAP` and the variables that the launcher sets for ranks cannot be set.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.0.env.push((name.into(), value.into()));
        self
    }

    /// Starts the ranks in this folder instead of the current one. A relative program is relative to it.
    ///
    /// On hosts each host needs the folder. Relative folders are relative to this process's current folder.
    ///
    /// # Examples
    /// ```
    /// let outcome = transom::Launch::new("pwd", 1).current_dir("/").capture(true).run()?;
    /// assert_eq!(outcome.output(0), b"/\n");
    /// # Ok::<(), transom::LaunchError>(())
    /// ```
    pub fn current_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.folder = Some(folder.into());
        self
    }

    /// Selects the lines of output that begin with the rank that wrote them, e.g. `[2] `.
    ///
    /// The default is the variable `TRANSOM_OUTPUT_PREFIX`; without it, [`OutputPrefix::Stderr`] for a job of several
    /// ranks and
    /// [`OutputPrefix::None`] for one. Captured output is not tagged by default.
    ///
    /// # Examples
    /// ```
    /// use transom::{Launch, OutputPrefix};
    ///
    /// let outcome = Launch::new("sh", 2).args(["-c", "echo a; echo b"]).output_prefix(OutputPrefix::All).capture(true).run()?;
    /// assert_eq!(outcome.output(1), b"[1] a\n[1] b\n");
    /// # Ok::<(), transom::LaunchError>(())
    /// ```
    pub fn output_prefix(mut self, prefix: OutputPrefix) -> Self {
        self.0.prefix = Some(prefix);
        self
    }

    /// Binds the ranks to processors; [`BindTo::None`] by default. Hosts without
    /// [`transom`](Launch::agent) need `taskset` of util-linux for it.
    pub fn bind_to(mut self, bind: BindTo) -> Self {
        self.0.bind_to = bind;
        self
    }

    /// Reports host, local rank and processors of each rank on stderr.
    pub fn report_bindings(mut self, report: bool) -> Self {
        self.0.report_bindings = report;
        self
    }

    /// Reports on stderr how ranks meet, each host that is reached, and the [place of each
    /// rank](Launch::report_bindings). Ranks report the provider that they chose.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.0.verbose = verbose;
        self
    }

    /// Begins each output line with the time at which the launcher received it, in UTC: `2026-11-29T22:03:04.123Z `. The
    /// time precedes the [prefix](Launch::output_prefix).
    pub fn timestamps(mut self, stamp: bool) -> Self {
        self.0.timestamps = stamp;
        self
    }

    /// Also writes the output lines of each rank to files of this folder, `rank.2.stdout` and `rank.2.stderr`. Numbers
    /// have one width. The launcher creates the folder, and replaces older files. Lines have no prefix there.
    ///
    /// # Examples
    /// ```
    /// # let folder = std::env::temp_dir().join(format!("output-{}", std::process::id()));
    /// transom::Launch::new("echo", 2).args(["hello"]).output_dir(&folder).run()?;
    /// assert_eq!(std::fs::read_to_string(folder.join("rank.1.stdout"))?, "hello\n");
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn output_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.0.output_folder = Some(folder.into());
        self
    }

    /// Sets how long the other ranks may run after the first failure, to report their own errors.
    ///
    /// After it they get SIGTERM, and a second later SIGKILL. The default is the variable `TRANSOM_GRACE`; without it,
    /// two seconds.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.0.grace = Some(grace);
        self
    }

    /// Ends all ranks that are still running this long after [`run`](Launch::run): SIGTERM, and SIGKILL a second later.
    /// Never by default.
    ///
    /// A deadline that passes before all hosts are reached is [`LaunchError::Deadline`].
    pub fn deadline(mut self, deadline: impl Into<Option<Duration>>) -> Self {
        self.0.deadline = deadline.into();
        self
    }

    /// Keeps the ranks' output for [`Outcome::output`] instead of forwarding it.
    ///
    /// Rank 0 then has an empty stdin, and failures are not reported on stderr.
    pub fn capture(mut self, capture: bool) -> Self {
        self.0.capture = capture;
        self
    }

    /// Kills, at the end, processes that ranks started and left behind.
    ///
    /// Off by default, because it suits only a process that is nothing but a launcher. While the job runs, orphans
    /// among all descendants of this process become its children. At the end it kills and reaps every child that it did
    /// not have before, including those of another launch or another thread.
    pub fn reap_orphans(mut self, reap: bool) -> Self {
        self.0.reap_orphans = reap;
        self
    }

    /// Ends the job on SIGINT, SIGTERM or SIGHUP to this process; a second SIGINT ends it at once.
    ///
    /// SIGUSR1 and SIGUSR2 are passed on to all ranks, on hosts to the process group of each. SIGTSTP stops all ranks
    /// and this process; SIGCONT continues them. SIGTSTP is ignored if no shell could continue this process. These signals are not handled if they were ignored before, as SIGHUP is
    /// under `nohup`; SIGTERM and SIGCONT always are.
    ///
    /// Off by default, because it suits only a process that is nothing but a launcher. The handlers belong to the whole
    /// process, and afterwards it ignores these signals.
    pub fn handle_signals(mut self, handle: bool) -> Self {
        self.0.handle_signals = handle;
        self
    }

    /// Starts the ranks and waits until all have ended and their output is written.
    ///
    /// A failed rank is reported in the [`Outcome`], not as an error.
    ///
    /// # Errors
    /// [`LaunchError`] if the launcher cannot start or watch all ranks; no rank is left running.
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
        let prefix = match settings.prefix {
            Some(prefix) => prefix,
            None if settings.capture => OutputPrefix::None,
            None => {
                let default = if settings.ranks == 1 { OutputPrefix::None } else { OutputPrefix::Stderr };
                OUTPUT_PREFIX.get()?.unwrap_or(default)
            }
        };
        settings.check_folder()?;
        let system = |what: &'static str| move |source: io::Error| LaunchError::System { what, source };
        let deadline = settings.deadline.and_then(|deadline| Instant::now().checked_add(deadline));
        let control_plane = ControlPlane::create(settings)?;
        let hosts = control_plane.hosts().map(|hosts| hosts.len());
        let of_hub = hosts.map_or(0, |_| Hub::descriptors(settings.ranks));
        let of_files = settings.output_folder.as_ref().map_or(0, |_| 2 * settings.ranks);
        descriptors::make_room(Ranks::descriptors(settings.ranks, hosts) + of_hub + of_files)
            .map_err(|TooFew { need, limit }| LaunchError::OpenFiles { ranks: settings.ranks, need, limit })?;
        let orphans = settings.reap_orphans.then(Orphans::adopt).transpose().map_err(system("adopting orphans"))?;
        let signals = settings.handle_signals.then(Signals::handle).transpose().map_err(system("handling signals"))?;
        let files = settings.output_folder.as_ref().map(|folder| files::create(folder, settings.ranks)).transpose()?;
        let (ranks, pipes) = Ranks::start(settings, &control_plane)?;
        let format = Format { prefix, timestamps: settings.timestamps };
        let output = match control_plane.hosts() {
            None => Output::here(pipes, format, settings.capture),
            Some(hosts) => {
                let names: Vec<&str> = hosts.iter().map(|(name, _)| *name).collect();
                Output::on_hosts(settings.ranks, &names, format, settings.capture)
            }
        };
        let mut output = output.map_err(system("preparing the output"))?;
        output.write_to(files.unwrap_or_default());
        if settings.verbose {
            output.say(&control_plane.describe());
        }
        if settings.verbose || settings.report_bindings {
            ranks.describe_here().iter().for_each(|line| output.say(line));
        }
        Watch::new(control_plane, ranks, output, signals, orphans, grace, deadline).until_the_end()
    }
}
