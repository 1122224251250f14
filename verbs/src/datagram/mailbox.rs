//! Messages as datagrams: a queue pair that takes those of all peers, with buffers that are handed over again by many, and
//! several that send in turn. Which of them come, and how often, is for others to find out.

use super::{ROUTE, Recipient, Ways, Windows};
use crate::VerbsError;
use crate::memory::{Buffer, Slot, Slots};
use crate::rail::Rail;
use crate::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams};
use crate::wr::{Completions, Piece, Token};
use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use transom_launch::lock;

/// Datagrams that may come before anybody looks, as far as the device has room.
pub(crate) const ROOM: u32 = 1024;
/// As many buffers are handed over at a time, while there are others.
const AT_ONCE: usize = 64;
/// Datagrams under way on each queue pair that sends.
const SENDS: u32 = 64;

/// Takes and sends datagrams of a rank.
pub(crate) struct Mailbox {
    me: u32,
    ways: Ways,
    lanes: Vec<Sending>,
    /// The lane of the next.
    turn: usize,
    home: Arc<Home>,
    /// By rank.
    peers: Box<[Recipient]>,
    /// Bytes that all ranks can take at once.
    longest: usize,
    /// For what goes to a place of its own.
    pub windows: Windows,
}

/// One that sends.
struct Sending {
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    /// After the queue, which may still read there.
    slots: Vec<Slot>,
    posted: usize,
    gone: usize,
}

/// What takes datagrams, as long as anybody has one.
struct Home {
    queue: Datagrams,
    received: Arc<CompletionQueue>,
    /// After the queue, which may still write there.
    memory: Buffer,
    /// Bytes of a buffer.
    each: usize,
    state: Mutex<State>,
}

/// Where buffers are, by their numbers; else somebody has one.
struct State {
    /// To be handed over.
    free: Vec<u32>,
    /// Whether the adapter has it.
    posted: Box<[bool]>,
}

/// A buffer with a datagram. Handed over again when dropped.
pub(crate) struct Letter {
    home: Arc<Home>,
    number: u32,
    /// Where the datagram begins.
    pub start: NonNull<u8>,
    pub bytes: usize,
}

// SAFETY: the buffer is registered memory that any thread may use, and this one's alone until it is handed over again.
unsafe impl Send for Letter {}

impl Mailbox {
    /// Takes those that bring `key`; sends by so many queue pairs. Whom it reaches is told [later](Self::with).
    pub fn new(rail: &Rail, me: u32, key: u32, lanes: usize) -> Result<Self, VerbsError> {
        let home = Arc::new(Home::new(rail, key)?);
        let lanes = (0..lanes).map(|_| Sending::new(rail, key)).collect::<Result<_, _>>()?;
        Ok(Mailbox {
            me,
            ways: Ways::new(&rail.domain),
            lanes,
            turn: 0,
            home,
            peers: Box::default(),
            longest: 0,
            windows: Windows::default(),
        })
    }

    /// The peers, by rank, each with the exponent of its MTU.
    pub fn with(self, peers: impl Iterator<Item = (Recipient, u8)>) -> Self {
        let (peers, mtus): (Vec<_>, Vec<_>) = peers.unzip();
        let longest = mtus.into_iter().map(|mtu| 128 << mtu).min().unwrap_or(0);
        Mailbox { peers: peers.into(), longest, ..self }
    }

    /// The queue pair that takes them.
    pub fn number(&self) -> u32 {
        self.home.queue.number()
    }

    /// Bytes of a datagram at most. What is longer would be lost without a word.
    pub fn longest(&self) -> usize {
        self.longest
    }

    /// Sends one to a peer, whose bytes `fill` writes; false if there is no room now. To one to whom there is no way it is lost, as on
    /// the network: who gets no answer says so in its time.
    pub fn send(&mut self, peer: u32, bytes: usize, fill: impl FnOnce(&mut [u8])) -> bool {
        assert!(bytes <= self.longest, "{bytes} bytes in a datagram of {}", self.longest);
        let all = self.lanes.len();
        let Some(at) = (0..all).map(|nth| (self.turn + nth) % all).find(|at| self.lanes[*at].has_room()) else {
            return false;
        };
        self.turn = at + 1;
        let (me, to) = (self.me, self.peers[peer as usize]);
        let Some(handle) = way(&mut self.ways, peer, &to) else { return true };
        self.lanes[at]
            .send(me, handle, &to, bytes, fill)
            .inspect_err(|error| {
                tracing::warn!(peer, %error, "a datagram could not be sent now");
            })
            .is_ok()
    }

