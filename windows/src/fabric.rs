//! The contract of a provider: registered memory that is accessed by key, and the verbs on it.

use crate::{BufferMemory, FabricError, UserMemory, Wait};
use bytemuck::allocation::BoxBytes;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};
use transom_locks::{Awaited, FoundWord, Rank, Wake};

/// The out-of-band exchange of a launcher: small collective exchanges while ranks make something together, and reports
/// of ranks that are gone. A window needs nothing else of a launcher.
///
/// # Examples
/// A world of one rank needs no network:
/// ```
/// use transom_locks::Awaited;
/// use transom_windows::{OobExchange, FabricError};
/// struct Alone;
/// impl OobExchange for Alone {
///     fn rank(&self) -> usize { 0 }
///     fn size(&self) -> usize { 1 }
///     fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> { Ok(vec![mine.to_vec()]) }
///     fn check_peers(&self, _: Awaited) -> Result<(), FabricError> { Ok(()) }
///     fn lost(&self) -> Option<FabricError> { None }
///     fn fail(&self) {}
/// }
/// assert_eq!(Alone.all_gather(b"key").unwrap(), [b"key"]);
/// ```
pub trait OobExchange {
    /// The caller's rank.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Collective: gathers the bytes of all ranks at every rank, in rank order. Lengths may differ. Also synchronises:
    /// no rank returns before every rank has called.
    ///
    /// # Errors
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`] or [`FabricError::GivenUp`] if a rank can no longer call.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError>;

    /// Collective: returns once every rank has called it.
    ///
    /// # Errors
    /// The errors of [`all_gather`](Self::all_gather).
    fn barrier(&self) -> Result<(), FabricError> {
        self.all_gather(&[]).map(drop)
    }

    /// Checks that a wait for `awaited` can still end: not once a rank has died, nor when every rank that could end it
    /// has left ([`Awaited::gone`]). It is for callers that poll instead of waiting.
    ///
    /// # Errors
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`].
    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError>;

    /// The reason why collectives fail, if a rank died or left.
    fn lost(&self) -> Option<FabricError>;

    /// Reports that this rank cannot fulfil what other ranks rely on: their waits end, as if it had died.
    fn fail(&self);
}

