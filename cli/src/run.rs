//! `transom run`: starts a job, and exits with the job's status.

use crate::bench::Usage;
use crate::complain;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::convert::Infallible;
use std::error::Error;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use transom::variables::{BOOTSTRAP, FABRIC, NESTING, Seconds, SetBy, TABLE};
use transom::{BindTo, HostList, HostListError, HostSourceError, Launch, LaunchError, MapBy, OutputPrefix, StartError};

/// Starts ranks of a program, on this machine or on hosts, and waits until all have ended.
///
/// Each rank gets its number and the address of its job in its environment, where a program that uses transom reads
/// them. Output is forwarded in whole lines, so that lines of different ranks never mix; lines of stderr begin with
/// their rank. Rank 0 has the stdin of this command, the others an empty one.
///
/// On hosts, one ssh for each host starts its ranks (one srun, on the nodes of the Slurm job in which this command runs), in
/// the folder of the same name. The host needs the program and `sh`, and must reach this machine by TCP. Where `transom`
/// of this version is installed, at the path of this command or in the host's PATH, it starts the ranks there, in two
/// processes for the whole host. Elsewhere a shell script does, which needs coreutils and `setsid`, and five processes for
/// each rank. TRANSOM_AGENT names another path of `transom`, or `off`. Ranks have the host's environment. Added are the
/// variables of this command that `transom info` lists for you to set (except TRANSOM_SSH and TRANSOM_BOOTSTRAP), and
/// those that begin with RUST_, OMP_ or LD_LIBRARY_PATH. PATH is appended to the host's own. `--env` passes others.
#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Run {
    /// Number of ranks
    #[arg(short = 'n', long = "ranks", aliases = ["np", "ntasks"], value_name = "RANKS", help_heading = "Ranks")]
    ranks: usize,

    /// The number of nodes (srun), or of ranks on each (mpirun): refused
    #[arg(short = 'N', long = "nodes", hide = true, value_parser = refuse_nodes)]
    _nodes: Option<Infallible>,

    /// Variable of the ranks' environment, on hosts too: NAME=VALUE, or NAME alone for the value that this command has;
    /// may be repeated
    #[arg(short = 'x', long, value_name = "NAME[=VALUE]", help_heading = "Ranks")]
    env: Vec<OsString>,

    /// Folder in which the ranks start, on hosts too; a relative program is relative to it [default: this folder]
    #[arg(long, short_alias = 'D', aliases = ["wd", "chdir"], value_name = "DIR", help_heading = "Ranks")]
    wdir: Option<PathBuf>,

    /// Processors for each rank: none, a core of its own, or those of a NUMA node or of a socket, over which the ranks of
    /// a host are spread. A host with more ranks than cores binds none. Hosts without `transom` need `taskset`
    ///
    /// Two jobs of one host bind their ranks to the same cores.
    #[arg(long, value_name = "WHAT", default_value = "none", help_heading = "Ranks")]
    #[arg(value_parser = PossibleValuesParser::new(["none", "core", "numa", "socket"]).try_map(|name| name.parse::<BindTo>()))]
    bind_to: BindTo,

    /// Hosts for the ranks: `a,b` distributes them evenly; `a:4,b:2` gives four places to a and two to b (--map-by)
    ///
    /// `none` starts all ranks here. Without this option and --hostfile, the hosts are those of the batch job in which
    /// this command runs: SLURM_JOB_NODELIST with SLURM_TASKS_PER_NODE, PBS_NODEFILE, LSB_DJOB_HOSTFILE, LSB_HOSTS or
    /// PE_HOSTFILE. Ranks start here, without ssh, if that list or the file names only this machine.
    #[arg(long, short_alias = 'H', alias = "host", value_name = "HOSTS", allow_hyphen_values = true)]
    #[arg(value_parser = hosts_or_none, help_heading = "Hosts")]
    hosts: Option<Hosts>,

    /// File with a host in each line: `node1`, `node1 slots=4` (Open MPI) or `node1:4` (MPICH); `#` begins a comment
    #[arg(long, alias = "machinefile", value_name = "FILE", conflicts_with = "hosts", help_heading = "Hosts")]
    hostfile: Option<PathBuf>,

    /// Order in which ranks take the places of hosts
    ///
    /// `slot` (or `block`) fills a host before the next. `node` (or `cyclic`) goes round the hosts. `ppr:N:node` puts N ranks
    /// on each host, in blocks.
    #[arg(long, value_name = "ORDER", default_value = "slot", help_heading = "Hosts")]
    map_by: MapBy,

    /// Output lines to prefix with the rank that wrote them, e.g. `[2] `: those of stderr, all (`--output-prefix`
    /// alone), or none [default: TRANSOM_OUTPUT_PREFIX, else stderr; none for a single rank]
    #[arg(long, short_alias = 'l', aliases = ["label", "tag-output"], value_name = "WHICH", help_heading = "Output")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    #[arg(value_parser = PossibleValuesParser::new(["all", "stderr", "none"]).try_map(|name| name.parse::<OutputPrefix>()))]
    output_prefix: Option<OutputPrefix>,

    /// Begin each output line with the time of its arrival, in UTC: `2026-11-29T22:03:04.123Z [2] text`
    #[arg(long, alias = "timestamp-output", help_heading = "Output")]
    timestamps: bool,

    /// Folder for files with the output of each rank, too: `rank.2.stdout`, `rank.2.stderr`; older files are replaced
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    output_dir: Option<PathBuf>,

    /// Report host, local rank and processors of each rank on stderr
    #[arg(long, help_heading = "Output")]
    report_bindings: bool,

    /// Report how the ranks meet, each host that is reached, the place of each rank, and the provider of each host
    #[arg(short, long, help_heading = "Output")]
    verbose: bool,

    /// Seconds after which the ranks get SIGTERM, and SIGKILL a second later; the exit status is then 124
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = time_limit, help_heading = "End")]
    timeout: Option<Duration>,

    /// Seconds from the first failure to SIGTERM, in which the other ranks may report their own errors [default:
    /// TRANSOM_GRACE, else 2]
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, help_heading = "End")]
    grace: Option<Seconds>,

    /// The program (searched in PATH unless it contains a `/`) and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

