//! Signal words: how a target learns that data has arrived, without a call of its own in between.

use crate::core::Core;
use crate::{Error, Fabric, FabricError, Wait};
use std::fmt;
use transom_locks::{Awaited, Rank};

/// A rank's own signal words, which [`put_signal`](crate::Target::put_signal) of others adds to. Whoever sees a signal
/// sees the data that was put before it. Waiting takes no remote operation.
///
/// # Examples
/// ```
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
        data.fabric.notify(&data.remotes[rank], offset, value).map_err(|source| self.error(source))
    }

    /// Waits until a signal's value satisfies `until`, and returns it.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`]; [`Error::Fabric`] if a rank died.
    pub fn wait_until(&self, signal: usize, until: impl Fn(u64) -> bool) -> Result<u64, Error> {
        Ok(self.wait_any(&[signal], |_, value| until(value))?.1)
    }

    /// Waits until the value of one of several signals satisfies `until`, and returns the signal and its value; the
    /// first named, if several do.
    ///
    /// # Errors
    /// [`Error::NoSuchSignal`], also if none is named; [`Error::Fabric`] if a rank died.
    pub fn wait_any(&self, signals: &[usize], until: impl Fn(usize, u64) -> bool) -> Result<(usize, u64), Error> {
        let data = &self.core.data;
        for &signal in signals.iter().chain(signals.is_empty().then_some(&usize::MAX)) {
            self.core.signal_offset(self.rank(), signal)?;
        }
        let rank = self.rank();
        let look = || {
            for &signal in signals {
                let value = data.fabric.word(&data.region, data.signal_offset(rank, signal))?;
                if until(signal, value) {
                    return Ok(Some((signal, value)));
                }
            }
            Ok(None)
        };
        let call = WaitingForSignals { window: self.core.id, signals };
        let wait = Wait { rank, call: &call, awaited: Awaited::Anyone };
        data.fabric.wait(&data.region, wait, look).map_err(|source| self.error(source))
    }

    fn rank(&self) -> Rank {
        self.core.data.fabric.rank()
    }

    #[cold]
    fn error(&self, source: FabricError) -> Error {
        Error::Fabric { window: self.core.id, rank: self.rank(), source }
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
