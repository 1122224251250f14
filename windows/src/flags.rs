//! Flags that every rank may set, clear and wait for.

use crate::{Error, Fabric, FabricError, Flavor, Wait, Window};
use std::fmt;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank, Wake};

/// Flags that every rank may set, clear and wait for: PAUSE in SPLASH-2. Each rank has a copy of all flags, so a wait
/// is local and a waiting rank wakes immediately.
///
/// Ranks that set and clear one flag concurrently leave it set at some ranks and cleared at others: order such calls,
/// by a barrier for example. A flag does not order puts of windows: complete them before [`set`](Self::set), by
/// `flush`, `unlock` or a fence. Threads of a rank may share the flags.
///
/// Costs each rank 8 bytes per flag, besides an empty window.
///
/// # Examples
/// ```
/// transom::threads(3, |world| -> Result<(), transom::Error> {
///     let flags = world.flags(2)?;
///     if world.rank() == 1 {
///         flags.set(0)?; // SETPAUSE
///     }
///     flags.wait(0)?; // WAITPAUSE, at each rank
///     assert_eq!((flags.is_set(0)?, flags.is_set(1)?), (true, false));
///     world.barrier()?;
///     if world.rank() == 2 {
///         flags.clear(0)?; // CLEARPAUSE
///     }
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct GlobalFlags<F: Fabric> {
    /// A window without elements; its signal words are this rank's copies of the flags.
    window: Window<u64, F>,
}

impl<F: Fabric> GlobalFlags<F> {
    /// Collective: creates `len` flags, all cleared. All ranks pass the same length; `id` names the flags in errors.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if ranks pass different lengths; otherwise the errors of [`Window::new`].
    ///
    /// # Examples
    /// ```
    /// // In `transom`: `let flags = world.flags(1)?;`
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// let flags = transom_windows::GlobalFlags::new(&fabric, 0, 1)?;
    /// flags.set(0)?;
    /// flags.wait(0)?;
    /// # Ok::<(), transom_windows::Error>(())
    /// ```
    pub fn new(fabric: &F, id: u32, len: usize) -> Result<Self, Error> {
        let window = Window::new(fabric, id, Flavor::Allocate { len: 0 }, len)?;
        let lengths = window.core.data.sizes.iter().map(|size| size.signals);
        let first = lengths.clone().next().unwrap_or(len);
        if let Some((rank, other)) = lengths.enumerate().find(|(_, other)| *other != first) {
            let why = format!("rank 0 makes {first} flags, rank {rank} makes {other}; pass the same number");
            return Err(Error::Mismatch { rank, why });
        }
        Ok(GlobalFlags { window })
    }

    /// The number of flags.
    pub fn len(&self) -> usize {
        self.window.core.data.sizes[self.rank()].signals
    }

    /// True if there are no flags.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sets a flag at all ranks, this one included, and wakes ranks that wait for it. 1 notification per other rank.
    ///
    /// # Errors
    /// [`Error::NoSuchFlag`], [`Error::Fabric`].
    pub fn set(&self, flag: usize) -> Result<(), Error> {
        self.tell(flag, 1)
    }

    /// Clears a flag at all ranks. 1 notification per other rank.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    pub fn clear(&self, flag: usize) -> Result<(), Error> {
        self.tell(flag, 0)
    }

    /// Reads this rank's copy of a flag. No remote operation.
    ///
    /// # Errors
    /// The errors of [`set`](Self::set).
    pub fn is_set(&self, flag: usize) -> Result<bool, Error> {
        let offset = self.offset(flag)?;
        self.value(offset).map(|value| value != 0).map_err(|source| self.error(self.rank(), source))
    }

    /// Waits until a flag is set. No remote operation.
    ///
    /// # Errors
    /// [`Error::NoSuchFlag`]; [`Error::Fabric`] if a rank died, or all others left.
    pub fn wait(&self, flag: usize) -> Result<(), Error> {
        self.wait_by(flag, None).map(drop)
    }

    /// [`wait`](Self::wait) with a time limit; returns whether the flag was set within `limit`.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// let world = transom::init()?;
    /// let flags = world.flags(1)?;
    /// assert!(!flags.wait_for(0, std::time::Duration::from_millis(3))?);
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn wait_for(&self, flag: usize, limit: Duration) -> Result<bool, Error> {
        self.wait_by(flag, Instant::now().checked_add(limit))
    }

    fn wait_by(&self, flag: usize, deadline: Option<Instant>) -> Result<bool, Error> {
        let (offset, rank, data) = (self.offset(flag)?, self.rank(), &self.window.core.data);
        let call = WaitingForFlag { flags: self.window.id(), flag };
        let wait = Wait { rank, call: &call, awaited: Awaited::Anyone, deadline };
        let set = data.fabric.wait(&data.region, wait, || {
            let set = self.value(offset)? != 0;
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            Ok((set || over).then_some(set))
        });
        let set = set.map_err(|source| self.error(rank, source))?;
        if !set {
            // Repeated calls with short limits must report a death, too.
            let alive = data.check_seldom(|fabric| fabric.check_peers(Awaited::Anyone));
            alive.map_err(|source| self.error(rank, source))?;
        }
        Ok(set)
    }

    fn tell(&self, flag: usize, value: u64) -> Result<(), Error> {
        let (offset, data) = (self.offset(flag)?, &self.window.core.data);
        data.counters.notifications.add(data.remotes.len() as u64 - 1);
        // Ranks wait only for a flag to be set.
        let wake = if value == 0 { Wake::Nobody } else { Wake::Home };
        for (rank, remote) in data.remotes.iter().enumerate() {
            data.fabric.notify(remote, offset, value, wake).map_err(|source| self.error(rank, source))?;
        }
        Ok(())
    }

    fn value(&self, offset: usize) -> Result<u64, FabricError> {
        let data = &self.window.core.data;
        data.fabric.word(&data.region, offset)
    }

    /// Offset of a flag in each rank's memory, in bytes.
    fn offset(&self, flag: usize) -> Result<usize, Error> {
        if flag >= self.len() {
            return Err(Error::NoSuchFlag { flags: self.window.id(), flag, len: self.len() });
        }
        Ok(self.window.core.data.signal_offset(self.rank(), flag))
    }

    fn rank(&self) -> Rank {
        self.window.rank()
    }

    #[cold]
    fn error(&self, rank: Rank, source: FabricError) -> Error {
        Error::Fabric { window: self.window.id(), rank, source }
    }
}

impl<F: Fabric> fmt::Debug for GlobalFlags<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GlobalFlags").field("id", &self.window.id()).field("len", &self.len()).finish()
    }
}

/// The call in which a rank waits for a flag, for messages.
struct WaitingForFlag {
    flags: u32,
    flag: usize,
}

impl fmt::Display for WaitingForFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wait for flag {} of flags {}", self.flag, self.flags)
    }
}
