//! What is under way: one queue pair for each peer, made on first use, one completion queue for all, and an account of what
//! was posted and what is complete.
//!
//! Requests of a queue pair complete in order. So each has a number, the completion of one tells that of all before it,
//! and most need not be signalled. What lends memory to the adapter is remembered with the number behind which it is free.

use super::VerbsError;
use super::counts::WorkRequests;
use super::device::Device;
use super::library;
use super::memory::{Buffer, Slot, Slots};
use super::queue::{CompletionQueue, QueuePair};
use super::settings::Settings;
use ibverbs_sys::*;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Bytes of a piece in which puts and gets that do not fit their requests travel.
pub(super) const BOUNCE_BYTES: usize = 32 << 10;
/// As many pieces are kept for puts: 1 MiB, since little memory may be locked.
const BOUNCE_BUFFERS: usize = 32;
/// Results of atomics.
const CELLS: usize = 512;

/// Whether requests to a peer can be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Link {
    /// Nobody here has asked for a connection.
    Absent,
    /// Somebody waits for one.
    Wanted,
    /// Both ends are connected.
    Ready,
    /// There is none, since an adapter refused: this rank's, or the peer's.
    Refused { by_peer: bool, errno: i32 },
}

/// Why a connection is gone.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub status: ibv_wc_status::Type,
    /// Whether it was looked into, and told to whom it concerns.
    pub told: bool,
}

/// Why an operation cannot go on: the connection is gone, or the system refused.
pub(super) enum Stop {
    Failed,
    Post(io::Error),
    Memory(VerbsError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Post(error)
    }
}

impl From<VerbsError> for Stop {
    fn from(error: VerbsError) -> Self {
        Stop::Memory(error)
    }
}

/// This rank's side of what it has to do with another, or with itself.
pub(super) struct Peer {
    /// Once it is connected.
    pub queue: Option<QueuePair>,
    pub link: Link,
    /// Of the queue pair: what is posted belongs to it, and does not complete once the queue pair has gone.
    generation: u32,
    /// Requests posted so far; the number of the last.
    pub posted: u64,
    /// The last that is known to be complete.
    pub completed: u64,
    signalled: u64,
    /// The last read that was posted.
    read: u64,
    /// What must be complete before a verb elsewhere.
    pub ordered: u64,
    pub failure: Option<Failure>,
    /// Lent for requests, by number.
    lent: VecDeque<(u64, Lent)>,
}

impl Peer {
    fn give_up(&mut self, status: ibv_wc_status::Type) {
        self.failure = Some(Failure { status, told: false });
        // With the queue pair goes whatever the adapter might still have done with memory of ours.
        self.queue = None;
        self.completed = self.posted;
    }

    /// What was lent for requests that are complete.
    fn take_back(&mut self, bounce: &mut Slots, cells: &mut Slots) {
        while self.lent.front().is_some_and(|(number, _)| *number <= self.completed) {
            match self.lent.pop_front() {
                Some((_, Lent::Bounce(slot))) => bounce.give(slot),
                Some((_, Lent::Cell(slot))) => cells.give(slot),
                Some((_, Lent::Buffer(_))) | None => {}
            }
        }
    }
}

