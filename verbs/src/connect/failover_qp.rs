//! Queues of lanes. The queue of a first-rail lane may belong to another rail, if the first rail does not reach the
//! peer: failover. Such a queue translates memory keys, local and remote, to those of its rail, and leaves atomics to
//! the peer's own adapter.

use super::core::Core;
use crate::sys::{Access, QueuePair, Registered};
use crate::wr::{Course, Kind, RemoteAddress, Request, Verb, WorkQueue};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transom_launch::lock;
use transom_locks::Rank;

/// The queue of a lane.
pub(crate) struct LaneQueue {
    pub(super) pair: QueuePair,
    /// Set if the queue belongs to another rail than its lane.
    failover: Option<Box<FailoverQp>>,
}

struct FailoverQp {
    peer: Rank,
    by: u32,
    /// Core of the rail that has the queue pair.
    core: Arc<Core>,
    /// Core of the first rail, which has the lane.
    first: Weak<Core>,
    twins: Arc<PeerKeyTable>,
    /// Memory registered on this rail for requests in flight, by the low 32 bits of the request number.
    registered: Mutex<VecDeque<(u32, Arc<Registered>)>>,
}

impl LaneQueue {
    /// A queue on the lane's own rail.
    pub fn own(pair: QueuePair) -> Self {
        LaneQueue { pair, failover: None }
    }

    /// A failover queue for a lane of `first` to a peer, on the rail with number `by`.
    pub fn failover(pair: QueuePair, peer: Rank, by: u32, core: Arc<Core>, first: &Arc<Core>) -> Self {
        let (twins, first, registered) = (first.twins.clone(), Arc::downgrade(first), Mutex::default());
        LaneQueue { pair, failover: Some(Box::new(FailoverQp { peer, by, core, first, twins, registered })) }
    }
}

impl FailoverQp {
    fn registered(&self) -> MutexGuard<'_, VecDeque<(u32, Arc<Registered>)>> {
        lock(&self.registered)
    }

    /// Translates the keys of a request to those of this rail.
    ///
    /// # Safety
    /// The contract of [`WorkQueue::post`] applies.
    unsafe fn named(&self, request: &Request) -> io::Result<Request> {
        let mut named = *request;
        if request.piece.bytes == 0 {
            return Ok(named);
        }
        let key = self.twins.key(self.peer, self.by, request.to);
        named.to.key = key.ok_or_else(|| io::Error::other("the peer's memory has no key on the failover rail"))?;
        if !request.inline {
            let (address, bytes) = (request.piece.address, request.piece.bytes as usize);
            let access = if request.verb.kind() == Kind::Read { Access::Local } else { Access::Source };
            // SAFETY: the memory stays registered, and hence in place, by the caller's contract.
            let registered = unsafe { self.core.memory.part(address, bytes, access) };
            let registered =
                registered.ok_or_else(|| io::Error::other("the failover rail cannot register the memory"))?;
            named.piece = registered.piece((address - registered.address) as usize, bytes);
            self.registered().push_back((request.token.request(), registered));
        }
        Ok(named)
    }
}

impl WorkQueue for LaneQueue {
    #[inline]
    fn number(&self) -> u32 {
        self.pair.number()
    }

    #[inline]
    fn depth(&self) -> u32 {
        self.pair.depth()
    }

    #[inline]
    fn inline(&self) -> u32 {
        self.pair.inline()
    }

    #[inline]
    fn fences(&self) -> bool {
        self.pair.fences()
    }

    #[inline]
    unsafe fn post(&self, request: &Request) -> io::Result<()> {
        match &self.failover {
            // SAFETY: caller's contract.
            None => unsafe { self.pair.post(request) },
            // SAFETY: caller's contract.
            Some(failover) => unsafe { self.pair.post(&failover.named(request)?) },
        }
    }

    #[inline]
    fn is_failover(&self) -> bool {
        self.failover.is_some()
    }

    fn course(&self, verb: Verb, to: RemoteAddress) -> Course {
        let Some(failover) = &self.failover else { return Course::Posted };
        match verb {
            Verb::CompareAndSwap { .. } | Verb::Add(_) => Course::Asked,
            // An empty write names no memory.
            Verb::Write if to == (RemoteAddress { address: 0, key: 0 }) => Course::Posted,
            Verb::Write | Verb::Read if failover.twins.key(failover.peer, failover.by, to).is_some() => Course::Posted,
            Verb::Write | Verb::Read | Verb::WriteAndTell(_) | Verb::Send => Course::Waits,
        }
    }

    fn ask(&self, number: u64, verb: Verb, to: RemoteAddress) {
        if let Some(failover) = &self.failover
            && let Some(first) = failover.first.upgrade()
        {
            first.ask(failover.peer, number, verb, to);
        }
    }

