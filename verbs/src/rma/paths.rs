//! The rails to each peer: selection for an operation, and ordering between operations.
//!
//! Words and small transfers use the first rail, whose lane orders them. Large puts and gets are
//! [divided](super::striped) among the working rails. Transfers on two rails are unordered, so some operations wait. An
//! atomic, a notification and a flush wait for all earlier stripes. A divided get waits for all earlier puts, and any
//! put for divided gets. Puts never wait for puts.

use super::far::Far;
use super::member::{Member, Way};
use super::striped::Striped;
use crate::connect::{Link, Service};
use crate::settings::Division;
use crate::wr::Verb;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;
use transom_channel::striping::{Part, Rails, Timed, Weights};
use transom_channel::wire::RAILS;
use transom_launch::lock;
use transom_windows::FabricError;

/// State of a rank with several rails.
pub(super) struct Paths {
    began: Instant,
    division: Division,
    /// Per peer; set for peers with a divided operation.
    peers: Box<[OnceLock<Box<Path>>]>,
    /// Bytes of divided operations, by rail.
    bytes: [AtomicU64; RAILS],
}

/// The rails to one peer.
struct Path {
    weights: Mutex<Weights>,
    /// Divided operations that may be in flight, and their number.
    under_way: Mutex<Vec<Arc<Striped>>>,
    some: AtomicUsize,
    /// Numbers of the last request on the first rail that changes the peer's memory, and of the last that reads it.
    changed: AtomicU64,
    read: AtomicU64,
}

/// The divided operations that an operation must wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stripes {
    All,
    Written,
    Read,
}

impl Paths {
    /// Makes the state; `None` with a single rail.
    pub fn of(service: &Service, division: Division, ranks: usize) -> Option<Arc<Self>> {
        (service.cores().count() > 1).then(|| {
            let peers = (0..ranks).map(|_| OnceLock::new()).collect();
            Arc::new(Paths { began: Instant::now(), division, peers, bytes: Default::default() })
        })
    }

    pub fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn path(&self, peer: usize) -> Option<&Path> {
        self.peers.get(peer)?.get().map(Box::as_ref)
    }

    /// Records the end of an operation. The times of its stripes adjust later divisions.
    pub fn ended(&self, striped: &Arc<Striped>, timed: Option<Timed>) {
        let Some(path) = self.path(striped.peer()) else { return };
        let mut under_way = path.under_way();
        under_way.retain(|other| !Arc::ptr_eq(other, striped));
        path.some.store(under_way.len(), Release);
        drop(under_way);
        if let Some(timed) = timed {
            path.weights().learn(&timed);
        }
    }

    /// Counts bytes assigned to a rail.
    pub fn count(&self, rail: usize, bytes: usize) {
        self.bytes[rail].fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes of divided operations so far, by rail.
    pub fn bytes(&self) -> impl Iterator<Item = u64> {
        self.bytes.iter().map(|bytes| bytes.load(Relaxed))
    }
}

impl Path {
    fn under_way(&self) -> MutexGuard<'_, Vec<Arc<Striped>>> {
        lock(&self.under_way)
    }

    fn weights(&self) -> MutexGuard<'_, Weights> {
        lock(&self.weights)
    }
}

