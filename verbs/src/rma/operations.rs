//! Execution of operations, from the call to the adapter and back.

use super::failure::Halt;
use super::far::Far;
use super::member::{Member, Way};
use super::paths::Stripes;
use super::under_way::{UnderWay, lost_result};
use crate::connect::{LaneQueue, Link, UNORDERED};
use crate::endpoint::Endpoints;
use crate::lane::{Lane, Signal, Stop};
use crate::memory::Lent;
use crate::wr::{Piece, RemoteAddress, Verb};
use std::sync::Arc;
use std::time::{Duration, Instant};
use transom_locks::Awaited;
use transom_windows::FabricError;

/// Interval between checks whether the wait for a connection is still useful.
const ROUND: Duration = Duration::from_millis(100);
/// Time after a death during which a rank still tries to reach others.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// Time after which a port that is down is not expected to recover.
const PORT_DOWN: Duration = Duration::from_secs(5);

pub(super) type RailLane = Lane<LaneQueue, Lent>;

impl Member {
    fn endpoints(&self) -> &Endpoints<LaneQueue, Lent> {
        &self.core().endpoints
    }

    /// The lane to a peer.
    ///
    /// # Panics
    /// If there is no lane yet.
    pub fn lane(&self, way: Way) -> &RailLane {
        self.core_of(way).endpoints.lane(way.peer).expect("the peer is connected")
    }

