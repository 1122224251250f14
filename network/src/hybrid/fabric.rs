//! One-sided operations: those that a rank executes itself, and those that it leaves to the network.

use super::region::MaybeDone;
use super::{Hybrid, Pending, Region, Remote, Transfer};
use crate::{Atomics, Attach, MemoryKind, Network};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst, fence};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{View, Word};
use transom_windows::{
    BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UpdateInPlace, UserMemory, Wait, Wake,
};

impl<N: Network> OobExchange for Hybrid<N> {
    fn rank(&self) -> Rank {
        self.network.rank()
    }

    fn size(&self) -> usize {
        self.network.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.network.all_gather(mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.network.barrier()
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.network.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.network.lost()
    }

    fn fail(&self) {
        self.network.fail();
    }
}

/// The mapping of the region, if this rank changes its words with its own atomics.
#[inline(always)]
fn words_of<N: Network>(at: &Remote<N>) -> Option<&View> {
    match N::ATOMICS {
        Atomics::Processor => at.view.as_ref(),
        Atomics::Adapter => None,
    }
}

impl<N: Network> Hybrid<N> {
    fn attach_to(&self, rank: Rank, key: &[u8], sought: Sought) -> Result<Remote<N>, FabricError> {
        let Sought { bytes, words, kind, together } = sought;
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let Some((shared, key)) = split(key) else { return Err(bad(format!("a key of {} bytes", key.len()))) };
        if shared.is_empty() != (kind == MemoryKind::User) {
            return Err(bad("it names memory of another kind".into()));
        }
        if rank >= self.size() {
            return Err(bad(format!("there are {} ranks", self.size())));
        }
        let on_node = self.node.here(rank).filter(|_| self.intranode || rank == self.rank());
        let view = match on_node.filter(|_| kind == MemoryKind::Allocated) {
            Some(on_node) => Some(self.node.memory().attach(on_node, shared, bytes)?),
            None => None,
        };
        let (near, words) = (on_node.is_some(), words.min(bytes));
        let region = Attach { rank, key, bytes, words, kind, together, near, view: view.as_ref() };
        let far = Box::new(self.network.attach(region)?);
        let flush_puts = near && view.is_none() && N::ATOMICS == Atomics::Processor;
        Ok(Remote { far, view, flush_puts })
    }

    /// Completes a put through the network, which this rank's own atomics on other words of the home rank must not
    /// overtake.
    #[inline]
    fn behind_put(&self, to: &Remote<N>) -> Result<(), FabricError> {
        if to.flush_puts { self.network.flush(&to.far) } else { Ok(()) }
    }
}

/// Requested properties of a region to attach to.
struct Sought {
    bytes: usize,
    words: usize,
    kind: MemoryKind,
    together: bool,
}

/// The key of a region: the length of the shared memory's key, that key, and the network's.
fn join(shared: &[u8], key: &[u8]) -> Vec<u8> {
    let length = u8::try_from(shared.len()).expect("keys of shared memory are short");
    [&[length], shared, key].concat()
}

/// The key of the shared memory, and the network's. The key comes from a peer.
fn split(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&length, rest) = key.split_first()?;
    rest.split_at_checked(length.into())
}

impl<N: Network> Fabric for Hybrid<N> {
    type Region = Region<N>;
    type Remote = Remote<N>;
    type Word = Word;
    type Pending = Pending<N>;
    type Transfer = Transfer<N>;

