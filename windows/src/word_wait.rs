//! Waiting for the value of an element that other ranks put or change by atomics.
//!
//! An operation on data wakes no rank, so that it costs no more than its bytes. A wait for data therefore polls: it
//! spins and yields like every wait of the library, then sleeps for longer and longer between polls.

use crate::core::Core;
use crate::local::Local;
use crate::target::Target;
use crate::{Atomic, Error, Fabric, Wait};
use bytemuck::Pod;
use std::fmt;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};

/// Defines the two calls of a wait, without and with a limit, by the type's `wait_by`. Takes the argument for the
/// element, and the docs of each call.
macro_rules! wait_calls {
    (
        $(#[$until:meta])*
        wait_until: $at:ident: $At:ty,

        $(#[$until_for:meta])*
        wait_until_for
    ) => {
        $(#[$until])*
        pub fn wait_until(&self, $at: $At, until: impl Fn(T) -> bool) -> Result<T, Error> {
            Ok(self.wait_by($at, None, until)?.expect("a wait without a deadline ends with a value"))
        }

        $(#[$until_for])*
        pub fn wait_until_for(
            &self,
            $at: $At,
            limit: Duration,
            until: impl Fn(T) -> bool,
        ) -> Result<Option<T>, Error> {
            self.wait_by($at, Some(limit), until)
        }
    };
}
pub(crate) use wait_calls;

impl<T: Atomic, F: Fabric> Local<'_, T, F> {
    wait_calls! {
        /// Waits until an element satisfies `until`, and returns its value; other ranks put it or change it by atomics.
        /// Loads after this call see what the writer put before the element, if a flush, an epoch or a synchronisation
        /// orders the two.
        ///
        /// Costs no remote operation. Operations on data wake no rank: the wait spins, yields, then sleeps up to 1 ms
        /// between polls. A [signal](crate::Signals) wakes its rank immediately.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`]; [`Error::Fabric`] if a rank died, or all others left.
        ///
        /// # Examples
        /// ```
        /// transom::threads(2, |world| -> Result<(), transom::Error> {
        ///     let mut window = world.allocate::<u64>(1)?;
        ///     let epoch = window.lock_all()?;
        ///     epoch.target(1 - world.rank())?.store(0, 5)?;
        ///     assert_eq!(epoch.local().wait_until(0, |word| word != 0)?, 5);
        ///     epoch.unlock()
        /// })?.into_iter().collect::<Result<(), _>>()?;
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until: offset: usize,

        /// [`wait_until`](Self::wait_until) with a time limit: returns `None` after `limit`.
        ///
        /// # Errors
        /// The errors of `wait_until`.
        ///
        /// # Examples
        /// ```
        /// use std::time::Duration;
        /// let world = transom::init()?;
        /// let window = world.allocate::<u64>(1)?;
        /// let found = window.local().wait_until_for(0, Duration::from_millis(3), |word| word != 0)?;
        /// assert_eq!(found, None);
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until_for
    }

    pub(crate) fn wait_by(
        &self,
        offset: usize,
        limit: Option<Duration>,
        until: impl Fn(T) -> bool,
    ) -> Result<Option<T>, Error> {
        let word = Word { window: self.core.id, owner: self.rank, offset };
        let found = wait(self.core, word, true, limit, || self.get(offset), until)?;
        self.sync();
        Ok(found)
    }
}

impl<T: Atomic, F: Fabric> Target<'_, T, F> {
    wait_calls! {
        /// Waits until an element of the target satisfies `until`, and returns its value; other ranks put it or change
        /// it by atomics. For this rank's own elements use [`Local::wait_until`].
        ///
        /// Costs 1 read per poll, and a [`load`](Self::load) of the value that ends the wait. Where memory is not
        /// shared, the wait yields for 0.2 ms, then sleeps between polls: 10 us at first, doubling up to 1 ms.
        ///
        /// # Errors
        /// [`Error::OutOfBounds`]; [`Error::Fabric`] if a rank died, or all others left.
        ///
        /// # Examples
        /// ```
        /// transom::threads(3, |world| -> Result<(), transom::Error> {
        ///     let mut window = world.allocate::<u64>(1)?;
        ///     let epoch = window.lock_all()?;
        ///     let done = epoch.target(0)?; // a counter of all ranks
        ///     done.fetch_add(0, 1)?;
        ///     assert_eq!(done.wait_until(0, |done| done == 3)?, 3);
        ///     epoch.unlock()
        /// })?.into_iter().collect::<Result<(), _>>()?;
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until: offset: usize,

        /// [`wait_until`](Self::wait_until) with a time limit: returns `None` after `limit`.
        ///
        /// # Errors
        /// The errors of `wait_until`.
        ///
        /// # Examples
        /// ```
        /// use std::time::Duration;
        /// let world = transom::init()?;
        /// let mut window = world.allocate::<u64>(1)?;
        /// let epoch = window.lock_shared(0)?;
        /// assert_eq!(epoch.wait_until_for(0, Duration::from_millis(3), |word| word != 0)?, None);
        /// # Ok::<(), transom::Error>(())
        /// ```
        wait_until_for
    }

    pub(crate) fn wait_by(
        &self,
        offset: usize,
        limit: Option<Duration>,
        until: impl Fn(T) -> bool,
    ) -> Result<Option<T>, Error> {
        let word = Word { window: self.core.id, owner: self.rank, offset };
        let mapped = self.core.data.fabric.is_shared(self.remote);
        // A load is a single, for which this thread would stay admitted during the wait. So only a value found by a get
        // is loaded.
        let look = || self.get_one(offset).and_then(|seen| if until(seen) { self.load(offset) } else { Ok(seen) });
        wait(self.core, word, mapped, limit, look, &until)
    }
}

/// Polls by `read` until the value satisfies `until` or the limit is over. `mapped` says that a poll is a load of this
/// processor, which may spin.
fn wait<T: Pod, F: Fabric>(
    core: &Core<F>,
    word: Word,
    mapped: bool,
    limit: Option<Duration>,
    mut read: impl FnMut() -> Result<T, Error>,
    until: impl Fn(T) -> bool,
) -> Result<Option<T>, Error> {
    let (fabric, region) = (&core.data.fabric, &core.data.region);
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let wait = Wait { rank: fabric.rank(), call: &word, awaited: Awaited::Anyone, deadline };
    let mut look = || -> Option<Result<Option<T>, Error>> {
        match read() {
            Ok(value) if until(value) => Some(Ok(Some(value))),
            Ok(_) => deadline.is_some_and(|deadline| Instant::now() >= deadline).then_some(Ok(None)),
            Err(error) => Some(Err(error)),
        }
    };
    if let Some(found) = look() {
        return found;
    }
    // The provider's wait makes progress on this rank's messages before its second poll, so the first is left empty.
    let look = || {
        let mut looks = 0;
        fabric.wait(region, wait, || {
            looks += 1;
            Ok(if looks == 1 { None } else { Some(look()) })
        })
    };
    let found = wait.poll(!mapped, look, || fabric.check_peers(Awaited::Anyone));
    found.unwrap_or_else(|source| Err(Error::Fabric { window: word.window, rank: word.owner, source }))
}

/// An element that a rank waits for, for messages.
#[derive(Clone, Copy)]
struct Word {
    window: u32,
    owner: Rank,
    offset: usize,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Word { window, owner, offset } = self;
        write!(f, "wait_until of element {offset} at rank {owner} of window {window}")
    }
}
