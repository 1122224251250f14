//! Aliases for the types of `transom-windows` with the provider of a [`World`](crate::World).

use crate::provider::Provider;
use transom_windows as windows;

/// A window of a [`World`](crate::World).
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut window: transom::Window<f64> = world.allocate(10)?;
/// window.lock_exclusive(0)?.put(0, &[1.0])?;
/// # Ok::<(), transom::Error>(())
/// ```
pub type Window<T> = windows::Window<T, Provider>;

/// An array whose elements the ranks of a [`World`](crate::World) share; see [`windows::GlobalArray`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let mut plate: transom::GlobalArray<f64, 2> = world.array([4, 6], transom::Distribution::Block)?;
/// plate.lock_all()?.put_one([3, 5], 0.5)?;
/// # Ok::<(), transom::Error>(())
/// ```
pub type GlobalArray<T, const D: usize = 1> = windows::GlobalArray<T, Provider, D>;

/// Flags of a [`World`](crate::World) that every rank may set and wait for; see [`windows::GlobalFlags`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let flags: transom::GlobalFlags = world.flags(3)?;
/// flags.set(2)?;
/// assert!(flags.is_set(2)?);
/// # Ok::<(), transom::Error>(())
/// ```
pub type GlobalFlags = windows::GlobalFlags<Provider>;

/// A value of a [`World`](crate::World) for one holder at a time; see [`windows::GlobalMutex`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let next: transom::GlobalMutex<u64> = world.mutex(0, 10)?;
/// *next.lock()? += 1;
/// assert_eq!(next.counters().locks, 1);
/// # Ok::<(), transom::Error>(())
/// ```
pub type GlobalMutex<T> = windows::GlobalMutex<T, Provider>;

/// A value of a [`World`](crate::World) for one writer or many readers; see [`windows::GlobalRwLock`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let origin: transom::GlobalRwLock<[f64; 3]> = world.rw_lock(0, [0.0; 3])?;
/// assert_eq!(origin.read()?[2], 0.0);
/// # Ok::<(), transom::Error>(())
/// ```
pub type GlobalRwLock<T> = windows::GlobalRwLock<T, Provider>;

/// The exclusive guard of a [`GlobalMutex`] or a [`GlobalRwLock`]; see [`windows::WriteGuard`].
///
/// # Examples
/// ```
/// fn advance(mut steps: transom::WriteGuard<'_, u64>) -> Result<u64, transom::Error> {
///     *steps += 1;
///     let now = *steps;
///     steps.unlock()?;
///     Ok(now)
/// }
/// let world = transom::init()?;
/// assert_eq!(advance(world.mutex(0, 10)?.lock()?)?, 11);
/// # Ok::<(), transom::Error>(())
/// ```
pub type WriteGuard<'l, T> = windows::WriteGuard<'l, T, Provider>;

/// The guard of a reader of a [`GlobalRwLock`]; see [`windows::ReadGuard`].
///
/// # Examples
/// ```
/// let world = transom::init()?;
/// let origin = world.rw_lock(0, [0.5; 3])?;
/// let guard: transom::ReadGuard<'_, [f64; 3]> = origin.read()?;
/// assert_eq!(guard[2], 0.5);
/// # drop(guard);
/// # Ok::<(), transom::Error>(())
/// ```
pub type ReadGuard<'l, T> = windows::ReadGuard<'l, T, Provider>;

/// Operations on one rank's part of a [`Window`], lent by an epoch; see [`windows::Target`].
///
/// # Examples
/// A function that works in any epoch:
/// ```
/// fn count(target: &transom::Target<'_, u64>, bin: usize) -> Result<u64, transom::Error> {
///     Ok(target.fetch_and_op(bin, transom::Op::Sum, 1)?)
/// }
///
/// let mut window = transom::init()?.allocate::<u64>(10)?;
/// assert_eq!(count(&*window.lock_exclusive(0)?, 3)?, 0);
/// assert_eq!(count(&window.lock_all()?.target(0)?, 3)?, 1);
/// # Ok::<(), transom::Error>(())
/// ```
pub type Target<'e, T> = windows::Target<'e, T, Provider>;

/// The epoch of a lock on one rank of a [`Window`]; see [`windows::LockEpoch`].
pub type LockEpoch<'w, T> = windows::LockEpoch<'w, T, Provider>;

/// The epoch of `lock_all` on a [`Window`]; see [`windows::LockAllEpoch`].
pub type LockAllEpoch<'w, T> = windows::LockAllEpoch<'w, T, Provider>;

/// The epoch of locks on several ranks of a [`Window`]; see [`windows::LockRanksEpoch`].
pub type LockRanksEpoch<'w, T> = windows::LockRanksEpoch<'w, T, Provider>;

/// The epoch between two fences of a [`Window`]; see [`windows::FenceEpoch`].
pub type FenceEpoch<'w, T> = windows::FenceEpoch<'w, T, Provider>;

/// The epoch of `start` and `complete` on a [`Window`]; see [`windows::AccessEpoch`].
pub type AccessEpoch<'w, T> = windows::AccessEpoch<'w, T, Provider>;

/// A part of a [`Window`] that this rank accesses by loads and stores; see [`windows::Local`].
pub type Local<'w, T> = windows::Local<'w, T, Provider>;

/// The signal words of this rank in a [`Window`]; see [`windows::Signals`].
pub type Signals<'w> = windows::Signals<'w, Provider>;