impl Member {
    /// Divides an operation; `None` if it uses the first rail's lane alone. A rail without a connection is skipped and
    /// a connection requested. The first rail is skipped while its lane is on a failover queue.
    pub fn divide(&self, far: Far<'_>, bytes: usize) -> Option<Vec<Part>> {
        let paths = self.paths.as_ref().filter(|_| !far.keys.is_empty())?;
        let Far { way, keys, .. } = far;
        let (bytes, least) = (bytes as u64, paths.division.least.max(1));
        if bytes / least < 2 || way.peer == self.core().me {
            return None;
        }
        let works = |rail: usize| {
            let core = self.service.core_of(rail);
            let lane = core.endpoints.lane(way.peer);
            lane.is_none_or(|lane| lane.failure().is_none()) && core.want(way.peer) == Link::Ready
        };
        let first = self.core().endpoints.lane(way.peer).is_none_or(|lane| !lane.is_failover());
        let rails: Rails = first.then_some(0).into_iter().chain((1..=keys.len()).filter(|rail| works(*rail))).collect();
        if rails.len() < 2 {
            return None;
        }
        let path = paths.peers[way.peer].get_or_init(|| {
            let bandwidths = self.service.cores().map(|core| core.rail.bandwidth);
            let weights = Mutex::new(Weights::new(paths.division.stripe, self.core().me as u32, bandwidths));
            // Earlier requests count as both changes and reads.
            let posted = self.core().endpoints.lane(way.peer).map_or(0, |lane| lane.posted());
            let (under_way, some) = Default::default();
            Box::new(Path { weights, under_way, some, changed: posted.into(), read: posted.into() })
        });
        let parts: Vec<Part> = path.weights().cut(bytes, rails, least).collect();
        Some(parts).filter(|parts| parts.len() > 1)
    }

    /// Waits for operations that a divided operation must not overtake, and registers the divided operation.
    pub fn begin_striped(&self, striped: &Arc<Striped>, way: Way, verb: Verb) -> Result<(), FabricError> {
        let Some(path) = self.paths.as_ref().and_then(|paths| paths.path(way.peer)) else { return Ok(()) };
        self.connect(way)?;
        let behind = if verb == Verb::Read {
            self.await_stripes(path, Stripes::Written)?;
            &path.changed
        } else {
            self.await_order(way)?;
            self.await_stripes(path, Stripes::Read)?;
            &path.read
        };
        self.complete(way, behind.load(Acquire))?;
        let mut under_way = path.under_way();
        under_way.push(striped.clone());
        path.some.store(under_way.len(), Release);
        Ok(())
    }

    /// Waits for the stripes that a request of the first rail must not overtake.
    #[inline]
    pub fn behind_stripes(&self, way: Way, stripes: Stripes) -> Result<(), FabricError> {
        match &self.paths {
            None => Ok(()),
            Some(paths) => paths.path(way.peer).map_or(Ok(()), |path| self.await_stripes(path, stripes)),
        }
    }

    /// Waits until all divided operations on a peer are complete.
    #[inline]
    pub fn complete_stripes(&self, way: Way) -> Result<(), FabricError> {
        self.behind_stripes(way, Stripes::All)
    }

    /// Returns whether a divided operation on a peer is in flight.
    pub fn has_stripes(&self, peer: usize) -> bool {
        let path = self.paths.as_ref().and_then(|paths| paths.path(peer));
        path.is_some_and(|path| path.some.load(Acquire) > 0)
    }

    /// Progresses all divided operations.
    pub fn step_stripes(&self) {
        let paths = self.paths.iter().flat_map(|paths| paths.peers.iter().filter_map(OnceLock::get));
        for striped in paths.flat_map(|path| path.under_way().clone()) {
            // The waiting caller gets the error.
            let _ = striped.is_done(self);
        }
    }

    fn await_stripes(&self, path: &Path, stripes: Stripes) -> Result<(), FabricError> {
        if path.some.load(Acquire) == 0 {
            return Ok(());
        }
        let concerned = |striped: &&Arc<Striped>| match stripes {
            Stripes::All => true,
            Stripes::Written => !striped.reads(),
            Stripes::Read => striped.reads(),
        };
        let under_way: Vec<_> = path.under_way().iter().filter(concerned).cloned().collect();
        under_way.iter().try_for_each(|striped| striped.finish(self))
    }

    /// Records a request of the first rail, for which divided operations may have to wait.
    #[inline]
    pub fn note_posted(&self, way: Way, changes: bool, number: u64) {
        if let Some(path) = self.paths.as_ref().and_then(|paths| paths.path(way.peer)) {
            let last = if changes { &path.changed } else { &path.read };
            last.fetch_max(number, AcqRel);
        }
    }
}
