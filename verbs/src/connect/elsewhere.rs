//! The queues of lanes. One of the first rail may be of another, where the first does not reach the peer: what is posted to it names
//! memory as that rail does, here and there, and atomics are left to the peer's own adapter.

use super::core::Core;
use crate::sys::{Access, QueuePair, Registered};
use crate::wr::{Course, Kind, Place, Request, Verb, WorkQueue};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transom_launch::lock;
use transom_locks::Rank;

/// The queue of a lane.
pub(crate) struct LaneQueue {
    pub(super) pair: QueuePair,
    /// If it is of another rail.
    elsewhere: Option<Box<Elsewhere>>,
}

struct Elsewhere {
    peer: Rank,
    by: u32,
    /// Of that rail.
    core: Arc<Core>,
    /// Of the lane's.
    first: Weak<Core>,
    twins: Arc<Twins>,
    /// Memory that was registered for requests, by the low halves of their numbers.
    registered: Mutex<VecDeque<(u32, Arc<Registered>)>>,
}

impl LaneQueue {
    /// Of the lane's own rail.
    pub fn own(pair: QueuePair) -> Self {
        LaneQueue { pair, elsewhere: None }
    }

    /// For a lane of `first`'s to a peer, by the rail of that number.
    pub fn elsewhere(pair: QueuePair, peer: Rank, by: u32, core: Arc<Core>, first: &Arc<Core>) -> Self {
        let (twins, first, registered) = (first.twins.clone(), Arc::downgrade(first), Mutex::default());
        LaneQueue { pair, elsewhere: Some(Box::new(Elsewhere { peer, by, core, first, twins, registered })) }
    }
}

impl Elsewhere {
    fn registered(&self) -> MutexGuard<'_, VecDeque<(u32, Arc<Registered>)>> {
        lock(&self.registered)
    }

    /// A request as this rail names it.
    ///
    /// # Safety
    /// As of [`WorkQueue::post`].
    unsafe fn named(&self, request: &Request) -> io::Result<Request> {
        let mut named = *request;
        if request.piece.bytes == 0 {
            return Ok(named);
        }
        let key = self.twins.key(self.peer, self.by, request.to);
        named.to.key = key.ok_or_else(|| io::Error::other("the peer's memory has no name for the other rail"))?;
        if !request.inline {
            let (address, bytes) = (request.piece.address, request.piece.bytes as usize);
            let access = if request.verb.kind() == Kind::Read { Access::Local } else { Access::Source };
            // SAFETY: by the caller's word it stays registered, and so where it is.
            let registered = unsafe { self.core.memory.part(address, bytes, access) };
            let registered = registered.ok_or_else(|| io::Error::other("the other rail cannot register the memory"))?;
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
        match &self.elsewhere {
            // SAFETY: by the caller's word.
            None => unsafe { self.pair.post(request) },
            // SAFETY: as above.
            Some(elsewhere) => unsafe { self.pair.post(&elsewhere.named(request)?) },
        }
    }

    #[inline]
    fn is_elsewhere(&self) -> bool {
        self.elsewhere.is_some()
    }

    fn course(&self, verb: Verb, to: Place) -> Course {
        let Some(elsewhere) = &self.elsewhere else { return Course::Posted };
        match verb {
            Verb::CompareAndSwap { .. } | Verb::Add(_) => Course::Asked,
            // Of nothing.
            Verb::Write if to == (Place { address: 0, key: 0 }) => Course::Posted,
            Verb::Write | Verb::Read if elsewhere.twins.key(elsewhere.peer, elsewhere.by, to).is_some() => {
                Course::Posted
            }
            Verb::Write | Verb::Read | Verb::WriteAndTell(_) | Verb::Send => Course::Waits,
        }
    }

    fn ask(&self, number: u64, verb: Verb, to: Place) {
        if let Some(elsewhere) = &self.elsewhere
            && let Some(first) = elsewhere.first.upgrade()
        {
            first.ask(elsewhere.peer, number, verb, to);
        }
    }

    #[inline]
    fn completed(&self, number: u64) {
        if let Some(elsewhere) = &self.elsewhere {
            let done = |of: u32| (number as u32).wrapping_sub(of) < 1 << 31;
            let mut registered = elsewhere.registered();
            while registered.front().is_some_and(|(of, _)| done(*of)) {
                registered.pop_front();
            }
        }
    }
}

/// How memory of peers that the first rail reaches is named by the others.
#[derive(Default)]
pub(crate) struct Twins(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// By the peer, and the first rail's key.
    all: HashMap<(Rank, u32), Names>,
    /// Those that nobody has any more, though requests may still name them: the oldest go.
    old: VecDeque<(Rank, u32)>,
}

struct Names {
    start: u64,
    bytes: u64,
    further: Box<[u32]>,
    /// How many know it.
    known: usize,
}

/// As many are kept that nobody has any more.
const OLD: usize = 64;

/// Memory of a peer's that is known by the names of several rails, until this is dropped.
pub(crate) struct Twin {
    of: (Rank, u32),
    home: Arc<Twins>,
}

impl Twins {
    /// Has so many bytes of a peer known by their further keys, too; none if there are none.
    pub fn know(self: &Arc<Self>, peer: Rank, at: Place, bytes: usize, further: &[u32]) -> Option<Twin> {
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

    fn key(&self, peer: Rank, by: u32, at: Place) -> Option<u32> {
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
            let oldest = old.pop_front().expect("there are some");
            if all.get(&oldest).is_some_and(|names| names.known == 0) {
                all.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64, key: u32) -> Place {
        Place { address, key }
    }

    #[test]
    fn memory_is_known_by_the_names_of_its_rails() {
        let twins = Arc::new(Twins::default());
        assert!(twins.know(1, at(4096, 5), 100, &[]).is_none(), "by the first rail alone");
        let known = twins.know(1, at(4096, 5), 100, &[7, 9]).unwrap();
        let key = |peer, by, address| twins.key(peer, by, at(address, 5));
        assert_eq!([key(1, 1, 4096), key(1, 2, 4195)], [Some(7), Some(9)]);
        assert_eq!([key(2, 1, 4096), key(1, 3, 4096), key(1, 0, 4096), key(1, 1, 4196), key(1, 1, 4095)], [None; 5]);
        let more = twins.know(1, at(4196, 5), 100, &[7, 9]).unwrap();
        drop(known);
        assert_eq!([key(1, 1, 4096), key(1, 1, 4295)], [Some(7); 2], "somebody has it still");
        drop(more);
        assert_eq!(key(1, 1, 4096), Some(7), "requests may still name it");
        let anew = twins.know(1, at(8192, 5), 8, &[8, 8]).unwrap();
        assert_eq!([key(1, 1, 4096), key(1, 1, 8192)], [None, Some(8)], "the key is another's");
        drop(anew);
        (0..OLD as u32).for_each(|key| drop(twins.know(3, at(4096, key), 8, &[1])));
        assert_eq!([key(1, 1, 8192), twins.key(3, 1, at(4096, OLD as u32 - 1))], [None, Some(1)]);
        assert!(twins.table().all.len() <= OLD);
    }
}
