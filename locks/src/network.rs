//! The four verbs on 64-bit words that every protocol of this crate consists of.

use std::convert::Infallible;
use std::time::Instant;

/// A rank: the number of a process (or thread) in its job or team, from 0.
pub type Rank = usize;

/// The address of a word: the rank whose registered memory holds it, and its index there.
///
/// # Examples
/// ```
/// use transom_locks::At;
/// let at = At { rank: 3, word: 0 };
/// assert_ne!(at, At { rank: 4, ..at });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct At {
    /// The rank in whose memory the word lies.
    pub rank: Rank,
    /// The index of the word in that memory, in words of 8 bytes.
    pub word: usize,
}

/// The rank whose action ends a wait. A network that sees ranks die or leave learns from it when a wait can no longer
/// end, and can report what a rank waits for.
///
/// # Examples
/// ```
/// use transom_locks::Awaited;
/// fn what(on: Awaited) -> String {
///     match on {
///         Awaited::Rank(rank) => format!("waits for rank {rank}"),
///         Awaited::Behind(rank) => format!("waits in a queue, behind rank {rank}"),
///         Awaited::Anyone => "waits for others in a queue".into(),
///     }
/// }
/// assert_eq!(what(Awaited::Behind(3)), "waits in a queue, behind rank 3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Awaited {
    /// Only this rank can end the wait. The wait fails once this rank has died or left.
    Rank(Rank),
    /// Any rank of the queue may end the wait, which fails once any rank has died. The named rank made the request just
    /// before the waiter's; it may leave after it has released the lock.
    Behind(Rank),
    /// Any rank of the queue may end the wait, which fails once any rank has died.
    Anyone,
}

/// True if a verb wakes the rank at which its word lies. The caller of the verb knows whether a rank may wait for the
/// word. Waking a rank that waits for another word costs system calls at both ranks.
///
/// # Examples
/// ```
/// use transom_locks::Wake;
/// assert_ne!(Wake::Home, Wake::Nobody);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// A rank may wait for this change: the home rank looks again if it sleeps.
    Home,
    /// No rank waits for this change: the home rank sleeps on.
    Nobody,
}

impl Awaited {
    /// A rank that has left, if every rank that could end this wait of `waiter` has left; `None` while the wait may
    /// still end. Ranks are `0..ranks`.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::Awaited;
    /// let left = |rank| rank == 2;
    /// assert_eq!(Awaited::Rank(2).gone(0, 3, left), Some(2));
    /// assert_eq!(Awaited::Behind(2).gone(0, 3, left), None); // rank 1 may still end it
    /// assert_eq!(Awaited::Anyone.gone(0, 3, |rank| rank > 0), Some(1));
    /// assert_eq!(Awaited::Anyone.gone(0, 1, left), None); // threads of rank 0 may
    /// ```
    pub fn gone(self, waiter: Rank, ranks: usize, left: impl Fn(Rank) -> bool) -> Option<Rank> {
        if let Awaited::Rank(rank) = self {
            return Some(rank).filter(|&rank| rank < ranks && left(rank));
        }
        let mut others = (0..ranks).filter(|&rank| rank != waiter);
        let one = others.next();
        one.filter(|&one| left(one) && others.all(left))
    }
}

/// A word whose address a network has found once. Its verbs check neither bounds nor alignment. Each verb acts and orders
/// memory like the verb of [`Network`] with [`Wake::Nobody`]. It cannot fail and never waits.
///
/// # Examples
/// A network without such words names a type without values:
/// ```
/// use transom_locks::FoundWord;
/// fn is_found<W: FoundWord>(word: Option<W>) -> bool {
///     word.is_some()
/// }
/// assert!(!is_found::<std::convert::Infallible>(None));
/// ```
pub trait FoundWord {
    /// Compare-and-swap: stores `new` if the word holds `expected`; returns the previous value.
    fn cas(&self, expected: u64, new: u64) -> u64;

    /// Fetch-and-add, wrapping; returns the previous value.
    fn add(&self, delta: u64) -> u64;

    /// Reads the word.
    fn read(&self) -> u64;
}

impl FoundWord for Infallible {
    fn cas(&self, _: u64, _: u64) -> u64 {
        match *self {}
    }

    fn add(&self, _: u64) -> u64 {
        match *self {}
    }

    fn read(&self) -> u64 {
        match *self {}
    }
}

