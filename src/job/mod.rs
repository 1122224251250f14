//! Being a rank: how a program finds its world, however it was started.

pub(crate) mod bootstrap;
pub mod launcher;
pub(crate) mod tcp;
pub mod variables;

use crate::array::{ArrayError, Distribution, GlobalArray, Layout};
use crate::provider::{self, Provider};
use crate::{GlobalMutex, GlobalRwLock, Window};
use bootstrap::{Bootstrap, BootstrapError, Joined};
use bytemuck::Pod;
use launcher::{Launch, LaunchError};
use std::sync::atomic::{AtomicU32, Ordering};
use transom_locks::Rank;
use transom_shm_loopback::Loopback;
use transom_windows::{Error, Exchange, FabricError, Flavor};

/// All ranks of a job, or a team of them, as one of them sees it. Dropping it and the windows made from it leaves the job.
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// println!("rank {} of {}", world.rank(), world.size());
/// # Ok::<(), transom::StartError>(())
/// ```
pub struct World {
    fabric: Provider,
    windows: AtomicU32,
}

impl World {
    fn new(fabric: Provider) -> Self {
        World { fabric, windows: AtomicU32::new(0) }
    }

    pub(crate) fn fabric(&self) -> &Provider {
        &self.fabric
    }

    /// The number of the window that is made next.
    pub(crate) fn next_window(&self) -> u32 {
        self.windows.load(Ordering::Relaxed)
    }

    /// What moves the bytes.
    pub fn provider(&self) -> &Provider {
        &self.fabric
    }

    /// This rank, from 0.
    pub fn rank(&self) -> Rank {
        self.fabric.rank()
    }

    /// How many ranks there are.
    pub fn size(&self) -> usize {
        self.fabric.size()
    }

