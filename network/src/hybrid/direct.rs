//! The path of an operation: memory that is mapped in this process, or the provider underneath.
//!
//! A [`View`] holds what is mapped: all bytes of a region, its bytes without its words where an adapter executes the
//! atomics, or nothing. So the check of bounds is also the choice of the path, and a job on one host pays nothing for
//! the networks in its build.

use super::Mapped;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst, fence};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{Loopback, Meet, View, Word};
use transom_windows::{
    BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UpdateInPlace, UserMemory, Wait, Wake,
};

/// A provider that executes operations on memory that is mapped in this process by itself: they are this processor's
/// own copies, loads, stores and atomics. `P` executes all others. A handle of one rank.
///
/// # Examples
/// ```
/// use transom_network::Direct;
/// use transom_shm_loopback::Loopback;
/// use transom_windows::Window;
/// let provider = Direct::new(Loopback::alone()?);
/// let mut window = Window::<u64, _>::allocate(&provider, 0, 1)?;
/// window.lock_exclusive(0)?.put(0, &[7])?;
/// # Ok::<(), transom_windows::Error>(())
/// ```
#[derive(Clone)]
pub struct Direct<P> {
    /// The memory that the ranks of this host share.
    memory: Loopback,
    /// All operations of all ranks use that memory: no network is involved.
    only_memory: bool,
    /// All words of all ranks are in that memory.
    maps_all_words: bool,
    rank: Rank,
    size: usize,
    inner: P,
}

/// Memory of this rank.
pub struct Region<P: Mapped> {
    view: View,
    made: P::Region,
}

/// Access to memory of a rank.
pub struct Remote<P: Mapped> {
    view: View,
    made: P::Remote,
}

/// An atomic that has completed, or is in flight.
pub struct Pending<P: Mapped>(MaybeDone<u64, P::Pending>);

/// A read or write that has completed, or is in flight, and its buffer.
pub struct Transfer<P: Mapped>(MaybeDone<BoxBytes, P::Transfer>);

enum MaybeDone<D, F> {
    Done(D),
    InFlight(F),
}

/// Keeps a call of the provider underneath out of the path of memory that is mapped here.
#[cold]
#[inline(never)]
fn beneath<R>(call: impl FnOnce() -> R) -> R {
    call()
}

impl<P: Mapped> Direct<P> {
    /// Adds the direct path to a provider.
    pub fn new(inner: P) -> Self {
        Direct {
            memory: inner.memory().clone(),
            only_memory: inner.only_memory(),
            maps_all_words: inner.maps_all_words(),
            rank: inner.rank(),
            size: inner.size(),
            inner,
        }
    }

    /// The provider underneath, for its counters.
    pub fn inner(&self) -> &P {
        &self.inner
    }

    /// Makes the provider of a team of `members`, in this order. The members call it, this rank among them; other ranks
    /// need not. Each call of `meet` returns what every member passed to it.
    ///
    /// # Errors
    /// The errors of `meet` and of the exchange.
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        self.inner.team(members, meet).map(Direct::new)
    }

    fn region(&self, (made, key): (P::Region, Vec<u8>)) -> Result<(Region<P>, Vec<u8>), FabricError> {
        let view = self.inner.view(&made)?.clone();
        Ok((Region { view, made }, key))
    }

    fn remote(&self, made: P::Remote) -> Result<Remote<P>, FabricError> {
        let view = self.inner.mapped(&made)?;
        Ok(Remote { view, made })
    }
}

impl<P: Mapped> OobExchange for Direct<P> {
    #[inline(always)]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline(always)]
    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.inner.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.inner.barrier()
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.inner.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.inner.lost()
    }

    fn fail(&self) {
        self.inner.fail();
    }
}

impl<P: Mapped> Fabric for Direct<P> {
    type Region = Region<P>;
    type Remote = Remote<P>;
    type Word = Word;
    type Pending = Pending<P>;
    type Transfer = Transfer<P>;

