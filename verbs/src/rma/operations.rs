//! How an operation gets from the call to the adapter and back.

use super::failure::Halt;
use super::far::Far;
use super::member::{Member, Way};
use super::paths::Stripes;
use super::under_way::{UnderWay, lost_result};
use crate::connect::{LaneQueue, Link};
use crate::endpoint::Endpoints;
use crate::lane::{Lane, Signal, Stop};
use crate::memory::Lent;
use crate::wr::{Piece, Place, Verb};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_windows::FabricError;

/// How often whoever waits for a connection looks whether that is vain.
const ROUND: Duration = Duration::from_millis(100);
/// How long after a death a rank still tries to reach the others.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// After how long a port that is down will not come up in time.
const PORT_DOWN: Duration = Duration::from_secs(5);

pub(super) type RailLane = Lane<LaneQueue, Lent>;

impl Member {
    fn endpoints(&self) -> &Endpoints<LaneQueue, Lent> {
        &self.core().endpoints
    }

    /// The lane to a peer.
    ///
    /// # Panics
    /// Before there is one.
    pub fn lane(&self, way: Way) -> &RailLane {
        self.core_of(way).endpoints.lane(way.peer).expect("there is a connection")
    }

    /// Repeats `attempt` until it gives something, letting completions in before each.
    #[inline]
    pub fn until<R>(
        &self,
        way: Way,
        mut attempt: impl FnMut(&RailLane) -> Result<Option<R>, Halt>,
    ) -> Result<R, FabricError> {
        let (mut patience, mut silence, lane) = (self.patience(), None, self.lane(way));
        loop {
            self.progress();
            match attempt(lane) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(halt) => return Err(self.why(way, halt)),
            }
            let asks = patience.pause();
            if patience.is_long() {
                // The room that it waits for may be the peer's to give, who waits for this rank's.
                self.core().turn();
            }
            if asks {
                self.works()?;
                self.alive(way)?;
                if lane.is_broken() {
                    // How long that may take, who makes it knows: then the lane has ended.
                    self.core().want(way.peer);
                }
                self.served(way, &mut silence)?;
            }
        }
    }

    /// The connection to a peer, made if there is none. One that broke will be there, or have ended.
    #[inline]
    pub fn connect(&self, way: Way) -> Result<(), FabricError> {
        match self.endpoints().lane(way.peer) {
            Some(lane) => {
                if lane.is_broken() {
                    self.core().want(way.peer);
                }
                Ok(())
            }
            None => self.connect_first(way),
        }
    }

    /// A peer that does not answer is waited for while the job says that it lives and the port is up: it may be stopped.
    #[cold]
    fn connect_first(&self, way: Way) -> Result<(), FabricError> {
        let (core, began, mut down) = (self.core(), Instant::now(), None);
        let mut link = core.want(way.peer);
        loop {
            link = match link {
                Link::Ready => return Ok(()),
                Link::Refused { by_peer, errno } => {
                    let whose = if by_peer { format!("rank {}", way.rank) } else { "this rank".into() };
                    let what = format!("no connection to rank {}: the RDMA device of {whose} refuses", way.rank);
                    return Err(FabricError::System { what, source: std::io::Error::from_raw_os_error(errno) });
                }
                Link::Absent => core.want(way.peer),
                Link::Wanted => {
                    core.turn();
                    core.await_connection(way.peer, ROUND)
                }
            };
            if link != Link::Wanted {
                continue;
            }
            self.works()?;
            self.alive(way)?;
            if began.elapsed() > OTHERS_LEAVE {
                // Left, or somebody died, so that the others leave too.
                self.exchange.check_peers(Awaited::Rank(way.rank))?;
            }
            if !core.rail.health.port_down() {
                down = None;
            } else if down.get_or_insert_with(Instant::now).elapsed() > PORT_DOWN {
                return Err(self.unreachable(way, "it does not answer".into()));
            }
        }
    }

    /// Posts a verb once there is room and what was ordered before has been done; returns its number.
    pub fn post(
        &self,
        way: Way,
        ordered: bool,
        mut post: impl FnMut(&RailLane) -> Result<Option<u64>, Halt>,
    ) -> Result<u64, FabricError> {
        // Mostly nothing stands in the way.
        if self.paths.is_none()
            && let Some(lane) = self.endpoints().lane(way.peer)
            && (!ordered || self.endpoints().before(way.peer).is_none())
            && let Ok(Some(number)) = post(lane)
        {
            return Ok(number);
        }
        self.connect(way)?;
        if ordered {
            self.await_order(way)?;
        }
        self.behind_stripes(way, if ordered { Stripes::Read } else { Stripes::Written })?;
        let number = self.until(way, post)?;
        self.note_posted(way, ordered, number);
        Ok(number)
    }

    /// Waits for what must be seen before a verb of this peer.
    pub fn await_order(&self, way: Way) -> Result<(), FabricError> {
        while let Some((peer, number)) = self.endpoints().before(way.peer) {
            self.complete(self.way_to(peer).unwrap_or(Way { rank: way.rank, peer, rail: 0 }), number)?;
        }
        Ok(())
    }

    /// Waits until the request of that number, and all before it, are complete. Number 0 is none: then there may be no lane either.
    pub fn complete(&self, way: Way, number: u64) -> Result<(), FabricError> {
        if number == 0 {
            return Ok(());
        }
        self.until(way, |lane| match lane.is_complete(number) {
            Ok(true) => Ok(Some(())),
            Ok(false) => retry(lane.ask()).map(|_| None),
            Err(failure) => Err(Halt::Failed(failure)),
        })
    }

    /// Leaves something to the adapter until it is done with it, for somebody who walked away.
    pub fn abandon(&self, way: Way, number: u64, what: Lent) {
        self.lane(way).lend(number, what);
    }

    /// Posts a request that needs memory of this rank, which the caller keeps until it is complete, or [leaves](UnderWay) to the
    /// lane; returns its number.
    ///
    /// # Safety
    /// It does.
    pub unsafe fn post_for(
        &self,
        way: Way,
        ordered: bool,
        verb: Verb,
        at: Place,
        piece: Piece,
    ) -> Result<u64, FabricError> {
        self.post(way, ordered, |lane| {
            // SAFETY: by the caller's word.
            let posted = unsafe { lane.post(verb, at, piece, Signal::Always, None) };
            retry(posted.map_err(|(stop, _)| stop))
        })
    }

    /// Starts an atomic.
    ///
    /// # Errors
    /// Then nothing was started.
    pub fn start_atomic(self: &Arc<Self>, way: Way, verb: Verb, at: Place) -> Result<UnderWay, FabricError> {
        let cell = self.core().memory.cells.take().map_err(|error| self.why(way, Halt::Memory(error)))?;
        self.behind_stripes(way, Stripes::All)?;
        // SAFETY: what is returned keeps the memory, and leaves it to the lane if it is dropped sooner.
        let number = unsafe { self.post_for(way, true, verb, at, cell.piece(8)) }?;
        let mut under_way = UnderWay::new(self, way, Lent::Slot(cell));
        under_way.number = number;
        Ok(under_way)
    }

    /// Puts a word in one piece, towards readers and atomics.
    pub fn swap(self: &Arc<Self>, way: Way, at: Place, value: u64, guess: u64) -> Result<(), FabricError> {
        let mut guess = guess;
        loop {
            let swap = Verb::CompareAndSwap { expected: guess, new: value };
            let swapping = self.start_atomic(way, swap, at)?;
            if self.paths.is_some() {
                self.lane(way).spare(swapping.number);
            }
            match swapping.outcome()? {
                Some(found) if found == guess => return Ok(()),
                Some(found) => guess = found,
                None => {
                    // If it is there it was put; if not, whoever reads it may have changed it since.
                    let mut now = [0; 8];
                    self.read(Far::of(way, at), &mut now)?;
                    return if u64::from_ne_bytes(now) == value { Ok(()) } else { Err(lost_result(way)) };
                }
            }
        }
    }

    /// Returns when all that was posted to a peer is complete.
    pub fn flush(&self, way: Way) -> Result<(), FabricError> {
        let Some(lane) = self.endpoints().lane(way.peer) else { return Ok(()) };
        self.complete(way, lane.posted())?;
        lane.reclaim();
        self.complete_stripes(way)
    }

    /// Has the completion of what was posted told, so that several flushes wait at once.
    pub fn start_flush(&self, way: Way) -> Result<(), FabricError> {
        let asked = self.endpoints().lane(way.peer).map_or(Ok(()), |lane| lane.ask());
        retry(asked).map(drop).map_err(|halt| self.why(way, halt))
    }

    /// What was posted to a peer is to be complete before a verb of this thread to another.
    pub fn order(&self, way: Way) -> Result<(), FabricError> {
        if let Some(failure) = self.endpoints().lane(way.peer).and_then(Lane::failure) {
            return Err(self.why(way, Halt::Failed(failure)));
        }
        self.endpoints().mark(way.peer);
        self.complete_stripes(way)
    }
}

/// None where there is no room now, or no connection until it was made anew.
pub(super) fn retry<T>(posted: Result<T, Stop>) -> Result<Option<T>, Halt> {
    match posted {
        Ok(done) => Ok(Some(done)),
        Err(Stop::Full | Stop::Broken | Stop::Cut) => Ok(None),
        Err(Stop::Failed(failure)) => Err(Halt::Failed(failure)),
        Err(Stop::System(error)) => Err(Halt::System(error)),
    }
}