    /// Collective: a window that exposes `len` zeroed elements at this rank; `len` may differ from rank to rank.
    ///
    /// # Errors
    /// [`Error::Size`], [`Error::Fabric`]; see [`windows::Window::new`](transom_windows::Window::new).
    ///
    /// # Examples
    /// ```
    /// let totals = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let mut window = world.allocate::<u64>(1)?;
    ///     window.lock_shared(0)?.fetch_and_op(0, transom::Op::Sum, 1 + world.rank() as u64)?;
    ///     window.fence()?;
    ///     window.lock_shared(0)?.get_one(0)
    /// })?;
    /// assert!(totals.into_iter().all(|total| total.unwrap() == 1 + 2 + 3));
    /// # Ok::<(), transom::StartError>(())
    /// ```
    pub fn allocate<T: Pod>(&self, len: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Allocate { len }, 0)
    }

    /// [`allocate`](Self::allocate), and `signals` signal words at this rank, for
    /// [`put_signal`](transom_windows::Target::put_signal).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut window = world.allocate_with_signals::<u64>(10, 1)?;
    ///     let other = 1 - world.rank();
    ///     let epoch = window.lock_all()?;
    ///     epoch.target(other)?.put_signal(0, &[42; 10], 0, 1)?; // data, then the news of it
    ///     epoch.signals().wait_until(0, |arrived| arrived == 1)?;
    ///     assert_eq!(epoch.local().get(9)?, 42);
    ///     epoch.unlock()
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_with_signals<T: Pod>(&self, len: usize, signals: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Allocate { len }, signals)
    }

    /// Collective: a window of `len` zeroed elements at this rank, all of whose parts every rank reaches by its own loads and
    /// stores too: [`Local::of`](transom_windows::Local::of). An error if some ranks do not share memory.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate), and [`Error::NotShared`].
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut window = world.allocate_shared::<u32>(4)?;
    ///     let next = (world.rank() + 1) % world.size();
    ///     window.local().of(next)?.set(0, 5)?; // no epoch, no call of the neighbour's
    ///     window.fence()?;
    ///     assert_eq!(window.local().get(0)?, 5);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn allocate_shared<T: Pod>(&self, len: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Shared { len }, 0)
    }

    /// Collective: a window on elements that the program has already, and gets back by
    /// [`free`](transom_windows::Window::free). What it cannot do: [`Flavor::Create`].
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = vec![world.rank(); 10];
    ///     let mut window = world.create(mine)?;
    ///     assert_eq!(window.lock_shared(1)?.get_one(9)?, 1);
    ///     let mine = window.free()?; // once nobody can access it any more
    ///     assert_eq!(mine, [world.rank(); 10]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn create<T: Pod>(&self, elements: Vec<T>) -> Result<Window<T>, Error> {
        self.window(Flavor::Create(elements), 0)
    }

    /// Collective: a window without elements, to which each rank can [`attach`](transom_windows::Window::attach) up to
    /// `slots` pieces of memory at a time, and detach them.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut names = world.allocate::<transom::Address>(1)?; // where others find what is attached
    ///     let mut window = world.dynamic::<u64>(4)?;
    ///     let address = window.attach(1000)?;
    ///     names.local().set(0, address)?;
    ///     names.fence()?;
    ///
    ///     let theirs = names.lock_shared(1 - world.rank())?.get_one(0)?;
    ///     let memory = window.reach(&theirs)?;
    ///     window.lock_exclusive(theirs.rank())?.attached(&memory)?.put(999, &[42])?;
    ///     window.fence()?;
    ///     assert_eq!(window.local().attached(&address)?.get(999)?, 42);
    ///     window.detach(&address)
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dynamic<T: Pod>(&self, slots: usize) -> Result<Window<T>, Error> {
        self.window(Flavor::Dynamic { slots }, 0)
    }

    /// Collective: a window of any flavour, with `signals` signal words at this rank. The calls above are short for
    /// this.
    ///
    /// # Errors
    /// See [`windows::Window::new`](transom_windows::Window::new).
    ///
    /// # Examples
    /// ```
    /// use transom::Flavor;
    /// let world = transom::init()?;
    /// let mut window = world.window(Flavor::Create(vec![0.0; 100]), 1)?;
    /// window.lock_shared(0)?.put_signal(7, &[1.5], 0, 1)?;
    /// assert_eq!(window.free()?[7], 1.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn window<T: Pod>(&self, flavor: Flavor<T>, signals: usize) -> Result<Window<T>, Error> {
        // Windows are made together, so every rank counts alike.
        Window::new(&self.fabric, self.windows.fetch_add(1, Ordering::Relaxed), flavor, signals)
    }

    /// Collective: an array of zeroed elements, dealt to the ranks on a grid that is as near to a square as their number
    /// allows ([`Layout::new`]); [`GlobalArray::new`] takes a grid of one's own. All ranks pass the same.
    ///
    /// # Errors
    /// [`ArrayError::Layout`], [`ArrayError::Mismatch`], [`ArrayError::Window`].
    ///
    /// # Examples
    /// ```
    /// use transom::{ArrayError, Distribution};
    /// transom::threads(3, |world| -> Result<(), ArrayError> {
    ///     let mut array = world.array::<u64, 1>([100], Distribution::Block)?;
    ///     array.lock_all()?.fetch_and_op(70, transom::Op::Sum, 1)?; // whoever has it
    ///     assert_eq!(array.fence()?.get_one(70)?, 3);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn array<T: Pod, const D: usize>(
        &self,
        shape: [usize; D],
        distribution: Distribution<D>,
    ) -> Result<GlobalArray<T, D>, ArrayError> {
        GlobalArray::agreed(self, Layout::new(shape, distribution, self.size()))
    }

    /// Collective: a value in the memory of `owner`, for one holder at a time. Every rank passes a value; the owner's
    /// is what it begins with.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Size`], [`Error::Fabric`]; see
    /// [`windows::GlobalRwLock::new`](transom_windows::GlobalRwLock::new).
    ///
    /// # Examples
    /// ```
    /// let sums = transom::threads(3, |world| -> Result<u64, transom::Error> {
    ///     let sum = world.mutex(0, 10)?; // at rank 0
    ///     *sum.lock()? += 1 + world.rank() as u64;
    ///     world.barrier().expect("nobody died");
    ///     Ok(*sum.lock()?)
    /// })?;
    /// assert!(sums.into_iter().all(|sum| sum.unwrap() == 10 + 1 + 2 + 3));
    /// # Ok::<(), transom::StartError>(())
    /// ```
    pub fn mutex<T: Pod>(&self, owner: Rank, value: T) -> Result<GlobalMutex<T>, Error> {
        GlobalMutex::new(&self.fabric, self.windows.fetch_add(1, Ordering::Relaxed), owner, value)
    }

    /// As [`mutex`](Self::mutex), for one writer or many readers.
    ///
    /// # Errors
    /// As [`mutex`](Self::mutex).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let bounds = world.rw_lock(2, [0.0, 1.0])?; // at rank 2
    ///     let guard = bounds.read()?;
    ///     world.barrier().expect("nobody died"); // all ranks hold it now
    ///     assert_eq!(*guard, [0.0, 1.0]);
    ///     guard.unlock()
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rw_lock<T: Pod>(&self, owner: Rank, value: T) -> Result<GlobalRwLock<T>, Error> {
        GlobalRwLock::new(&self.fabric, self.windows.fetch_add(1, Ordering::Relaxed), owner, value)
    }

    /// Collective: a team of the ranks that name the same colour, numbered by `key`, then by rank; none for those that
    /// name no colour. A team is a world of its own: its windows, barriers and errors count its members only.
    ///
    /// # Errors
    /// [`FabricError::System`], [`FabricError::BadKey`] and the like if the team cannot be made, on all its members.
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    ///     let row = world.rank() / 2; // two teams of two
    ///     let team = world.split(Some(row as u64), 0)?.expect("everyone names a colour");
    ///     assert_eq!((team.rank(), team.size()), (world.rank() % 2, 2));
    ///     let mut window = team.allocate::<u64>(1)?; // a window of the team
    ///     window.lock_exclusive(1)?.put(0, &[row as u64])?;
    ///     Ok(team.barrier()?)
    /// })?.into_iter().collect::<Result<Vec<()>, _>>().unwrap();
    /// # Ok::<(), transom::StartError>(())
    /// ```
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<World>, FabricError> {
        Ok(self.fabric.split(colour, key)?.map(World::new))
    }

    /// Collective: returns when every rank has called it. ceil(log2 ranks) posts.
    ///
    /// # Errors
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`] or [`FabricError::GivenUp`] if a rank can no longer call.
    ///
    /// # Examples
    /// ```
    /// transom::threads(4, |world| world.barrier().unwrap())?;
    /// # Ok::<(), transom::StartError>(())
    /// ```
    pub fn barrier(&self) -> Result<(), FabricError> {
        self.fabric.barrier()
    }
}

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
            Ok(World::new(provider::over_memory(fabric)?))
        }
        Joined::Apart(apart) => Ok(World::new(provider::over_hosts(apart)?)),
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
    let (body, observer) = (&body, fabrics.first().cloned());
    std::thread::scope(|scope| {
        let mut running = Vec::with_capacity(ranks);
        for fabric in fabrics {
            let name = format!("rank {}", fabric.rank());
            let run = move || {
                // Whatever of its world the body leaked or returned: the rank is gone when the body is.
                let leaving = Leaving(fabric.clone());
                let returned = body(World::new(provider::threads(fabric)));
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

/// Why a program has no world.
///
/// # Examples
/// ```
/// let error = transom::StartError::Join(transom::FabricError::PeerDied { rank: 1 });
/// assert_eq!(error.to_string(), "cannot join the job: rank 1 died");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The job that this process was started for cannot be joined.
    #[error("cannot join the job: {0}")]
    Join(#[source] FabricError),
    /// The other ranks of the job that this process was started for cannot be found.
    #[error("cannot join the job: {0}")]
    Bootstrap(#[from] BootstrapError),
    /// The ranks are on several hosts, and there is no provider between them.
    #[error(
        "the ranks are on several hosts that share no memory: {hosts}; between hosts they need the provider verbs (the \
         cargo feature `verbs`, and TRANSOM_FABRIC not shm), or start them all on one"
    )]
    Apart {
        /// Who is where.
        hosts: String,
    },
    /// The system gives no thread for a rank.
    #[error("cannot start a thread for each rank: {0}")]
    Thread(#[source] std::io::Error),
    /// The ranks cannot be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The program cannot find itself to start copies.
    #[error("cannot find the program to start copies of: {0}")]
    Program(#[source] std::io::Error),
    /// A TRANSOM_ variable says what cannot be.
    #[error(transparent)]
    Variable(#[from] variables::VariableError),
    /// TRANSOM_FABRIC asks for RDMA, and it cannot be used.
    #[cfg(feature = "verbs")]
    #[error("cannot use RDMA: {0}")]
    Verbs(#[from] crate::verbs::VerbsError),
}
