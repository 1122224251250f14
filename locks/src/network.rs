//! The four verbs on 64-bit words that every protocol of this crate is made of.

use std::time::Instant;

/// A rank: the number of a process (or thread) in its job or team, from 0.
pub type Rank = usize;

/// Where a word is: the rank whose registered memory holds it, and its index there.
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

/// Whose action ends a wait, so that a network that sees ranks die or leave knows when it cannot end any more, and can
/// say for whom a rank waits.
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
    /// This rank alone can end the wait: it must neither have died nor have left.
    Rank(Rank),
    /// Any rank of the queue may end it: nobody may have died. This rank made the request just before the one that
    /// waits; it may have left, after it released the lock.
    Behind(Rank),
    /// Any rank of the queue may end it: nobody may have died.
    Anyone,
}

/// Wake-up of the rank at which a verb's word lies: needed or not. The caller of the verb knows whether a rank may wait for the word. A
/// wake-up of a rank that waits for another word costs system calls at both ranks.
///
/// # Examples
/// ```
/// use transom_locks::Wake;
/// assert_ne!(Wake::Home, Wake::Nobody);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wake {
    /// A wait may be for this change: the rank looks again, if it sleeps.
    Home,
    /// No wait is for this change: the rank sleeps on.
    Nobody,
}

impl Awaited {
    /// A rank that has left, if all have that could end this wait of `waiter`, one of `ranks`: then it cannot end.
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

/// What a protocol needs of a network: compare-and-swap, fetch-and-add, an 8-byte put of a word, and waiting on
/// one's own memory. These are what an InfiniBand adapter executes on remote memory without the help of the rank there.
///
/// # What an implementation signs
/// 1. `cas`, `add` and `notify` are atomic towards each other on one word, whoever calls them.
/// 2. A `cas`, `add` or `notify` takes effect after every earlier put or `notify` of the same caller *to the same
///    rank*, and whoever sees its effect sees theirs (release); a result returned by `cas`, `add` or `wait` lets the
///    caller see all that came before it (acquire).
/// 3. A `notify` to the caller's own rank has taken effect when the call returns.
/// 4. `wait` uses no remote operation: it looks at the caller's own memory, or sleeps until told. It ends whichever
///    verb changed the word with [`Wake::Home`]. It may sleep on after a change with [`Wake::Nobody`].
/// 5. A wait that can no longer end, because a rank died or left, is an error in bounded time.
/// 6. An error of `start_add` says that the addition has not taken effect and never will: the protocol goes on as if it
///    had not asked, and may ask again. An error of `cas`, `finish`, `add` or `notify` says nothing of that: it may
///    have taken effect, or still do so. Who cannot tell returns a pending addition from `start_add`, and the error
///    from `finish`. `wait` changes nothing, whether it fails or not.
///
/// 7. Where ranks [`watch`](Self::watch) each other, that is as `wait`: it lets the caller see all that came before, and ends
///    whichever verb changed the word, or in bounded time with an error. It sees what the caller itself has put there before.
///
/// A `wait` must not use the protocol that waits: threads of one rank queue behind it.
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
    /// Why a verb failed; a dead peer, for example. Protocols return it to their caller.
    type Error;
    /// An addition under way, whose result [`finish`](Self::finish) returns.
    type Pending;

    /// The caller's own rank.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Compare-and-swap: puts `new` if the word holds `expected`; returns what it held. One remote operation.
    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Self::Error>;

    /// Starts a fetch-and-add (wrapping) and does not wait for its result, so that many can be in flight at once.
    /// One remote operation. An error says that nothing was started.
    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<Self::Pending, Self::Error>;

    /// The value that the word of a started addition held before it.
    fn finish(&self, pending: Self::Pending) -> Result<u64, Self::Error>;

    /// Fetch-and-add, wrapping; returns what the word held. Adding 0 reads. One remote operation.
    #[inline]
    fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Self::Error> {
        let pending = self.start_add(at, delta, wake)?;
        self.finish(pending)
    }

    /// Puts 8 bytes. One remote operation; does not wait for its arrival.
    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Self::Error>;

    /// Waits until one's own word satisfies `until`, and returns the value that did. `on` is who can end the wait. No
    /// remote operation.
    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error>;

    /// As [`wait`](Self::wait), until `deadline` at most: then nothing. The method that is here serves where `wait` asks `until` of
    /// the word again from time to time, whether it changed or not, and only then.
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

    /// Whether this rank can [`watch`](Self::watch) the words of `rank` as cheaply as its own: memory that both load from. Then it
    /// is answered where it has asked, in one cache line. It need not be the same each time.
    #[inline]
    fn watches(&self, _rank: Rank) -> bool {
        false
    }

    /// As [`wait`](Self::wait), for a word of a rank that this one [`watches`](Self::watches). The method that is here asks over the
    /// network again and again.
    fn watch(&self, at: At, _on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Self::Error> {
        loop {
            let value = self.add(at, 0, Wake::Nobody)?;
            if until(value) {
                return Ok(value);
            }
        }
    }
}

// A pointer to a network is one too: protocols may share it.
macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<N: Network> Network for $pointer {
            type Error = N::Error;
            type Pending = N::Pending;

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
            fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Self::Error> {
                (**self).add(at, delta, wake)
            }

            #[inline]
            fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Self::Error> {
                (**self).notify(at, value, wake)
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
