//! Why an operation cannot go on, in the words of those who called it.

use super::member::{Member, Way};
use crate::VerbsError;
use crate::wr::{Failure, Why};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_windows::FabricError;

/// After how long without a completion an operation is given up; and once somebody has died or left.
pub(super) const UNSERVED: Duration = Duration::from_secs(20);
const UNSERVED_AFTER_DEATH: Duration = Duration::from_secs(10);

/// Why an operation stopped.
pub(super) enum Halt {
    Failed(Failure),
    System(io::Error),
    Memory(VerbsError),
}

impl Member {
    /// An error if this rank's rail is broken: what is under way will not be told complete. Of further rails others take over.
    pub fn works(&self) -> Result<(), FabricError> {
        let rail = &self.core().rail;
        let Some(broken) = rail.health.broken() else { return Ok(()) };
        self.fail_once();
        let what = format!("RDMA device {} of rank {}", rail.name(), self.exchange.rank());
        Err(FabricError::System { what, source: io::Error::new(io::ErrorKind::NotConnected, broken.to_string()) })
    }

    /// An error if nothing was completed for long: not every adapter tells that nobody answers any more (Soft-RoCE sends
    /// again for ever where the retry count is 7); where it does, the connection may come back until then. A peer that is stopped is no reason, since its adapter answers. Sooner
    /// if somebody left or died: then ranks leave without waiting for this one.
    pub fn served(&self, way: Way, silence: &mut Option<(u64, Instant)>) -> Result<(), FabricError> {
        let gone = self.exchange.check_peers(Awaited::Rank(way.rank)).err();
        if let Some(FabricError::PeerDied { rank }) = gone {
            // Room that it will never give back may be all that this one waits for.
            self.give_up(self.peers[rank] as usize);
        }
        let lane = self.lane(way);
        let completed = lane.completed();
        match *silence {
            // What finds no queue is not posted.
            _ if lane.is_idle() && !lane.is_broken() => *silence = None,
            Some((before, since)) if before == completed => {
                if since.elapsed() > if gone.is_some() { UNSERVED_AFTER_DEATH } else { UNSERVED } {
                    self.give_up(way.peer);
                    return Err(gone.unwrap_or_else(|| {
                        self.unreachable(way, format!("its adapter has acknowledged nothing for {UNSERVED:?}"))
                    }));
                }
            }
            _ => {
                // Else the room that it waits for may be another peer's, and of this one nothing is told.
                let _ = lane.ask();
                *silence = Some((completed, Instant::now()));
            }
        }
        Ok(())
    }

    /// Ends the lane to a peer that is known to be gone.
    fn give_up(&self, peer: usize) {
        for lane in self.service.cores().filter_map(|core| core.endpoints.lane(peer)) {
            lane.give_up(Failure::known(Why::Gone));
        }
    }

    /// An error if the rank itself has died: of what others' deaths mean, this operation knows nothing. One that left
    /// keeps its memory until all have.
    pub fn alive(&self, way: Way) -> Result<(), FabricError> {
        match self.exchange.check_peers(Awaited::Rank(way.rank)) {
            Err(FabricError::PeerDied { rank }) if rank == way.rank => {
                self.service.cores().for_each(|core| core.died(way.peer));
                Err(FabricError::PeerDied { rank })
            }
            _ => Ok(()),
        }
    }

    /// An error if a lane failed whose peer has not left: what it was told may never have reached it.
    pub fn unheard(&self) -> Result<(), FabricError> {
        self.progress();
        self.works()?;
        let endpoints = &self.core().endpoints;
        endpoints.all().filter(|(_, lane)| lane.is_broken() && !lane.is_idle()).for_each(|(peer, _)| {
            self.core().want(peer);
        });
        let failed = endpoints.all().find_map(|(peer, lane)| Some((peer, lane.failure()?)));
        match failed.and_then(|(peer, failure)| Some((self.way_to(peer)?, failure))) {
            Some((way, failure)) => match self.why(way, Halt::Failed(failure)) {
                FabricError::PeerLeft { .. } => Ok(()),
                error => Err(error),
            },
            None => Ok(()),
        }
    }

    #[cold]
    pub fn why(&self, way: Way, halt: Halt) -> FabricError {
        let rank = way.rank;
        match halt {
            Halt::Memory(source) => FabricError::System {
                what: format!("memory for an operation on rank {rank}"),
                source: io::Error::other(source),
            },
            Halt::System(source) => {
                FabricError::System { what: format!("an operation on rank {rank} could not be started"), source }
            }
            Halt::Failed(failure) => {
                let why = self.core_of(way).rail.context().status(failure.status);
                match failure.why {
                    Why::Refused => {
                        let refused = "its adapter refuses the access, and ends the connection: the memory is no longer \
                                       registered, or never was under this key";
                        FabricError::BadKey { rank, why: format!("{refused} ({why})"), source: None }
                    }
                    // The peer ended it, and is alive to tell why.
                    Why::Ended if self.alive(way).is_ok() => FabricError::System {
                        what: format!("the connection to rank {rank} has ended"),
                        source: io::Error::new(
                            io::ErrorKind::ConnectionAborted,
                            "that rank has given it up, and says why: mostly it accessed memory of this rank that is not \
                             registered any more, or never was",
                        ),
                    },
                    // Whoever died or left may be known a moment later.
                    _ => match self.alive_soon(way) {
                        Err(gone) => gone,
                        Ok(()) => self.unreachable(way, why),
                    },
                }
            }
        }
    }

    fn alive_soon(&self, way: Way) -> Result<(), FabricError> {
        for _ in 0..20 {
            self.exchange.check_peers(Awaited::Rank(way.rank))?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Tells the others, once, that this rank cannot keep what they rely on.
    fn fail_once(&self) {
        if !self.failed.swap(true, Relaxed) {
            tracing::error!(rank = self.exchange.rank(), "this rank cannot go on; telling the others");
            self.exchange.fail();
        }
    }

    /// The network fails between two that live: the rest of the job is told, once.
    pub fn unreachable(&self, way: Way, why: String) -> FabricError {
        self.fail_once();
        let (rail, me) = (&self.core_of(way).rail, self.exchange.rank());
        let (device, port) = (rail.name(), rail.port());
        let (kind, whose) = match rail.health.port_down() {
            true => (io::ErrorKind::NetworkDown, "the link of this port is down"),
            false => (io::ErrorKind::TimedOut, "is the link down, or a host?"),
        };
        let what =
            format!("rank {} cannot be reached from rank {me} by RDMA device {device}, port {port}; {whose}", way.rank);
        FabricError::System { what, source: io::Error::new(kind, why) }
    }
}
