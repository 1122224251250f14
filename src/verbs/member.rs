//! A rank of a job or team: how its operations get from the call to the adapter and back.

use super::bootstrap::{Bootstrap, Node};
use super::connect::{Core, Endpoint};
use super::deferred::{Deferred, Ledger};
use super::engine::{Engine, Full, Lent, Link, Place, Stop, Verb};
use super::memory::Slot;
use super::wait::Patience;
use ibverbs_sys::ibv_wc_status as status;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transom_locks::{Awaited, Rank};
use transom_windows::FabricError;

/// How often whoever waits for a connection looks whether that is vain.
const ROUND: Duration = Duration::from_millis(100);
/// How long after a death a rank still tries to reach the others.
const OTHERS_LEAVE: Duration = Duration::from_secs(2);
/// How often it looks at the port.
const PORT_EVERY: Duration = Duration::from_secs(1);
/// After how long without a link a peer cannot be reached.
const DOWN: Duration = Duration::from_secs(5);
/// After how long without a completion an operation is given up, once somebody has died or left; else after twice that.
const UNSERVED: Duration = Duration::from_secs(10);
/// How long a rank that leaves waits for what it put before.
const DRAIN: Duration = Duration::from_secs(5);

/// How long a rank that leaves keeps its memory for others after a death.
const AFTER_DEATH: Duration = Duration::from_secs(1);

/// One rank's membership of a job or team.
pub(super) struct Member {
    pub endpoint: Arc<Endpoint>,
    pub exchange: Arc<dyn Bootstrap>,
    pub node: Node,
    /// Ranks of the job, by ranks of this team.
    pub peers: Box<[usize]>,
    /// Whether data goes through the memory that ranks of one host share.
    pub hybrid: bool,
    /// What ranks of this team keep for each other.
    pub ledger: Ledger,
    /// What teams that are gone kept.
    pub inherited: Mutex<Vec<Deferred>>,
    /// A team keeps the job that it was made in.
    pub parent: Option<Arc<Member>>,
}

/// Where operations go: a rank (in the numbers of the team), and the peer whose queue pair leads there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub rank: Rank,
    pub peer: usize,
}

impl Member {
    pub fn core(&self) -> &Core {
        &self.endpoint.core
    }

    fn patience(&self) -> Patience {
        Patience::new(self.node.ranks())
    }

    /// Repeats `attempt` until it gives something, letting completions in before each.
    #[inline]
    pub fn until<R>(
        &self,
        way: Way,
        mut attempt: impl FnMut(&mut Engine) -> Result<Option<R>, Stop>,
    ) -> Result<R, FabricError> {
        let (mut patience, mut silence) = (self.patience(), None);
        loop {
            let mut engine = self.core().engine();
            engine.progress();
            let attempted = match engine.peers[way.peer].failure {
                Some(_) => Err(Stop::Failed),
                None => attempt(&mut engine),
            };
            drop(engine);
            match attempted {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(stop) => return Err(self.why(way, stop)),
            }
            if patience.pause() {
                self.alive(way)?;
                self.served(way, &mut silence)?;
            }
        }
    }

    /// An error if nothing was completed for long: not every adapter tells that nobody answers any more (Soft-RoCE sends
    /// again for ever where the retry count is 7). A peer that is stopped is no reason, since its adapter answers. Sooner
    /// if somebody left or died: then ranks leave without waiting for this one.
    fn served(&self, way: Way, silence: &mut Option<(u64, Instant)>) -> Result<(), FabricError> {
        let gone = self.exchange.check_peers(Awaited::Rank(way.rank)).err();
        let mut engine = self.core().engine();
        if let Some(FabricError::PeerDied { rank }) = gone {
            // Room that it will never give back may be all that this one waits for.
            engine.give_up(self.peers[rank]);
        }
        let (posted, completed) = (engine.peers[way.peer].posted, engine.peers[way.peer].completed);
        match *silence {
            _ if posted <= completed => *silence = None,
            Some((before, since)) if before == completed => {
                if since.elapsed() > if gone.is_some() { UNSERVED } else { 2 * UNSERVED } {
                    engine.give_up(way.peer);
                    drop(engine);
                    return Err(gone.unwrap_or_else(|| {
                        self.unreachable(way, format!("its adapter has acknowledged nothing for {:?}", 2 * UNSERVED))
                    }));
                }
            }
            _ => {
                // Else the room that it waits for may be another peer's, and of this one nothing is told.
                let _ = engine.ask_completion(way.peer);
                *silence = Some((completed, Instant::now()));
            }
        }
        Ok(())
    }