    fn allocate(&self, bytes: usize) -> Result<(Region<P>, Vec<u8>), FabricError> {
        self.region(self.inner.allocate(bytes)?)
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region<P>, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        self.region(unsafe { self.inner.register(memory) }?)
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<P>, FabricError> {
        // SAFETY: caller's contract.
        self.remote(unsafe { self.inner.attach_user_memory(rank, key, bytes) }?)
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<P>, FabricError> {
        self.remote(self.inner.attach(rank, key, bytes)?)
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote<P>, FabricError> {
        self.remote(self.inner.attach_part(rank, key, bytes, words)?)
    }

    fn close(&self, region: &mut Region<P>) {
        self.inner.close(&mut region.made);
    }

    fn withdraw(&self, region: &mut Region<P>) {
        self.inner.withdraw(&mut region.made);
    }

    fn is_shared(&self, at: &Remote<P>) -> bool {
        self.inner.is_shared(&at.made)
    }

    #[inline(always)]
    fn put(&self, to: &Remote<P>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        if to.view.covers(offset, source.len()) {
            return self.memory.put(&to.view, offset, source);
        }
        beneath(move || self.inner.put(&to.made, offset, source))
    }

    #[inline(always)]
    fn get(&self, from: &Remote<P>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        if from.view.covers(offset, into.len()) {
            return self.memory.get(&from.view, offset, into);
        }
        beneath(move || self.inner.get(&from.made, offset, into))
    }

    fn start_put(&self, to: &Remote<P>, offset: usize, source: BoxBytes) -> Result<Transfer<P>, FabricError> {
        if to.view.covers(offset, source.len()) {
            // The copy takes this processor's time whenever it is made.
            return self.memory.put(&to.view, offset, &source).map(|()| Transfer(MaybeDone::Done(source)));
        }
        self.inner.start_put(&to.made, offset, source).map(|moving| Transfer(MaybeDone::InFlight(moving)))
    }

    fn start_get(&self, from: &Remote<P>, offset: usize, mut into: BoxBytes) -> Result<Transfer<P>, FabricError> {
        if from.view.covers(offset, into.len()) {
            return self.memory.get(&from.view, offset, &mut into).map(|()| Transfer(MaybeDone::Done(into)));
        }
        self.inner.start_get(&from.made, offset, into).map(|moving| Transfer(MaybeDone::InFlight(moving)))
    }

    fn test(&self, moving: &mut Transfer<P>) -> Result<bool, FabricError> {
        match &mut moving.0 {
            MaybeDone::Done(_) => Ok(true),
            MaybeDone::InFlight(moving) => self.inner.test(moving),
        }
    }

    fn finish_moving(&self, moving: Transfer<P>) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => Ok(bytes),
            MaybeDone::InFlight(moving) => self.inner.finish_moving(moving),
        }
    }

    unsafe fn lend_put(
        &self,
        to: &Remote<P>,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer<P>>, FabricError> {
        if to.view.covers(offset, source.len()) {
            // SAFETY: lent by the caller.
            return self.memory.put(&to.view, offset, unsafe { source.as_ref() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.inner.lend_put(&to.made, offset, source) }?;
        Ok(moving.map(|moving| Transfer(MaybeDone::InFlight(moving))))
    }

    unsafe fn lend_get(
        &self,
        from: &Remote<P>,
        offset: usize,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Transfer<P>>, FabricError> {
        if from.view.covers(offset, into.len()) {
            // SAFETY: lent by the caller, and used by nothing else.
            return self.memory.get(&from.view, offset, unsafe { into.as_mut() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.inner.lend_get(&from.made, offset, into) }?;
        Ok(moving.map(|moving| Transfer(MaybeDone::InFlight(moving))))
    }

    unsafe fn finish_get(&self, moving: Transfer<P>, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => {
                // SAFETY: lent by the caller, and used by nothing else.
                unsafe { into.as_mut() }.copy_from_slice(&bytes);
                Ok(())
            }
            // SAFETY: caller's contract.
            MaybeDone::InFlight(moving) => unsafe { self.inner.finish_get(moving, into) },
        }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.inner.buffer(bytes)
    }

    #[inline(always)]
    fn start_cas(
        &self,
        at: &Remote<P>,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Pending<P>, FabricError> {
        if at.view.covers_word(offset) {
            let found = self.memory.start_cas(&at.view, offset, expected, new, wake)?;
            return Ok(Pending(MaybeDone::Done(found)));
        }
        beneath(move || self.inner.start_cas(&at.made, offset, expected, new, wake))
            .map(|pending| Pending(MaybeDone::InFlight(pending)))
    }

    #[inline(always)]
    fn cas(&self, at: &Remote<P>, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.start_cas(&at.view, offset, expected, new, wake);
        }
        beneath(move || self.inner.cas(&at.made, offset, expected, new, wake))
    }

    #[inline(always)]
    fn start_add(&self, at: &Remote<P>, offset: usize, delta: u64, wake: Wake) -> Result<Pending<P>, FabricError> {
        if at.view.covers_word(offset) {
            return Ok(Pending(MaybeDone::Done(self.memory.start_add(&at.view, offset, delta, wake)?)));
        }
        beneath(move || self.inner.start_add(&at.made, offset, delta, wake))
            .map(|pending| Pending(MaybeDone::InFlight(pending)))
    }

    #[inline(always)]
    fn read_word(&self, at: &Remote<P>, offset: usize) -> Result<u64, FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.read_word(&at.view, offset);
        }
        beneath(move || self.inner.read_word(&at.made, offset))
    }

    #[inline(always)]
    fn words<'r>(&self, at: &'r Remote<P>, offset: usize, len: usize) -> Option<&'r [AtomicU64]> {
        self.memory.words(&at.view, offset, len)
    }

    #[inline(always)]
    fn one_word<'r>(&self, at: &'r Remote<P>, offset: usize) -> Option<&'r AtomicU64> {
        self.memory.one_word(&at.view, offset)
    }

