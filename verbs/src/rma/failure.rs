//! Errors of operations that cannot continue.

use super::member::{Member, Way};
use crate::VerbsError;
use crate::wr::{Failure, Why};
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_windows::FabricError;

/// Time without a completion after which an operation fails; and the shorter time after a rank died or left.
pub(super) const UNSERVED: Duration = Duration::from_secs(20);
const UNSERVED_AFTER_DEATH: Duration = Duration::from_secs(10);

/// The reason why an operation stopped.
pub(super) enum Halt {
    Failed(Failure),
    System(io::Error),
    Memory(VerbsError),
}

impl Member {
    /// Fails if this rank's first rail is broken, because requests will not be reported complete. The other rails are
    /// covered by failover.
    pub fn works(&self) -> Result<(), FabricError> {
        let rail = &self.core().rail;
        let Some(broken) = rail.health.broken() else { return Ok(()) };
        self.fail_once();
        let what = format!("RDMA device {} of rank {}", rail.name(), self.exchange.rank());
        Err(FabricError::System { what, source: io::Error::new(io::ErrorKind::NotConnected, broken.to_string()) })
    }

    /// Fails if nothing has completed for [`UNSERVED`]. Not every adapter reports an unreachable peer: Soft-RoCE
    /// retransmits for ever with a retry count of 7. Where it is reported, the connection may be restored within that
    /// time. A stopped peer does not matter, because its adapter answers. The time is shorter once a rank has left or
    /// died, because then ranks leave without waiting for this one.
    pub fn served(&self, way: Way, silence: &mut Option<(u64, Instant)>) -> Result<(), FabricError> {
        let gone = self.exchange.check_peers(Awaited::Rank(way.rank)).err();
        if let Some(FabricError::PeerDied { rank }) = gone {
            // The operation may wait for resources that the dead rank will never return.
            self.give_up(self.peers[rank] as usize);
        }
        let lane = self.lane(way);
        let completed = lane.completed();
        match *silence {
            // While there is no queue, nothing is posted.
            _ if lane.is_idle() && (!lane.is_broken() || lane.is_dormant()) => *silence = None,
            Some((before, since)) if before == completed => {
                if since.elapsed() > if gone.is_some() { UNSERVED_AFTER_DEATH } else { UNSERVED } {
                    self.give_up(way.peer);
                    return Err(gone.unwrap_or_else(|| {
                        self.unreachable(way, format!("its adapter has acknowledged no request for {UNSERVED:?}"))
                    }));
                }
            }
            _ => {
                // If the operation waits for another peer's resources, no completion of this lane would be reported
                // otherwise.
                let _ = lane.ask();
                *silence = Some((completed, Instant::now()));
            }
        }
        Ok(())
    }

    /// Ends the lanes to a peer that is known to be gone.
    fn give_up(&self, peer: usize) {
        for lane in self.service.cores().filter_map(|core| core.endpoints.lane(peer)) {
            lane.give_up(Failure::known(Why::Gone));
        }
    }

    /// Fails if the rank itself has died; this operation ignores other deaths. A rank that left keeps its memory until
    /// all have left.
    pub fn alive(&self, way: Way) -> Result<(), FabricError> {
        match self.exchange.check_peers(Awaited::Rank(way.rank)) {
            Err(FabricError::PeerDied { rank }) if rank == way.rank => {
                self.service.cores().for_each(|core| core.died(way.peer));
                Err(FabricError::PeerDied { rank })
            }
            _ => Ok(()),
        }
    }

    /// Fails if a lane failed whose peer has not left: earlier requests may not have reached it.
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
                what: format!("registering memory for an operation on rank {rank}"),
                source: io::Error::other(source),
            },
            Halt::System(source) => {
                FabricError::System { what: format!("posting an operation on rank {rank}"), source }
            }
            Halt::Failed(failure) => {
                let why = self.core_of(way).rail.context().status(failure.status);
                match failure.why {
                    Why::Refused => {
                        let refused = "its adapter refused the access and ended the connection: the memory is no longer \
                                       registered, or never was under this key";
                        FabricError::BadKey { rank, why: format!("{refused} ({why})"), source: None }
                    }
                    // The peer ended the connection and is alive to report the reason.
                    Why::Ended if self.alive(way).is_ok() => FabricError::System {
                        what: format!("the connection to rank {rank} has ended"),
                        source: io::Error::new(
                            io::ErrorKind::ConnectionAborted,
                            "that rank ended it; see its error. The usual cause is an access to memory of this rank that is not \
                             registered any more, or never was",
                        ),
                    },
                    // The death or departure of the peer may become known a moment later.
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

    /// Reports to the other ranks, once, that this rank cannot continue.
    fn fail_once(&self) {
        if !self.failed.swap(true, Relaxed) {
            tracing::error!(rank = self.exchange.rank(), "this rank cannot continue; notifying the other ranks");
            self.exchange.fail();
        }
    }

    /// The error of a network failure between two live ranks. Notifies the other ranks, once.
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
