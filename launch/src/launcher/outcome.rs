//! How a job ended, and why it could not be started.

use crate::variables::VariableError;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;
use transom_locks::Rank;
use transom_windows::FabricError;

/// How the ranks of a job ended.
///
/// # Examples
/// ```
/// let outcome = transom::Launch::new("true", 2).capture(true).run()?;
/// assert_eq!((outcome.exit_code(), outcome.to_string().as_str()), (0, "all 2 ranks ended well"));
/// # Ok::<(), transom::LaunchError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(super) statuses: Vec<Status>,
    pub(super) failure: Option<Failure>,
    pub(super) output: Vec<Vec<u8>>,
}

/// How a rank's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// By itself, with a status; 0 says that it succeeded.
    Exited(i32),
    /// By a signal, with its number.
    Killed(i32),
}

/// What made a job fail: the first failure, not those that followed from it.
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
    /// A rank failed, the first to do so.
    Rank {
        /// The rank.
        rank: Rank,
        /// How it ended.
        status: Status,
    },
    /// A rank exited with status 0 without leaving the job, so that it died to the others, and another failed after that.
    /// A rank leaves when its `transom::World` is dropped, which `std::process::exit` does not do; in a panic, it
    /// dies. If all ranks exit with status 0, the job has succeeded.
    ExitedWithoutLeaving {
        /// The rank that exited.
        rank: Rank,
        /// The first rank that failed.
        failed: Rank,
        /// How that ended.
        status: Status,
    },
    /// The deadline passed.
    Deadline {
        /// The ranks that had not ended and were killed.
        running: Vec<Rank>,
    },
    /// The launcher got a signal.
    Interrupted {
        /// The signal's number.
        signal: i32,
    },
    /// The reader of the launcher's stdout has closed it.
    OutputClosed,
}

/// Why a job could not be started, or not be watched to its end. None of its ranks is running.
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
    /// No ranks, or more than one lock can have.
    #[error("a job has 1 to {most} ranks, not {ranks}")]
    Ranks {
        /// The ranks asked for.
        ranks: usize,
        /// The most there can be.
        most: usize,
    },
    /// More ranks than the hosts have places.
    #[error(
        "{ranks} ranks do not fit the {places} places of the hosts; give more (`a:4,b:3`), leave the numbers out (`a,b`), or start \
         {places} ranks"
    )]
    Places {
        /// The ranks asked for.
        ranks: usize,
        /// The places of all hosts.
        places: usize,
    },
    /// Too many launchers are above this process, each a rank of the one before.
    #[error(
        "{depth} launchers are above this process, each a rank of the one before (TRANSOM_NESTING={depth}), and it would be \
         another; does the program start itself in each of its ranks? A rank calls `init` or `start` in the environment \
         that its launcher gave it; if so many launchers are meant, remove TRANSOM_NESTING from the environment"
    )]
    Nesting {
        /// How many they are.
        depth: usize,
    },
    /// The system lets this process open fewer files than the job needs.
    #[error(
        "a launcher of {ranks} ranks needs {need} open files, and {limit} is the limit; raise it (`ulimit -n {need}`, as root or \
         in /etc/security/limits.conf if that is refused), or start fewer ranks"
    )]
    OpenFiles {
        /// The ranks asked for.
        ranks: usize,
        /// How many files are or would be open.
        need: u64,
        /// How many may be, also after this process raised what it may raise itself.
        limit: u64,
    },
    /// A host could not be reached.
    #[error("rank {rank}: host {host}: {why}; does `ssh {host} true` work without a password?")]
    Host {
        /// The rank that was to run there.
        rank: Rank,
        /// The host.
        host: String,
        /// What is wrong.
        why: String,
    },
    /// The launcher got a signal before all hosts were reached.
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
        /// The rank that it was to be.
        rank: Rank,
        /// What is wrong and what to do.
        advice: String,
        /// What the system said.
        source: io::Error,
    },
    /// A variable whose value is not what is expected.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The memory that the ranks share from the start could not be made.
    #[error("cannot make the memory that the ranks of the job share: {0}")]
    Job(#[from] FabricError),
    /// The output of the ranks could not be written.
    #[error("the output of the ranks cannot be written: {0}")]
    Output(#[source] io::Error),
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// What it said.
        source: io::Error,
    },
}

impl Outcome {
    /// Whether all ranks ended well, with status 0.
    pub fn success(&self) -> bool {
        self.failure.is_none()
    }

    /// What made the job fail, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// How each rank ended.
    pub fn statuses(&self) -> &[Status] {
        &self.statuses
    }

    /// What a rank wrote to stdout and stderr, by whole lines in the order in which they came; empty if it was not
    /// [captured](crate::launcher::Launch::capture).
    pub fn output(&self, rank: Rank) -> &[u8] {
        self.output.get(rank).map_or(&[], Vec::as_slice)
    }

    /// The status for a launcher to exit with, by the conventions of shells: that of the first rank that failed; 128 plus
    /// the signal if a signal ended the rank or the launcher; 124 if the deadline passed; 141 (SIGPIPE) if the reader of
    /// the output closed it.
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
    /// Whether it exited with status 0.
    pub fn success(self) -> bool {
        self == Status::Exited(0)
    }

    /// How the program ended that a shell ran, out of how the shell ended.
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
            (None, 1) => f.write_str("the only rank ended well"),
            (None, ranks) => write!(f, "all {ranks} ranks ended well"),
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

/// `rank 1`, or `ranks 0, 2`.
pub(super) struct Listed<'a>(pub &'a [Rank]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(Rank::to_string).collect();
        write!(f, "rank{} {}", if all.len() == 1 { "" } else { "s" }, all.join(", "))
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

/// A signal by number and name.
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
