//! The [`Fabric`] of windows. A remote operation is a request to the adapter, which executes it on the target's memory
//! without involving the target.

use super::Verbs;
use super::far::Far;
use super::moving::Moving;
use super::paths::Stripes;
use super::region::{Pending, Region, Remote, Sought};
use crate::sys::Access;
use crate::values::NotifyBy;
use crate::wait::{NAPS, is_crowded};
use crate::wr::Verb;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst, fence};
use transom_locks::Rank;
use transom_windows::{BoxBytes, Exchange, Fabric, FabricError, Memory, UserMemory, Wait, Wake};

impl Fabric for Verbs {
    type Region = Region;
    type Remote = Remote;
    type Pending = Pending;
    type Moving = Moving;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        self.0.remains.sweep();
        let (region, key) = self.0.node.memory.allocate(bytes)?;
        self.register_here(region, &key, Access::All)
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        // SAFETY: caller's contract.
        let (region, _) = unsafe { self.0.node.memory.register(memory) }?;
        // Only the adapter reaches this memory.
        self.register_here(region, &[], Access::Bytes)
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words: 0, lent: false, alone: true })
    }

    fn attach_part(&self, rank: Rank, key: &[u8], bytes: usize, words: usize) -> Result<Remote, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words, lent: false, alone: false })
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        self.attach_to(rank, key, Sought { bytes, words: 0, lent: true, alone: false })
    }

    fn close(&self, region: &mut Region) {
        region.close();
    }

    fn is_shared(&self, at: &Remote) -> bool {
        at.view.is_some()
    }

    #[inline]
    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        match &to.view {
            Some(view) => self.0.node.memory.put(view, offset, source),
            None => {
                self.0.write(to.far(offset, source.len())?, source)?;
                self.behind_it(to)
            }
        }
    }

    #[inline]
    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        match &from.view {
            Some(view) => self.0.node.memory.get(view, offset, into),
            None => self.0.read(from.far(offset, into.len())?, into),
        }
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Moving, FabricError> {
        let far = to.far(offset, source.len())?;
        if let Some(view) = &to.view {
            // A copy takes this rank's processor whenever it is made, so it is made at once.
            return self.0.node.memory.put(view, offset, &source).map(|()| Moving::done(source));
        }
        let moving = self.0.start_write(far, source)?;
        self.behind_it(to).map(|()| moving)
    }

    fn start_get(&self, from: &Remote, offset: usize, mut into: BoxBytes) -> Result<Moving, FabricError> {
        let far = from.far(offset, into.len())?;
        if let Some(view) = &from.view {
            return self.0.node.memory.get(view, offset, &mut into).map(|()| Moving::done(into));
        }
        self.0.start_read(far, into)
    }

    fn has_moved(&self, moving: &mut Moving) -> Result<bool, FabricError> {
        self.0.has_moved(moving)
    }

    fn finish_moving(&self, moving: Moving) -> Result<BoxBytes, FabricError> {
        self.0.finish_moving(moving)
    }

    unsafe fn lend_put(
        &self,
        to: &Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        let far = to.far(offset, source.len())?;
        if let Some(view) = &to.view {
            // SAFETY: the caller lends the source.
            return self.0.node.memory.put(view, offset, unsafe { source.as_ref() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        let moving = unsafe { self.0.start_lent_write(far, source) }?;
        self.behind_it(to).map(|()| moving)
    }

    unsafe fn lend_get(
        &self,
        from: &Remote,
        offset: usize,
        mut into: NonNull<[u8]>,
    ) -> Result<Option<Moving>, FabricError> {
        let far = from.far(offset, into.len())?;
        if let Some(view) = &from.view {
            // SAFETY: the caller lends the destination for exclusive use.
            return self.0.node.memory.get(view, offset, unsafe { into.as_mut() }).map(|()| None);
        }
        // SAFETY: caller's contract.
        unsafe { self.0.start_lent_read(far, into) }
    }

    unsafe fn finish_get(&self, moving: Moving, into: NonNull<[u8]>) -> Result<(), FabricError> {
        // SAFETY: caller's contract.
        unsafe { self.0.finish_get(moving, into) }
    }

    fn buffer(&self, bytes: usize) -> Result<Memory, FabricError> {
        self.0.core().memory.buffer(bytes)
    }

    // Adapters cannot wake a thread, so waiting ranks poll.
    fn start_cas(&self, at: &Remote, offset: usize, expected: u64, new: u64, _: Wake) -> Result<Pending, FabricError> {
        self.start(at, offset, Verb::CompareAndSwap { expected, new })
    }

    fn start_add(&self, at: &Remote, offset: usize, delta: u64, _: Wake) -> Result<Pending, FabricError> {
        self.start(at, offset, Verb::Add(delta))
    }

    fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
        pending.0.word()
    }

    fn notify(&self, at: &Remote, offset: usize, value: u64, _: Wake) -> Result<(), FabricError> {
        let (way, place) = at.word(offset)?;
        at.behind_other_way(way)?;
        self.0.behind_stripes(way, Stripes::All)?;
        // A plain write could fall between the two halves of an atomic of this rank's own adapter. Words that peers add
        // to are therefore swapped.
        if at.rank == self.rank() {
            let guess = match &at.view {
                Some(view) => {
                    let mut word = [0; 8];
                    self.0.node.memory.get(view, offset, &mut word)?;
                    u64::from_ne_bytes(word)
                }
                None => 0,
            };
            // The swap has taken effect when the call returns.
            return self.0.swap(way, place, value, guess);
        }
        match self.0.core().rail.writes.notify_by {
            NotifyBy::Atomic => self.0.swap(way, place, value, 0),
            NotifyBy::Write => self.0.write(Far::of(way, place), &value.to_ne_bytes()),
        }
    }

    #[inline]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        self.0.node.memory.word(&on.region, offset)
    }

    fn looked_in_vain(&self) {
        self.0.core().turn_unless_another_does();
        if is_crowded(self.0.node.ranks()) {
            transom_windows::looked_in_vain();
        }
    }

    fn wait<R>(
        &self,
        _: &Region,
        wait: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        let member = &*self.0;
        if let Some(found) = look()? {
            return Ok(found);
        }
        let (mut nap, check) = (NAPS[0], || {
            member.unheard()?;
            member.exchange.check_peers(wait.awaited)
        });
        // Nothing wakes a rank when an adapter changes its memory.
        wait.until(is_crowded(member.node.ranks()), look, check, |look| {
            member.nap(&mut nap);
            look()
        })
    }

    #[inline]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.0.node.memory.own_bytes(&on.region, offset, len)
    }

    #[inline]
    fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.0.node.memory.bytes(at.view.as_ref()?, offset, len)
    }

    #[inline]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.0.node.memory.load(&from.region, offset, into)
    }

    #[inline]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.0.node.memory.store(&to.region, offset, source)
    }

    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        at.ways().try_for_each(|way| self.0.flush(way))
    }

    fn flush_all(&self, at: &[Remote]) -> Result<(), FabricError> {
        at.iter().try_for_each(|remote| self.start_flush(remote))?;
        at.iter().try_for_each(|remote| self.flush(remote))
    }

    /// Does not wait: a later verb on the same lane is ordered anyway, and one on another lane waits.
    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        at.ways().try_for_each(|way| self.0.order(way))
    }
}

impl Verbs {
    /// Orders a put before the words that notify peers of it, if these take another lane.
    #[inline]
    fn behind_it(&self, to: &Remote) -> Result<(), FabricError> {
        if to.apart { self.0.order(to.way) } else { Ok(()) }
    }

    /// Requests completions of all operations on the target, without waiting, so that several flushes overlap.
    pub fn start_flush(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        at.ways().try_for_each(|way| self.0.start_flush(way))
    }

    fn start(&self, at: &Remote, offset: usize, verb: Verb) -> Result<Pending, FabricError> {
        let (way, place) = at.word(offset)?;
        at.behind_other_way(way)?;
        self.0.start_atomic(way, verb, place).map(Pending)
    }
}
