//! A rank's handle of a job or team, and the errors of its operations.

use crate::carrier::Socket;
use crate::endpoint::Endpoint;
use crate::frame::Refusal;
use crate::lane::{Halt, Lane};
use crate::regions::Region;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_network::{Bootstrap, DeferredFree, Node};
use transom_windows::FabricError;

/// Longest wait of a rank that leaves for its puts to arrive, and for other ranks after one has died.
const DRAIN: Duration = Duration::from_secs(10);
const AFTER_DEATH: Duration = Duration::from_secs(2);
/// Time for which the job may report the death or departure of a peer whose connection ended.
const SOON: Duration = Duration::from_secs(1);

/// Memory that this rank no longer needs, but peers may still access.
pub enum DeferredMemory {
    Region {
        _region: Region,
    },
    /// Memory that a team kept.
    Team {
        _remains: DeferredFree<DeferredMemory>,
    },
}

/// A rank of a job or team.
pub struct Member {
    /// The job or team above, and the number of this team there. Dropped after this one has left.
    pub parent: Option<(Arc<Member>, u64)>,
    pub remains: DeferredFree<DeferredMemory>,
    pub job: Arc<dyn Bootstrap>,
    pub node: Node,
    pub endpoint: Arc<Endpoint>,
    /// Rank in the job of each rank.
    pub peers: Box<[u32]>,
    /// This rank has told the others that it cannot continue.
    pub failed: Arc<AtomicBool>,
}

impl Member {
    /// Fails if the rank itself has died. A rank that left serves until all have left.
    pub fn alive(&self, rank: Rank) -> Result<(), FabricError> {
        match self.job.check_peers(Awaited::Rank(rank)) {
            Err(FabricError::PeerDied { rank: died }) if died == rank => Err(FabricError::PeerDied { rank }),
            // Without the hub no death would be known.
            Err(lost @ FabricError::System { .. }) => Err(lost),
            _ => Ok(()),
        }
    }

    /// Calls `act` with the lane to a rank.
    #[inline]
    pub fn on_lane<R>(
        &self,
        rank: Rank,
        act: impl FnOnce(&Arc<Lane<Socket>>) -> Result<R, Halt>,
    ) -> Result<R, FabricError> {
        let acted = self.endpoint.lane(self.peers[rank], || self.alive(rank)).and_then(act);
        acted.map_err(|halt| self.why(rank, halt))
    }

    /// The error of an operation on memory of `rank`.
    #[cold]
    pub fn why(&self, rank: Rank, halt: Halt) -> FabricError {
        match halt {
            Halt::Gone(gone) => gone,
            Halt::Refused(refusal) => {
                let why = match refusal {
                    Refusal::NoRegion => "that rank has no such memory any more",
                    Refusal::OutOfBounds => "the access is outside that rank's memory",
                    Refusal::Misaligned => "an atomic there is not aligned to 8 bytes",
                    Refusal::Unsupported => "that memory does not support the operation",
                };
                FabricError::BadKey { rank, why: why.into(), source: None }
            }
            Halt::Broken(error) => self.broken(rank, error),
        }
    }

    /// The error of a broken connection. The peer's death or departure may become known a moment later.
    fn broken(&self, rank: Rank, error: io::Error) -> FabricError {
        let first = !self.failed.load(Relaxed);
        let until = Instant::now() + if first { SOON } else { Duration::ZERO };
        loop {
            match self.job.check_peers(Awaited::Rank(rank)) {
                Err(FabricError::PeerDied { rank: died }) if died != rank => {}
                Err(gone) => return gone,
                Ok(()) => {}
            }
            if Instant::now() >= until {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if !self.failed.swap(true, Relaxed) {
            tracing::error!(rank = self.job.rank(), peer = rank, %error, "this rank cannot continue; notifying the others");
            self.job.fail();
        }
        let what = format!("the TCP connection from rank {} to rank {rank}, which is alive, failed", self.job.rank());
        FabricError::System { what, source: error }
    }

    /// Waits until earlier puts have taken effect, or their targets have gone; `within` a time, if it is given. Without
    /// one a rank that is stopped is waited for.
    pub fn drain(&self, within: Option<Duration>) {
        let until = within.map(|within| Instant::now() + within);
        for (rank, &peer) in self.peers.iter().enumerate() {
            let Some(lane) = self.endpoint.connected(peer).filter(|lane| lane.is_busy()) else { continue };
            let check = || match self.alive(rank) {
                Ok(()) if until.is_some_and(|until| Instant::now() > until) => Err(FabricError::PeerLeft { rank }),
                alive => alive,
            };
            if let Ok(Some(flush)) = lane.start_flush(check) {
                let _ = lane.finish_flush(flush, check);
            }
        }
    }

    /// Waits until all others have left too, so that no peer accesses this rank's memory any more; only briefly if a
    /// rank died.
    fn linger(&self) {
        let (mut died, mut pause) = (None, Duration::from_micros(50));
        for rank in (0..self.job.size()).filter(|&rank| rank != self.job.rank()) {
            loop {
                match self.job.check_peers(Awaited::Rank(rank)) {
                    Err(FabricError::PeerDied { rank: dead }) if dead != rank => {
                        if died.get_or_insert_with(Instant::now).elapsed() > AFTER_DEATH {
                            return;
                        }
                    }
                    Err(_) => break,
                    Ok(()) => {}
                }
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.drain((self.parent.is_none() || std::thread::panicking()).then_some(DRAIN));
        if self.parent.is_none() {
            // Peers that connected for messages wait for the end of their streams.
            self.endpoint.mail.close(&[]);
        }
        if std::thread::panicking() {
            return self.job.leave();
        }
        match &self.parent {
            Some((parent, number)) => {
                let remains = std::mem::take(&mut self.remains);
                parent.remains.let_go(*number, Some(DeferredMemory::Team { _remains: remains }));
            }
            None => {
                self.job.leave();
                self.linger();
            }
        }
    }
}
