//! Being a rank: how a program gets its world, however it was started.

use crate::error::StartError;
use crate::messages::asked::{MESSAGES, Progress};
use crate::provider;
use crate::variables::{self, LOG, LogFilter, Micros, SPIN, SecondsOrOff, WAIT_REPORT};
use crate::world::World;
use std::fs::File;
use std::os::fd::AsFd;
use transom_channel::Changes;
use transom_launch::bootstrap::{self, Joined};
use transom_launch::launcher::Launch;
use transom_shm_loopback::Loopback;
use transom_windows::{Exchange, Waiting};

/// The world of a program that something else starts: all ranks of the job, if a launcher started this process as a rank
/// ([`Bootstrap`](crate::Bootstrap) says which launchers there are); else a world of one. Collective. A process can call
/// it once.
///
/// # Errors
/// [`StartError::Bootstrap`] if the job cannot be joined; [`StartError::Provider`]; [`StartError::Variable`].
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
        Some(joined) => world(joined),
        None => world(Joined::Here(Loopback::alone().map_err(StartError::Join)?)),
    }
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

/// The world of a program that starts itself. In a process that a launcher started as a rank this is [`init`], whatever
/// `ranks` says. Otherwise this process becomes the launcher of `ranks` copies of itself, with the same arguments, and
/// exits with the status of the job: the call returns in the copies only. So what stands before it runs in the launcher, and
/// again in every rank: read arguments there, and do what is to be done once after it, at one rank.
///
/// # Errors
/// As [`init`]; [`StartError::Launch`] if the copies cannot be started, or too many launchers are above this process.
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
        return world(joined);
    }
    let program = std::env::current_exe().map_err(StartError::Program)?;
    let copies = Launch::new(program, ranks).args(std::env::args_os().skip(1));
    let outcome = copies.reap_orphans(true).handle_signals(true).run()?;
    std::process::exit(outcome.exit_code().into());
}

/// Runs `body` on `ranks` ranks that are threads of this process, for small examples, tests and debugging, and
/// returns what each returned. Windows and calls are the same as between processes; a rank that panics has died. One that
/// returns, an error too, has left: others that wait for it in a collective are told so, one that waits in `recv(Source::Any)`
/// is not as long as another could send. So in tests `unwrap`, or return early at all ranks.
///
/// # Errors
/// [`StartError::Join`] if there is no memory; [`StartError::Thread`]; [`StartError::Variable`].
///
/// # Panics
/// If a rank panicked, with the panic of the first that did.
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
            // If a thread cannot be started, the remaining ranks are dropped, and so have left; the others do not wait for
            // them.
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

/// Leaves the job when dropped; in a panic, as one that died.
struct Leaving(Loopback);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// What the environment says of how a rank behaves, whatever started it.
fn settings_from_env() -> Result<(), StartError> {
    log_from_env()?;
    let mut waiting = Waiting::default();
    if let Some(Micros(spin)) = SPIN.get()? {
        waiting.spin = spin;
    }
    if let Some(SecondsOrOff(report)) = WAIT_REPORT.get()? {
        waiting.report = report;
    }
    // Read again where messages begin.
    Progress::asked()?;
    MESSAGES.get::<Changes>()?;
    // A process that has several worlds, as tests have, says so once.
    waiting.set();
    Ok(())
}

/// Prints to stderr the events that TRANSOM_LOG names, unless the program has a subscriber of its own. [`init`],
/// [`start`] and [`threads`] call it; a program calls it earlier to see events before these. A subscriber must not call this library,
/// nor wait for who does: some events are raised while messages of the rank are locked.
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
    // Without the lock of `stderr`, which the program may hold while it waits for messages.
    if let Some(LogFilter(filter)) = LOG.get()?
        && let Ok(stderr) = std::io::stderr().as_fd().try_clone_to_owned()
    {
        let lines = tracing_subscriber::fmt::layer().with_writer(File::from(stderr));
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    }
    Ok(())
}
