//! The result of a job, and the errors of starting one.

use super::hosts::MapBy;
use crate::ranges::ranges;
use crate::variables::VariableError;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use transom_locks::Rank;
use transom_windows::FabricError;

/// The result of a job: how its ranks ended.
///
/// # Examples
/// ```
/// let outcome = transom::Launch::new("true", 2).capture(true).run()?;
/// assert_eq!((outcome.exit_code(), outcome.to_string().as_str()), (0, "all 2 ranks ended successfully"));
/// # Ok::<(), transom::LaunchError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(super) statuses: Vec<Status>,
    pub(super) failure: Option<Failure>,
    pub(super) output: Vec<Vec<u8>>,
}

/// The status with which a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Exited with this status; 0 means success.
    Exited(i32),
    /// Killed by this signal number.
    Killed(i32),
}

/// The first failure of a job; failures that followed from it are not reported.
///
/// # Examples
/// ```
/// use transom::{Failure, Launch, Status};
///
/// let outcome = Launch::new("sh", 1).args(["-c", "kill -KILL $$"]).capture(true).run()?;
/// assert_eq!(outcome.failure(), Some(&Failure::Rank { rank: 0, status: Status::Killed(9) }));
/// assert_eq!((outcome.exit_code(), outcome.to_string().as_str()), (137, "rank 0 was killed by signal 9 (SIGKILL)"));
/// # Ok::<(), transom::LaunchError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Failure {
    /// A rank failed before any other.
    Rank {
        /// The rank.
        rank: Rank,
        /// Its status.
        status: Status,
    },
    /// A rank exited with status 0 without leaving the job, and then another rank failed.
    ///
    /// To the other ranks, the first one died. A rank leaves when its `transom::World` is dropped, which
    /// `std::process::exit` does not do; a panic counts as a death. If all ranks exit with status 0, the job has
    /// succeeded.
    ExitedWithoutLeaving {
        /// The rank that exited.
        rank: Rank,
        /// The first rank that failed.
        failed: Rank,
        /// The status of `failed`.
        status: Status,
    },
    /// The deadline passed.
    Deadline {
        /// The ranks that had not ended and were killed.
        running: Vec<Rank>,
    },
    /// The launcher received a signal.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The reader of the launcher's stdout closed it.
    OutputClosed,
}