/// The verbs that a protocol needs of a network: compare-and-swap, fetch-and-add, an 8-byte put of a word, and a wait
/// on the caller's own memory. An InfiniBand adapter executes the first three on remote memory without the help of the
/// rank there.
///
/// # Contract of an implementation
/// 1. `cas` and `add` on one word are atomic with respect to each other, whichever rank calls them. A `notify` is a put.
///    A put that falls between the read and the write of a `cas` or `add` may be lost, as on an adapter.
///    [`Delivery::Torn`](crate::model::Delivery::Torn) checks a protocol for that.
/// 2. A `cas`, `add` or `notify` takes effect after every earlier put or `notify` of the same caller *to the same
///    rank*. A rank that sees its effect also sees theirs (release). A result returned by `cas`, `add` or `wait` makes
///    all that came before it visible to the caller (acquire).
/// 3. A `notify` to the caller's own rank has taken effect when the call returns.
/// 4. `wait` uses no remote operation: it polls the caller's own memory, or sleeps until it is woken. Any verb that
///    changed the word with [`Wake::Home`] ends it. It may sleep on after a change with [`Wake::Nobody`].
/// 5. A wait that can no longer end, because a rank died or left, returns an error in bounded time.
/// 6. An error of `start_add` guarantees that the addition has not taken effect and never will. The protocol goes on as
///    if it had not made the request, and may repeat it. After an error of `cas`, `finish`, `add` or `notify` the
///    operation may have taken effect, or still do so. An implementation that cannot tell returns a pending addition
///    from `start_add`, and the error from `finish`. `wait` changes nothing, whether it fails or not.
///
/// 7. Where ranks [`watch`](Self::watch) each other, `watch` orders memory as `wait` does. Any verb that changed the
///    word ends it, or an error does in bounded time. It sees what the caller itself has put there before.
///
/// A `wait` must not use the protocol that waits: threads of one rank queue behind that protocol.
///
/// # Examples
/// Ranks take turns, on the model network that the crate brings:
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{At, Awaited, Network, Wake};
///
/// fn pass<N: Network>(network: &N) -> Result<(), N::Error> {
///     let (me, n) = (network.rank(), network.ranks());
///     if me > 0 {
///         network.wait(0, Awaited::Rank(me - 1), |v| v == 1)?;
///     }
///     if me + 1 < n {
///         network.notify(At { rank: me + 1, word: 0 }, 1, Wake::Home)?;
///     }
///     Ok(())
/// }
///
/// let net = Sim::new(3, 1, sim::once(|_, network| pass(network)));
/// net.run_random(42).unwrap();
/// ```
pub trait Network {
    /// The reason why a verb failed, a dead peer for example. Protocols return it to their caller.
    type Error;
    /// An addition in flight, whose result [`finish`](Self::finish) returns.
    type Pending;
    /// A word that [`find`](Self::find) returned.
    type Found: FoundWord;

    /// The caller's own rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn ranks(&self) -> usize;

    /// Compare-and-swap: stores `new` if the word holds `expected`; returns the previous value. One remote operation.
    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Self::Error>;

    /// Starts a fetch-and-add (wrapping) and does not wait for its result, so that many can be in flight at once. One
    /// remote operation. After an error nothing was started.
    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Self::Error>;

    /// Completes a started addition and returns the value that its word held before.
    fn finish(&self, pending: Self::Pending) -> Result<u64, Self::Error>;

    /// The result of a started addition, if the network has it already; otherwise the addition, still in flight. A
    /// network whose additions are the processor's own has every result at once, and its callers keep no list of
    /// additions.
    ///
    /// # Errors
    /// The addition, still in flight: [`finish`](Self::finish) completes it.
    #[inline]
    fn try_finish(&self, pending: Self::Pending) -> Result<u64, Self::Pending> {
        Err(pending)
    }

    /// Fetch-and-add, wrapping; returns the previous value. Adding 0 reads. One remote operation.
    #[inline]
    fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Self::Error> {
        let pending = self.start_add(at, delta, wake)?;
        self.finish(pending)
    }

    /// Finds a word, for any number of later verbs on it. Returns `None` unless this rank's own processor executes the
    /// atomics there. The memory of a found word stays until the value is dropped.
    #[inline]
    fn find(&self, _at: At) -> Option<Self::Found> {
        None
    }