    /// An error if the rank itself has died: of what others' deaths mean, this operation knows nothing. One that left
    /// keeps its memory until all have.
    fn alive(&self, way: Way) -> Result<(), FabricError> {
        match self.exchange.check_peers(Awaited::Rank(way.rank)) {
            Err(FabricError::PeerDied { rank }) if rank == way.rank => {
                self.core().died(way.peer);
                Err(FabricError::PeerDied { rank })
            }
            _ => Ok(()),
        }
    }

    /// The connection to a peer, made if there is none. A peer that does not answer is waited for while the job says that
    /// it lives and the port is up: it may be stopped.
    pub fn connect(&self, way: Way) -> Result<(), FabricError> {
        let (core, began, mut down) = (self.core(), Instant::now(), None);
        let mut look = began + PORT_EVERY;
        let mut link = core.want(way.peer);
        loop {
            match link {
                Link::Ready => return Ok(()),
                Link::Refused { by_peer, errno } => {
                    let whose = if by_peer { format!("rank {}", way.rank) } else { "this rank".into() };
                    let what = format!("no connection to rank {}: the RDMA device of {whose} refuses", way.rank);
                    return Err(FabricError::System { what, source: io::Error::from_raw_os_error(errno) });
                }
                Link::Absent => link = core.want(way.peer),
                Link::Wanted => link = core.await_connection(way.peer, ROUND),
            }
            if link != Link::Wanted {
                continue;
            }
            self.alive(way)?;
            if began.elapsed() > OTHERS_LEAVE {
                // Left, or somebody died, so that the others leave too.
                self.exchange.check_peers(Awaited::Rank(way.rank))?;
            }
            if Instant::now() < look {
                continue;
            }
            look = Instant::now() + PORT_EVERY;
            match core.device.port_is_up() {
                Ok(()) => down = None,
                Err(why) if down.get_or_insert_with(Instant::now).elapsed() > DOWN => {
                    return Err(self.unreachable(way, why.to_string()));
                }
                Err(_) => {}
            }
        }
    }

    /// Posts a verb once there is room and what was ordered before has been done; returns its number.
    pub fn post(
        &self,
        way: Way,
        ordered: bool,
        mut post: impl FnMut(&mut Engine) -> Result<Result<u64, Full>, Stop>,
    ) -> Result<u64, FabricError> {
        // Mostly nothing stands in the way.
        {
            let mut engine = self.core().engine();
            if engine.is_clear(way.peer, ordered)
                && let Ok(Ok(number)) = post(&mut engine)
            {
                return Ok(number);
            }
        }
        self.connect(way)?;
        if ordered {
            self.await_order(way)?;
        }
        self.until(way, |engine| Ok(post(engine)?.ok()))
    }

    /// Waits for what must be seen before a verb of this peer.
    fn await_order(&self, way: Way) -> Result<(), FabricError> {
        loop {
            let mut engine = self.core().engine();
            let Engine { peers, ordered, .. } = &mut *engine;
            ordered.retain(|&peer| peers[peer as usize].ordered > peers[peer as usize].completed);
            let Some(peer) = ordered.iter().map(|&peer| peer as usize).find(|&peer| peer != way.peer) else {
                return Ok(());
            };
            let number = peers[peer].ordered;
            drop(engine);
            let rank = self.peers.iter().position(|&of| of == peer).unwrap_or(way.rank);
            self.complete(Way { rank, peer }, number)?;
        }
    }

    /// Waits until the request of that number, and all before it, are complete.
    pub fn complete(&self, way: Way, number: u64) -> Result<(), FabricError> {
        self.completed(way, number, |_| ())
    }

    /// The same; then takes what it brought.
    fn completed<R>(&self, way: Way, number: u64, mut take: impl FnMut(&mut Engine) -> R) -> Result<R, FabricError> {
        self.until(way, |engine| {
            if engine.peers[way.peer].completed >= number {
                return Ok(Some(take(engine)));
            }
            engine.ask_completion(way.peer)?;
            Ok(None)
        })
    }

    /// Writes bytes, which may be used again when this returns.
    pub fn write(&self, way: Way, to: Place, source: &[u8]) -> Result<(), FabricError> {
        let mut to = to;
        for piece in source.chunks(super::engine::BOUNCE_BYTES) {
            self.post(way, true, |engine| engine.write(way.peer, to, piece))?;
            to.address += piece.len() as u64;
        }
        Ok(())
    }

