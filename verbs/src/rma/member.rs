//! A rank of a job or team, from joining to leaving.

use super::mail::Mail;
use super::operations::RailLane;
use super::paths::Paths;
use crate::connect::{self, Core, Service};
use crate::memory::Remains;
use crate::progress;
use crate::wait::{NAPS, Patience};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_network::{Bootstrap, Node};
use transom_windows::FabricError;

/// How long a rank that leaves waits for what it put before.
const DRAIN: Duration = Duration::from_secs(5);
/// How long a rank that leaves keeps its memory for others after a death.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// Bytes that a rank has of each of its job before it connects to any: less than a megabyte for 10,000.
const EACH: usize = connect::EACH + size_of::<u32>() + Node::EACH + Mail::EACH;
const _: () = assert!(EACH <= 93, "as the documentation says");

/// One rank's membership of a job or team.
pub(super) struct Member {
    pub service: Arc<Service>,
    pub exchange: Arc<dyn Bootstrap>,
    pub node: Node,
    /// Ranks of the job, by ranks of this team.
    pub peers: Box<[u32]>,
    /// What ranks of this team keep for each other: windows' memory, and all that a team has.
    pub remains: Remains<Kept>,
    /// Collectives over lanes; none where ranks share memory, which is faster.
    pub mail: Option<Mail>,
    /// By what rails operations go, if there are several. Shared by the teams of a job.
    pub paths: Option<Arc<Paths>>,
    /// Whether the others were told that this rank cannot go on.
    pub failed: AtomicBool,
    /// A team keeps the job that it was made in, which knows it by this number.
    pub parent: Option<(Arc<Member>, u64)>,
}

/// Something that others may still reach: it goes when it is dropped.
pub(super) type Kept = Box<dyn Any + Send>;

/// Where operations go: a rank (in the numbers of the team), the peer whose lane leads there, and the rail of that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub rank: Rank,
    pub peer: usize,
    pub rail: usize,
}

impl Way {
    /// The same by another rail.
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
        let (remains, failed) = Default::default();
        Member { service, exchange, node, peers, remains, mail, paths, failed, parent }
    }

    /// Of the first rail, by which all goes but what is divided.
    pub fn core(&self) -> &Core {
        &self.service.core
    }

    /// Of the rail of a way.
    #[inline]
    pub fn core_of(&self, way: Way) -> &Core {
        self.service.core_of(way.rail)
    }

    /// Lets in what has completed.
    #[inline]
    pub fn progress(&self) {
        self.service.cores().for_each(|core| progress::poll(&core.rail, &core.endpoints));
    }

    /// What a wait does between two looks, once it has waited a while: serves the peers' messages, and sleeps so long if none
    /// came.
    pub fn nap(&self, nap: &mut Duration) {
        if self.core().turn() {
            return std::thread::yield_now();
        }
        std::thread::sleep(*nap);
        *nap = (*nap * 2).min(NAPS[1]);
    }

    pub fn patience(&self) -> Patience {
        Patience::new(self.node.ranks())
    }

    /// The way to a rank.
    pub fn way(&self, rank: Rank) -> Way {
        Way { rank, peer: self.peers[rank] as usize, rail: 0 }
    }

    /// The way to a neighbour's words by this rank's own adapter.
    pub fn way_here(&self, rank: Rank) -> Way {
        Way { rank, peer: self.core().me, rail: 0 }
    }

    /// The way to a peer, whose rank in this team is its own, or at least one that errors may name.
    pub fn way_to(&self, peer: usize) -> Option<Way> {
        self.peers.iter().position(|&of| of as usize == peer).map(|rank| Way { rank, peer, rail: 0 })
    }

    /// Returns when all that was posted is complete, or will not be: what this rank says next is behind it.
    pub fn settle(&self) {
        // What is divided may be under way by other rails alone.
        let busy = |(peer, lane): &(usize, &RailLane)| !lane.is_idle() || self.has_stripes(*peer);
        for (peer, lane) in self.core().endpoints.all().filter(busy) {
            if let Some(way) = self.way_to(peer) {
                // Who waits for it is told.
                let _ = self.complete(way, lane.posted());
                let _ = self.complete_stripes(way);
            }
        }
    }

    /// Returns when what was put before has arrived, or its target has gone.
    fn drain(&self) {
        let began = Instant::now();
        let mut patience = self.patience();
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
            if patience.pause() && gone() || began.elapsed() > DRAIN || core.rail.health.broken().is_some() {
                return tracing::debug!(peer, "left with operations under way");
            }
        }
    }

    /// Returns when all others have left too, so that nobody reaches for this rank's memory; soon, if one died.
    fn linger(&self) {
        let mut died = None;
        let mut patience = self.patience();
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
                patience.pause();
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
