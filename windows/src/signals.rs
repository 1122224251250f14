//! Signal words: notifications of a target that data has arrived, without a call of the target in between.

use crate::core::Core;
use crate::target::Target;
use crate::{Error, Fabric, FabricError, Wait, Wake};
use bytemuck::Pod;
use std::fmt;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};

/// A rank's own signal words, to which [`put_signal`](crate::Target::put_signal) of other ranks adds. A rank that sees
/// a signal sees the data that was put before it. Waiting takes no remote operation.
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
/// epoch.signals().set(1, 0)?; // for the next round
/// epoch.unlock()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Signals<'w, F: Fabric> {
    pub(crate) core: &'w Core<F>,
}

impl<F: Fabric> Signals<'_, F> {
    /// The number of this rank's signals.
    pub fn len(&self) -> usize {
        self.core.data.sizes[self.rank()].signals
    }

    /// True if this rank has no signals.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads the current value of a signal.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`], as for all calls below.
    pub fn read(&self, signal: usize) -> Result<u64, Error> {
        let offset = self.core.signal_offset(self.rank(), signal)?;
        self.core.data.fabric.word(&self.core.data.region, offset).map_err(|source| self.error(source))
    }

    /// Sets a signal. Additions of other ranks in flight may take effect before or after.
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

    /// [`wait_until`](Self::wait_until) with a time limit: returns `None` after `limit`.
    ///
    /// # Errors
    /// The errors of `wait_until`, even before the deadline.
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

    /// Waits until the value of one of several signals satisfies `until`, and returns that signal and its value; if
    /// several do, the one named first.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`], [`Error::NoSignalNamed`]; [`Error::Fabric`] if a rank died.
    pub fn wait_any(&self, signals: &[usize], until: impl Fn(usize, u64) -> bool) -> Result<(usize, u64), Error> {
        Ok(self.wait_by(signals, None, until)?.expect("a wait without a deadline ends with a signal"))
    }

    /// [`wait_any`](Self::wait_any) with a time limit: returns `None` after `limit`.
    ///
    /// # Errors
    /// The errors of `wait_any`, even before the deadline.
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
            // Repeated calls with short limits must report a death, too.
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

    /// Waits until the value of each of some signals has satisfied `until`. Signals are checked in order, so a value
    /// that satisfies `until` only for a moment may be missed.
    ///
    /// # Errors
    /// The errors of [`wait_any`](Self::wait_any), except that an empty list is allowed.
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

    /// Waits until the value of one of several signals satisfies `until`, and returns every signal that does so then,
    /// with its value.
    ///
    /// # Errors
    /// The errors of [`wait_any`](Self::wait_any).
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
    /// Adds `add` to a signal word of the target. A rank that sees the sum sees this rank's earlier puts there. 1
    /// fetch-and-add.
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

    /// Sets a signal word of the target, ordered like [`signal`](Self::signal). 1 write of a word.
    ///
    /// # Errors
    /// The errors of `signal`.
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
    /// Offset of a rank's signal, in bytes.
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

/// The call in which a rank waits for signals, for messages.
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
