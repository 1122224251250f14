//! What a provider promises: registered memory reached by key, and the verbs on it.

use crate::{FabricError, Memory, UserMemory, Wait};
use bytemuck::allocation::BoxBytes;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64};
use transom_locks::{Awaited, Rank, Wake};

/// How ranks tell each other small things when they make something together, and that they are gone: all that a window
/// needs of a launcher.
///
/// # Examples
/// A world of one needs no network:
/// ```
/// use transom_locks::Awaited;
/// use transom_windows::{Exchange, FabricError};
/// struct Alone;
/// impl Exchange for Alone {
///     fn rank(&self) -> usize { 0 }
///     fn size(&self) -> usize { 1 }
///     fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> { Ok(vec![mine.to_vec()]) }
///     fn check_peers(&self, _: Awaited) -> Result<(), FabricError> { Ok(()) }
///     fn lost(&self) -> Option<FabricError> { None }
///     fn fail(&self) {}
/// }
/// assert_eq!(Alone.all_gather(b"key").unwrap(), [b"key"]);
/// ```
pub trait Exchange {
    /// The caller's rank.
    fn rank(&self) -> Rank;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Collective: gives everyone's bytes to everyone, in the order of ranks. Lengths may differ. It also
    /// synchronises: nobody returns before everybody has called.
    ///
    /// # Errors
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`] or [`FabricError::GivenUp`] if somebody can no longer call.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError>;

    /// Collective: returns when everybody has called it.
    ///
    /// # Errors
    /// As [`all_gather`](Self::all_gather).
    fn barrier(&self) -> Result<(), FabricError> {
        self.all_gather(&[]).map(drop)
    }

    /// Whether a wait for `awaited` can still end: not once a rank has died, nor when all who could end it have left
    /// ([`Awaited::gone`]). For those that ask again and again instead of waiting.
    ///
    /// # Errors
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`].
    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError>;

    /// Why collectives fail, if a rank died or left.
    fn lost(&self) -> Option<FabricError>;

    /// Says that this rank cannot keep what others rely on: their waits end, as if it had died.
    fn fail(&self);
}