    fn allocate(&self, bytes: usize) -> Result<(Region<N>, Vec<u8>), FabricError> {
        let (memory, shared) = self.node.memory().allocate(bytes)?;
        let (exposed, key) = self.network.expose(memory.view(), MemoryKind::Allocated)?;
        if N::ATOMICS == Atomics::Adapter {
            memory.leave_atomics_to_adapter();
        }
        Ok((Region { exposed, memory }, join(&shared, &key)))
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region<N>, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        let (memory, _) = unsafe { self.node.memory().register(memory) }?;
        let (exposed, key) = self.network.expose(memory.view(), MemoryKind::User)?;
        Ok((Region { exposed, memory }, join(&[], &key)))
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<N>, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words: 0, kind: MemoryKind::Allocated, together: false })
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote<N>, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words, kind: MemoryKind::Allocated, together: true })
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote<N>, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words: 0, kind: MemoryKind::User, together: true })
    }

    fn close(&self, region: &mut Region<N>) {
        self.node.memory().close(&mut region.memory);
        self.network.close(&mut region.exposed);
    }

    fn withdraw(&self, region: &mut Region<N>) {
        self.network.withdraw(&mut region.exposed);
    }

    fn is_shared(&self, at: &Remote<N>) -> bool {
        at.view.is_some()
    }

    #[inline]
    fn put(&self, to: &Remote<N>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        match &to.view {
            Some(view) => self.node.memory().put(view, offset, source),
            None => {
                self.network.put(&to.far, offset, source)?;
                self.behind_put(to)
            }
        }
    }

    #[inline]
    fn get(&self, from: &Remote<N>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        match &from.view {
            Some(view) => self.node.memory().get(view, offset, into),
            None => self.network.get(&from.far, offset, into),
        }
    }

    fn start_put(&self, to: &Remote<N>, offset: usize, source: BoxBytes) -> Result<Transfer<N>, FabricError> {
        if let Some(view) = &to.view {
            // The copy takes this processor's time whenever it is made.
            return self.node.memory().put(view, offset, &source).map(|()| Transfer(MaybeDone::Done(source)));
        }
        let moving = self.network.start_put(&to.far, offset, source)?;
        self.behind_put(to).map(|()| Transfer(MaybeDone::Far(moving)))
    }

    fn start_get(&self, from: &Remote<N>, offset: usize, mut into: BoxBytes) -> Result<Transfer<N>, FabricError> {
        match &from.view {
            Some(view) => self.node.memory().get(view, offset, &mut into).map(|()| Transfer(MaybeDone::Done(into))),
            // This rank's own atomics on other words of the home rank must not overtake the read.
            None if from.flush_puts => {
                self.network.get(&from.far, offset, &mut into).map(|()| Transfer(MaybeDone::Done(into)))
            }
            None => self.network.start_get(&from.far, offset, into).map(|moving| Transfer(MaybeDone::Far(moving))),
        }
    }

    fn test(&self, moving: &mut Transfer<N>) -> Result<bool, FabricError> {
        match &mut moving.0 {
            MaybeDone::Done(_) => Ok(true),
            MaybeDone::Far(moving) => self.network.test(moving),
        }
    }

    fn finish_moving(&self, moving: Transfer<N>) -> Result<BoxBytes, FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => Ok(bytes),
            MaybeDone::Far(moving) => self.network.finish_moving(moving),
        }
    }

    unsafe fn lend_put(
        &self,
        to: &Remote<N>,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer<N>>, FabricError> {
        if let Some(view) = &to.view {
            // SAFETY: lent by the caller.
            return self.node.memory().put(view, offset, unsafe { source.as_ref() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.network.lend_put(&to.far, offset, source) }?;
        // On an error `moving` is dropped; then the network no longer uses the bytes.
        self.behind_put(to).map(|()| moving.map(|moving| Transfer(MaybeDone::Far(moving))))
    }

    unsafe fn lend_get(
        &self,
        from: &Remote<N>,
        offset: usize,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Transfer<N>>, FabricError> {
        if let Some(view) = &from.view {
            // SAFETY: lent by the caller, and used by nothing else.
            return self.node.memory().get(view, offset, unsafe { into.as_mut() }).map(|()| None);
        }
        if from.flush_puts {
            // SAFETY: as above.
            return self.network.get(&from.far, offset, unsafe { into.as_mut() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.network.lend_get(&from.far, offset, into) }?;
        Ok(moving.map(|moving| Transfer(MaybeDone::Far(moving))))
    }

    unsafe fn finish_get(&self, moving: Transfer<N>, mut into: NonNull<[u8]>) -> Result<(), FabricError> {
        match moving.0 {
            MaybeDone::Done(bytes) => {
                // SAFETY: lent by the caller, and used by nothing else.
                unsafe { into.as_mut() }.copy_from_slice(&bytes);
                Ok(())
            }
            // SAFETY: caller's contract.
            MaybeDone::Far(moving) => unsafe { self.network.finish_get(moving, into) },
        }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.network.buffer(bytes)
    }

    #[inline]
    fn start_cas(
        &self,
        at: &Remote<N>,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<Pending<N>, FabricError> {
        match words_of(at) {
            Some(view) => {
                let found = self.node.memory().start_cas(view, offset, expected, new, wake)?;
                Ok(Pending(MaybeDone::Done(found)))
            }
            None => {
                let pending = self.network.start_cas(&at.far, offset, expected, new, wake)?;
                Ok(Pending(MaybeDone::Far(pending)))
            }
        }
    }

    #[inline]
    fn start_add(&self, at: &Remote<N>, offset: usize, delta: u64, wake: Wake) -> Result<Pending<N>, FabricError> {
        match words_of(at) {
            Some(view) => {
                let found = self.node.memory().start_add(view, offset, delta, wake)?;
                Ok(Pending(MaybeDone::Done(found)))
            }
            None => Ok(Pending(MaybeDone::Far(self.network.start_add(&at.far, offset, delta, wake)?))),
        }
    }

    #[inline]
    fn read_word(&self, at: &Remote<N>, offset: usize) -> Result<u64, FabricError> {
        match words_of(at) {
            Some(view) => self.node.memory().read_word(view, offset),
            None => self.network.finish(self.network.start_add(&at.far, offset, 0, Wake::Nobody)?),
        }
    }

    #[inline]
    fn words<'r>(&self, at: &'r Remote<N>, offset: usize, len: usize) -> Option<&'r [AtomicU64]> {
        self.node.memory().words(words_of(at)?, offset, len)
    }

    #[inline]
    fn one_word<'r>(&self, at: &'r Remote<N>, offset: usize) -> Option<&'r AtomicU64> {
        self.node.memory().one_word(words_of(at)?, offset)
    }

    fn find_word(&self, at: &Remote<N>, offset: usize) -> Option<Word> {
        self.node.memory().find_word(words_of(at)?, offset)
    }

    fn change_blocks(&self, at: &Remote<N>, offset: usize, blocks: usize, change: impl UpdateInPlace) -> bool {
        words_of(at).is_some_and(|view| self.node.memory().change_blocks(view, offset, blocks, change))
    }

    #[inline]
    fn finish(&self, pending: Pending<N>) -> Result<u64, FabricError> {
        match pending.0 {
            MaybeDone::Done(found) => Ok(found),
            MaybeDone::Far(pending) => self.network.finish(pending),
        }
    }

    #[inline]
    fn notify(&self, at: &Remote<N>, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        match words_of(at) {
            Some(view) => self.node.memory().notify(view, offset, value, wake),
            None => self.network.notify(&at.far, offset, value, wake),
        }
    }

    #[inline]
    fn word(&self, on: &Region<N>, offset: usize) -> Result<u64, FabricError> {
        self.node.memory().word(&on.memory, offset)
    }

    #[inline]
    fn wait<R>(
        &self,
        on: &Region<N>,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        self.network.wait(&on.memory, wait, look)
    }

    fn after_empty_poll(&self) {
        self.network.after_empty_poll();
    }

    /// True only if all ranks share memory: then a rank has the same number in the job and on the host.
    #[inline]
    fn watches(&self) -> bool {
        N::ATOMICS == Atomics::Processor && self.all_near && self.node.memory().watches()
    }

    #[inline]
    fn watch<R>(
        &self,
        at: &Remote<N>,
        wait: Wait<'_>,
        look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        match words_of(at).filter(|_| self.all_near) {
            Some(view) => self.node.memory().watch(view, wait, look),
            None => wait.poll(true, look, || self.check_peers(wait.awaited)),
        }
    }

    #[inline]
    fn own_bytes<'r>(&self, on: &'r Region<N>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.node.memory().own_bytes(&on.memory, offset, len)
    }

    #[inline]
    fn bytes<'r>(&self, at: &'r Remote<N>, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.node.memory().bytes(at.view.as_ref()?, offset, len)
    }

    #[inline]
    fn load(&self, from: &Region<N>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.node.memory().load(&from.memory, offset, into)
    }

    #[inline]
    fn store(&self, to: &Region<N>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.node.memory().store(&to.memory, offset, source)
    }

    fn flush(&self, at: &Remote<N>) -> Result<(), FabricError> {
        fence(SeqCst);
        self.network.flush(&at.far)
    }

    fn flush_all<'r>(&self, at: impl Iterator<Item = &'r Remote<N>> + Clone) -> Result<(), FabricError> {
        fence(SeqCst);
        at.clone().try_for_each(|remote| self.network.start_flush(&remote.far))?;
        at.clone().try_for_each(|remote| self.network.flush(&remote.far))
    }

    fn order(&self, at: &Remote<N>) -> Result<(), FabricError> {
        fence(SeqCst);
        self.network.order(&at.far)
    }

    fn order_all<'r>(&self, at: impl Iterator<Item = &'r Remote<N>> + Clone) -> Result<(), FabricError> {
        fence(SeqCst);
        at.clone().try_for_each(|remote| self.network.start_order(&remote.far))?;
        at.clone().try_for_each(|remote| self.network.order(&remote.far))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_hybrid_keys_are_refused() {
        let key = join(b"shared", b"network");
        assert_eq!(split(&key), Some((&b"shared"[..], &b"network"[..])));
        assert_eq!(split(&join(b"", b"network")), Some((&b""[..], &b"network"[..])));
        for len in 0..7 {
            assert_eq!(split(&key[..len]), None, "the first {len} bytes");
        }
    }
}
