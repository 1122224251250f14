#![doc = include_str!("../README.md")]

mod job;

pub use job::launcher::{Failure, Launch, LaunchError, Outcome, Status};
pub use job::variables;
pub use job::{StartError, World, init, log_from_env, start, threads};
pub use transom_locks as locks;
pub use transom_locks::{Ahead, Rank};
pub use transom_shm_loopback as shm_loopback;
pub use transom_windows as windows;
pub use transom_windows::{Atomic, Counters, Error, FabricError, Op, Section};

/// A window of a [`World`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window: transom::Window<f64> = world.allocate(10)?;
/// window.lock_exclusive(0)?.put(0, &[1.0])?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Window<T> = transom_windows::Window<T, transom_shm_loopback::Loopback>;
