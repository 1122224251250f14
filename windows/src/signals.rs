//! Signal words: how a target learns that data has arrived, without a call of its own in between.

use crate::core::Core;
use crate::target::Target;
use crate::{Error, Fabric, FabricError, Wait, Wake};
use bytemuck::Pod;
use std::fmt;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};

/// A rank's own signal words, which [`put_signal`](crate::Target::put_signal) of others adds to. Whoever sees a signal
/// sees the data that was put before it. Waiting takes no remote operation.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate_with_signals::<u64>(8, 2)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// use transom_windows::{Flavor, Window};
/// let mut window = Window::<u64, _>::new(&fabric, 0, Flavor::Allocate { len: 8 }, 2)?;
/// let epoch = window.lock_all()?;
/// epoch.target(0)?.put_signal(0, &[7], 1, 1)?;
/// let (signal, value) = epoch.signals().wait_any(&[0, 1], |_, value| value > 0)?;
/// assert_eq!((signal, value, epoch.local().get(0)?), (1, 1, 7));
/// epoch.signals().set(1, 0)?; // for the next time
/// epoch.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Signals<'w, F: Fabric> {
    pub(crate) core: &'w Core<F>,
}

impl<F: Fabric> Signals<'_, F> {
    /// How many this rank has.
    pub fn len(&self) -> usize {
        self.core.data.sizes[self.rank()].signals
    }

    /// Whether this rank has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A signal's value now.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`]. So for the following.
    pub fn read(&self, signal: usize) -> Result<u64, Error> {
        let offset = self.core.signal_offset(self.rank(), signal)?;
        self.core.data.fabric.word(&self.core.data.region, offset).map_err(|source| self.error(source))
    }

    /// Sets a signal; adds of others that are under way may come before or after.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`].
    pub fn set(&self, signal: usize, value: u64) -> Result<(), Error> {
        let (data, rank) = (&self.core.data, self.rank());
        let offset = self.core.signal_offset(rank, signal)?;
        data.fabric.notify(&data.remotes[rank], offset, value, Wake::Home).map_err(|source| self.error(source))
    }

    /// Waits until a signal's value satisfies `until`, and returns it.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`]; [`Error::Fabric`] if a rank died.
    pub fn wait_until(&self, signal: usize, until: impl Fn(u64) -> bool) -> Result<u64, Error> {
        Ok(self.wait_any(&[signal], |_, value| until(value))?.1)
    }

    /// As [`wait_until`](Self::wait_until), for so long at most: then none.
    ///
    /// # Errors
    /// As there, however much time is left.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.allocate_with_signals::<u64>(8, 2)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use std::time::Duration;
    /// use transom_windows::{Flavor, Window};
    /// let mut window = Window::<u64, _>::new(&fabric, 0, Flavor::Allocate { len: 8 }, 2)?;
    /// let epoch = window.lock_all()?;
    /// let soon = Duration::from_millis(10);
    /// assert_eq!(epoch.signals().wait_until_for(0, soon, |value| value > 0)?, None);
    /// epoch.target(0)?.signal(1, 3)?;
    /// assert_eq!(epoch.signals().wait_any_for(&[0, 1], soon, |_, value| value > 0)?, Some((1, 3)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_until_for(
        &self,
        signal: usize,
        limit: Duration,
        until: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, Error> {
        Ok(self.wait_any_for(&[signal], limit, |_, value| until(value))?.map(|(_, value)| value))
    }

    /// Waits until the value of one of several signals satisfies `until`, and returns the signal and its value; the
    /// first named, if several do.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`], [`Error::NoSignalNamed`]; [`Error::Fabric`] if a rank died.
    pub fn wait_any(&self, signals: &[usize], until: impl Fn(usize, u64) -> bool) -> Result<(usize, u64), Error> {
        Ok(self.wait_by(signals, None, until)?.expect("a wait without a deadline ends with a signal"))
    }

    /// As [`wait_any`](Self::wait_any), for so long at most: then none.
    ///
    /// # Errors
    /// As there, however much time is left.
    ///
    /// # Examples
    /// See [`wait_until_for`](Self::wait_until_for).
    pub fn wait_any_for(
        &self,
        signals: &[usize],
        limit: Duration,
        until: impl Fn(usize, u64) -> bool,
    ) -> Result<Option<(usize, u64)>, Error> {
        let found = self.wait_by(signals, Instant::now().checked_add(limit), until)?;
        if found.is_none() {
            // Who waits again and again, for short times, is told of a death too.
            self.core
                .data
                .check_seldom(|fabric| fabric.check_peers(Awaited::Anyone))
                .map_err(|lost| self.error(lost))?;
        }
        Ok(found)
    }

    fn wait_by(
        &self,
        signals: &[usize],
        deadline: Option<Instant>,
        until: impl Fn(usize, u64) -> bool,
    ) -> Result<Option<(usize, u64)>, Error> {
        let data = &self.core.data;
        let rank = self.rank();
        if signals.is_empty() {
            return Err(Error::NoSignalNamed { window: self.core.id });
        }
        signals.iter().try_for_each(|&signal| self.core.signal_offset(rank, signal).map(drop))?;
        let look = || {
            for &signal in signals {
                let value = data.fabric.word(&data.region, data.signal_offset(rank, signal))?;
                if until(signal, value) {
                    return Ok(Some(Some((signal, value))));
                }
            }
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            Ok(over.then_some(None))
        };
        let call = WaitingForSignals { window: self.core.id, signals };
        let wait = Wait { rank, call: &call, awaited: Awaited::Anyone, deadline };
        data.fabric.wait(&data.region, wait, look).map_err(|source| self.error(source))
    }

    /// Waits until the value of each of some signals satisfies `until`. They are looked at in their order, so one that does so
    /// for a moment only may be missed.
    ///
    /// # Errors
    /// As [`wait_any`](Self::wait_any), but none for no signals.
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let mut window = world.allocate_with_signals::<u64>(8, 3)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// use transom_windows::{Flavor, Window};
    /// let mut window = Window::<u64, _>::new(&fabric, 0, Flavor::Allocate { len: 8 }, 3)?;
    /// let epoch = window.lock_all()?;
    /// let target = epoch.target(0)?;
    /// target.signal(0, 1)?; // without data
    /// target.set_signal(2, 7)?;
    /// epoch.signals().wait_all(&[0, 2], |_, value| value > 0)?;
    /// assert_eq!(epoch.signals().wait_some(&[0, 1, 2], |_, value| value > 0)?, [(0, 1), (2, 7)]);
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn wait_all(&self, signals: &[usize], until: impl Fn(usize, u64) -> bool) -> Result<(), Error> {
        signals.iter().try_for_each(|&signal| self.wait_any(&[signal], &until).map(drop))
    }

    /// Waits until the value of one of several signals satisfies `until`, and returns all those that do so then, with their
    /// values.
    ///
    /// # Errors
    /// As [`wait_any`](Self::wait_any).
    ///
    /// # Examples
    /// See [`wait_all`](Self::wait_all).
    pub fn wait_some(&self, signals: &[usize], until: impl Fn(usize, u64) -> bool) -> Result<Vec<(usize, u64)>, Error> {
        let first = self.wait_any(signals, &until)?;
        let mut some = vec![first];
        let after = signals.iter().position(|&signal| signal == first.0).map_or(0, |at| at + 1);
        for &signal in &signals[after..] {
            let value = self.read(signal)?;
            if until(signal, value) {
                some.push((signal, value));
            }
        }
        Ok(some)
    }

    fn rank(&self) -> Rank {
        self.core.data.fabric.rank()
    }

    #[cold]
    fn error(&self, source: FabricError) -> Error {
        Error::Fabric { window: self.core.id, rank: self.rank(), source }
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Adds `add` to a signal word of the target: what this rank put there before is seen by whoever sees it. 1 fetch-and-add.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`], [`Error::Fabric`].
    ///
    /// # Examples
    /// See [`Signals::wait_all`].
    pub fn signal(&self, signal: usize, add: u64) -> Result<(), Error> {
        let at = self.core.signal_offset(self.rank(), signal)?;
        self.core.data.counters.signals.bump();
        let (fabric, words) = (&self.core.data.fabric, &self.core.data.remotes[self.rank()]);
        let added = fabric.start_add(words, at, add, Wake::Home).and_then(|pending| fabric.finish(pending));
        added.map(drop).map_err(|error| self.error(error, 0, 0))
    }

    /// Sets a signal word of the target; as [`signal`](Self::signal). 1 write of a word.
    ///
    /// # Errors
    /// As `signal`.
    ///
    /// # Examples
    /// See [`Signals::wait_all`].
    pub fn set_signal(&self, signal: usize, value: u64) -> Result<(), Error> {
        let at = self.core.signal_offset(self.rank(), signal)?;
        self.core.data.counters.signals.bump();
        let (fabric, words) = (&self.core.data.fabric, &self.core.data.remotes[self.rank()]);
        fabric.notify(words, at, value, Wake::Home).map_err(|error| self.error(error, 0, 0))
    }
}

impl<F: Fabric> Core<F> {
    /// Where a rank's signal lies, in bytes.
    #[inline]
    pub(crate) fn signal_offset(&self, rank: Rank, signal: usize) -> Result<usize, Error> {
        let signals = self.data.sizes[rank].signals;
        if signal < signals {
            Ok(self.data.signal_offset(rank, signal))
        } else {
            Err(Error::NoSuchSignal { window: self.id, rank, signal, signals })
        }
    }
}

/// The call in which a rank waits for signals.
struct WaitingForSignals<'s> {
    window: u32,
    signals: &'s [usize],
}

impl fmt::Display for WaitingForSignals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaitingForSignals { window, signals } = self;
        match signals {
            [signal] => write!(f, "wait_until of signal {signal} of window {window}"),
            signals => write!(f, "wait_any of {} signals of window {window}", signals.len()),
        }
    }
}
