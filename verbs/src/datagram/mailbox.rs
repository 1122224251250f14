//! Messages as datagrams: one queue pair receives from all peers, and several send in turn. Receives are reposted in
//! batches. Loss and duplication are the callers' concern.

use super::{ROUTE, Recipient, SILENT, Silence, Ways, Windows};
use crate::VerbsError;
use crate::memory::{Buffer, Slot, Slots};
use crate::rail::Rail;
use crate::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams};
use crate::wr::{Completions, Piece, Token};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use transom_launch::lock;

/// Batch size for reposting receives while others are posted.
const AT_ONCE: usize = 64;
/// Datagrams in flight per sending queue pair.
const SENDS: u32 = 64;

/// Sends and receives a rank's messages as datagrams.
pub(crate) struct Mailbox {
    me: u32,
    ways: Ways,
    lanes: Vec<Sending>,
    /// Index of the lane that sends next.
    turn: usize,
    home: Arc<Home>,
    /// Addresses of peers, by rank.
    peers: Box<[Recipient]>,
    /// Largest datagram that all ranks accept, in bytes.
    longest: usize,
    /// Segment groups for zero-copy reception.
    pub windows: Windows,
}

/// A sending queue pair.
struct Sending {
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    /// Declared after the queue, which may still read these slots.
    slots: Vec<Slot>,
    posted: usize,
    gone: usize,
    silence: Silence,
}

/// The receiving side; lives as long as any letter.
struct Home {
    queue: Datagrams,
    received: Arc<CompletionQueue>,
    /// Declared after the queue, which may still write to it.
    memory: Buffer,
    buffers: u32,
    /// Bytes per buffer.
    each: usize,
    state: Mutex<MailboxState>,
}

/// State of the receive buffers by number. A buffer in neither list belongs to a letter.
struct MailboxState {
    /// Buffers to be posted.
    free: Vec<u32>,
    /// True for buffers that are posted to the adapter.
    posted: Box<[bool]>,
}

/// A received datagram in its buffer. Dropping it returns the buffer for reposting.
pub(crate) struct Letter {
    home: Arc<Home>,
    number: u32,
    /// First byte of the datagram.
    pub start: NonNull<u8>,
    pub bytes: usize,
}

// SAFETY: the buffer is registered memory that any thread may access, and it belongs to this letter alone until it is
// dropped.
unsafe impl Send for Letter {}

impl Mailbox {
    /// Opens a mailbox that accepts datagrams with Q_Key `key` in `buffers`, as far as the device has capacity, and sends by
    /// `lanes` queue pairs. [`with`](Self::with) sets the peers.
    pub fn new(rail: &Rail, me: u32, key: u32, lanes: usize, buffers: u32) -> Result<Self, VerbsError> {
        let home = Arc::new(Home::new(rail, key, buffers)?);
        let lanes = (0..lanes).map(|_| Sending::new(rail, key)).collect::<Result<_, _>>()?;
        Ok(Mailbox {
            me,
            ways: Ways::new(rail, Duration::ZERO),
            lanes,
            turn: 0,
            home,
            peers: Box::default(),
            longest: 0,
            windows: Windows::default(),
        })
    }

    /// Sets the peers, by rank, each with its MTU as an exponent.
    pub fn with(self, peers: impl Iterator<Item = (Recipient, u8)>) -> Self {
        let (peers, mtus): (Vec<_>, Vec<_>) = peers.unzip();
        let longest = mtus.into_iter().map(|mtu| 128 << mtu).min().unwrap_or(0);
        Mailbox { peers: peers.into(), longest, ..self }
    }

    /// The number of the receiving queue pair.
    pub fn number(&self) -> u32 {
        self.home.queue.number()
    }

    /// Number of receive buffers.
    pub fn buffers(&self) -> u32 {
        self.home.buffers
    }