    /// [`cas`](Self::cas) on a found word. A network that counts its operations counts this one.
    #[inline]
    fn cas_found(&self, word: &Self::Found, expected: u64, new: u64) -> u64 {
        word.cas(expected, new)
    }

    /// [`add`](Self::add) on a found word. A network that counts its operations counts this one.
    #[inline]
    fn add_found(&self, word: &Self::Found, delta: u64) -> u64 {
        word.add(delta)
    }

    /// Puts 8 bytes and does not wait for their arrival. One remote operation.
    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Self::Error>;

    /// Reads a word of the caller's own memory, ordered as [`wait`](Self::wait). No remote operation.
    ///
    /// # Errors
    /// The errors of `wait`, which the provided method calls.
    #[inline]
    fn read_own(&self, word: usize) -> Result<u64, Self::Error> {
        self.wait(word, Awaited::Anyone, |_| true)
    }

    /// Waits until `until` accepts a word of the caller's own memory, and returns the accepted value. `on` names the
    /// ranks that can end the wait. No remote operation.
    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error>;

    /// [`wait`](Self::wait) with a deadline: returns `None` if `until` accepted no value by then. The provided method
    /// suits a `wait` that calls `until` again from time to time, whether the word changed or not, and calls it for no
    /// other purpose.
    fn wait_until(
        &self,
        word: usize,
        on: Awaited,
        deadline: Instant,
        until: impl Fn(u64) -> bool,
    ) -> Result<Option<u64>, Self::Error> {
        let value = self.wait(word, on, |value| until(value) || Instant::now() >= deadline)?;
        Ok(until(value).then_some(value))
    }

    /// Returns whether this rank can [`watch`](Self::watch) the words of `rank` as cheaply as its own, because both
    /// load from the same memory. A watching rank gets its answer in the cache line of its request. The result may
    /// differ between calls.
    #[inline]
    fn watches(&self, _rank: Rank) -> bool {
        false
    }

    /// [`wait`](Self::wait) on a word of a rank that this one [`watches`](Self::watches). The provided method polls the
    /// word over the network.
    fn watch(&self, at: At, _on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
        loop {
            let value = self.add(at, 0, Wake::Nobody)?;
            if until(value) {
                return Ok(value);
            }
        }
    }
}

// A pointer to a network is a network, so that protocols may share one.
macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<N: Network> Network for $pointer {
            type Error = N::Error;
            type Pending = N::Pending;
            type Found = N::Found;

            #[inline]
            fn rank(&self) -> Rank {
                (**self).rank()
            }

            #[inline]
            fn ranks(&self) -> usize {
                (**self).ranks()
            }

            #[inline]
            fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Self::Error> {
                (**self).cas(at, expected, new, wake)
            }

            #[inline]
            fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Self::Error> {
                (**self).start_add(at, delta, wake)
            }

            #[inline]
            fn finish(&self, pending: Self::Pending) -> Result<u64, Self::Error> {
                (**self).finish(pending)
            }

            #[inline]
            fn try_finish(&self, pending: Self::Pending) -> Result<u64, Self::Pending> {
                (**self).try_finish(pending)
            }

            #[inline]
            fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Self::Error> {
                (**self).add(at, delta, wake)
            }

            #[inline]
            fn find(&self, at: At) -> Option<Self::Found> {
                (**self).find(at)
            }

            #[inline]
            fn cas_found(&self, word: &Self::Found, expected: u64, new: u64) -> u64 {
                (**self).cas_found(word, expected, new)
            }

            #[inline]
            fn add_found(&self, word: &Self::Found, delta: u64) -> u64 {
                (**self).add_found(word, delta)
            }

            #[inline]
            fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Self::Error> {
                (**self).notify(at, value, wake)
            }

            #[inline]
            fn read_own(&self, word: usize) -> Result<u64, Self::Error> {
                (**self).read_own(word)
            }

            #[inline]
            fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
                (**self).wait(word, on, until)
            }

            #[inline]
            fn wait_until(
                &self,
                word: usize,
                on: Awaited,
                deadline: Instant,
                until: impl Fn(u64) -> bool,
            ) -> Result<Option<u64>, Self::Error> {
                (**self).wait_until(word, on, deadline, until)
            }

            #[inline]
            fn watches(&self, rank: Rank) -> bool {
                (**self).watches(rank)
            }

            #[inline]
            fn watch(&self, at: At, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
                (**self).watch(at, on, until)
            }
        }
    )*};
}

through!(&N, std::sync::Arc<N>);
