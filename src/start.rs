//! Being a rank: how a program gets its world, however it was started.

use crate::error::StartError;
use crate::job::bootstrap::{self, Bootstrap, Joined};
use crate::job::launcher::Launch;
use crate::job::variables;
use crate::provider;
use crate::world::World;
use transom_shm_loopback::Loopback;
use transom_windows::Exchange;

/// The world of a program that something else starts: the job that a launcher made this process a rank of
/// ([`Bootstrap`] says which launchers), or a world of one if it was started alone. Collective; once a process.
///
/// # Errors
/// [`StartError::Bootstrap`] if the launcher's invitation cannot be followed; [`StartError::Apart`];
/// [`StartError::Variable`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// assert_eq!(world.size(), 1); // no launcher started this example
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn init() -> Result<World, StartError> {
    log_from_env()?;
    match bootstrap::join()? {
        Joined::Here(fabric) => {
            tracing::info!(rank = fabric.rank(), size = fabric.size(), "joined the job");
            Ok(World::new(provider::of_one_machine(fabric)?))
        }
        Joined::Apart(apart) => Ok(World::new(provider::of_several_hosts(apart)?)),
    }
}

/// The world of a program that starts itself. In a process that a launcher made a rank this is [`init`], whatever
/// `ranks` says; otherwise this process becomes the launcher of `ranks` copies of itself, with the same arguments,
/// and ends with the job's exit status: the call returns in the copies only.
///
/// # Errors
/// As [`init`]; [`StartError::Launch`] if the copies cannot be started.
///
/// # Examples
/// ```no_run
/// let world = transom::start(4)?; // from here on there are four of us
/// println!("rank {} of {}", world.rank(), world.size());
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn start(ranks: usize) -> Result<World, StartError> {
    if Bootstrap::detect()? != Bootstrap::None {
        return init();
    }
    log_from_env()?;
    let program = std::env::current_exe().map_err(StartError::Program)?;
    let copies = Launch::new(program, ranks).args(std::env::args_os().skip(1));
    let outcome = copies.reap_orphans(true).handle_signals(true).run()?;
    std::process::exit(outcome.exit_code().into());
}

/// Runs `body` on `ranks` ranks that are threads of this process, for small examples, tests and debugging, and
/// returns what each returned. Windows and calls are the same as between processes; a rank that panics has died.
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
    log_from_env()?;
    let fabrics = Loopback::threads(ranks).map_err(StartError::Join)?;
    let providers = fabrics.iter().cloned().map(provider::of_threads).collect::<Result<Vec<_>, _>>()?;
    let (body, observer) = (&body, fabrics.first().cloned());
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(ranks);
        for (fabric, provider) in fabrics.into_iter().zip(providers) {
            let name = format!("rank {}", fabric.rank());
            let run = move || {
                // Whatever of its world the body leaked or returned: the rank is gone when the body is.
                let leaving = Leaving(fabric);
                let returned = body(World::new(provider));
                drop(leaving);
                returned
            };
            // Ranks that are not started are dropped, and so have left: those that run are not waited for in vain.
            running.push(std::thread::Builder::new().name(name).spawn_scoped(scope, run).map_err(StartError::Thread)?);
        }
        let mut ended: Vec<_> = running.into_iter().map(|rank| rank.join()).collect();
        // The first that died is the cause; other panics followed from it.
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

/// Prints to stderr the events that TRANSOM_LOG asks for, unless the program has a subscriber of its own. [`init`],
/// [`start`] and [`threads`] do this; call it to see what comes before.
///
/// # Errors
/// [`StartError::Variable`] if TRANSOM_LOG is no filter.
///
/// # Examples
/// ```
/// transom::log_from_env()?; // nothing, as TRANSOM_LOG is not set here
/// # Ok::<(), transom::StartError>(())
/// ```
pub fn log_from_env() -> Result<(), StartError> {
    use tracing_subscriber::{filter::Targets, layer::SubscriberExt, util::SubscriberInitExt};
    if let Some(filter) = variables::get::<Targets>("TRANSOM_LOG")? {
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    }
    Ok(())
}