/// What an operation lends to the adapter and nobody waits for.
pub(super) enum Lent {
    Bounce(Slot),
    Cell(Slot),
    Buffer(#[allow(dead_code, reason = "freed when dropped")] Buffer),
}

/// The order of fields is that in which they are to go.
pub(super) struct Engine {
    pub peers: Box<[Peer]>,
    pub maker: Maker,
    pub bounce: Slots,
    pub cells: Slots,
    /// Peers with something that must be complete before a verb elsewhere.
    pub ordered: Vec<u32>,
    /// Queue pairs connected so far.
    pub made: usize,
    /// Posted so far.
    pub to_others: WorkRequests,
    pub to_itself: WorkRequests,
    me: usize,
}

/// Makes queue pairs to peers, which complete in the engine's queue; needs none of its state, and so no lock.
#[derive(Clone)]
pub(super) struct Maker {
    completions: Arc<CompletionQueue>,
    capacity: ibv_qp_cap,
    device: Arc<Device>,
}

impl Maker {
    /// A queue pair that is not yet connected.
    pub fn make(&self) -> Result<QueuePair, VerbsError> {
        let kind = ibv_qp_type::IBV_QPT_RC;
        let queue = QueuePair::new(&self.device, &self.completions, &self.completions, kind, self.capacity)?;
        queue.initialise()?;
        Ok(queue)
    }
}

/// What is to be done at the far end.
#[derive(Clone, Copy)]
pub(super) enum Verb {
    Write,
    Read,
    CompareAndSwap { expected: u64, new: u64 },
    Add(u64),
}

impl WorkRequests {
    fn count(&mut self, verb: Verb, bytes: u32) {
        *match verb {
            Verb::Write if bytes == 0 => &mut self.markers,
            Verb::Write => &mut self.writes,
            Verb::Read => &mut self.reads,
            Verb::CompareAndSwap { .. } => &mut self.compare_and_swaps,
            Verb::Add(_) => &mut self.fetch_and_adds,
        } += 1;
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub address: u64,
    pub key: u32,
}

/// A request cannot be posted now: the queue is full.
pub(super) struct Full;

impl Engine {
    pub fn new(device: &Arc<Device>, settings: &Settings, me: usize, ranks: usize) -> Result<Self, VerbsError> {
        // Every request may complete with an error of its own: there is room for them all.
        let (most_completions, most_requests) =
            (device.limits.max_cqe.max(1) as u32, device.limits.max_qp_wr.max(4) as u32);
        let depth = settings.depth.min(most_requests);
        let entries = (ranks as u32).saturating_mul(depth).min(most_completions);
        let depth = depth.min((entries / ranks as u32).max(4));
        let completions = CompletionQueue::new(device, entries.max(16), std::ptr::null_mut())?;
        let capacity = ibv_qp_cap {
            max_send_wr: depth,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: settings.inline,
        };
        let peer = |_| Peer {
            queue: None,
            link: Link::Absent,
            generation: 0,
            posted: 0,
            completed: 0,
            signalled: 0,
            read: 0,
            ordered: 0,
            failure: None,
            lent: VecDeque::new(),
        };
        Ok(Engine {
            peers: (0..ranks).map(peer).collect(),
            maker: Maker { completions: Arc::new(completions), capacity, device: device.clone() },
            bounce: Slots::new(device, BOUNCE_BYTES, BOUNCE_BUFFERS),
            cells: Slots::new(device, 8, CELLS),
            ordered: Vec::new(),
            made: 0,
            to_others: WorkRequests::default(),
            to_itself: WorkRequests::default(),
            me,
        })
    }

    /// Takes a queue pair that was connected; requests are posted to it once the link is ready.
    pub fn install(&mut self, peer: usize, generation: u32, queue: QueuePair) {
        self.made += 1;
        (self.peers[peer].queue, self.peers[peer].generation) = (Some(queue), generation);
    }

    /// Whether there is the queue pair of that generation. It goes when a request fails.
    pub fn has(&self, peer: usize, generation: u32) -> bool {
        self.peers[peer].queue.is_some() && self.peers[peer].generation == generation
    }

    /// Gives up the queue pair to a peer that has gone on to the next generation, to be destroyed by the caller. What is
    /// under way there has failed: the peer's end does not answer any more.
    pub fn retire(&mut self, peer: usize) -> Option<QueuePair> {
        self.progress();
        let of = &mut self.peers[peer];
        if of.queue.is_some() && of.posted > of.completed {
            self.fail(peer, ibv_wc_status::IBV_WC_RETRY_EXC_ERR);
        }
        self.peers[peer].queue.take()
    }