    /// Repeats `attempt` until it returns a value, polling for completions before each attempt.
    #[inline]
    pub fn until<R>(
        &self,
        way: Way,
        mut attempt: impl FnMut(&RailLane) -> Result<Option<R>, Halt>,
    ) -> Result<R, FabricError> {
        let (mut backoff, mut silence, lane) = (self.backoff(), None, self.lane(way));
        loop {
            self.progress();
            match attempt(lane) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(halt) => return Err(self.why(way, halt)),
            }
            let asks = backoff.pause();
            if backoff.is_long() {
                // The operation may wait for the peer, which in turn may wait for this rank's messages.
                self.core().progress();
            }
            if asks {
                self.works()?;
                self.alive(way)?;
                if lane.is_broken() {
                    // The connecting thread decides how long to try; then the lane fails.
                    self.connect(way)?;
                }
                self.served(way, &mut silence)?;
            }
        }
    }

    /// Ensures that there is a lane to a peer. A broken lane is being restored, or fails. A dormant lane is connected.
    #[inline]
    pub fn connect(&self, way: Way) -> Result<(), FabricError> {
        match self.endpoints().lane(way.peer) {
            Some(lane) if !lane.is_dormant() => {
                if lane.is_broken() {
                    self.core().want(way.peer);
                }
                Ok(())
            }
            _ => self.connect_anew(way),
        }
    }

    /// Makes the first connection, or another one after an idle one was given up. Waits for a silent peer as long as the
    /// job reports it alive and the port is up, because it may be stopped. Fails if its process runs and no datagram of
    /// the peer arrives.
    #[cold]
    fn connect_anew(&self, way: Way) -> Result<(), FabricError> {
        let (core, began, mut down) = (self.core(), Instant::now(), None);
        let mut link = core.want(way.peer);
        loop {
            link = match link {
                Link::Ready => return Ok(()),
                Link::Unreached => return Err(self.unreachable(way, core.unreached(way.peer))),
                Link::Refused { errno, .. } if errno == UNORDERED.raw_os_error() => {
                    let what = format!("cannot connect to rank {}", way.rank);
                    let why = "the adapter promises ordered writes to itself, but not on this connection; set \
                               TRANSOM_VERBS_WORD_WRITE=atomic at all ranks";
                    return Err(FabricError::System { what, source: std::io::Error::other(why) });
                }
                Link::Refused { by_peer, errno } => {
                    let (what, source) = core.refusal([self.exchange.rank(), way.rank], by_peer, errno);
                    return Err(FabricError::System { what, source });
                }
                Link::Absent => core.want(way.peer),
                Link::Wanted => {
                    core.progress();
                    core.await_connection(way.peer, ROUND)
                }
            };
            if link != Link::Wanted {
                continue;
            }
            self.works()?;
            self.alive(way)?;
            if began.elapsed() > OTHERS_LEAVE {
                // The peer has left, or a rank died, so that the others leave too.
                self.exchange.check_peers(Awaited::Rank(way.rank))?;
            }
            if !core.rail.health.port_down() {
                down = None;
            } else if down.get_or_insert_with(Instant::now).elapsed() > PORT_DOWN {
                return Err(self.unreachable(way, "the peer does not answer".into()));
            }
        }
    }

    /// Posts a verb once the lane has capacity and earlier ordered operations are complete; returns its number.
    pub fn post(
        &self,
        way: Way,
        ordered: bool,
        mut post: impl FnMut(&RailLane) -> Result<Option<u64>, Halt>,
    ) -> Result<u64, FabricError> {
        // Fast path: nothing to wait for.
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

    /// Waits for operations that must precede a verb to this peer.
    pub fn await_order(&self, way: Way) -> Result<(), FabricError> {
        while let Some((peer, number)) = self.endpoints().before(way.peer) {
            self.complete(self.way_to(peer).unwrap_or(Way { rank: way.rank, peer, rail: 0 }), number)?;
        }
        Ok(())
    }

    /// Waits until the request of that number and all earlier ones are complete. Number 0 means no request; there may
    /// be no lane then.
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

    /// Leaves an object to the lane until the request is complete, for a caller that stopped waiting.
    pub fn abandon(&self, way: Way, number: u64, what: Lent) {
        self.lane(way).lend(number, what);
    }

    /// Posts a request on memory of this rank; returns its number.
    ///
    /// # Safety
    /// The caller must keep the memory until the request is complete, or [leave](UnderWay) it to the lane.
    pub unsafe fn post_for(
        &self,
        way: Way,
        ordered: bool,
        verb: Verb,
        at: RemoteAddress,
        piece: Piece,
    ) -> Result<u64, FabricError> {
        self.post(way, ordered, |lane| {
            // SAFETY: caller's contract.
            let posted = unsafe { lane.post(verb, at, piece, Signal::Always, None) };
            retry(posted.map_err(|(stop, _)| stop))
        })
    }

    /// Starts an atomic.
    ///
    /// # Errors
    /// On error nothing was started.
    pub fn start_atomic(self: &Arc<Self>, way: Way, verb: Verb, at: RemoteAddress) -> Result<UnderWay, FabricError> {
        let cell = self.core().memory.cells.take().map_err(|error| self.why(way, Halt::Memory(error)))?;
        self.behind_stripes(way, Stripes::All)?;
        // SAFETY: the result keeps the memory, and leaves it to the lane if it is dropped early.
        let number = unsafe { self.post_for(way, true, verb, at, cell.piece(8)) }?;
        let mut under_way = UnderWay::new(self, way, Lent::Slot(cell));
        under_way.number = number;
        Ok(under_way)
    }

    /// Writes a word as one unit with respect to readers and atomics, by compare-and-swap.
    pub fn swap(self: &Arc<Self>, way: Way, at: RemoteAddress, value: u64, guess: u64) -> Result<(), FabricError> {
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
                    // If the word has the value, the swap took effect. If not, it may have taken effect and have been
                    // changed since.
                    let mut now = [0; 8];
                    self.read(Far::of(way, at), &mut now)?;
                    return if u64::from_ne_bytes(now) == value { Ok(()) } else { Err(lost_result(way)) };
                }
            }
        }
    }

    /// Waits until all requests posted to a peer are complete.
    pub fn flush(&self, way: Way) -> Result<(), FabricError> {
        let Some(lane) = self.endpoints().lane(way.peer) else { return Ok(()) };
        self.complete(way, lane.posted())?;
        lane.reclaim();
        self.complete_stripes(way)
    }

    /// Requests a completion of all posted requests, so that several flushes overlap.
    pub fn start_flush(&self, way: Way) -> Result<(), FabricError> {
        let asked = self.endpoints().lane(way.peer).map_or(Ok(()), |lane| lane.ask());
        retry(asked).map(drop).map_err(|halt| self.why(way, halt))
    }

    /// Orders the requests posted to a peer before this thread's next verb to another.
    pub fn order(&self, way: Way) -> Result<(), FabricError> {
        if let Some(failure) = self.endpoints().lane(way.peer).and_then(Lane::failure) {
            return Err(self.why(way, Halt::Failed(failure)));
        }
        self.endpoints().mark(way.peer);
        self.complete_stripes(way)
    }
}

/// Maps temporary obstacles to `None`: a full queue, or a connection that is being restored.
pub(super) fn retry<T>(posted: Result<T, Stop>) -> Result<Option<T>, Halt> {
    match posted {
        Ok(done) => Ok(Some(done)),
        Err(Stop::Full | Stop::Broken | Stop::Cut) => Ok(None),
        Err(Stop::Failed(failure)) => Err(Halt::Failed(failure)),
        Err(Stop::System(error)) => Err(Halt::System(error)),
    }
}
