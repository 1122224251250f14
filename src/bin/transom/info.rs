//! `transom info`: what works on this machine, its limits, and all variables.

use clap::Args;
use rustix::process::{PidfdFlags, Resource, getpid, getrlimit, pidfd_open};
use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;
use transom::Bootstrap;
use transom::variables::{Seconds, SetBy, TABLE, get};

/// Tells what transom finds on this machine: providers, limits, and the TRANSOM_ variables with their values.
#[derive(Args)]
#[command(after_help = "Example:\n  TRANSOM_GRACE=5 transom info    shows whether the variable is understood as meant")]
pub struct Info {}

impl Info {
    pub fn execute(self) -> Result<ExitCode, Box<dyn Error>> {
        let mut text = String::new();
        version(&mut text)?;
        providers(&mut text)?;
        starting(&mut text)?;
        limits(&mut text)?;
        variables(&mut text)?;
        match io::stdout().write_all(text.as_bytes()) {
            // The reader has seen enough, e.g. `| head`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            written => Ok(written.map(|()| ExitCode::SUCCESS)?),
        }
    }
}

fn row(text: &mut String, name: &str, value: impl std::fmt::Display) -> std::fmt::Result {
    writeln!(text, "  {name:<16}{value}")
}

fn version(text: &mut String) -> std::fmt::Result {
    let build = if cfg!(debug_assertions) { "debug" } else { "release" };
    writeln!(text, "transom {}", env!("CARGO_PKG_VERSION"))?;
    row(text, "target", format_args!("{}-{}", env::consts::ARCH, env::consts::OS))?;
    row(text, "build", build)?;
    row(text, "rustc", format_args!("{} or newer", env!("CARGO_PKG_RUST_VERSION")))
}

fn providers(text: &mut String) -> std::fmt::Result {
    writeln!(text, "\nproviders")?;
    match shm_loopback() {
        Ok(()) => row(text, "shm-loopback", "available: ranks on this machine share memory")?,
        Err(why) => row(text, "shm-loopback", format_args!("not available: {why}"))?,
    }
    match verbs() {
        Ok(found) => row(text, "verbs", format_args!("available: {found}")),
        Err(why) => row(text, "verbs", format_args!("not available: {why}")),
    }
}

#[cfg(feature = "verbs")]
fn verbs() -> Result<String, transom::verbs::VerbsError> {
    transom::verbs::probe()
}

#[cfg(not(feature = "verbs"))]
fn verbs() -> Result<String, &'static str> {
    Err("not in this build (cargo feature `verbs`); for ranks on several machines")
}

/// How a program that is started as this one was would find its job.
fn starting(text: &mut String) -> std::fmt::Result {
    writeln!(text, "\nstarting")?;
    let meaning = |bootstrap| match bootstrap {
        Bootstrap::Transom => "a launcher of transom",
        Bootstrap::Pmix => "srun --mpi=pmix, prterun or mpirun of Open MPI",
        Bootstrap::Pmi => "mpiexec of MPICH or srun --mpi=pmi2",
        _ => "itself: a world of one",
    };
    match Bootstrap::detect() {
        Ok(found) => {
            let unable = found.check().err().map_or(String::new(), |error| format!("; {error}"));
            row(text, "started by", format_args!("{found} ({}){unable}", meaning(found)))?;
        }
        Err(error) => row(text, "started by", format_args!("not known: {error}"))?,
    }
    let library = Bootstrap::Pmix.check().map_or_else(|error| error.to_string(), |()| "its library is there".into());
    row(text, "pmix", library)
}

/// Tries what the provider needs of the system: shared memory that has no name, and descriptors of processes.
fn shm_loopback() -> Result<(), String> {
    transom_shm_loopback::Job::create(1).map_err(|error| error.to_string())?;
    let pidfd = pidfd_open(getpid(), PidfdFlags::empty());
    pidfd.map_err(|error| format!("no descriptors of processes (pidfd_open): {error}"))?;
    let word = std::sync::atomic::AtomicU32::new(0);
    let woken = rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::empty(), 1);
    woken.map_err(|error| format!("no waiting on words (futex): {error}"))?;
    Ok(())
}

fn limits(text: &mut String) -> std::fmt::Result {
    writeln!(text, "\nlimits")?;
    row(text, "ranks", format_args!("{} (what one lock can tell apart)", transom_locks::LockWord::<16>::MAX_RANKS))?;
    let files = getrlimit(Resource::Nofile).current;
    let (shown, ranks) = match files {
        Some(files) => (files.to_string(), format!("enough for a launcher of {} ranks", files.saturating_sub(32) / 3)),
        None => ("unlimited".to_owned(), "`ulimit -n`".to_owned()),
    };
    row(text, "open files", format_args!("{shown} ({ranks})"))?;
    match std::thread::available_parallelism() {
        Ok(cores) => row(text, "cores", format_args!("{cores} (more ranks than cores work, and take turns)"))?,
        Err(error) => row(text, "cores", format_args!("not known: {error}"))?,
    }
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let gib = |name: &str| {
        let kib = memory.lines().find_map(|line| line.strip_prefix(name)?.trim_end_matches("kB").trim().parse().ok());
        kib.map_or("?".to_owned(), |kib: f64| format!("{:.1} GiB", kib / f64::from(1 << 20)))
    };
    row(text, "memory", format_args!("{}, {} available", gib("MemTotal:"), gib("MemAvailable:")))
}

fn variables(text: &mut String) -> std::fmt::Result {
    for (set_by, title) in
        [(SetBy::User, "variables for you to set"), (SetBy::Launcher, "variables that the launcher sets for each rank")]
    {
        writeln!(text, "\n{title}")?;
        for variable in TABLE.iter().filter(|variable| variable.set_by == set_by) {
            match env::var_os(variable.name) {
                Some(_) if variable.name == "TRANSOM_SECRET" => row(text, variable.name, "= (not shown)")?,
                Some(value) => {
                    let mistake = mistake(variable.name).map_or(String::new(), |why| format!(" ({why})"));
                    row(text, variable.name, format_args!("= {}{mistake}", value.to_string_lossy()))?;
                }
                None => row(text, variable.name, format_args!("not set; {}", variable.default))?,
            }
            row(text, "", variable.meaning)?;
            row(text, "", format_args!("({})", variable.expected))?;
        }
    }
    let known = |name: &str| TABLE.iter().any(|variable| variable.name == name);
    let names = env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<_> = names.filter(|name| name.starts_with("TRANSOM_") && !known(name)).collect();
    unknown.sort();
    if !unknown.is_empty() {
        writeln!(text, "\nnot known, and without effect (a typo?)")?;
    }
    for name in unknown {
        writeln!(text, "  {name}")?;
    }
    Ok(())
}

/// What is wrong with the value of a variable; the program's start has looked at `TRANSOM_LOG`.
fn mistake(name: &str) -> Option<String> {
    let error = match name {
        "TRANSOM_GRACE" => get::<Seconds>("TRANSOM_GRACE").err(),
        "TRANSOM_BOOTSTRAP" => get::<Bootstrap>("TRANSOM_BOOTSTRAP").err(),
        "TRANSOM_RANK" => get::<usize>("TRANSOM_RANK").err(),
        "TRANSOM_SIZE" => get::<usize>("TRANSOM_SIZE").err(),
        #[cfg(feature = "verbs")]
        _ => transom::verbs::mistake(name),
        #[cfg(not(feature = "verbs"))]
        _ => None,
    };
    error.map(|error| error.why)
}