    fn find_word(&self, at: &Remote<P>, offset: usize) -> Option<Word> {
        self.memory.find_word(&at.view, offset)
    }

    fn change_blocks(&self, at: &Remote<P>, offset: usize, blocks: usize, change: impl UpdateInPlace) -> bool {
        self.memory.change_blocks(&at.view, offset, blocks, change)
    }

    #[inline(always)]
    fn finish(&self, pending: Pending<P>) -> Result<u64, FabricError> {
        match pending.0 {
            MaybeDone::Done(found) => Ok(found),
            MaybeDone::InFlight(pending) => beneath(move || self.inner.finish(pending)),
        }
    }

    #[inline(always)]
    fn notify(&self, at: &Remote<P>, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.notify(&at.view, offset, value, wake);
        }
        beneath(move || self.inner.notify(&at.made, offset, value, wake))
    }

    #[inline(always)]
    fn word(&self, on: &Region<P>, offset: usize) -> Result<u64, FabricError> {
        self.memory.read_word(&on.view, offset)
    }

    #[inline(always)]
    fn wait<R>(
        &self,
        on: &Region<P>,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        if self.only_memory { self.memory.watch(&on.view, wait, look) } else { self.inner.wait(&on.made, wait, look) }
    }

    #[inline(always)]
    fn after_empty_poll(&self) {
        if self.only_memory { self.memory.after_empty_poll() } else { self.inner.after_empty_poll() }
    }

    #[inline(always)]
    fn watches(&self) -> bool {
        self.maps_all_words && self.memory.watches()
    }

    #[inline(always)]
    fn watch<R>(
        &self,
        at: &Remote<P>,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        if self.maps_all_words {
            return self.memory.watch(&at.view, wait, look);
        }
        wait.poll(true, look, || self.check_peers(wait.awaited))
    }

    #[inline(always)]
    fn own_bytes<'r>(&self, on: &'r Region<P>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.memory.bytes(&on.view, offset, len)
    }

    #[inline(always)]
    fn bytes<'r>(&self, at: &'r Remote<P>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.memory.bytes(&at.view, offset, len).or_else(|| self.inner.bytes(&at.made, offset, len))
    }

    #[inline(always)]
    fn load(&self, from: &Region<P>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.memory.get(&from.view, offset, into)
    }

    #[inline(always)]
    fn store(&self, to: &Region<P>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.memory.put(&to.view, offset, source)
    }

    #[inline(always)]
    fn flush(&self, at: &Remote<P>) -> Result<(), FabricError> {
        fence(SeqCst);
        if self.only_memory { Ok(()) } else { beneath(move || self.inner.flush(&at.made)) }
    }

    #[inline(always)]
    fn flush_all<'r>(&self, at: impl Iterator<Item = &'r Remote<P>> + Clone) -> Result<(), FabricError> {
        fence(SeqCst);
        if self.only_memory { Ok(()) } else { beneath(move || self.inner.flush_all(at.map(|remote| &remote.made))) }
    }

    #[inline(always)]
    fn orders(&self) -> bool {
        !self.only_memory
    }

    #[inline(always)]
    fn order(&self, at: &Remote<P>) -> Result<(), FabricError> {
        if self.only_memory {
            return Ok(());
        }
        fence(SeqCst);
        beneath(move || self.inner.order(&at.made))
    }

    #[inline(always)]
    fn order_all<'r>(&self, at: impl Iterator<Item = &'r Remote<P>> + Clone) -> Result<(), FabricError> {
        if self.only_memory {
            return Ok(());
        }
        fence(SeqCst);
        beneath(move || self.inner.order_all(at.map(|remote| &remote.made)))
    }
}