    /// Takes note of what has completed.
    pub fn progress(&mut self) {
        let Engine { peers, maker, bounce, cells, .. } = self;
        maker.completions.poll(|completion| {
            let (peer, low) = ((completion.wr_id() >> 32) as usize, completion.wr_id() as u32);
            let of = &mut peers[peer];
            // Of a queue pair that has gone: what was posted there was settled then.
            if of.queue.as_ref().is_none_or(|queue| queue.number() != completion.qp_num) {
                return;
            }
            match completion.error() {
                None => {
                    // The low half of its number, which is not before the last that completed.
                    let ahead = u64::from(low.wrapping_sub(of.completed as u32));
                    if ahead <= of.posted - of.completed {
                        of.completed += ahead;
                    }
                }
                Some((status, vendor)) if of.failure.is_none() => {
                    tracing::warn!(peer, status, vendor, request = low, "a request failed; the connection is gone");
                    of.give_up(status);
                }
                // Those behind the first only say that they were not done.
                Some(_) => {}
            }
            of.take_back(bounce, cells);
        });
    }

    /// Ends the connection to a peer that is known to be gone. Whether that is new.
    pub fn give_up(&mut self, peer: usize) -> bool {
        self.fail(peer, ibv_wc_status::IBV_WC_RETRY_EXC_ERR)
    }

    fn fail(&mut self, peer: usize, status: ibv_wc_status::Type) -> bool {
        let Engine { peers, bounce, cells, .. } = self;
        let is_new = peers[peer].failure.is_none();
        if is_new {
            peers[peer].give_up(status);
            peers[peer].take_back(bounce, cells);
        }
        is_new
    }

    /// Whether there is room for another request to that peer; what is needed to make room is under way if not.
    pub fn has_room(&mut self, peer: usize) -> bool {
        let of = &self.peers[peer];
        let depth = of.queue.as_ref().map_or(u64::MAX, |queue| u64::from(queue.depth));
        // One is kept for `ask_completion`.
        of.posted - of.completed + 1 < depth
    }

    /// Whether a verb to that peer can be posted at once, as far as others are concerned.
    pub fn is_clear(&self, peer: usize, ordered: bool) -> bool {
        let of = &self.peers[peer];
        let behind = ordered && self.ordered.iter().any(|&before| before as usize != peer);
        of.link == Link::Ready && of.failure.is_none() && !behind
    }

    /// Writes up to [`BOUNCE_BYTES`] bytes, which may be used again when this returns: they travel in the request or are copied.
    pub fn write(&mut self, peer: usize, to: Place, bytes: &[u8]) -> Result<Result<u64, Full>, Stop> {
        if bytes.len() <= self.peers[peer].queue.as_ref().map_or(0, |queue| queue.inline as usize) {
            // The adapter's driver only reads them, before this returns.
            let addr = bytes.as_ptr().expose_provenance() as u64;
            let piece = ibv_sge { addr, length: bytes.len() as u32, lkey: 0 };
            return Ok(self.post(peer, Verb::Write, to, piece, ibv_send_flags::IBV_SEND_INLINE, false)?);
        }
        let Some(slot) = self.bounce.take_free()? else { return Ok(Err(Full)) };
        self.bounce.write(slot, bytes);
        let piece = self.bounce.piece(slot, bytes.len());
        let posted = self.post_signalled(peer, Verb::Write, to, piece);
        match &posted {
            Ok(Ok(number)) => self.lend(peer, *number, Lent::Bounce(slot)),
            _ => self.bounce.give(slot),
        }
        Ok(posted?)
    }

    /// Posts a request that is signalled when it is complete.
    pub fn post_signalled(
        &mut self,
        peer: usize,
        verb: Verb,
        to: Place,
        piece: ibv_sge,
    ) -> Result<Result<u64, Full>, std::io::Error> {
        self.post(peer, verb, to, piece, ibv_send_flags(0), true)
    }