const AFTER: &str = "\
Exit status:
  0        all ranks exited with status 0
  N        the first rank that failed exited with status N
  128+S    the first rank that failed was killed by signal S, or this command got signal S (Ctrl-C: 130)
  124      the time of --timeout passed
  141      the reader of the output closed it (e.g. `| head`)
  255      a host was lost or sent a malformed record before it reported exit statuses (or ssh's own status)
  2        the command line is wrong;  126, 127  the program cannot be executed, or was not found;  1  other errors

When a rank fails, the others get a grace period to report their own errors, then SIGTERM, and a second later SIGKILL. Ctrl-C
ends all ranks in the same way, a second Ctrl-C at once. SIGUSR1 and SIGUSR2 to this command go on to all ranks (on hosts to the
process group of each). Ranks that do not handle them are ended by them. Ctrl-Z stops all ranks, `fg` continues them.

Processes that ranks leave behind are killed. On hosts, those that have left the rank's session are not, and the job lasts until
they have closed the rank's stdout and stderr.
A program that a rank starts is not a rank. If it uses transom, it is a world of one, or starts a job of its own; launchers
may be nested three deep.

Other names of options, as mpirun and srun have them:
  -np, --np, --ntasks          -n
  --wd, --chdir, -D            --wdir
  --host, -H                   --hosts
  --machinefile                --hostfile
  --label, -l, --tag-output    --output-prefix
  --timestamp-output           --timestamps

Examples:
  transom run -n 4 ./program --size 1000     arguments after the program belong to the program
  transom run -n 2 --output-prefix sh -c 'echo rank $TRANSOM_RANK of $TRANSOM_SIZE'
  transom run -n 2 --output-prefix=none ./program
                                             lines of stderr as the ranks wrote them
  transom run --hosts node1,node2 -n 4 ./program
                                             ranks 0 and 1 on node1, 2 and 3 on node2
  transom run --hosts node1,node2 --map-by node -n 4 ./program
                                             ranks 0 and 2 on node1, 1 and 3 on node2
  sbatch -N 2 -n 8 --wrap 'transom run -n 8 ./program'
                                             four ranks on each of two nodes of Slurm
  transom run --hosts node1,node2 -n 4 --wdir /scratch -x DATA=/scratch/in -x LANG ./program
  transom run -n 4 --timeout 3600 ./program  end the job after an hour
  transom run -n 4 --grace 30 ./program      time for the others to report more about a failure
  TRANSOM_LOG=debug transom run -n 2 ./program";

/// The value of `--hosts`.
#[derive(Clone, Debug)]
pub enum Hosts {
    Here,
    On(HostList),
}

impl Run {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let hosts = self.find_hosts()?;
        let mut program = self.program.into_iter();
        let path = PathBuf::from(program.next().unwrap_or_default());
        let mut launch = Launch::new(path, self.ranks).args(program);
        for variable in &self.env {
            let (name, value) = parse_variable(variable)?;
            launch = launch.env(name, value);
        }
        if let Some(folder) = self.wdir {
            launch = launch.current_dir(folder);
        }
        launch = launch.deadline(self.timeout).timestamps(self.timestamps);
        launch = launch
            .map_by(self.map_by)
            .bind_to(self.bind_to)
            .report_bindings(self.report_bindings)
            .verbose(self.verbose);
        if let Some(folder) = self.output_dir {
            launch = launch.output_dir(folder);
        }
        if let Some(prefix) = self.output_prefix {
            launch = launch.output_prefix(prefix);
        }
        if let Some(hosts) = hosts {
            launch = launch.hosts(hosts);
        }
        if let Ok(own) = std::env::current_exe() {
            launch = launch.agent(own);
        }
        if let Some(Seconds(grace)) = self.grace {
            launch = launch.grace(grace);
        }
        if self.verbose {
            let provider = std::env::var(FABRIC.name).unwrap_or_else(|_| FABRIC.default.to_owned());
            complain(&format!("provider: {provider} ({})", FABRIC.name));
        }
        // This process does nothing but launch, so it may reap orphans and handle signals.
        let outcome = launch.reap_orphans(true).handle_signals(true).run()?;
        Ok(ExitCode::from(outcome.exit_code()))
    }
}

