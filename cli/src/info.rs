//! `transom info`: the providers of this machine, its limits, and all variables.

use clap::Args;
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use std::env;
use std::error::Error;
use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;
use transom::Bootstrap;
use transom::variables::{SetBy, TABLE, unknown};

/// Describes what transom finds on this machine: providers, limits, and the TRANSOM_ variables with their values.
#[derive(Args)]
#[command(
    after_help = "Example:\n  TRANSOM_GRACE=5 transom info    shows whether the value of a variable is understood"
)]
pub struct Info {}

impl Info {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let mut sections = vec![version(), providers(), starting(), limits()];
        sections.extend(variables());
        let text = sections.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        match io::stdout().write_all(text.as_bytes()) {
            // The reader closed stdout, e.g. `| head`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            written => Ok(written.map(|()| ExitCode::SUCCESS)?),
        }
    }
}

/// A title with rows of names and values. The values are aligned after the longest name.
struct Section {
    title: String,
    rows: Vec<(String, String)>,
}

impl Section {
    fn new(title: impl Into<String>) -> Self {
        Section { title: title.into(), rows: Vec::new() }
    }

    fn row(&mut self, name: &str, value: impl fmt::Display) {
        self.rows.push((name.to_owned(), value.to_string()));
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        writeln!(f, "{}", self.title)?;
        self.rows
            .iter()
            .try_for_each(|(name, value)| writeln!(f, "{}", format!("  {name:<width$}  {value}").trim_end()))
    }
}

fn version() -> Section {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    let mut section = Section::new(format!("transom {}", env!("CARGO_PKG_VERSION")));
    section.row("target", format_args!("{}-{}", env::consts::ARCH, env::consts::OS));
    section.row("build", build);
    section.row(
        "build ID",
        transom::build_id().unwrap_or_else(|| "none: different builds on hosts are not noticed".into()),
    );
    section.row("rustc", format_args!("{} or newer", env!("CARGO_PKG_RUST_VERSION")));
    section
}

fn providers() -> Section {
    let mut section = Section::new("providers");
    match shm_loopback() {
        Ok(()) => section.row("shm-loopback", "available: ranks on this machine share memory"),
        Err(why) => section.row("shm-loopback", format_args!("not available: {why}")),
    }
    for (name, found) in transom::provider::probe().into_iter().filter(|(name, _)| *name != "shm") {
        match found {
            Ok(found) => section.row(name, format_args!("available: {found}")),
            Err(why) => section.row(name, format_args!("not available: {why}")),
        }
    }
    section
}

/// The launcher through which a program, started like this one, would find its job.
fn starting() -> Section {
    let mut section = Section::new("starting");
    let meaning = |bootstrap| match bootstrap {
        Bootstrap::Transom => "a launcher of transom",
        Bootstrap::Pmix => "srun --mpi=pmix, prterun or mpirun of Open MPI",
        Bootstrap::Pmi => "mpiexec of MPICH or srun --mpi=pmi2",
        _ => "itself: a world of one",
    };
    match Bootstrap::detect() {
        Ok(found) => {
            let unable = found.check().err().map_or(String::new(), |error| format!("; {error}"));
            section.row("started by", format_args!("{found} ({}){unable}", meaning(found)));
        }
        Err(error) => section.row("started by", format_args!("unknown: {error}")),
    }
    let library = Bootstrap::Pmix.check().map_or_else(|error| error.to_string(), |()| "library found".into());
    section.row("pmix", library);
    section
}

/// Tries what the provider needs of the system: anonymous shared memory, pidfds and futexes.
pub fn shm_loopback() -> Result<(), String> {
    transom_shm_loopback::Job::create(1).map_err(|error| error.to_string())?;
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    pidfd.map_err(|error| format!("pidfd_open failed: {error}"))?;
    let word = std::sync::atomic::AtomicU32::new(0);
    let woken = rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::empty(), 1);
    woken.map_err(|error| format!("futex failed: {error}"))?;
    Ok(())
}

fn limits() -> Section {
    let mut section = Section::new("limits");
    section.row("ranks", format_args!("{} at most (the limit of a lock)", transom_locks::LockWord::<16>::MAX_RANKS));
    // A launcher raises its soft limit to the hard one. It needs three files per rank and 40 more, in addition to a few
    // that are already open.
    match getrlimit(Resource::Nofile).maximum {
        Some(files) => {
            let ranks = files.saturating_sub(48) / 3;
            section.row("open files", format_args!("{files} at most (enough for a launcher of {ranks} ranks)"));
        }
        None => section.row("open files", format_args!("unlimited")),
    }
    match std::thread::available_parallelism() {
        Ok(cores) => section.row("cores", format_args!("{cores} (more ranks than cores are possible, and share them)")),
        Err(error) => section.row("cores", format_args!("unknown: {error}")),
    }
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let gib = |name: &str| {
        let kib = memory.lines().find_map(|line| line.strip_prefix(name)?.trim_end_matches("kB").trim().parse().ok());
        kib.map_or("?".to_owned(), |kib: f64| format!("{:.1} GiB", kib / f64::from(1 << 20)))
    };
    section.row("memory", format_args!("{}, {} available", gib("MemTotal:"), gib("MemAvailable:")));
    section
}

fn variables() -> Vec<Section> {
    let titles = [
        (SetBy::User, "variables for you to set"),
        (SetBy::Launcher, "variables that the launcher sets for each rank"),
    ];
    let mut sections = Vec::new();
    for (set_by, title) in titles {
        let mut section = Section::new(title);
        for variable in TABLE.iter().filter(|variable| variable.set_by == set_by) {
            match env::var_os(variable.name) {
                Some(_) if variable.name == "TRANSOM_SECRET" => section.row(variable.name, "= (not shown)"),
                Some(value) => {
                    let mistake = variable.mistake().map_or(String::new(), |error| format!(" ({})", error.why));
                    section.row(variable.name, format_args!("= {}{mistake}", value.to_string_lossy()));
                }
                None => section.row(variable.name, format_args!("not set; {}", variable.default)),
            }
            section.row("", variable.meaning);
            section.row("", format_args!("({})", variable.expected));
        }
        sections.push(section);
    }
    let unknown = unknown();
    if !unknown.is_empty() {
        let mut section = Section::new("unknown variables, which have no effect (a typo?)");
        unknown.iter().for_each(|name| section.row(name, ""));
        sections.push(section);
    }
    sections
}
