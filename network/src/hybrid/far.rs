//! The operations of a rank on memory that is not mapped here: the network executes them.

use crate::{Atomics, Attach, Bootstrap, Mapped, MemoryKind, Network, Node};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::{self as shm, Loopback, Meet, View};
use transom_windows::{BoxBytes, BufferMemory, Fabric, FabricError, OobExchange, UserMemory, Wait, Wake};

/// A network, the memory of its regions, and the hosts of its ranks, beneath a [`Hybrid`](crate::Hybrid): a handle of
/// one rank.
#[derive(Clone)]
pub struct Far<N> {
    pub(super) network: N,
    pub(super) job: Arc<dyn Bootstrap>,
    pub(super) node: Node,
    /// Ranks of one host use the memory that they share.
    pub(super) intranode: bool,
}

/// Memory of this rank that peers can reach.
pub struct Region<N: Network> {
    /// Dropped before the memory that it exposes.
    exposed: N::Region,
    memory: shm::Region,
}

/// The right to reach a region.
pub struct Remote<N: Network> {
    /// Dropped before the view, whose memory it may have registered. Boxed, so that handles of ranks that share memory
    /// stay small.
    far: Box<N::Remote>,
    /// Mapping of the region, if this rank moves data there by its own loads and stores.
    view: Option<View>,
    /// Reads and writes use the network, but this rank changes other words of the home rank with its own atomics.
    flush_each: bool,
}

impl<N: Network> Far<N> {
    /// The network, for its counters.
    pub fn network(&self) -> &N {
        &self.network
    }

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
        let flush_each = near && view.is_none() && N::ATOMICS == Atomics::Processor;
        Ok(Remote { far, view, flush_each })
    }

    /// Completes a read or write that this rank's own atomics on other words of the home rank must not overtake.
    fn in_order<T>(&self, at: &Remote<N>, started: T) -> Result<T, FabricError> {
        if at.flush_each {
            // On an error `started` is dropped; then the network no longer uses its bytes.
            self.network.flush(&at.far)?;
        }
        Ok(started)
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

impl<N: Network> OobExchange for Far<N> {
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

impl<N: Network> Mapped for Far<N> {
    fn memory(&self) -> &Loopback {
        self.node.memory()
    }

    fn view<'r>(&self, on: &'r Region<N>) -> Result<&'r View, FabricError> {
        Ok(on.memory.view())
    }

    /// No words are mapped if adapters execute the atomics.
    fn mapped(&self, at: &Remote<N>) -> Result<View, FabricError> {
        let view = at.view.as_ref().unwrap_or(View::empty()).clone();
        Ok(if N::ATOMICS == Atomics::Processor { view } else { view.without_words() })
    }

    fn maps_all_words(&self) -> bool {
        N::ATOMICS == Atomics::Processor && self.intranode && self.node.is_all()
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        let job = self.job.team_of(members, meet)?;
        let node = self.node.team(members, meet)?;
        let first = (0..members.len()).find(|&rank| node.here(rank) == Some(0));
        job.pass_on_through(node.memory(), first.expect("this rank is on its own host"))?;
        let network = self.network.team(members, job.clone(), node.clone())?;
        Ok(Far { network, job, node, intranode: self.intranode })
    }
}

impl<N: Network> Fabric for Far<N> {
    type Region = Region<N>;
    type Remote = Remote<N>;
    type Word = Infallible;
    type Pending = N::Pending;
    type Transfer = N::Transfer;

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

    fn put(&self, to: &Remote<N>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.in_order(to, self.network.put(&to.far, offset, source)?)
    }

    fn get(&self, from: &Remote<N>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.network.get(&from.far, offset, into)
    }

    fn start_put(&self, to: &Remote<N>, offset: usize, source: BoxBytes) -> Result<N::Transfer, FabricError> {
        self.in_order(to, self.network.start_put(&to.far, offset, source)?)
    }

    fn start_get(&self, from: &Remote<N>, offset: usize, into: BoxBytes) -> Result<N::Transfer, FabricError> {
        self.in_order(from, self.network.start_get(&from.far, offset, into)?)
    }

    fn test(&self, moving: &mut N::Transfer) -> Result<bool, FabricError> {
        self.network.test(moving)
    }

    fn finish_moving(&self, moving: N::Transfer) -> Result<BoxBytes, FabricError> {
        self.network.finish_moving(moving)
    }

    unsafe fn lend_put(
        &self,
        to: &Remote<N>,
        offset: usize,
        source: NonNull<[u8]>,
    ) -> Result<Option<N::Transfer>, FabricError> {
        // SAFETY: caller's contract.
        self.in_order(to, unsafe { self.network.lend_put(&to.far, offset, source) }?)
    }

    unsafe fn lend_get(
        &self,
        from: &Remote<N>,
        offset: usize,
        into: NonNull<[u8]>,
    ) -> Result<Option<N::Transfer>, FabricError> {
        // SAFETY: caller's contract.
        self.in_order(from, unsafe { self.network.lend_get(&from.far, offset, into) }?)
    }

    unsafe fn finish_get(&self, moving: N::Transfer, into: NonNull<[u8]>) -> Result<(), FabricError> {
        // SAFETY: caller's contract.
        unsafe { self.network.finish_get(moving, into) }
    }

    fn buffer(&self, bytes: usize) -> Result<BufferMemory, FabricError> {
        self.network.buffer(bytes)
    }

    fn start_cas(
        &self,
        at: &Remote<N>,
        offset: usize,
        expected: u64,
        new: u64,
        wake: Wake,
    ) -> Result<N::Pending, FabricError> {
        self.network.start_cas(&at.far, offset, expected, new, wake)
    }

    fn start_add(&self, at: &Remote<N>, offset: usize, delta: u64, wake: Wake) -> Result<N::Pending, FabricError> {
        self.network.start_add(&at.far, offset, delta, wake)
    }

    fn finish(&self, pending: N::Pending) -> Result<u64, FabricError> {
        self.network.finish(pending)
    }

    fn notify(&self, at: &Remote<N>, offset: usize, value: u64, wake: Wake) -> Result<(), FabricError> {
        self.network.notify(&at.far, offset, value, wake)
    }

    fn word(&self, on: &Region<N>, offset: usize) -> Result<u64, FabricError> {
        self.node.memory().word(&on.memory, offset)
    }

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

    fn load(&self, from: &Region<N>, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.node.memory().load(&from.memory, offset, into)
    }

    fn store(&self, to: &Region<N>, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.node.memory().store(&to.memory, offset, source)
    }

    fn flush(&self, at: &Remote<N>) -> Result<(), FabricError> {
        self.network.flush(&at.far)
    }

    fn flush_all<'r>(&self, at: impl Iterator<Item = &'r Remote<N>> + Clone) -> Result<(), FabricError> {
        at.clone().try_for_each(|remote| self.network.start_flush(&remote.far))?;
        at.clone().try_for_each(|remote| self.network.flush(&remote.far))
    }

    fn order(&self, at: &Remote<N>) -> Result<(), FabricError> {
        self.network.order(&at.far)
    }

    fn order_all<'r>(&self, at: impl Iterator<Item = &'r Remote<N>> + Clone) -> Result<(), FabricError> {
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
