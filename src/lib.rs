#![doc = include_str!("../README.md")]

pub mod array;
mod job;
pub mod provider;
#[cfg(feature = "verbs")]
pub mod verbs;

pub use array::{ArrayError, Distribution, GlobalArray, GlobalPtr};
pub use job::bootstrap::{Bootstrap, BootstrapError};
pub use job::launcher::{Failure, HostList, HostListError, Launch, LaunchError, Outcome, Status};
pub use job::variables;
pub use job::{StartError, World, init, log_from_env, start, threads};
pub use transom_locks as locks;
pub use transom_locks::{Ahead, Rank};
pub use transom_shm_loopback as shm_loopback;
pub use transom_windows as windows;
pub use transom_windows::{
    Address, Assert, Atomic, Counters, Error, FabricError, Flavor, LockError, LockResult, Mode, Op, Section,
};

/// A window of a [`World`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window: transom::Window<f64> = world.allocate(10)?;
/// window.lock_exclusive(0)?.put(0, &[1.0])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Window<T> = transom_windows::Window<T, provider::Provider>;

/// An operation on a window of a [`World`] that is waited for later; see [`windows::Request`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window = world.allocate::<u64>(10)?;
/// let epoch = window.lock_shared(0)?;
/// let requests: Vec<transom::Request<u64>> = vec![epoch.rget(0, 2)?, epoch.rget(5, 3)?];
/// assert_eq!(transom::Request::wait_all(requests)?.concat(), [0; 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Request<'t, T> = transom_windows::Request<'t, T, provider::Provider>;

/// A value of a [`World`] for one holder at a time; see [`windows::GlobalMutex`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let next: transom::GlobalMutex<u64> = world.mutex(0, 10)?;
/// *next.lock().map_err(transom::Error::from)? += 1;
/// assert_eq!(next.counters().locks, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type GlobalMutex<T> = transom_windows::GlobalMutex<T, provider::Provider>;

/// A value of a [`World`] for one writer or many readers; see [`windows::GlobalRwLock`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let origin: transom::GlobalRwLock<[f64; 3]> = world.rw_lock(0, [0.0; 3])?;
/// assert_eq!(origin.read().map_err(transom::Error::from)?[2], 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type GlobalRwLock<T> = transom_windows::GlobalRwLock<T, provider::Provider>;
