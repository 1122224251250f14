//! The provider of a [`World`](crate::World). Operations on memory that is mapped in this process are this processor's
//! own copies, loads, stores and atomics; the provider that TRANSOM_FABRIC chose executes all others.
//!
//! A [`View`] holds what is mapped: all bytes of a region, its bytes without its words where an adapter executes the
//! atomics, or nothing. So the check of bounds is also the choice of the path, and a job on one host pays nothing for
//! the networks in its build.

use super::chosen::mixed;
use super::table::{self, Chosen};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst, fence};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{Loopback, Meet, View, Word};
use transom_windows::{
    BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UpdateInPlace, UserMemory, Wait, Wake,
};

/// The provider of a [`World`](crate::World): a handle of one rank.
#[derive(Clone)]
pub struct Provider {
    /// The memory that the ranks of this host share.
    memory: Loopback,
    /// All operations of all ranks use that memory: no network is involved.
    only_memory: bool,
    rank: Rank,
    size: usize,
    chosen: Chosen,
}

/// Memory of this rank.
pub struct Region {
    view: View,
    made: table::Region,
}

/// Access to memory of a rank.
pub struct Remote {
    view: View,
    made: table::Remote,
}

/// An atomic that has completed, or is in flight.
pub struct Pending(MaybeDone<u64, table::Pending>);

/// A read or write that has completed, or is in flight, and its buffer.
pub struct Transfer(MaybeDone<BoxBytes, table::Transfer>);

enum MaybeDone<D, F> {
    Done(D),
    InFlight(F),
}

/// Keeps a call of the chosen provider out of the path of memory that is mapped here.
#[cold]
#[inline(never)]
fn chosen<R>(call: impl FnOnce() -> R) -> R {
    call()
}

impl Provider {
    pub(super) fn new(chosen: Chosen) -> Self {
        Provider {
            memory: chosen.memory().clone(),
            only_memory: chosen.only_memory(),
            rank: chosen.rank(),
            size: chosen.size(),
            chosen,
        }
    }

    /// The provider that TRANSOM_FABRIC chose, for its counters.
    ///
    /// # Examples
    /// ```
    /// use transom::provider::Chosen;
    /// let world = transom::init()?;
    /// assert!(matches!(world.provider().chosen(), Chosen::Loopback(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn chosen(&self) -> &Chosen {
        &self.chosen
    }

    /// Makes the provider of a team: see [`Loopback::team`].
    ///
    /// # Errors
    /// The errors of [`Loopback::team`].
    pub fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        self.chosen.team(members, meet).map(Provider::new)
    }

    fn region(&self, (made, key): (table::Region, Vec<u8>)) -> Result<(Region, Vec<u8>), FabricError> {
        let view = self.chosen.view(&made).ok_or_else(mixed)?.clone();
        Ok((Region { view, made }, key))
    }

    fn remote(&self, made: table::Remote) -> Result<Remote, FabricError> {
        let view = self.chosen.mapped(&made)?;
        Ok(Remote { view, made })
    }
}

impl OobExchange for Provider {
    #[inline(always)]
    fn rank(&self) -> Rank {
        self.rank
    }

    #[inline(always)]
    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.chosen.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.chosen.barrier()
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.chosen.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.chosen.lost()
    }

    fn fail(&self) {
        self.chosen.fail();
    }
}

impl Fabric for Provider {
    type Region = Region;
    type Remote = Remote;
    type Word = Word;
    type Pending = Pending;
    type Transfer = Transfer;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        self.region(self.chosen.allocate(bytes)?)
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        self.region(unsafe { self.chosen.register(memory) }?)
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        // SAFETY: caller's contract.
        self.remote(unsafe { self.chosen.attach_user_memory(rank, key, bytes) }?)
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        self.remote(self.chosen.attach(rank, key, bytes)?)
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote, FabricError> {
        self.remote(self.chosen.attach_part(rank, key, bytes, words)?)
    }

