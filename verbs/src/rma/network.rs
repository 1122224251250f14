//! The verbs of the network: a remote operation is a request to the adapter, which executes it on the target's memory
//! without the target's processor.

use super::Verbs;
use super::far::Far;
use super::paths::Stripes;
use super::region::{Pending, Region, Remote};
use super::transfer::Transfer;
use crate::VerbsError;
use crate::messages;
use crate::values::NotifyBy;
use crate::variables;
use crate::wait::{NAPS, is_oversubscribed};
use crate::wr::Verb;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_channel::{Changes, Config};
use transom_launch::variables::Variable;
use transom_locks::{Rank, Wake};
use transom_network::{Atomics, Attach, Bootstrap, MemoryKind, Network, NetworkWire, Node};
use transom_shm_loopback::{self as shm, View};
use transom_windows::{BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, Wait};

impl Network for Verbs {
    const NAME: &'static str = "verbs";
    const VARIABLES: &'static [Variable] = variables::TABLE;
    const ATOMICS: Atomics = Atomics::Adapter;

    type Error = VerbsError;
    type Region = Region;
    type Remote = Remote;
    type Pending = Pending;
    type Transfer = Transfer;

    fn probe(messages: &Config) -> Result<String, VerbsError> {
        crate::probe(messages)
    }

    fn describe(&self) -> String {
        self.0.service.cores().map(|core| core.rail.describe()).collect::<Vec<_>>().join("; ")
    }

    fn open(job: Arc<dyn Bootstrap>, node: Node, messages: &Config) -> Result<Self, VerbsError> {
        Verbs::new(job, node, messages)
    }

    fn team(&self, members: &[Rank], job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, FabricError> {
        self.team_of(members, job, node)
    }

    fn wire(&self, asked: &Changes) -> Result<(Box<dyn NetworkWire>, Config), FabricError> {
        messages::open(&self.0.service, &self.0.exchange, self.0.node.memory(), asked)
    }

    fn expose(&self, memory: &View, kind: MemoryKind) -> Result<(Region, Vec<u8>), FabricError> {
        self.register_here(memory, kind)
    }

    fn close(&self, region: &mut Region) {
        region.close();
    }

    fn withdraw(&self, region: &mut Region) {
        region.withdraw();
    }

    fn attach(&self, region: Attach<'_>) -> Result<Remote, FabricError> {
        self.attach_to(region)
    }

    #[inline]
    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.0.write(to.far(offset, source.len())?, source)?;
        self.behind_it(to)
    }

    #[inline]
    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.0.read(from.far(offset, into.len())?, into)
    }

    fn start_put(&self, to: &Remote, offset: usize, source: BoxBytes) -> Result<Transfer, FabricError> {
        let moving = self.0.start_write(to.far(offset, source.len())?, source)?;
        self.behind_it(to).map(|()| moving)
    }

    fn start_get(&self, from: &Remote, offset: usize, into: BoxBytes) -> Result<Transfer, FabricError> {
        self.0.start_read(from.far(offset, into.len())?, into)
    }

    fn test(&self, moving: &mut Transfer) -> Result<bool, FabricError> {
        self.0.test(moving)
    }

    fn finish_moving(&self, moving: Transfer) -> Result<BoxBytes, FabricError> {
        self.0.finish_moving(moving)
    }

    unsafe fn lend_put(
        &self,
        to: &Remote,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        let far = to.far(offset, source.len())?;
        // SAFETY: caller's contract.
        let moving = unsafe { self.0.start_lent_write(far, source) }?;
        self.behind_it(to).map(|()| moving)
    }

    unsafe fn lend_get(
        &self,
        from: &Remote,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<Transfer>, FabricError> {
        let far = from.far(offset, into.len())?;
        // SAFETY: caller's contract.
        unsafe { self.0.start_lent_read(far, into) }
    }

    unsafe fn finish_get(&self, moving: Transfer, into: NonNull<[u8]>) -> Result<(), FabricError> {
        // SAFETY: caller's contract.
        unsafe { self.0.finish_get(moving, into) }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.0.core().memory.buffer(bytes)
    }

    // An adapter wakes no thread: waiting threads look now and then.
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
        // A write may come between the two halves of an adapter's own atomic, and other ranks add to the words of this
        // rank.
        if at.rank == self.rank() {
            let guess = match &at.own {
                Some(view) => {
                    let mut word = [0; 8];
                    self.0.node.memory().get(view, offset, &mut word)?;
                    u64::from_ne_bytes(word)
                }
                None => 0,
            };
            // The word has changed when the call returns.
            return self.0.swap(way, place, value, guess);
        }
        match self.0.core().rail.writes.notify_by {
            NotifyBy::Atomic => self.0.swap(way, place, value, 0),
            NotifyBy::Write => self.0.write(Far::of(way, place), &value.to_ne_bytes()),
        }
    }

    fn after_empty_poll(&self) {
        if is_oversubscribed(self.0.node.ranks()) {
            transom_windows::after_empty_poll();
        }
    }

    fn wait<R>(
        &self,
        _: &shm::Region,
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
        // An adapter that changes memory wakes no thread.
        wait.until(is_oversubscribed(member.node.ranks()), look, check, |look| {
            member.nap(&mut nap);
            look()
        })
    }

    fn start_flush(&self, at: &Remote) -> Result<(), FabricError> {
        at.ways().try_for_each(|way| self.0.start_flush(way))
    }

    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        at.ways().try_for_each(|way| self.0.flush(way))
    }

    /// Does not wait: a later verb on the same connection is executed later anyway, and one on another connection
    /// waits.
    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        at.ways().try_for_each(|way| self.0.order(way))
    }
}

impl Verbs {
    /// After a put: the words that announce it may go by another connection.
    #[inline]
    fn behind_it(&self, to: &Remote) -> Result<(), FabricError> {
        if to.apart { self.0.order(to.way) } else { Ok(()) }
    }

    fn start(&self, at: &Remote, offset: usize, verb: Verb) -> Result<Pending, FabricError> {
        let (way, place) = at.word(offset)?;
        at.behind_other_way(way)?;
        self.0.start_atomic(way, verb, place).map(Pending)
    }
}
