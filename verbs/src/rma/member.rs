//! A rank's membership of a job or team, from joining to leaving.

use super::mail::Mail;
use super::operations::RailLane;
use super::paths::Paths;
use crate::connect::{self, Core, Service};
use crate::memory::Detached;
use crate::progress;
use crate::wait::{Backoff, NAPS};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_network::{Bootstrap, DeferredFree, Node};
use transom_windows::FabricError;

/// Longest wait of a leaving rank for its earlier puts.
const DRAIN: Duration = Duration::from_secs(5);
/// Time for which a leaving rank keeps its memory for peers after a death.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// Bytes of memory per rank of the job before any connection: less than a megabyte for 10,000 ranks.
const EACH: usize = connect::EACH + size_of::<u32>() + Node::EACH + Mail::EACH;
const _: () = assert!(EACH <= 93, "the crate's documentation states 93 bytes");

/// A rank's membership of a job or team.
pub(super) struct Member {
    pub service: Arc<Service>,
    pub exchange: Arc<dyn Bootstrap>,
    pub node: Node,
    /// Job rank of each rank of this team.
    pub peers: Box<[u32]>,
    /// Memory that may be released only when no rank of this team uses it: that of windows and of teams.
    pub remains: DeferredFree<Retained>,
    /// Memory that was not made together with peers.
    pub detached: Detached,
    /// Collectives over lanes; none where ranks share memory, which is faster.
    pub mail: Option<Mail>,
    /// Division of large operations among rails, if there are several. Shared by the teams of a job.
    pub paths: Option<Arc<Paths>>,
    /// The other ranks were notified that this rank cannot continue.
    pub failed: AtomicBool,
    /// The job that a team was made in, with the team's number there. A team keeps its job alive.
    pub parent: Option<(Arc<Member>, u64)>,
}

/// An object that peers may still access; dropped to release it.
pub(super) type Retained = Box<dyn Any + Send>;

/// Target of an operation: a rank of the team, the peer whose lane leads there, and the rail of that lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub rank: Rank,
    pub peer: usize,
    pub rail: usize,
}

impl Way {
    /// The same target on another rail.
    pub fn by(self, rail: usize) -> Way {
        Way { rail, ..self }
    }
}

impl Member {
    pub fn new(
        service: Arc<Service>,
        exchange: Arc<dyn Bootstrap>,
        (node, peers): (Node, Box<[u32]>),
        mail: Option<Mail>,
        paths: Option<Arc<Paths>>,
        parent: Option<(Arc<Member>, u64)>,
    ) -> Self {
        let (remains, detached, failed) = Default::default();
        Member { service, exchange, node, peers, remains, detached, mail, paths, failed, parent }
    }

    /// The core of the first rail, which carries everything that is not divided.
    pub fn core(&self) -> &Core {
        &self.service.core
    }

    /// The core of a target's rail.
    #[inline]
    pub fn core_of(&self, way: Way) -> &Core {
        self.service.core_of(way.rail)
    }

    /// Polls the completion queues of all rails.
    #[inline]
    pub fn progress(&self) {
        self.service.cores().for_each(|core| progress::poll(&core.rail, &core.endpoints));
    }

    /// Pauses a long wait: progresses messages, and sleeps for a growing time if there were none.
    pub fn nap(&self, nap: &mut Duration) {
        if self.core().progress() {
            return std::thread::yield_now();
        }
        std::thread::sleep(*nap);
        *nap = (*nap * 2).min(NAPS[1]);
    }

    pub fn backoff(&self) -> Backoff {
        Backoff::new(self.node.ranks())
    }

    /// The way to a rank.
    pub fn way(&self, rank: Rank) -> Way {
        Way { rank, peer: self.peers[rank] as usize, rail: 0 }
    }

    /// The way to a host neighbour's words through this rank's own adapter.
    pub fn way_here(&self, rank: Rank) -> Way {
        Way { rank, peer: self.core().me, rail: 0 }
    }

    /// The way to a peer, with its rank in this team; for a peer outside the team `None`.
    pub fn way_to(&self, peer: usize) -> Option<Way> {
        self.peers.iter().position(|&of| of as usize == peer).map(|rank| Way { rank, peer, rail: 0 })
    }

    /// Waits until all posted requests are complete or have failed, so that the next message to the peers is ordered
    /// after them.
    pub fn settle(&self) {
        // Divided operations may be in flight on other rails only.
        let busy = |(peer, lane): &(usize, &RailLane)| !lane.is_idle() || self.has_stripes(*peer);
        for (peer, lane) in self.core().endpoints.all().filter(busy) {
            if let Some(way) = self.way_to(peer) {
                // The waiting caller gets the error.
                let _ = self.complete(way, lane.posted());
                let _ = self.complete_stripes(way);
            }
        }
    }

    /// Waits until earlier puts have arrived, or their targets have gone.
    fn drain(&self) {
        let began = Instant::now();
        let mut backoff = self.backoff();
        loop {
            self.progress();
            self.step_stripes();
            let busy = self.service.cores().find_map(|core| Some((core, core.endpoints.busy()?)));
            let Some((core, peer)) = busy else { return };
            for (_, lane) in core.endpoints.all() {
                let _ = lane.ask();
            }
            let rank = self.way_to(peer).map(|way| way.rank);
            let gone = || rank.is_some_and(|rank| self.exchange.check_peers(Awaited::Rank(rank)).is_err());
            if backoff.pause() && gone() || began.elapsed() > DRAIN || core.rail.health.broken().is_some() {
                return tracing::debug!(peer, "leaving with operations in flight");
            }
        }
    }

    /// Waits until all others have left too, so that no peer accesses this rank's memory any more; only briefly if a
    /// rank died.
    fn linger(&self) {
        let mut died = None;
        let mut backoff = self.backoff();
        for rank in (0..self.exchange.size()).filter(|&rank| rank != self.exchange.rank()) {
            loop {
                match self.exchange.check_peers(Awaited::Rank(rank)) {
                    Err(FabricError::PeerDied { rank: dead }) if dead != rank => {
                        if died.get_or_insert_with(Instant::now).elapsed() > AFTER_DEATH {
                            return;
                        }
                    }
                    Err(_) => break,
                    Ok(()) => {}
                }
                backoff.pause();
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.drain();
        if std::thread::panicking() {
            return self.exchange.leave();
        }
        match &self.parent {
            Some((parent, number)) => {
                let remains = std::mem::take(&mut self.remains);
                parent.remains.let_go(*number, Some(Box::new((remains, self.mail.take()))));
            }
            None => {
                self.exchange.leave();
                self.linger();
            }
        }
    }
}