/// A provider: this rank's memory that other ranks may access, their memory that this rank may access, and one-sided
/// operations between them. Offsets are in bytes from the beginning of a region. The provider checks them against the
/// size that it holds itself; it trusts no index from a peer.
///
/// # Contract
/// 1. At one rank, a `notify`, `cas`, `add` or `get` takes effect after every earlier operation of the same caller
///    there. Puts are not ordered among themselves, nor are operations at different ranks.
/// 2. [`flush`](Self::flush) returns once earlier operations at that rank are visible there. After
///    [`order`](Self::order) they take effect before any later operation of the caller, at any target.
/// 3. A word is accessed only by `cas`, `add`, `notify` and `word` of its fabric, also by its own host: CPU and NIC
///    atomics never meet on one word.
/// 4. Only 64-bit compare-and-swap and fetch-and-add exist (InfiniBand has no swap).
/// 5. A busy provider is not an error. Errors are grouped by the extent of the damage ([`FabricError`]).
/// 6. The death of a peer becomes an error that names the rank, in bounded time, in every call that needed it.
///
/// A provider over a network posts its operations. `put` may return once the bytes are copied out or have arrived,
/// `start_put` immediately, and `start_add` returns a ticket. A pending operation owns what it needs, so nothing
/// dangles if a caller drops or leaks it. [`Delayed`](crate::Delayed) takes every liberty that this contract leaves.
pub trait Fabric: OobExchange + Clone + Send + Sync + 'static {
    /// Registered memory of this rank. Once it is dropped, no rank can attach to it any more; a rank that has attached
    /// may find it gone, or not yet.
    type Region: Send + Sync;
    /// Access to a region of some rank (this one included).
    type Remote: Send + Sync;
    /// A word that [`find_word`](Self::find_word) returned. `std::convert::Infallible` where adapters execute all
    /// atomics.
    type Word: FoundWord + Send + Sync;
    /// An atomic in flight.
    type Pending: Send;
    /// A read or write in flight, with its buffer.
    type Transfer: Send;

    /// Allocates and registers zeroed memory, beginning at a cache line; returns the key by which peers attach.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available.
    fn allocate(&self, bytes: usize) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// Registers user memory. The provider may not support atomics there ([`FabricError::Unsupported`]); signals and
    /// protocol words never lie in such memory.
    ///
    /// # Errors
    /// The errors of [`allocate`](Self::allocate).
    ///
    /// # Safety
    /// The region is used only by [`load`](Self::load), [`store`](Self::store) and [`own_bytes`](Self::own_bytes), and
    /// only until the program has the memory back.
    unsafe fn register(&self, memory: &UserMemory) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// [`attach`](Self::attach), for user memory.
    ///
    /// # Errors
    /// The errors of `attach`.
    ///
    /// # Safety
    /// [`register`](Self::register) returned the key to `rank` for `bytes` bytes, and the result is used only until the
    /// program has the memory back.
    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Self::Remote, FabricError>;

    /// Makes the region of `bytes` bytes that `rank` registered under `key` accessible.
    ///
    /// # Errors
    /// [`FabricError::BadKey`] if the key or its memory is not such a region.
    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Self::Remote, FabricError>;

    /// [`attach`](Self::attach) of a region that all ranks made in one collective call, each its own, with the size
    /// that it announced. The first `words` bytes are words of protocols. A rank drops everything that it attached this
    /// way together with its own region.
    ///
    /// # Errors
    /// The errors of `attach`.
    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, _words: usize) -> Result<Self::Remote, FabricError> {
        self.attach(rank, key, bytes)
    }

    /// Declares that all ranks have [attached](Self::attach_part) to the regions of one collective call, and that no
    /// other rank will attach to them. Resources kept only for that may be freed. All ranks call this for the same
    /// regions in the same order.
    fn close(&self, _region: &mut Self::Region) {}

    /// Ends all access of other ranks to a region of [user memory](Self::register), which the program is about to get back.
    /// All ranks have agreed not to access it again. A provider that cannot trust them must refuse later accesses.
    fn withdraw(&self, _region: &mut Self::Region) {}

    /// Returns whether this rank's puts and gets there are stores and loads of its own processor, to shared memory.
    fn is_shared(&self, at: &Self::Remote) -> bool;

    /// Writes bytes. `source` may be reused on return; the bytes are visible there after a flush.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`]; errors of a peer. The same holds for all calls below.
    fn put(&self, to: &Self::Remote, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// Reads bytes, which have arrived on return.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    fn get(&self, from: &Self::Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// Starts a write of a buffer, without copying it: the provider owns the buffer until
    /// [`finish_moving`](Self::finish_moving) returns it. The operation may be dropped or leaked; the write is done
    /// regardless.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put). The buffer is lost then, as with the next three.
    fn start_put(&self, to: &Self::Remote, offset: usize, source: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// Starts a read of as many bytes as `into` has; [`finish_moving`](Self::finish_moving) returns the buffer with
    /// them. The operation may be dropped or leaked.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    fn start_get(&self, from: &Self::Remote, offset: usize, into: BoxBytes) -> Result<Self::Transfer, FabricError>;

    /// Returns whether the bytes of a started read have arrived, or the buffer of a started write may be reused.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    fn test(&self, moving: &mut Self::Transfer) -> Result<bool, FabricError>;

    /// Waits until [`test`](Self::test) would be true, and returns the buffer.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put).
    fn finish_moving(&self, moving: Self::Transfer) -> Result<BoxBytes, FabricError>;

    /// [`start_put`](Self::start_put) of bytes that the caller lends; `None` if they may be reused already. The
    /// operation ends by [`finish_moving`](Self::finish_moving), whose buffer is then empty, or by a drop. Either way
    /// the provider no longer uses the bytes when that returns.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put); the provider no longer uses the bytes.
    ///
    /// # Safety
    /// The bytes must stay where they are, unchanged, until the provider no longer uses them.
    unsafe fn lend_put(
        &self,
        to: &Self::Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        // SAFETY: lent: caller's contract.
        self.put(to, offset, unsafe { source.as_ref() }).map(|()| None)
    }

    /// [`start_get`](Self::start_get) into bytes that the caller lends; `None` if they have arrived already. The
    /// operation ends by [`finish_get`](Self::finish_get), or by a drop. Either way the provider no longer uses the
    /// bytes when that returns.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put); the provider no longer uses the bytes.
    ///
    /// # Safety
    /// The bytes must stay where they are, and no other code may access them, until the provider no longer uses them.
    unsafe fn lend_get(
        &self,
        from: &Self::Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Self::Transfer>, FabricError> {
        self.start_get(from, offset, BoxBytes::from(vec![0u8; into.len()].into_boxed_slice())).map(Some)
    }

    /// Waits until the bytes of a read that [`lend_get`](Self::lend_get) started are in the lent memory.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put); the provider no longer uses the bytes.
    ///
    /// # Safety
    /// `into` must be the memory that the read was started with.
    unsafe fn finish_get(&self, moving: Self::Transfer, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        let bytes = self.finish_moving(moving)?;
        // SAFETY: lent, and not accessed by other code: caller's contract.
        unsafe { into.as_mut() }.copy_from_slice(&bytes);
        Ok(())
    }

    /// Allocates local memory that is fast for large operations ([`Buffer`](crate::Buffer)): at least `bytes` zeroed
    /// bytes, beginning on a page. The provided method returns plain memory.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available.
    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        BufferMemory::plain(bytes)
    }

    /// Starts a compare-and-swap of an aligned word.
    ///
    /// # Errors
    /// The errors of [`put`](Self::put), and [`FabricError::Misaligned`].
    fn start_cas(
        &self,
        at: &Self::Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Self::Pending, FabricError>;

    /// Compare-and-swap of an aligned word; returns its previous value.
    ///
    /// # Errors
    /// The errors of [`start_cas`](Self::start_cas).
    #[inline(always)]
    fn cas(&self, at: &Self::Remote, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        self.finish(self.start_cas(at, offset, expected, new, wake)?)
    }

    /// Starts a fetch-and-add on an aligned word.
    ///
    /// # Errors
    /// The errors of [`start_cas`](Self::start_cas); nothing was started then, and the word is unchanged. (After an
    /// error of any other verb the operation may or may not have taken effect.)
    fn start_add(&self, at: &Self::Remote, offset: usize, delta: u64, wake: Wake)
    -> Result<Self::Pending, FabricError>;

    /// Reads an aligned word in one piece.
    ///
    /// # Errors
    /// The errors of [`cas`](Self::cas).
    #[inline(always)]
    fn read_word(&self, at: &Self::Remote, offset: usize) -> Result<u64, FabricError> {
        self.finish(self.start_add(at, offset, 0, Wake::Nobody)?)
    }

    /// Aligned words of any rank's memory from byte `offset` on, if all are inside, and if this processor's atomics on
    /// them are atomic with respect to all others of the fabric. `None` where an adapter executes the atomics: only the
    /// calls above may be used there.
    fn words<'r>(&self, _at: &'r Self::Remote, _offset: usize, _len: usize) -> Option<&'r [AtomicU64]> {
        None
    }

    /// One of the [`words`](Self::words).
    #[inline(always)]
    fn one_word<'r>(&self, at: &'r Self::Remote, offset: usize) -> Option<&'r AtomicU64> {
        self.words(at, offset, 1)?.first()
    }

    /// One of the [`words`](Self::words), found once for any number of atomics. Its memory stays until the value is
    /// dropped. Verbs on the word order earlier puts of this caller to the same rank as [`cas`](Self::cas) does. A
    /// provider may return `None` for any word; the lock of a window is fast where it does not.
    fn find_word(&self, _at: &Self::Remote, _offset: usize) -> Option<Self::Word> {
        None
    }

    /// Changes blocks of 64 bytes of any rank's memory in place, from byte `offset` on, while no other rank changes
    /// them. Returns whether it did. It returns false, and does nothing, if not all blocks are inside, if this
    /// processor does not reach them, or if a get and a put are as fast.
    fn change_blocks(&self, _at: &Self::Remote, _offset: usize, _blocks: usize, _change: impl UpdateInPlace) -> bool {
        false
    }

    /// Waits for a started atomic, and returns the word's previous value.
    ///
    /// # Errors
    /// The errors of [`cas`](Self::cas).
    fn finish(&self, pending: Self::Pending) -> Result<u64, FabricError>;

    /// Puts an aligned word.
    ///
    /// # Errors
    /// The errors of [`cas`](Self::cas).
    fn notify(&self, at: &Self::Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError>;

    /// Reads an aligned word of this rank's own region, which other ranks may have written. No remote operation.
    ///
    /// # Errors
    /// The errors of [`cas`](Self::cas).
    fn word(&self, on: &Self::Region, offset: usize) -> Result<u64, FabricError>;

    /// Waits until `look` finds its result in this rank's own region. `look` is called again whenever a verb with
    /// [`Wake::Home`] may have changed a word there. No remote operation. `wait` describes the wait; a provider passes
    /// it to [`Wait::until`], which paces the polls and reports a long wait.
    ///
    /// # Errors
    /// The errors of `look`; [`FabricError::PeerDied`], [`FabricError::PeerLeft`] if the wait can no longer end.
    fn wait<R>(
        &self,
        on: &Self::Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError>;

    /// Turns the rank's messages, unless another thread does. Yields the core now and then where ranks share cores
    /// ([`after_empty_poll`](crate::after_empty_poll)). Calls that do not wait call this after an unsuccessful poll,
    /// since a program may poll in a loop.
    fn after_empty_poll(&self) {}

    /// Returns whether a rank can [`watch`](Self::watch) the memory of any other: all ranks load from the same memory.
    fn watches(&self) -> bool {
        false
    }

    /// [`wait`](Self::wait) in the memory of any rank. The provided method polls and sleeps in turn ([`Wait::poll`]).
    ///
    /// # Errors
    /// The errors of `wait`.
    fn watch<R>(
        &self,
        _at: &Self::Remote,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        wait.poll(true, look, || self.check_peers(wait.awaited))
    }

    /// Reads this rank's own region, which other ranks may have written.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    fn load(&self, from: &Self::Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// Writes this rank's own region.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    fn store(&self, to: &Self::Region, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// Bytes of this rank's own region in place, if this processor reaches them and they are inside.
    fn own_bytes<'r>(&self, _on: &'r Self::Region, _offset: usize, _len: usize) -> Option<&'r [AtomicU8]> {
        None
    }

    /// Bytes of any rank's memory in place; `None` if it is not [shared](Self::is_shared).
    fn bytes<'r>(&self, _at: &'r Self::Remote, _offset: usize, _len: usize) -> Option<&'r [AtomicU8]> {
        None
    }

    /// Returns once this caller's earlier operations at the rank of this memory are visible there, in whichever memory
    /// of that rank they were.
    ///
    /// # Errors
    /// The errors of the operations, if they could fail after they returned.
    fn flush(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// Returns whether [`order`](Self::order) has anything to do. False where each verb takes effect before the caller's
    /// next.
    #[inline(always)]
    fn orders(&self) -> bool {
        true
    }

    /// Orders this caller's earlier operations at that rank, as in [`flush`](Self::flush), before any later operation
    /// of the same thread at any rank. Need not wait.
    ///
    /// # Errors
    /// The errors of [`flush`](Self::flush).
    fn order(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// [`flush`](Self::flush) of several; a provider may have them all in flight at once.
    ///
    /// # Errors
    /// Like [`flush`](Self::flush).
    fn flush_all<'r>(&self, mut at: impl Iterator<Item = &'r Self::Remote> + Clone) -> Result<(), FabricError> {
        at.try_for_each(|remote| self.flush(remote))
    }

    /// [`order`](Self::order) of several; a provider may have them all in flight at once.
    ///
    /// # Errors
    /// Like [`order`](Self::order).
    fn order_all<'r>(&self, mut at: impl Iterator<Item = &'r Self::Remote> + Clone) -> Result<(), FabricError> {
        at.try_for_each(|remote| self.order(remote))
    }
}

/// The change that [`Fabric::change_blocks`] makes to each block. (A closure would cost a call per block.)
pub trait UpdateInPlace {
    /// Changes block `number` in place.
    fn change(&mut self, number: usize, block: &mut [u64; 8]);
}