/// An error of starting a job, or of watching it to its end. None of its ranks is running.
///
/// # Examples
/// ```
/// let error = transom::Launch::new("./no-such-program", 2).run().unwrap_err();
/// let said = "rank 0: cannot start `./no-such-program`: there is no such file; is it built, and is the path right?";
/// assert_eq!(error.to_string(), said);
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The number of ranks is zero or exceeds the lock's limit.
    #[error("a job has 1 to {most} ranks, not {ranks}")]
    Ranks {
        /// The ranks requested.
        ranks: usize,
        /// The largest number of ranks.
        most: usize,
    },
    /// The hosts have fewer places than there are ranks.
    #[error(
        "{ranks} ranks do not fit the {places} places of the hosts; give more (`a:4,b:3`), leave the numbers out (`a,b`), or start \
         {places} ranks"
    )]
    Places {
        /// The ranks requested.
        ranks: usize,
        /// The places of all hosts together.
        places: usize,
    },
    /// The mapping gives each host fewer ranks than needed.
    #[error(
        "{ranks} ranks do not fit {hosts} host{} with {each} rank{} each (ppr:{each}:node); use ppr:{}:node, or start {} ranks",
        if *hosts == 1 { "" } else { "s" }, if *each == 1 { "" } else { "s" }, ranks.div_ceil(*hosts), each * hosts
    )]
    PerNode {
        /// The ranks requested.
        ranks: usize,
        /// The ranks on each host.
        each: usize,
        /// The number of hosts.
        hosts: usize,
    },
    /// A host has fewer places than the ranks that the mapping puts there.
    #[error(
        "{ranks} ranks of {map} do not fit the {places} places of host {host}; give it more (`{host}:{ranks}`), or use slot or node"
    )]
    PlacesOfHost {
        /// The host.
        host: String,
        /// Its places.
        places: usize,
        /// Its ranks.
        ranks: usize,
        /// The mapping.
        map: MapBy,
    },
    /// Launchers are nested too deep, each started by a rank of the previous one.
    #[error(
        "{depth} launchers are above this process, the maximum (TRANSOM_NESTING={depth}); does the program start \
         itself again in each rank? A rank must call `init` or `start` in the environment that its launcher gave it; \
         to nest deeper on purpose, remove TRANSOM_NESTING from the environment"
    )]
    Nesting {
        /// The number of launchers above this process.
        depth: usize,
    },
    /// The limit of open files is below what the job needs.
    #[error(
        "a launcher of {ranks} ranks needs {need} open files, but the limit is {limit}; raise it (`ulimit -n {need}`, as root or \
         in /etc/security/limits.conf if that is refused), or start fewer ranks"
    )]
    OpenFiles {
        /// The ranks requested.
        ranks: usize,
        /// The number of open files needed, including those open now.
        need: u64,
        /// The limit, after this process raised it as far as permitted.
        limit: u64,
    },
    /// A host could not be reached.
    #[error("rank {rank}: host {host}: {why}")]
    Host {
        /// The lowest rank of that host.
        rank: Rank,
        /// The host.
        host: String,
        /// The fault, and what to try.
        why: String,
    },
    /// The launcher received a signal before all hosts were reached.
    #[error("ended by {} before all hosts were reached", Named(*signal))]
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The deadline passed before all hosts were reached.
    #[error("the deadline passed before all hosts were reached")]
    Deadline,
    /// The program could not be started.
    #[error("rank {rank}: cannot start `{}`: {advice}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The rank that was being started.
        rank: Rank,
        /// The fault, and the remedy.
        advice: String,
        /// The system's error.
        source: io::Error,
    },
    /// The folder for the ranks cannot be entered.
    #[error("the ranks cannot start in the folder `{}`: {source}; create it, or name another folder", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file for the output of a rank cannot be created.
    #[error("the output file or folder `{}` cannot be created: {source}; name a folder in which this user can write", path.display())]
    OutputFile {
        /// The file, or its folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// An environment variable has a value that cannot be read.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The shared memory of the ranks could not be created.
    #[error("cannot create the shared memory of the job: {0}")]
    Job(#[from] FabricError),
    /// The output of the ranks could not be written.
    #[error("the output of the ranks cannot be written: {0}; is the device full, or the pipe's reader gone?")]
    Output(#[source] io::Error),
    /// Another system call failed.
    #[error("the launcher failed at {what}: {source}{}", transom_windows::remedy(source))]
    System {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl Outcome {
    /// Returns whether all ranks exited with status 0.
    pub fn success(&self) -> bool {
        self.failure.is_none()
    }

    /// The first failure; `None` if the job succeeded.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// The statuses of all ranks, by rank.
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// The lines that a rank wrote to stdout and stderr, in the order received.
    ///
    /// Empty unless the output was [captured](crate::launcher::Launch::capture).
    pub fn output(&self, rank: Rank) -> &[u8] {
        self.output.get(rank).map_or(&[], Vec::as_slice)
    }

    /// The exit status for a launcher, by the conventions of shells.
    ///
    /// The status of the first rank that failed. Otherwise: 128 plus the signal if a signal ended the rank or the
    /// launcher; 124 if the deadline passed; 141 (SIGPIPE) if the reader of the output closed it.
    pub fn exit_code(&self) -> u8 {
        let code = match self.failure {
            None => 0,
            Some(Failure::Rank { status, .. } | Failure::ExitedWithoutLeaving { status, .. }) => match status {
                Status::Exited(code) => code,
                Status::Killed(signal) => 128 + signal,
            },
            Some(Failure::Interrupted { signal }) => 128 + signal,
            Some(Failure::Deadline { .. }) => 124,
            Some(Failure::OutputClosed) => 141,
        };
        u8::try_from(code).unwrap_or(1)
    }
}

impl Status {
    /// Returns whether the process exited with status 0.
    pub fn success(self) -> bool {
        self == Status::Exited(0)
    }

    /// Converts the status of a shell to the status of the program that the shell ran.
    pub(super) fn of_shell(self) -> Self {
        match self {
            Status::Exited(code @ 129..=192) => Status::Killed(code - 128),
            other => other,
        }
    }
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Status::Exited(code),
            (None, Some(signal)) => Status::Killed(signal),
            // Not possible: a process that was waited for has exited or was killed.
            (None, None) => Status::Exited(1),
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.failure, self.statuses.len()) {
            (Some(failure), _) => failure.fmt(f),
            (None, 1) => f.write_str("the only rank ended successfully"),
            (None, ranks) => write!(f, "all {ranks} ranks ended successfully"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Rank { rank, status } => write!(f, "rank {rank} {status}"),
            Failure::ExitedWithoutLeaving { rank, failed, status } => write!(
                f,
                "rank {rank} exited with status 0 without leaving the job (std::process::exit does not drop its World, or \
                 a panic did); then rank {failed} {status}"
            ),
            Failure::Deadline { running } => match running.as_slice() {
                [] => f.write_str("the deadline passed before all output was written"),
                ranks => write!(f, "the deadline passed; {} had not ended", Listed(ranks)),
            },
            Failure::Interrupted { signal } => write!(f, "ended by {}", Named(*signal)),
            Failure::OutputClosed => f.write_str("the reader of the output closed it"),
        }
    }
}

/// Displays ascending ranks as `rank 1` or `ranks 0-3, 7`.
pub(super) struct Listed<'a>(pub &'a [Rank]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank{} {}", if self.0.len() == 1 { "" } else { "s" }, ranges(self.0))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Exited(code) => write!(f, "exited with status {code}"),
            Status::Killed(signal) => write!(f, "was killed by {}", Named(*signal)),
        }
    }
}

/// Displays a signal by number and name.
struct Named(i32);

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match signal_hook::low_level::signal_name(self.0) {
            Some(name) => write!(f, "signal {} ({name})", self.0),
            None => write!(f, "signal {}", self.0),
        }
    }
}

transom_windows::joins_error!(LaunchError);