    #[inline]
    fn completed(&self, number: u64) {
        if let Some(failover) = &self.failover {
            let done = |of: u32| (number as u32).wrapping_sub(of) < 1 << 31;
            let mut registered = failover.registered();
            while registered.front().is_some_and(|(of, _)| done(*of)) {
                registered.pop_front();
            }
        }
    }
}

/// Keys of peers' memory on all rails, by peer and the key on the first rail.
#[derive(Default)]
pub(crate) struct PeerKeyTable(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// Keys on the other rails, by peer and the key on the first rail.
    all: HashMap<(Rank, u32), Names>,
    /// Entries without users, to which requests may still refer. Oldest first.
    old: VecDeque<(Rank, u32)>,
}

struct Names {
    start: u64,
    bytes: u64,
    further: Box<[u32]>,
    /// Number of users of the entry.
    known: usize,
}

/// Most entries kept without users.
const OLD: usize = 64;

/// A registration of a peer's keys; the entry has a user until this is dropped.
pub(crate) struct Twin {
    of: (Rank, u32),
    home: Arc<PeerKeyTable>,
}

impl PeerKeyTable {
    /// Registers the keys of `bytes` bytes of a peer's memory on further rails; `None` if there are no further keys.
    pub fn know(self: &Arc<Self>, peer: Rank, at: RemoteAddress, bytes: usize, further: &[u32]) -> Option<Twin> {
        if further.is_empty() || bytes == 0 {
            return None;
        }
        let (of, bytes) = ((peer, at.key), bytes as u64);
        let names = |known| Names { start: at.address, bytes, further: further.into(), known };
        match self.table().all.entry(of) {
            Entry::Occupied(mut there) if there.get().known > 0 => {
                let there = there.get_mut();
                let end = (there.start + there.bytes).max(at.address + bytes);
                there.start = there.start.min(at.address);
                there.bytes = end - there.start;
                there.known += 1;
            }
            Entry::Occupied(mut old) => _ = old.insert(names(1)),
            Entry::Vacant(new) => _ = new.insert(names(1)),
        }
        Some(Twin { of, home: self.clone() })
    }

    fn key(&self, peer: Rank, by: u32, at: RemoteAddress) -> Option<u32> {
        let table = self.table();
        let names = table.all.get(&(peer, at.key))?;
        let inside = at.address.checked_sub(names.start).is_some_and(|from| from < names.bytes);
        names.further.get((by as usize).checked_sub(1)?).copied().filter(|key| inside && *key > 0)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.0)
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        let mut table = self.home.table();
        let Table { all, old } = &mut *table;
        let Some(names) = all.get_mut(&self.of) else { return };
        names.known -= 1;
        if names.known == 0 {
            old.push_back(self.of);
        }
        while old.len() > OLD {
            let oldest = old.pop_front().expect("the list is not empty");
            if all.get(&oldest).is_some_and(|names| names.known == 0) {
                all.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64, key: u32) -> RemoteAddress {
        RemoteAddress { address, key }
    }

    #[test]
    fn peer_memory_is_found_by_the_key_of_each_rail() {
        let twins = Arc::new(PeerKeyTable::default());
        assert!(twins.know(1, at(4096, 5), 100, &[]).is_none(), "registered on the first rail only");
        let known = twins.know(1, at(4096, 5), 100, &[7, 9]).unwrap();
        let key = |peer, by, address| twins.key(peer, by, at(address, 5));
        assert_eq!([key(1, 1, 4096), key(1, 2, 4195)], [Some(7), Some(9)]);
        assert_eq!([key(2, 1, 4096), key(1, 3, 4096), key(1, 0, 4096), key(1, 1, 4196), key(1, 1, 4095)], [None; 5]);
        let more = twins.know(1, at(4196, 5), 100, &[7, 9]).unwrap();
        drop(known);
        assert_eq!([key(1, 1, 4096), key(1, 1, 4295)], [Some(7); 2], "one user remains");
        drop(more);
        assert_eq!(key(1, 1, 4096), Some(7), "requests in flight may still use the key");
        let anew = twins.know(1, at(8192, 5), 8, &[8, 8]).unwrap();
        assert_eq!([key(1, 1, 4096), key(1, 1, 8192)], [None, Some(8)], "the key was reused");
        drop(anew);
        (0..OLD as u32).for_each(|key| drop(twins.know(3, at(4096, key), 8, &[1])));
        assert_eq!([key(1, 1, 8192), twins.key(3, 1, at(4096, OLD as u32 - 1))], [None, Some(1)]);
        assert!(twins.table().all.len() <= OLD);
    }
}
