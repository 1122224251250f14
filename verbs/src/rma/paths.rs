//! The rails to each peer: by which an operation goes, and what has to wait for which.
//!
//! Words, and all that is small, go by the first rail, whose lane has them in their order. Large puts and gets are
//! [divided](super::striped) among the rails that work. What goes by two rails has no order; so an atomic, a notification, a
//! flush waits for the stripes before it, a divided get for all puts before it, and any put for the gets. Puts wait for no puts.

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

/// Of a rank with several rails.
pub(super) struct Paths {
    began: Instant,
    division: Division,
    /// By peer, those that something was divided for.
    peers: Box<[OnceLock<Box<Path>>]>,
    /// Bytes that were divided, by rail.
    bytes: [AtomicU64; RAILS],
}

/// The rails to one peer.
struct Path {
    weights: Mutex<Weights>,
    /// Divided operations that may be under way, and how many.
    under_way: Mutex<Vec<Arc<Striped>>>,
    some: AtomicUsize,
    /// Of the first rail the number of the last request that changes something there, and of the last that reads.
    changed: AtomicU64,
    read: AtomicU64,
}

/// What of the divided operations something has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stripes {
    All,
    Written,
    Read,
}

impl Paths {
    /// None where there is one rail.
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

    /// All of an operation has ended: what its stripes took counts for the next.
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

    /// Takes note of bytes that a rail is to bring.
    pub fn count(&self, rail: usize, bytes: usize) {
        self.bytes[rail].fetch_add(bytes as u64, Relaxed);
    }

    /// Bytes that were divided, by rail.
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
    /// How an operation is to be divided; none if it goes by the first rail's lane alone. A rail that has no connection is asked for
    /// one, and done without; so is the first while its lane is by another.
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
        let first = self.core().endpoints.lane(way.peer).is_none_or(|lane| !lane.is_elsewhere());
        let rails: Rails = first.then_some(0).into_iter().chain((1..=keys.len()).filter(|rail| works(*rail))).collect();
        if rails.len() < 2 {
            return None;
        }
        let path = paths.peers[way.peer].get_or_init(|| {
            let bandwidths = self.service.cores().map(|core| core.rail.bandwidth);
            let weights = Mutex::new(Weights::new(paths.division.stripe, bandwidths));
            // What was posted before is taken for either.
            let posted = self.core().endpoints.lane(way.peer).map_or(0, |lane| lane.posted());
            let (under_way, some) = Default::default();
            Box::new(Path { weights, under_way, some, changed: posted.into(), read: posted.into() })
        });
        let parts: Vec<Part> = path.weights().cut(bytes, rails, least).collect();
        Some(parts).filter(|parts| parts.len() > 1)
    }

    /// Waits for what a divided operation must not overtake, and has it known.
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

    /// Waits for what a request of the first rail must not overtake.
    #[inline]
    pub fn behind_stripes(&self, way: Way, stripes: Stripes) -> Result<(), FabricError> {
        match &self.paths {
            None => Ok(()),
            Some(paths) => paths.path(way.peer).map_or(Ok(()), |path| self.await_stripes(path, stripes)),
        }
    }

    /// Returns when all that was divided for a peer is complete.
    #[inline]
    pub fn complete_stripes(&self, way: Way) -> Result<(), FabricError> {
        self.behind_stripes(way, Stripes::All)
    }

    /// Whether something that was divided for a peer is under way.
    pub fn has_stripes(&self, peer: usize) -> bool {
        let path = self.paths.as_ref().and_then(|paths| paths.path(peer));
        path.is_some_and(|path| path.some.load(Acquire) > 0)
    }

    /// Has all that is divided go on.
    pub fn step_stripes(&self) {
        let paths = self.paths.iter().flat_map(|paths| paths.peers.iter().filter_map(OnceLock::get));
        for striped in paths.flat_map(|path| path.under_way().clone()) {
            // Who waits for it is told.
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

    /// Takes note of a request of the first rail, which divided operations may have to wait for.
    #[inline]
    pub fn note_posted(&self, way: Way, changes: bool, number: u64) {
        if let Some(path) = self.paths.as_ref().and_then(|paths| paths.path(way.peer)) {
            let last = if changes { &path.changed } else { &path.read };
            last.fetch_max(number, AcqRel);
        }
    }
}