/// A provider: memory of this rank that others may reach, memory of others that this rank may reach, and one-sided
/// operations between them. Offsets are in bytes from the beginning of a region and are checked by the provider
/// against the size it holds itself; nothing that a peer says is trusted as an index.
///
/// # What a provider promises
/// 1. At one rank, a `notify`, `cas`, `add` or `get` takes effect after every earlier operation of the same caller there.
///    Puts have no order among themselves, and operations at different ranks have none.
/// 2. [`flush`](Self::flush) returns when earlier operations at that rank are visible there. After
///    [`order`](Self::order) they take effect before any later operation of the caller, whatever its target.
/// 3. A word is touched only by `cas`, `add`, `notify` and `word` of its fabric, by its own host too: CPU and NIC
///    atomics never meet on one word.
/// 4. Only 64-bit compare-and-swap and fetch-and-add exist (InfiniBand has no swap).
/// 5. Busy is not an error. Errors are grouped by what they break ([`FabricError`]).
/// 6. A peer that dies becomes an error naming the rank, in bounded time, at every call that needed it.
///
/// A provider over a network posts its operations: `put` may return when the bytes are copied out or have arrived, `start_put`
/// at once, and `start_add` returns a ticket; what is pending owns what it needs, so that nothing dangles if a caller drops or
/// leaks it.
/// [`Delayed`](crate::Delayed) takes every liberty that these promises leave.
pub trait Fabric: Exchange + Clone + Send + Sync + 'static {
    /// Registered memory of this rank. Once it is dropped, nobody can attach to it any more; whoever has may find it
    /// gone, or not yet.
    type Region: Send + Sync;
    /// The right to reach a region of some rank (this one included).
    type Remote: Send + Sync;
    /// An atomic under way.
    type Pending: Send;
    /// A read or write under way, and its buffer.
    type Moving: Send;

    /// Allocates and registers zeroed memory, beginning at a cache line; returns the key by which peers attach.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory.
    fn allocate(&self, bytes: usize) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// Registers user memory. Atomics may be beyond the provider there
    /// ([`FabricError::Unsupported`]); signals and protocols never lie in such memory.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    ///
    /// # Safety
    /// The region is used, by [`load`](Self::load), [`store`](Self::store) and [`own_bytes`](Self::own_bytes) alone,
    /// only until the program has the memory back.
    unsafe fn register(&self, memory: &UserMemory) -> Result<(Self::Region, Vec<u8>), FabricError>;

    /// [`attach`](Self::attach), for user memory.
    ///
    /// # Errors
    /// As `attach`.
    ///
    /// # Safety
    /// The key is what `rank` was given by [`register`](Self::register) for so many bytes, and what this returns is used
    /// only until the program has the memory back.
    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Self::Remote, FabricError>;

    /// Makes the region of `bytes` bytes that `rank` registered under `key` reachable.
    ///
    /// # Errors
    /// [`FabricError::BadKey`] if the key or what it leads to is not such a region.
    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Self::Remote, FabricError>;

    /// [`attach`](Self::attach) of a region that all ranks made in one collective call, each its own, as large as it said. The
    /// first `words` bytes are words of protocols. A rank drops all that it reached so together with its own region.
    ///
    /// # Errors
    /// As `attach`.
    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, _words: usize) -> Result<Self::Remote, FabricError> {
        self.attach(rank, key, bytes)
    }

    /// Says that all ranks have [reached](Self::attach_part) what they made in one collective call, and that nobody else will
    /// attach to the region any more: what is kept for that alone may go. All ranks say so, of the same regions in the same
    /// order.
    fn close(&self, _region: &mut Self::Region) {}

    /// Whether this rank's puts and gets there are its own processor's stores and loads, of memory that is shared.
    fn is_shared(&self, at: &Self::Remote) -> bool;

    /// Writes bytes. `source` may be used again when it returns; they are visible there after a flush.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`]; those of a peer. So for all the following.
    fn put(&self, to: &Self::Remote, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// Reads bytes; they are there when it returns.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn get(&self, from: &Self::Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// Starts a write of a buffer that the provider owns until [`finish_moving`](Self::finish_moving) gives it back: it is
    /// not copied for the sake of being used again. What is under way may be dropped or leaked; the write is done all the same.
    ///
    /// # Errors
    /// As [`put`](Self::put). The buffer is lost then, as with the next three.
    fn start_put(&self, to: &Self::Remote, offset: usize, source: BoxBytes) -> Result<Self::Moving, FabricError>;

    /// Starts a read of as many bytes as `into` has, which come with it by [`finish_moving`](Self::finish_moving). What is
    /// under way may be dropped or leaked.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn start_get(&self, from: &Self::Remote, offset: usize, into: BoxBytes) -> Result<Self::Moving, FabricError>;

    /// Whether the bytes of a started read have arrived, or the buffer of a started write may be used again.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn has_moved(&self, moving: &mut Self::Moving) -> Result<bool, FabricError>;

    /// Waits until that is so; the buffer.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    fn finish_moving(&self, moving: Self::Moving) -> Result<BoxBytes, FabricError>;

    /// [`start_put`](Self::start_put) of bytes that the caller lends; none if they may be used again already. What is under way is
    /// finished by [`finish_moving`](Self::finish_moving), whose buffer is nothing then, or dropped: either way the provider is
    /// done with the bytes when that returns.
    ///
    /// # Errors
    /// As [`put`](Self::put); the provider is done with the bytes.
    ///
    /// # Safety
    /// The bytes must stay where they are, and nobody change them, until the provider is done with them.
    unsafe fn lend_put(
        &self,
        to: &Self::Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Self::Moving>, FabricError> {
        // SAFETY: lent by the caller.
        self.put(to, offset, unsafe { source.as_ref() }).map(|()| None)
    }

    /// [`start_get`](Self::start_get) into bytes that the caller lends; none if they are there already. What is under way is
    /// finished by [`finish_get`](Self::finish_get), or dropped: either way the provider is done with the bytes when that
    /// returns.
    ///
    /// # Errors
    /// As [`put`](Self::put); the provider is done with the bytes.
    ///
    /// # Safety
    /// The bytes must stay where they are, and nobody use them, until the provider is done with them.
    unsafe fn lend_get(
        &self,
        from: &Self::Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Self::Moving>, FabricError> {
        self.start_get(from, offset, BoxBytes::from(vec![0u8; into.len()].into_boxed_slice())).map(Some)
    }

    /// Waits until the bytes of a read that [`lend_get`](Self::lend_get) started are in those that were lent.
    ///
    /// # Errors
    /// As [`put`](Self::put); the provider is done with the bytes.
    ///
    /// # Safety
    /// They must be those that it was started with.
    unsafe fn finish_get(&self, moving: Self::Moving, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        let bytes = self.finish_moving(moving)?;
        // SAFETY: lent by the caller, and nobody else uses them.
        unsafe { into.as_mut() }.copy_from_slice(&bytes);
        Ok(())
    }

    /// Memory of this rank alone that large operations are best done from and to ([`Buffer`](crate::Buffer)): at least so
    /// many zeroed bytes from the beginning of a page on. Plain memory unless a provider knows better.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory.
    fn buffer(&self, bytes: usize) -> Result<Memory, FabricError> {
        Memory::plain(bytes)
    }

    /// Starts a compare-and-swap of an aligned word.
    ///
    /// # Errors
    /// As [`put`](Self::put), and [`FabricError::Misaligned`].
    fn start_cas(
        &self,
        at: &Self::Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Self::Pending, FabricError>;

    /// Compare-and-swap of an aligned word; returns what it held.
    ///
    /// # Errors
    /// As [`start_cas`](Self::start_cas).
    #[inline(always)]
    fn cas(&self, at: &Self::Remote, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        self.finish(self.start_cas(at, offset, expected, new, wake)?)
    }

    /// Starts a fetch-and-add on an aligned word.
    ///
    /// # Errors
    /// As [`start_cas`](Self::start_cas); then nothing was started: the word is as it was. (After an error of any other
    /// verb it is not known what became of it.)
    fn start_add(&self, at: &Self::Remote, offset: usize, delta: u64, wake: Wake)
    -> Result<Self::Pending, FabricError>;

    /// What an aligned word holds, read in one piece.
    ///
    /// # Errors
    /// As [`cas`](Self::cas).
    #[inline(always)]
    fn read_word(&self, at: &Self::Remote, offset: usize) -> Result<u64, FabricError> {
        self.finish(self.start_add(at, offset, 0, Wake::Nobody)?)
    }

    /// Aligned words of any rank's memory from byte `offset` on, if all are inside and atomics of this processor on them are
    /// atomic towards all others' of the fabric. None where an adapter executes these: then there is no more than the calls above.
    fn words<'r>(&self, _at: &'r Self::Remote, _offset: usize, _len: usize) -> Option<&'r [AtomicU64]> {
        None
    }

    /// One of [`words`](Self::words).
    #[inline(always)]
    fn one_word<'r>(&self, at: &'r Self::Remote, offset: usize) -> Option<&'r AtomicU64> {
        self.words(at, offset, 1)?.first()
    }

    /// Changes blocks of 64 bytes of any rank's memory where they are, from byte `offset` on, while nobody else changes them.
    /// Whether it did: false, and nothing has happened, where not all are inside, or this processor does not reach them, or a
    /// get and a put are as quick.
    fn change_blocks(&self, _at: &Self::Remote, _offset: usize, _blocks: usize, _change: impl ChangeBlock) -> bool {
        false
    }

    /// What the word of a started atomic held.
    ///
    /// # Errors
    /// As [`cas`](Self::cas).
    fn finish(&self, pending: Self::Pending) -> Result<u64, FabricError>;

    /// Puts an aligned word.
    ///
    /// # Errors
    /// As [`cas`](Self::cas).
    fn notify(&self, at: &Self::Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError>;

    /// An aligned word of one's own region, as others left it. No remote operation.
    ///
    /// # Errors
    /// As [`cas`](Self::cas).
    fn word(&self, on: &Self::Region, offset: usize) -> Result<u64, FabricError>;

    /// Waits until `look` finds in one's own region what it looks for; it is asked again whenever a verb with
    /// [`Wake::Home`] may have changed a word there. No remote operation. `wait` says what is waited for: a provider hands it to
    /// [`Wait::until`], which paces the looks and reports a wait that takes long.
    ///
    /// # Errors
    /// Those of `look`; [`FabricError::PeerDied`], [`FabricError::PeerLeft`] if the wait cannot end.
    fn wait<R>(
        &self,
        on: &Self::Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError>;

    /// Yields the core now and then where ranks share cores ([`looked_in_vain`](crate::looked_in_vain)). Calls that return without
    /// waiting call this after a look in vain.
    fn looked_in_vain(&self) {}

    /// Whether a rank can [`watch`](Self::watch) the memory of any other: where all load from the same.
    fn watches(&self) -> bool {
        false
    }

    /// As [`wait`](Self::wait), in the memory of any rank. The method that is here looks, sleeps, and looks again
    /// ([`Wait::poll`]).
    ///
    /// # Errors
    /// As `wait`.
    fn watch<R>(
        &self,
        _at: &Self::Remote,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        wait.poll(true, look, || self.check_peers(wait.awaited))
    }

    /// Reads one's own region, as others left it.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    fn load(&self, from: &Self::Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError>;

    /// Writes one's own region.
    ///
    /// # Errors
    /// [`FabricError::OutOfBounds`].
    fn store(&self, to: &Self::Region, offset: usize, source: &[u8]) -> Result<(), FabricError>;

    /// Bytes of one's own region where they are, if this processor reaches them and they are inside.
    fn own_bytes<'r>(&self, _on: &'r Self::Region, _offset: usize, _len: usize) -> Option<&'r [AtomicU8]> {
        None
    }

    /// The same of any rank's memory; none where it is not [shared](Self::is_shared).
    fn bytes<'r>(&self, _at: &'r Self::Remote, _offset: usize, _len: usize) -> Option<&'r [AtomicU8]> {
        None
    }

    /// Returns when this caller's earlier operations at the rank whose memory it is are visible there, on whichever of its
    /// memories they were.
    ///
    /// # Errors
    /// Those of the operations, if they could fail after they returned.
    fn flush(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// After this call this caller's earlier operations at that rank, as for [`flush`](Self::flush), take effect before any
    /// later operation of the same thread at whichever rank. Need not wait.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn order(&self, at: &Self::Remote) -> Result<(), FabricError>;

    /// [`flush`](Self::flush) of several; a provider may have them all in flight at once.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    fn flush_all<'r>(&self, mut at: impl Iterator<Item = &'r Self::Remote> + Clone) -> Result<(), FabricError> {
        at.try_for_each(|remote| self.flush(remote))
    }

    /// [`order`](Self::order) of several; a provider may have them all in flight at once.
    ///
    /// # Errors
    /// As [`order`](Self::order).
    fn order_all<'r>(&self, mut at: impl Iterator<Item = &'r Self::Remote> + Clone) -> Result<(), FabricError> {
        at.try_for_each(|remote| self.order(remote))
    }
}

/// What [`Fabric::change_blocks`] does to each block. (A closure would be a call for each block.)
pub trait ChangeBlock {
    /// Leaves in the block of this number what is to be there.
    fn change(&mut self, number: usize, block: &mut [u64; 8]);
}