    /// Reads bytes; several pieces at once.
    pub fn read(&self, way: Way, from: Place, into: &mut [u8]) -> Result<(), FabricError> {
        const AT_ONCE: usize = 8;
        let mut from = from;
        for window in into.chunks_mut(AT_ONCE * super::engine::BOUNCE_BYTES) {
            let mut under_way: [Option<(u64, Slot)>; AT_ONCE] = [None; AT_ONCE];
            let mut posted = Ok(());
            for (piece, reading) in window.chunks(super::engine::BOUNCE_BYTES).zip(&mut under_way) {
                match self.start_read(way, from, piece.len()) {
                    Ok(started) => *reading = Some(started),
                    Err(error) => {
                        posted = Err(error);
                        break;
                    }
                }
                from.address += piece.len() as u64;
            }
            for (piece, reading) in window.chunks_mut(super::engine::BOUNCE_BYTES).zip(under_way) {
                let Some((number, slot)) = reading else { continue };
                let read = self.completed(way, number, |engine| {
                    engine.bounce.read(slot, piece);
                    engine.bounce.give(slot);
                });
                if let Err(error) = read {
                    self.core().engine().abandon(way.peer, number, Lent::Bounce(slot));
                    posted = posted.and(Err(error));
                }
            }
            posted?;
        }
        Ok(())
    }

    fn start_read(&self, way: Way, from: Place, len: usize) -> Result<(u64, Slot), FabricError> {
        let mut taken = None;
        let number = self.post(way, false, |engine| {
            let slot = engine.bounce.take()?;
            let piece = engine.bounce.piece(slot, len);
            let posted = engine.post_signalled(way.peer, Verb::Read, from, piece);
            match &posted {
                Ok(Ok(_)) => taken = Some(slot),
                _ => engine.bounce.give(slot),
            }
            Ok(posted?)
        })?;
        Ok((number, taken.expect("it was posted with a slot")))
    }

    /// Starts an atomic; the cell is where its result comes.
    pub fn start_atomic(&self, way: Way, verb: Verb, at: Place) -> Result<(u64, Slot), FabricError> {
        let mut taken = None;
        let number = self.post(way, true, |engine| {
            let slot = engine.cells.take()?;
            let piece = engine.cells.piece(slot, 8);
            let posted = engine.post_signalled(way.peer, verb, at, piece);
            match &posted {
                Ok(Ok(_)) => taken = Some(slot),
                _ => engine.cells.give(slot),
            }
            Ok(posted?)
        })?;
        Ok((number, taken.expect("it was posted with a slot")))
    }

    /// The result of an atomic.
    pub fn finish_atomic(&self, way: Way, number: u64, cell: Slot) -> Result<u64, FabricError> {
        let finished = self.completed(way, number, |engine| {
            let mut result = [0; 8];
            engine.cells.read(cell, &mut result);
            engine.cells.give(cell);
            u64::from_ne_bytes(result)
        });
        finished.inspect_err(|_| self.core().engine().abandon(way.peer, number, Lent::Cell(cell)))
    }

    pub fn atomic(&self, way: Way, verb: Verb, at: Place) -> Result<u64, FabricError> {
        let (number, cell) = self.start_atomic(way, verb, at)?;
        self.finish_atomic(way, number, cell)
    }

    /// Puts a word in one piece, towards readers and atomics.
    pub fn swap(&self, way: Way, at: Place, value: u64, guess: u64) -> Result<(), FabricError> {
        let mut guess = guess;
        loop {
            match self.atomic(way, Verb::CompareAndSwap { expected: guess, new: value }, at)? {
                found if found == guess => return Ok(()),
                found => guess = found,
            }
        }
    }

    /// Returns when all that was posted to a peer is complete.
    pub fn flush(&self, way: Way) -> Result<(), FabricError> {
        let mut last = None;
        self.until(way, |engine| {
            let of = &engine.peers[way.peer];
            let complete = of.completed >= *last.get_or_insert(of.posted);
            if !complete {
                engine.ask_completion(way.peer)?;
            }
            Ok(complete.then_some(()))
        })
    }

    /// Has the completion of what was posted told, so that several flushes wait at once.
    pub fn start_flush(&self, way: Way) -> Result<(), FabricError> {
        let asked = self.core().engine().ask_completion(way.peer);
        asked.map_err(|source| self.why(way, Stop::Post(source)))
    }

