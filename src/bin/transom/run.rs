//! `transom run`: starts a job and ends as it ends.

use crate::bench::Usage;
use clap::Args;
use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use transom::variables::Seconds;
use transom::{HostList, Launch, LaunchError, StartError};

/// Starts so many ranks of a program, on this machine or on hosts, and waits until all have ended.
///
/// Each rank gets its number and the way to the others in its environment; a program that uses transom finds them by
/// itself. Output is passed on by whole lines, so that lines of different ranks never mix. Rank 0 has the stdin of
/// this command, the others an empty one.
///
/// On hosts, each rank is started through ssh, in the folder of the same name, and has an empty stdin. It needs `sh`
/// and the program there, and a way by TCP to this machine.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Run {
    /// How many ranks
    #[arg(short = 'n', long = "ranks", value_name = "RANKS")]
    ranks: usize,

    /// Hosts for the ranks: `a,b` shares them out evenly, in blocks; `a:4,b:2` fills four places of a, then two of b
    #[arg(long, value_name = "HOSTS")]
    hosts: Option<HostList>,

    /// Begin each line of output with the rank that wrote it, e.g. `[2] `
    #[arg(long)]
    tag: bool,

    /// How long the other ranks may go on after the first failure, in seconds, to report their own errors; then they
    /// are ended [default: TRANSOM_GRACE, else 2]
    #[arg(long, value_name = "SECONDS")]
    grace: Option<Seconds>,

    /// The program (by PATH if there is no `/` in it) and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const AFTER: &str = "\
Exit status:
  0        all ranks ended well
  N        the first rank that failed exited with N
  128+S    it was killed by signal S, or this command got signal S (Ctrl-C: 130)
  141      nobody read the output (e.g. `| head`)
  2        this command line is wrong;  126, 127  the program cannot be run, or is not there;  1  anything else

When a rank fails, the others get a grace to report their own errors, then SIGTERM, and a second later SIGKILL. Ctrl-C
ends all ranks likewise, twice at once. Processes that ranks leave behind are killed; on hosts not those that have left
the rank's session, and the job lasts until they have closed the rank's stdout and stderr.

Examples:
  transom run -n 4 ./program --size 1000     arguments after the program are the program's
  transom run -n 2 --tag sh -c 'echo rank $TRANSOM_RANK of $TRANSOM_SIZE'
  transom run --hosts node1,node2 -n 4 ./program
  transom run -n 4 --grace 30 ./program      time for the others to tell more about a failure
  TRANSOM_LOG=debug transom run -n 2 ./program";

impl Run {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let mut program = self.program.into_iter();
        let path = PathBuf::from(program.next().unwrap_or_default());
        let mut launch = Launch::new(path, self.ranks).args(program).tag(self.tag);
        if let Some(hosts) = self.hosts {
            launch = launch.hosts(hosts);
        }
        if let Some(Seconds(grace)) = self.grace {
            launch = launch.grace(grace);
        }
        // This process is a launcher and nothing else.
        let outcome = launch.reap_orphans(true).handle_signals(true).run()?;
        Ok(ExitCode::from(outcome.exit_code()))
    }
}

/// The status for an error, as a shell has it.
pub fn exit_code(error: &(dyn Error + 'static)) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(LaunchError::Ranks { .. } | LaunchError::LockLayout { .. } | LaunchError::Variable(_)) => 2,
        Some(LaunchError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => 127,
        Some(LaunchError::Start { .. }) => 126,
        Some(LaunchError::Interrupted { signal }) => u8::try_from(128 + signal).unwrap_or(1),
        Some(LaunchError::Deadline) => 124,
        None if matches!(error.downcast_ref(), Some(StartError::Variable(_))) => 2,
        None if error.is::<Usage>() => 2,
        _ => 1,
    }
}