    /// Sends a piece of memory to a window of a peer; see [`Windows::send`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn send_piece(
        &mut self,
        rail: &Rail,
        peer: u32,
        to: (u32, u32),
        piece: (u8, Piece),
        token: Option<u64>,
    ) -> bool {
        let Some(handle) = way(&mut self.ways, peer, &self.peers[peer as usize]) else { return false };
        // SAFETY: by the caller's word.
        unsafe { self.windows.send(rail, (peer, handle), to, piece, token) }
    }

    /// What has come, each with the rank that it says it is of.
    pub fn receive(&mut self) -> Vec<(u32, Letter)> {
        self.home.receive(self.peers.len())
    }
}

/// The way to a peer, made when it is first sent to; none while there is none.
fn way<'w>(ways: &'w mut Ways, peer: u32, to: &Recipient) -> Option<&'w AddressHandle> {
    let way = ways.to(peer as usize, &to.path);
    way.inspect_err(|error| tracing::warn!(peer, %error, "no way to a peer now")).ok().flatten()
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
        Ok(Sending { queue, sent, slots, posted: 0, gone: 0 })
    }

    fn has_room(&mut self) -> bool {
        if self.posted - self.gone < self.slots.len() {
            return true;
        }
        let (mut gone, mut failed) = (0, false);
        let polled = self.sent.poll(&mut |completion| {
            gone += 1;
            failed |= completion.result.is_err();
        });
        self.gone += gone;
        if failed || polled.is_err() {
            // As Soft-RoCE does where a link is down: what was under way is lost.
            let forgotten = || _ = self.sent.poll(&mut |_| ());
            match self.queue.open_again(forgotten) {
                Ok(()) => (self.posted, self.gone) = (0, 0),
                Err(error) => tracing::error!(%error, "a queue pair for datagrams is lost"),
            }
        }
        self.posted - self.gone < self.slots.len()
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
        // SAFETY: the slot is not used again before it was sent, and is kept as long as the queue.
        unsafe { self.queue.send(Token::new(0, 0), piece, handle, to.queue_pair, to.key, Some(me)) }?;
        self.posted += 1;
        Ok(())
    }
}

impl Home {
    fn new(rail: &Rail, key: u32) -> Result<Self, VerbsError> {
        let limits = &rail.context().limits;
        let room = ROOM.min(limits.max_qp_wr.min(limits.max_cqe).max(1) as u32);
        let received = Arc::new(CompletionQueue::new(rail.context(), room)?);
        let capacity = Capacity { depth: 1, receives: room, inline: 0, scatter: 1 };
        let queue = Datagrams::new(&rail.domain, &received, &received, capacity, &rail.near_end(0), key)?;
        let each = (ROUTE + (128 << rail.mtu())).next_multiple_of(64);
        let memory = Buffer::new(&rail.domain, room as usize * each, Access::Local)?;
        let state = State { free: (0..room).collect(), posted: vec![false; room as usize].into() };
        let home = Home { queue, received, memory, each, state: Mutex::new(state) };
        home.expect(&mut home.state()).map_err(|source| VerbsError::system("buffers for datagrams", source))?;
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
            tracing::error!(%error, "datagrams cannot be received any more");
        }
        if failed {
            self.open_again(&mut state);
        }
        if came.is_empty() {
            self.hand_over(&mut state);
        }
        came
    }

    /// The queue pair is in error: what the adapter had it has no more, and what comes meanwhile is lost.
    fn open_again(&self, state: &mut State) {
        match self.queue.open_again(|| _ = self.received.poll(&mut |_| ())) {
            Ok(()) => {
                let State { free, posted } = state;
                free.extend(
                    (0..).zip(posted.iter_mut()).filter_map(|(number, is)| std::mem::take(is).then_some(number)),
                );
                self.hand_over(state);
            }
            Err(error) => tracing::error!(%error, "datagrams cannot be received any more"),
        }
    }

    fn give(&self, number: u32) {
        let mut state = self.state();
        state.free.push(number);
        if state.free.len() >= AT_ONCE {
            self.hand_over(&mut state);
        }
    }

    fn hand_over(&self, state: &mut State) {
        if let Err(error) = self.expect(state) {
            tracing::error!(%error, "buffers for datagrams are lost");
        }
    }

    fn expect(&self, State { free, posted }: &mut State) -> io::Result<()> {
        let buffers = free.drain(..).map(|number| {
            posted[number as usize] = true;
            (Token::new(0, number.into()), [self.memory.piece(number as usize * self.each, self.each)])
        });
        let buffers: Vec<_> = buffers.collect();
        // SAFETY: registered as long as the queue is there; they were free, so nobody uses them.
        unsafe { self.queue.expect(&buffers) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.home.give(self.number);
    }
}