    /// Sees to it that the completion of all that was posted will be told.
    pub fn ask_completion(&mut self, peer: usize) -> std::io::Result<()> {
        let of = &self.peers[peer];
        if of.signalled == of.posted || of.queue.is_none() {
            return Ok(());
        }
        // A write of nothing, behind the others.
        let nothing = ibv_sge { addr: 0, length: 0, lkey: 0 };
        let to = Place { address: 0, key: 0 };
        self.post_into(peer, Verb::Write, to, nothing, ibv_send_flags(0), true).map(drop)
    }

    /// Lends memory to the adapter until that request is complete.
    pub fn lend(&mut self, peer: usize, number: u64, what: Lent) {
        let lent = &mut self.peers[peer].lent;
        // Mostly at the end: numbers grow.
        let at = lent.iter().rposition(|(before, _)| *before <= number).map_or(0, |before| before + 1);
        lent.insert(at, (number, what));
    }

    fn post(
        &mut self,
        peer: usize,
        verb: Verb,
        to: Place,
        piece: ibv_sge,
        flags: ibv_send_flags,
        signalled: bool,
    ) -> Result<Result<u64, Full>, std::io::Error> {
        if !self.has_room(peer) {
            self.ask_completion(peer)?;
            return Ok(Err(Full));
        }
        let of = &self.peers[peer];
        let depth = of.queue.as_ref().map_or(0, |queue| u64::from(queue.depth));
        // Where none is under way, somebody may soon wait for this one, and need not ask for another then.
        let signalled = signalled || of.signalled <= of.completed || of.posted - of.signalled >= (depth / 4).max(1);
        self.post_into(peer, verb, to, piece, flags, signalled).map(Ok)
    }

    fn post_into(
        &mut self,
        peer: usize,
        verb: Verb,
        to: Place,
        mut piece: ibv_sge,
        mut flags: ibv_send_flags,
        signalled: bool,
    ) -> std::io::Result<u64> {
        let of = &mut self.peers[peer];
        let queue = of.queue.as_ref().ok_or(std::io::ErrorKind::NotConnected)?;
        let number = of.posted + 1;
        let mut request = ibv_send_wr {
            wr_id: (peer as u64) << 32 | u64::from(number as u32),
            sg_list: &mut piece,
            num_sge: i32::from(piece.length > 0),
            ..Default::default()
        };
        if signalled {
            flags |= ibv_send_flags::IBV_SEND_SIGNALED;
        }
        // What is read must not be what a later write puts there.
        if of.read > of.completed && !matches!(verb, Verb::Read) {
            flags |= ibv_send_flags::IBV_SEND_FENCE;
        }
        request.send_flags = flags.0;
        request.wr.rdma.remote_addr = to.address;
        request.wr.rdma.rkey = to.key;
        let atomic = |compare_add, swap| {
            let (remote_addr, rkey) = (to.address, to.key);
            ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey }
        };
        match verb {
            Verb::Write => request.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Verb::Read => request.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ,
            Verb::CompareAndSwap { expected, new } => {
                request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic = atomic(expected, new);
            }
            Verb::Add(delta) => {
                request.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                request.wr.atomic = atomic(delta, 0);
            }
        }
        // SAFETY: the queue pair is alive; what the request names is lent until it is complete (`lend`), is held by a
        // ticket, or travels inline.
        unsafe { library::post_send(queue.raw.as_ptr(), &mut request) }?;
        of.posted = number;
        let work = if peer == self.me { &mut self.to_itself } else { &mut self.to_others };
        work.count(verb, piece.length);
        if signalled {
            of.signalled = number;
        }
        if matches!(verb, Verb::Read) {
            of.read = number;
        }
        Ok(number)
    }
}

impl Engine {
    /// Takes back what was lent once the adapter is done with it, for somebody who walked away.
    pub fn abandon(&mut self, peer: usize, number: u64, what: Lent) {
        if self.peers[peer].completed < number {
            return self.lend(peer, number, what);
        }
        match what {
            Lent::Bounce(slot) => self.bounce.give(slot),
            Lent::Cell(slot) => self.cells.give(slot),
            Lent::Buffer(_) => {}
        }
    }
}
