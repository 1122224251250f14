//! How an operation gets from the call to the adapter and back.

use super::failure::Halt;
use super::member::{Member, Way};
use crate::verbs::connect::Link;
use crate::verbs::endpoint::Endpoints;
use crate::verbs::lane::{Lane, Signal, Stop};
use crate::verbs::memory::Lent;
use crate::verbs::sys::QueuePair;
use crate::verbs::wr::{Piece, Place, Verb};
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

pub(super) type RailLane = Lane<QueuePair, Lent>;

/// Requests under way, and the memory of this rank that they need. Dropped, they leave it to the lane until they are complete.
pub(super) struct UnderWay {
    pub way: Way,
    /// Of the last; 0 if none was posted.
    pub number: u64,
    /// None once it was taken.
    pub memory: Option<Lent>,
    member: Arc<Member>,
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take().filter(|_| self.number > 0) {
            self.member.abandon(self.way, self.number, memory);
        }
    }
}

impl Member {
    fn endpoints(&self) -> &Endpoints<QueuePair, Lent> {
        &self.core().endpoints
    }

    /// The lane to a peer.
    ///
    /// # Panics
    /// Before there is one.
    pub fn lane(&self, way: Way) -> &RailLane {
        self.endpoints().lane(way.peer).expect("there is a connection")
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
            if patience.pause() {
                self.works()?;
                self.alive(way)?;
                self.served(way, &mut silence)?;
            }
        }
    }

    /// The connection to a peer, made if there is none.
    #[inline]
    pub fn connect(&self, way: Way) -> Result<(), FabricError> {
        match self.endpoints().lane(way.peer) {
            Some(_) => Ok(()),
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
                Link::Wanted => core.await_connection(way.peer, ROUND),
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
        if let Some(lane) = self.endpoints().lane(way.peer)
            && (!ordered || self.endpoints().before(way.peer).is_none())
            && let Ok(Some(number)) = post(lane)
        {
            return Ok(number);
        }
        self.connect(way)?;
        if ordered {
            self.await_order(way)?;
        }
        self.until(way, post)
    }

    /// Waits for what must be seen before a verb of this peer.
    fn await_order(&self, way: Way) -> Result<(), FabricError> {
        while let Some((peer, number)) = self.endpoints().before(way.peer) {
            self.complete(self.way_to(peer).unwrap_or(Way { rank: way.rank, peer }), number)?;
        }
        Ok(())
    }

    /// Waits until the request of that number, and all before it, are complete.
    pub fn complete(&self, way: Way, number: u64) -> Result<(), FabricError> {
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
        // SAFETY: what is returned keeps the memory, and leaves it to the lane if it is dropped sooner.
        let number = unsafe { self.post_for(way, true, verb, at, cell.piece(8)) }?;
        Ok(UnderWay { way, number, memory: Some(Lent::Slot(cell)), member: self.clone() })
    }

    /// Puts a word in one piece, towards readers and atomics.
    pub fn swap(self: &Arc<Self>, way: Way, at: Place, value: u64, guess: u64) -> Result<(), FabricError> {
        let mut guess = guess;
        loop {
            let swap = Verb::CompareAndSwap { expected: guess, new: value };
            match self.start_atomic(way, swap, at)?.word()? {
                found if found == guess => return Ok(()),
                found => guess = found,
            }
        }
    }

    /// Returns when all that was posted to a peer is complete.
    pub fn flush(&self, way: Way) -> Result<(), FabricError> {
        let Some(lane) = self.endpoints().lane(way.peer) else { return Ok(()) };
        self.complete(way, lane.posted())?;
        lane.reclaim();
        Ok(())
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
        Ok(())
    }
}

impl UnderWay {
    /// Nothing yet of what needs that memory.
    pub fn new(member: &Arc<Member>, way: Way, memory: Lent) -> Self {
        UnderWay { way, number: 0, memory: Some(memory), member: member.clone() }
    }

    /// Whether all is complete.
    pub fn is_done(&self) -> Result<bool, FabricError> {
        self.member.progress();
        let done = self.member.lane(self.way).is_complete(self.number);
        done.map_err(|failure| self.member.why(self.way, Halt::Failed(failure)))
    }

    /// Waits until it is; the memory.
    pub fn finish(mut self) -> Result<Lent, FabricError> {
        self.member.complete(self.way, self.number)?;
        Ok(self.memory.take().expect("taken once"))
    }

    /// The word that an atomic brings.
    pub fn word(self) -> Result<u64, FabricError> {
        let mut word = [0; 8];
        self.finish()?.read(&mut word);
        Ok(u64::from_ne_bytes(word))
    }
}

/// None where there is no room now.
pub(super) fn retry<T>(posted: Result<T, Stop>) -> Result<Option<T>, Halt> {
    match posted {
        Ok(done) => Ok(Some(done)),
        Err(Stop::Full) => Ok(None),
        Err(Stop::Failed(failure)) => Err(Halt::Failed(failure)),
        Err(Stop::System(error)) => Err(Halt::System(error)),
    }
}