impl Run {
    /// The hosts for the ranks; `None` if all start here.
    fn find_hosts(&self) -> Result<Option<HostList>, Box<dyn Error>> {
        match listed_hosts(self.hosts.as_ref(), self.hostfile.as_deref())? {
            Some(Listed { source: Some(source), hosts }) => self.unless_here(&source, hosts),
            listed => Ok(listed.map(|listed| listed.hosts)),
        }
    }

    /// The hosts of a file or variable, if they have a place for each rank; `None` if they are this machine alone, which
    /// takes any number of ranks.
    fn unless_here(&self, source: &str, hosts: HostList) -> Result<Option<HostList>, Box<dyn Error>> {
        if hosts.is_this_machine() {
            return Ok(None);
        }
        match hosts.places() {
            Some(places) if places < self.ranks => Err(Box::new(Usage(format!(
                "{source}: {} ranks do not fit the {places} places of the hosts; start {places} ranks, or name the hosts \
                 without places: --hosts {}",
                self.ranks,
                some_of(&hosts)
            )))),
            _ => Ok(Some(hosts)),
        }
    }
}

/// Hosts that were named.
pub struct Listed {
    /// The file or variable that names them; `None` if `--hosts` does.
    pub source: Option<String>,
    pub hosts: HostList,
}

/// The hosts that the options, or else the batch system, name; `None` if they name none.
pub fn listed_hosts(hosts: Option<&Hosts>, file: Option<&Path>) -> Result<Option<Listed>, Box<dyn Error>> {
    let listed = |source, hosts| Some(Listed { source, hosts });
    match (hosts, file) {
        (Some(Hosts::Here), _) => Ok(None),
        (Some(Hosts::On(hosts)), _) => Ok(listed(None, hosts.clone())),
        (None, Some(file)) => Ok(listed(Some(file.display().to_string()), HostList::read(file)?)),
        // A rank that starts a job does not start it on all hosts of its own job.
        (None, None) if NESTING.get::<usize>()?.is_some_and(|depth| depth > 0) => Ok(None),
        (None, None) => {
            Ok(HostList::from_batch_system()?.and_then(|(variable, hosts)| listed(Some(variable.to_owned()), hosts)))
        }
    }
}