    /// Largest datagram in bytes. The network drops longer ones silently.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Sends a datagram whose bytes `fill` writes; returns false if all queue pairs are full, or while a thread makes the
    /// first attempt to resolve the peer's address. A datagram to a peer without a route is lost, as on the network; the
    /// missing acknowledgement is reported later.
    pub fn send(&mut self, peer: u32, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        assert!(bytes <= self.longest, "{bytes} bytes in a datagram of {}", self.longest);
        let all = self.lanes.len();
        let Some(at) = (0..all).map(|nth| (self.turn + nth) % all).find(|at| self.lanes[*at].has_room()) else {
            return false;
        };
        self.turn = at + 1;
        let (me, to) = (self.me, self.peers[peer as usize]);
        let Some(handle) = way(&mut self.ways, peer, &to) else {
            return !self.ways.is_first(peer as usize);
        };
        self.lanes[at]
            .send(me, handle, &to, bytes, fill)
            .inspect_err(|error| {
                tracing::warn!(peer, %error, "cannot send a datagram now");
            })
            .is_ok()
    }

    /// Sends a piece of memory to a segment group of a peer; see [`Windows::send`]. A piece to a peer without a route is
    /// lost, as on the network.
    ///
    /// # Safety
    /// The contract of [`Windows::send`] applies.
    pub unsafe fn send_piece(
        &mut self,
        rail: &Rail,
        peer: u32,
        to: (u32, u32),
        piece: (u8, Piece),
        token: Option<u64>,
    ) -> bool {
        let Some(handle) = way(&mut self.ways, peer, &self.peers[peer as usize]) else {
            let is_lost = !self.ways.is_first(peer as usize);
            if is_lost {
                self.windows.lose(token);
            }
            return is_lost;
        };
        // SAFETY: caller's contract.
        unsafe { self.windows.send(rail, (peer, handle), to, piece, token) }
    }

    /// Resets queue pairs for which the adapter has completed nothing for [`SILENT`].
    pub fn reset_silent_queues(&mut self) {
        self.lanes.iter_mut().for_each(Sending::reset_if_silent);
        self.windows.reset_if_silent();
    }

    /// Takes the datagrams that have arrived, each with the sender's rank as it claims.
    pub fn receive(&mut self) -> Vec<(u32, Letter)> {
        self.home.receive(self.peers.len())
    }
}

/// The address handle of a peer, created at the first send; `None` while there is none.
fn way<'w>(ways: &'w mut Ways, peer: u32, to: &Recipient) -> Option<&'w AddressHandle> {
    let way = ways.to(peer as usize, &to.path);
    way.inspect_err(|error| tracing::warn!(peer, %error, "cannot resolve the address of a peer now")).ok().flatten()
}

impl Sending {
    fn new(rail: &Rail, key: u32) -> Result<Self, VerbsError> {
        let depth = SENDS.min(rail.context().limits.max_qp_wr.max(1) as u32);
        let sent = Arc::new(CompletionQueue::new(rail.context(), depth)?);
        let capacity = Capacity { depth, receives: 1, inline: 0, scatter: 1 };
        let queue = Datagrams::new(&rail.domain, &sent, &sent, capacity, &rail.near_end(0), key)?;
        let depth = queue.depth().min(depth);
        let slots = Slots::new(&rail.domain, Access::Local, 128 << rail.mtu(), depth as usize);
        let slots = (0..depth).map(|_| slots.take()).collect::<Result<_, _>>()?;
        Ok(Sending { queue, sent, slots, posted: 0, gone: 0, silence: Silence::default() })
    }

    fn has_room(&mut self) -> bool {
        if self.posted - self.gone == self.slots.len() {
            self.look();
        }
        self.posted - self.gone < self.slots.len()
    }

    /// Takes completions.
    fn look(&mut self) {
        let (mut gone, mut failed) = (0, false);
        let polled = self.sent.poll(&mut |completion| {
            gone += 1;
            failed |= completion.result.is_err();
        });
        self.gone += gone;
        if failed || polled.is_err() {
            // Soft-RoCE enters the error state while a link is down.
            self.open_again();
        }
    }

    fn reset_if_silent(&mut self) {
        self.look();
        if self.silence.lasts(self.posted > self.gone, self.gone) {
            tracing::warn!("the adapter has completed no datagram for {SILENT:?}");
            self.open_again();
        }
    }

    /// Reopens the queue pair; datagrams in flight are lost.
    fn open_again(&mut self) {
        let forgotten = || _ = self.sent.poll(&mut |_| ());
        match self.queue.open_again(forgotten) {
            Ok(()) => (self.posted, self.gone, self.silence) = (0, 0, Silence::default()),
            Err(error) => tracing::error!(%error, "a queue pair for datagrams is lost"),
        }
    }