    fn close(&self, region: &mut Region) {
        self.chosen.close(&mut region.made);
    }

    fn withdraw(&self, region: &mut Region) {
        self.chosen.withdraw(&mut region.made);
    }

    fn is_shared(&self, at: &Remote) -> bool {
        self.chosen.is_shared(&at.made)
    }

    #[inline(always)]
    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        if to.view.covers(offset, source.len()) {
            return self.memory.put(&to.view, offset, source);
        }
        chosen(move || self.chosen.put(&to.made, offset, source))
    }

    #[inline(always)]
    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        if from.view.covers(offset, into.len()) {
            return self.memory.get(&from.view, offset, into);
        }
        chosen(move || self.chosen.get(&from.made, offset, into))
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Transfer, FabricError> {
        if to.view.covers(offset, source.len()) {
            // The copy takes this processor's time whenever it is made.
            return self.memory.put(&to.view, offset, &source).map(|()| Transfer(MaybeDone::Done(source)));
        }
        self.chosen.start_put(&to.made, offset, source).map(|moving| Transfer(MaybeDone::InFlight(moving)))
    }

    fn start_get(&self, from: &Remote, offset: usize, mut into: BoxBytes) -> Result<Transfer, FabricError> {
        if from.view.covers(offset, into.len()) {
            return self.memory.get(&from.view, offset, &mut into).map(|()| Transfer(MaybeDone::Done(into)));
        }
        self.chosen.start_get(&from.made, offset, into).map(|moving| Transfer(MaybeDone::InFlight(moving)))
    }

    fn test(&self, moving: &mut Transfer) -> Result<bool, FabricError> {
        match &mut moving.0 {
            MaybeDone::Done(_) => Ok(true),
            MaybeDone::InFlight(moving) => self.chosen.test(moving),
        }
    }

    fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => Ok(bytes),
            MaybeDone::InFlight(moving) => self.chosen.finish_moving(moving),
        }
    }

    unsafe fn lend_put(
        &self,
        to: &Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        if to.view.covers(offset, source.len()) {
            // SAFETY: lent by the caller.
            return self.memory.put(&to.view, offset, unsafe { source.as_ref() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.chosen.lend_put(&to.made, offset, source) }?;
        Ok(moving.map(|moving| Transfer(MaybeDone::InFlight(moving))))
    }

    unsafe fn lend_get(
        &self,
        from: &Remote,
        offset: usize,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        if from.view.covers(offset, into.len()) {
            // SAFETY: lent by the caller, and used by nothing else.
            return self.memory.get(&from.view, offset, unsafe { into.as_mut() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.chosen.lend_get(&from.made, offset, into) }?;
        Ok(moving.map(|moving| Transfer(MaybeDone::InFlight(moving))))
    }

    unsafe fn finish_get(&self, moving: Transfer, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => {
                // SAFETY: lent by the caller, and used by nothing else.
                unsafe { into.as_mut() }.copy_from_slice(&bytes);
                Ok(())
            }
            // SAFETY: caller's contract.
            MaybeDone::InFlight(moving) => unsafe { self.chosen.finish_get(moving, into) },
        }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.chosen.buffer(bytes)
    }

    #[inline(always)]
    fn start_cas(
        &self,
        at: &Remote,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Pending, FabricError> {
        if at.view.covers_word(offset) {
            let found = self.memory.start_cas(&at.view, offset, expected, new, wake)?;
            return Ok(Pending(MaybeDone::Done(found)));
        }
        chosen(move || self.chosen.start_cas(&at.made, offset, expected, new, wake))
            .map(|pending| Pending(MaybeDone::InFlight(pending)))
    }

    #[inline(always)]
    fn cas(&self, at: &Remote, offset: usize, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.start_cas(&at.view, offset, expected, new, wake);
        }
        chosen(move || self.chosen.cas(&at.made, offset, expected, new, wake))
    }

    #[inline(always)]
    fn start_add(&self, at: &Remote, offset: usize, delta: u64, wake: Wake) -> Result<Pending, FabricError> {
        if at.view.covers_word(offset) {
            return Ok(Pending(MaybeDone::Done(self.memory.start_add(&at.view, offset, delta, wake)?)));
        }
        chosen(move || self.chosen.start_add(&at.made, offset, delta, wake))
            .map(|pending| Pending(MaybeDone::InFlight(pending)))
    }

    #[inline(always)]
    fn read_word(&self, at: &Remote, offset: usize) -> Result<u64, FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.read_word(&at.view, offset);
        }
        chosen(move || self.chosen.read_word(&at.made, offset))
    }

    #[inline(always)]
    fn words<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU64]> {
        self.memory.words(&at.view, offset, len)
    }

    #[inline(always)]
    fn one_word<'r>(&self, at: &'r Remote, offset: usize) -> Option<&'r AtomicU64> {
        self.memory.one_word(&at.view, offset)
    }

    fn find_word(&self, at: &Remote, offset: usize) -> Option<Word> {
        self.memory.find_word(&at.view, offset)
    }

    fn change_blocks(&self, at: &Remote, offset: usize, blocks: usize, change: impl UpdateInPlace) -> bool {
        self.memory.change_blocks(&at.view, offset, blocks, change)
    }

    #[inline(always)]
    fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
        match pending.0 {
            MaybeDone::Done(found) => Ok(found),
            MaybeDone::InFlight(pending) => chosen(move || self.chosen.finish(pending)),
        }
    }

    #[inline(always)]
    fn notify(&self, at: &Remote, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        if at.view.covers_word(offset) {
            return self.memory.notify(&at.view, offset, value, wake);
        }
        chosen(move || self.chosen.notify(&at.made, offset, value, wake))
    }

    #[inline(always)]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        self.memory.read_word(&on.view, offset)
    }

    #[inline(always)]
    fn wait<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        if self.only_memory { self.memory.watch(&on.view, wait, look) } else { self.chosen.wait(&on.made, wait, look) }
    }

    #[inline(always)]
    fn after_empty_poll(&self) {
        if self.only_memory { self.memory.after_empty_poll() } else { self.chosen.after_empty_poll() }
    }

    #[inline(always)]
    fn watches(&self) -> bool {
        if self.only_memory { self.memory.watches() } else { self.chosen.watches() }
    }

    #[inline(always)]
    fn watch<R>(
        &self,
        at: &Remote,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        if self.only_memory { self.memory.watch(&at.view, wait, look) } else { self.chosen.watch(&at.made, wait, look) }
    }

    #[inline(always)]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.memory.bytes(&on.view, offset, len)
    }

    #[inline(always)]
    fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.memory.bytes(&at.view, offset, len).or_else(|| self.chosen.bytes(&at.made, offset, len))
    }

    #[inline(always)]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.memory.get(&from.view, offset, into)
    }

    #[inline(always)]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.memory.put(&to.view, offset, source)
    }

    #[inline(always)]
    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        if self.only_memory { Ok(()) } else { chosen(move || self.chosen.flush(&at.made)) }
    }

    #[inline(always)]
    fn flush_all<'r>(&self, at: impl Iterator<Item = &'r Remote> + Clone) -> Result<(), FabricError> {
        fence(SeqCst);
        if self.only_memory { Ok(()) } else { chosen(move || self.chosen.flush_all(at.map(|remote| &remote.made))) }
    }

    #[inline(always)]
    fn orders(&self) -> bool {
        !self.only_memory
    }

    #[inline(always)]
    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        if self.only_memory { Ok(()) } else { chosen(move || self.chosen.order(&at.made)) }
    }

    #[inline(always)]
    fn order_all<'r>(&self, at: impl Iterator<Item = &'r Remote> + Clone) -> Result<(), FabricError> {
        if self.only_memory { Ok(()) } else { chosen(move || self.chosen.order_all(at.map(|remote| &remote.made))) }
    }
}