/// The first names of a list, for a message.
fn some_of(hosts: &HostList) -> String {
    let shown: Vec<_> = hosts.names().take(3).collect();
    let more = if hosts.names().nth(3).is_some() { ",..." } else { "" };
    format!("{}{more}", shown.join(","))
}

/// Parses the value of `--hosts`.
pub fn hosts_or_none(text: &str) -> Result<Hosts, HostListError> {
    if text == "none" { Ok(Hosts::Here) } else { text.parse().map(Hosts::On) }
}

/// Refuses the value of `-N`, and names the options that do what it does elsewhere.
fn refuse_nodes(_: &str) -> Result<Infallible, &'static str> {
    Err("not supported; name the nodes (--hosts a,b), or give each the same number of ranks (--map-by ppr:2:node)")
}

/// Options that mpirun spells with one dash. A parser of short options reads `-np` as `-n p`, and `-host` as `-h`.
const OF_MPIRUN: [&str; 10] = [
    "-np",
    "-host",
    "-hostfile",
    "-machinefile",
    "-wdir",
    "-wd",
    "-tag-output",
    "-map-by",
    "-bind-to",
    "-report-bindings",
];

/// Spells the first of mpirun's options with two dashes; returns false if there is none. The caller has tried to parse the
/// words: those of the program never fail, so the first one that failed stands before them.
pub fn rewrite_for_mpirun(words: &mut [OsString]) -> bool {
    if words.get(1).is_none_or(|command| command != "run") {
        return false;
    }
    let Some(word) = words.iter_mut().find(|word| OF_MPIRUN.iter().any(|option| *word == option)) else { return false };
    let mut dashed = OsString::from("-");
    dashed.push(&*word);
    *word = dashed;
    true
}

/// Parses the value of `--timeout`.
pub fn time_limit(text: &str) -> Result<Duration, &'static str> {
    match text.parse::<Seconds>()?.0 {
        Duration::ZERO => Err("expected a time above 0"),
        time => Ok(time),
    }
}

/// Parses `NAME=VALUE`, or `NAME` for a variable of this process.
fn parse_variable(text: &OsStr) -> Result<(OsString, OsString), Usage> {
    let bytes = text.as_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=');
    let name = OsStr::from_bytes(&bytes[..equals.unwrap_or(bytes.len())]);
    let wrong = |why: &str| Usage(format!("--env {:?}: {why}", text));
    let word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    if !name.as_bytes().iter().all(word) || name.as_bytes().first().is_none_or(u8::is_ascii_digit) {
        return Err(wrong("the name of a variable is expected: letters, digits and _, not a digit first"));
    }
    if TABLE.iter().any(|row| row.name == name && (row.set_by == SetBy::Launcher || row.name == BOOTSTRAP.name)) {
        return Err(wrong("the launcher sets or removes this variable for each rank; leave it out"));
    }
    let value = match equals {
        Some(equals) => OsStr::from_bytes(&bytes[equals + 1..]).to_owned(),
        None => std::env::var_os(name)
            .ok_or_else(|| wrong("this variable is not set here; set it, or give a value: NAME=VALUE"))?,
    };
    Ok((name.to_owned(), value))
}

/// The exit status of an error, by the conventions of shells.
pub fn exit_code(error: &(dyn Error + 'static)) -> u8 {
    match error.downcast_ref::<LaunchError>() {
        Some(LaunchError::Ranks { .. } | LaunchError::Places { .. } | LaunchError::Variable(_)) => 2,
        Some(LaunchError::PerNode { .. } | LaunchError::PlacesOfHost { .. }) => 2,
        Some(LaunchError::Folder { .. } | LaunchError::OutputFile { .. }) => 2,
        Some(LaunchError::Start { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => 127,
        Some(LaunchError::Start { .. } | LaunchError::OpenFiles { .. }) => 126,
        Some(LaunchError::Interrupted { signal }) => u8::try_from(128 + signal).unwrap_or(1),
        Some(LaunchError::Deadline) => 124,
        None if matches!(error.downcast_ref(), Some(StartError::Variable(_))) => 2,
        None if error.is::<Usage>() || error.is::<HostSourceError>() => 2,
        _ => 1,
    }
}