    /// What was posted to a peer is to be complete before a verb to another.
    pub fn order(&self, way: Way) -> Result<(), FabricError> {
        let mut engine = self.core().engine();
        let of = &mut engine.peers[way.peer];
        if of.failure.is_some() {
            drop(engine);
            return Err(self.why(way, Stop::Failed));
        }
        if of.posted > of.completed {
            of.ordered = of.posted;
            if !engine.ordered.contains(&(way.peer as u32)) {
                engine.ordered.push(way.peer as u32);
            }
        }
        Ok(())
    }

    /// An error if a connection failed whose peer has not left: what it was told may never have reached it.
    pub fn unheard(&self) -> Result<(), FabricError> {
        let failed = {
            let mut engine = self.core().engine();
            engine.progress();
            engine.peers.iter().position(|peer| peer.failure.is_some())
        };
        match failed.and_then(|peer| Some((self.peers.iter().position(|&of| of == peer)?, peer))) {
            Some((rank, peer)) => match self.why(Way { rank, peer }, Stop::Failed) {
                FabricError::PeerLeft { .. } => Ok(()),
                error => Err(error),
            },
            None => Ok(()),
        }
    }

    #[cold]
    fn why(&self, way: Way, stop: Stop) -> FabricError {
        let rank = way.rank;
        match stop {
            Stop::Memory(source) => FabricError::System {
                what: format!("memory for an operation on rank {rank}"),
                source: io::Error::other(source),
            },
            Stop::Post(source) => {
                FabricError::System { what: format!("an operation on rank {rank} could not be started"), source }
            }
            Stop::Failed => {
                let failure = self.core().engine().peers[way.peer].failure.clone();
                let code = failure.as_ref().map_or(status::IBV_WC_GENERAL_ERR, |failure| failure.status);
                let why = self.core().device.library.status(code);
                match code {
                    status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_REM_INV_REQ_ERR | status::IBV_WC_REM_OP_ERR => {
                        let refused = "its adapter refuses the access, and ends the connection: the memory is no longer \
                                       registered, or never was under this key";
                        FabricError::BadKey { rank, why: format!("{refused} ({why})"), source: None }
                    }
                    // The peer ended it, and is alive to tell why.
                    status::IBV_WC_WR_FLUSH_ERR if self.alive(way).is_ok() => FabricError::System {
                        what: format!("the connection to rank {rank} has ended"),
                        source: io::Error::new(
                            io::ErrorKind::ConnectionAborted,
                            "it accessed memory of this rank that is not registered any more, or never was",
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

    /// The network fails between two that live: the rest of the job is told, once.
    fn unreachable(&self, way: Way, why: String) -> FabricError {
        let core = self.core();
        let tell = match &mut core.engine().peers[way.peer].failure {
            Some(failure) => !std::mem::replace(&mut failure.told, true),
            None => true,
        };
        if tell {
            tracing::error!(rank = way.rank, why, "a rank cannot be reached; telling the others");
            self.exchange.fail();
        }
        let (device, port) = (&core.device.name, core.device.port);
        FabricError::System {
            what: format!(
                "rank {} cannot be reached from rank {} by RDMA device {device}, port {port}; is the link down, or a \
                 host?",
                way.rank,
                self.exchange.rank()
            ),
            source: io::Error::new(io::ErrorKind::TimedOut, why),
        }
    }
}

impl Member {
    /// Returns when what was put before has arrived, or its target has gone.
    fn drain(&self) {
        let core = self.core();
        let began = Instant::now();
        let mut patience = self.patience();
        loop {
            let mut engine = core.engine();
            engine.progress();
            let peers = 0..engine.peers.len();
            let busy = peers.clone().find(|&peer| engine.peers[peer].completed < engine.peers[peer].posted);
            for peer in peers {
                let _ = engine.ask_completion(peer);
            }
            drop(engine);
            let Some(peer) = busy else { return };
            let rank = self.peers.iter().position(|&of| of == peer);
            let gone = || rank.is_some_and(|rank| self.exchange.check_peers(Awaited::Rank(rank)).is_err());
            if patience.pause() && gone() || began.elapsed() > DRAIN {
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
            Some(parent) => {
                let mut inherited = parent.inherited.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                inherited.append(self.inherited.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner()));
                inherited.extend(self.ledger.close());
            }
            None => {
                self.exchange.leave();
                self.linger();
            }
        }
    }
}
