//! Start of a rank: the calls by which a program gets its world, whatever launched it.

use crate::error::StartError;
use crate::messages::asked::{MESSAGES, Progress};
use crate::provider;
use crate::variables::{self, LOG, LogFilter, Micros, SPIN_US, SecondsOrOff, WAIT_REPORT};
use crate::world::World;
use std::fs::File;
use std::os::fd::AsFd;
use transom_channel::Changes;
use transom_launch::bootstrap::{self, Joined};
use transom_launch::launcher::Launch;
use transom_shm_loopback::Loopback;
use transom_windows::{OobExchange, Waiting};

/// Returns the world of a program that a launcher starts: all ranks of the job; or a world of one rank, if no launcher
/// started this process. [`Bootstrap`](crate::Bootstrap) lists the launchers. Collective. A process can call it once.
///
/// # Errors
/// - [`StartError::Bootstrap`] if the job cannot be joined.
/// - [`StartError::Provider`]; [`StartError::Variable`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// assert_eq!(world.size(), 1); // no launcher started this example
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn init() -> Result<World, StartError> {
    settings_from_env()?;
    match bootstrap::join()? {
        Some(joined) => of_job(joined),
        None => world(Joined::Here(Loopback::alone().map_err(StartError::Join)?)),
    }
}

/// The world of a job that a launcher started.
fn of_job(joined: Joined) -> Result<World, StartError> {
    let world = world(joined)?;
    provider::report(world.provider())?;
    Ok(world)
}

fn world(joined: Joined) -> Result<World, StartError> {
    let world = match joined {
        Joined::Here(fabric) => {
            tracing::info!(rank = fabric.rank(), size = fabric.size(), "joined the job");
            World::new(provider::of_one_machine(fabric)?)
        }
        Joined::Apart(apart) => World::new(provider::of_several_hosts(apart)?),
    };
    if world.rank() == 0 {
        variables::tell_unknown();
    }
    Ok(world)
}

/// Returns the world of a program that launches itself. In a process that a launcher started as a rank, this call is
/// [`init`], and `ranks` has no effect.
///
/// Otherwise this process becomes the launcher of `ranks` copies of itself, with the same arguments, and exits with the
/// status of the job: the call returns in the copies only. Code before the call therefore runs in the launcher and in
/// every rank. Read arguments before the call; do one-time work after it, at one rank.
///
/// # Errors
/// The errors of [`init`]; [`StartError::Launch`] if the copies cannot be started, or if jobs are nested too deeply.
///
/// # Examples
/// ```no_run
/// let world = transom::start(4)?; // from here on there are four of us
/// println!("rank {} of {}", world.rank(), world.size());
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn start(ranks: usize) -> Result<World, StartError> {
    settings_from_env()?;
    if let Some(joined) = bootstrap::join()? {
        return of_job(joined);
    }
    let program = std::env::current_exe().map_err(StartError::Program)?;
    let copies = Launch::new(program, ranks).args(std::env::args_os().skip(1));
    let outcome = copies.reap_orphans(true).handle_signals(true).run()?;
    std::process::exit(outcome.exit_code().into());
}

/// Runs `body` on `ranks` ranks that are threads of this process, and returns their results. For small examples, tests
/// and debugging.
///
/// Windows and calls behave as between processes. A rank that panics has died. A rank that returns, even an error, has
/// left: ranks that wait for it in a collective get an error. A rank in `recv(Source::Any)` gets none while another
/// rank could still send. In tests, therefore, `unwrap`, or return early at all ranks.
///
/// # Errors
/// - [`StartError::Join`] if there is no memory.
/// - [`StartError::Thread`]; [`StartError::Variable`].
///
/// # Panics
/// If a rank panicked, with the panic of the first rank that did.
///
/// # Examples
/// ```
/// assert_eq!(transom::threads(3, |world| world.rank() * 10)?, [0, 10, 20]);
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn threads<R: Send>(ranks: usize, body: impl Fn(World) -> R + Sync) -> Result<Vec<R>, StartError> {
    settings_from_env()?;
    variables::tell_unknown();
    let fabrics = Loopback::threads(ranks).map_err(StartError::Join)?;
    let providers = fabrics.iter().cloned().map(provider::of_threads).collect::<Result<Vec<_>, _>>()?;
    let (body, observer) = (&body, fabrics.first().cloned());
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(ranks);
        for (fabric, provider) in fabrics.into_iter().zip(providers) {
            let name = format!("rank {}", fabric.rank());
            let run = move || {
                // The rank leaves when the body returns, even if that leaked or returned a part of its world.
                let leaving = Leaving(fabric);
                let returned = body(World::new(provider));
                drop(leaving);
                returned
            };
            // If a thread cannot be started, the remaining ranks are dropped and thereby leave, so that the started
            // ranks do not wait for them.
            running.push(std::thread::Builder::new().name(name).spawn_scoped(scope, run).map_err(StartError::Thread)?);
        }
        let mut ended: Vec<_> = running.into_iter().map(|rank| rank.join()).collect();
        // The first rank that died is the cause of the other panics.
        if let Some(cause) = observer.and_then(|fabric| fabric.first_death()).filter(|&rank| ended[rank].is_err()) {
            ended.swap(0, cause);
        }
        Ok(ended.into_iter().map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect())
    })
}

/// Makes the rank leave the job when dropped; during a panic, the rank counts as dead.
struct Leaving(Loopback);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Reads the settings that apply to every rank, whatever started it.
fn settings_from_env() -> Result<(), StartError> {
    log_from_env()?;
    let mut waiting = Waiting::default();
    if let Some(Micros(spin)) = SPIN_US.get()? {
        waiting.spin = spin;
    }
    if let Some(SecondsOrOff(report)) = WAIT_REPORT.get()? {
        waiting.report = report;
    }
    // Validated here; read again when messages open.
    Progress::asked()?;
    MESSAGES.get::<Changes>()?;
    // Only the first call in a process has an effect: a process with several worlds, such as a test, keeps one policy.
    waiting.set();
    Ok(())
}

/// Prints to stderr the events that TRANSOM_LOG selects, unless the program has a subscriber of its own. [`init`],
/// [`start`] and [`threads`] call it; a program calls it earlier to see earlier events. A subscriber must not call this
/// library, nor wait for a thread that does: some events are raised while the engine of messages is locked.
///
/// # Errors
/// [`StartError::Variable`] if TRANSOM_LOG is neither a level nor a list of crate=level.
///
/// # Examples
/// ```
/// transom::log_from_env()?; // nothing, as TRANSOM_LOG is not set here
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn log_from_env() -> Result<(), StartError> {
    use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};
    // Bypasses the lock of `stderr`, which the program may hold while it waits for messages.
    if let Some(LogFilter(filter)) = LOG.get()?
        && let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned()
    {
        let lines = tracing_subscriber::fmt::layer().with_writer(File::from(stderr));
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    }
    Ok(())
}