    fn send(
        &mut self,
        me: u32,
        handle: &AddressHandle,
        to: &Recipient,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        let slot = &self.slots[self.posted % self.slots.len()];
        slot.fill(bytes, fill);
        let piece = slot.piece(bytes);
        // SAFETY: the slot is not reused before the send has completed, and lives as long as the queue.
        unsafe { self.queue.send(Token::new(0, 0), piece, handle, to.queue_pair, to.key, Some(me)) }?;
        self.posted += 1;
        Ok(())
    }
}

impl Home {
    fn new(rail: &Rail, key: u32, buffers: u32) -> Result<Self, VerbsError> {
        let limits = &rail.context().limits;
        let room = buffers.min(limits.max_qp_wr.min(limits.max_cqe).max(1) as u32);
        let received = Arc::new(CompletionQueue::new(rail.context(), room)?);
        let capacity = Capacity { depth: 1, receives: room, inline: 0, scatter: 1 };
        let queue = Datagrams::new(&rail.domain, &received, &received, capacity, &rail.near_end(0), key)?;
        let each = (ROUTE + (128 << rail.mtu())).next_multiple_of(64);
        let memory = Buffer::new(&rail.domain, room as usize * each, Access::Local)?;
        let state = MailboxState { free: (0..room).collect(), posted: vec![false; room as usize].into() };
        let home = Home { queue, received, memory, buffers: room, each, state: Mutex::new(state) };
        home.expect(&mut home.state())
            .map_err(|source| VerbsError::system("posting receives for datagrams", source))?;
        Ok(home)
    }

    fn receive(self: &Arc<Self>, ranks: usize) -> Vec<(u32, Letter)> {
        let (mut came, mut failed) = (Vec::new(), false);
        let mut state = self.state();
        let polled = self.received.poll(&mut |completion| {
            let number = completion.token.request();
            let from = completion.value.filter(|from| (*from as usize) < ranks);
            failed |= completion.result.is_err();
            state.posted[number as usize] = false;
            match (completion.result, from) {
                (Ok(()), Some(from)) if completion.bytes > ROUTE && completion.bytes <= self.each => {
                    let start = self.memory.start(number as usize * self.each + ROUTE);
                    came.push((from, Letter { home: self.clone(), number, start, bytes: completion.bytes - ROUTE }));
                }
                _ => state.free.push(number),
            }
        });
        if let Err(error) = polled {
            tracing::error!(%error, "cannot poll for datagrams");
        }
        if failed {
            self.open_again(&mut state);
        }
        if came.is_empty() {
            self.hand_over(&mut state);
        }
        came
    }

    /// Reopens the receiving queue pair after an error. Posted receives return to the free list; datagrams that arrived
    /// meanwhile are lost.
    fn open_again(&self, state: &mut MailboxState) {
        match self.queue.open_again(|| _ = self.received.poll(&mut |_| ())) {
            Ok(()) => {
                let MailboxState { free, posted } = state;
                free.extend(
                    (0..).zip(posted.iter_mut()).filter_map(|(number, is)| std::mem::take(is).then_some(number)),
                );
                self.hand_over(state);
            }
            Err(error) => {
                tracing::error!(%error, "cannot reopen the queue pair for datagrams; no more can be received")
            }
        }
    }

    fn give(&self, number: u32) {
        let mut state = self.state();
        state.free.push(number);
        if state.free.len() >= AT_ONCE {
            self.hand_over(&mut state);
        }
    }

    fn hand_over(&self, state: &mut MailboxState) {
        if let Err(error) = self.expect(state) {
            tracing::error!(%error, "cannot post receives for datagrams");
        }
    }

    fn expect(&self, MailboxState { free, posted }: &mut MailboxState) -> io::Result<()> {
        let buffers = free.drain(..).map(|number| {
            posted[number as usize] = true;
            (Token::new(0, number.into()), [self.memory.piece(number as usize * self.each, self.each)])
        });
        let buffers: Vec<_> = buffers.collect();
        // SAFETY: the memory stays registered as long as the queue exists, and the buffers were free, so no letter uses
        // them.
        unsafe { self.queue.expect(&buffers) }
    }

    fn state(&self) -> MutexGuard<'_, MailboxState> {
        lock(&self.state)
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.home.give(self.number);
    }
}
