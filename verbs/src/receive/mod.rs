//! Reception of messages on connections: buffers shared by all queue pairs of the rank, reposted as they are freed.
//!
//! The first queue pair brings [`FIRST`] buffers. More are registered once messages arrive, so that at least [`LOW`]
//! are posted. A sender that finds no buffer waits, and its adapter retries (RNR).

mod account;

use super::VerbsError;
use super::memory::Buffer;
use super::rail::SHARED_RECEIVES;
use super::sys::{Access, CompletionQueue, Domain, SharedQueue};
use super::wr::{Completions, Token};
use account::{Account, ReceivedItem};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use transom_launch::lock;

/// Bytes per buffer: 8 KiB of a message, and its header.
pub(super) const LONGEST: usize = (8 << 10) + 192;
/// Buffers registered with the first queue pair; more are registered below `LOW` while messages arrive and below
/// `LOWEST` while none do, `MORE` at a time and `MOST` at most.
const FIRST: usize = 16;
const LOW: i64 = 32;
const LOWEST: i64 = 8;
const MORE: usize = 64;
pub(super) const MOST: usize = SHARED_RECEIVES as usize;
/// Batch size for reposting while other buffers are posted.
const AT_ONCE: usize = 8;

/// Reception of a rank's messages.
pub(super) struct Receives {
    domain: Arc<Domain>,
    made: OnceLock<Made>,
    state: Mutex<SharedReceives>,
}

struct Made {
    /// `None` on a device without a shared queue of sufficient size: no messages can be received then.
    queue: Option<Arc<SharedQueue>>,
    completions: Arc<CompletionQueue>,
}

#[derive(Default)]
struct SharedReceives {
    /// The first buffer holds [`FIRST`] receives, each further one [`MORE`].
    memory: Vec<Arc<Buffer>>,
    account: Account,
    closed: bool,
    /// Rings that peers may still write to.
    kept: Vec<Arc<Buffer>>,
}

/// A received item, with its sender's rank.
pub(super) enum Came {
    Message(u32, Filled),
    Value(u32, u32),
}

/// A buffer with a received message. Dropping it returns the buffer for reposting.
pub(super) struct Filled {
    number: u32,
    pub bytes: usize,
    /// First byte of the message.
    pub start: NonNull<u8>,
    home: Arc<Receives>,
}

// SAFETY: the buffer is registered memory that any thread may access, and it belongs to this object alone until it is
// dropped.
unsafe impl Send for Filled {}

impl Receives {
    pub fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Receives { domain: domain.clone(), made: OnceLock::new(), state: Mutex::default() })
    }

    /// The completion queue and shared queue for a queue pair, created at the first call. Called by one thread at a
    /// time.
    pub fn ends(&self) -> Result<(&Arc<CompletionQueue>, Option<&Arc<SharedQueue>>), VerbsError> {
        if self.made.get().is_none() {
            let context = &self.domain.context;
            let completions =
                Arc::new(CompletionQueue::new(context, MOST.min(context.limits.max_cqe as usize) as u32)?);
            let queue = self.is_able().then(|| SharedQueue::new(&self.domain, MOST as u32)).transpose();
            let queue = queue
                .inspect_err(|error| tracing::warn!(%error, "no shared receive queue; messages cannot be received"))
                .ok()
                .flatten();
            self.made.get_or_init(|| Made { queue: queue.map(Arc::new), completions });
        }
        let made = self.made.get().expect("created above");
        let mut state = self.state();
        if state.memory.is_empty() {
            self.grow(made, &mut state)?;
        }
        Ok((&made.completions, made.queue.as_ref()))
    }

    /// Returns whether messages can be received, as far as known.
    pub fn works(&self) -> bool {
        self.made.get().map_or(self.is_able(), |made| made.queue.is_some())
    }

    /// Returns whether the device supports a shared queue of the required size.
    fn is_able(&self) -> bool {
        let limits = &self.domain.context.limits;
        limits.max_srq > 0 && limits.max_srq_wr >= MOST as i32 && limits.max_cqe >= MOST as i32
    }

    /// Assigns a queue pair number to a peer.
    pub fn expect(&self, queue_pair: u32, peer: u32) {
        self.state().account.expect(queue_pair, peer);
    }

    /// Records all messages received so far, with their senders.
    pub fn settle(&self) {
        if let Some(made) = self.made.get() {
            self.harvest(made, &mut self.state());
        }
    }

    /// Removes a queue pair. If it `was_connected`, it may have consumed a buffer for an incomplete message, which not
    /// every driver reports.
    pub fn forget(&self, queue_pair: u32, was_connected: bool) {
        self.state().account.forget(queue_pair, was_connected);
    }

    /// Takes the next received item.
    pub fn take(self: &Arc<Self>) -> Option<Came> {
        let made = self.made.get()?;
        let mut state = self.state();
        if state.account.waiting() == 0 {
            self.harvest(made, &mut state);
        }
        let (peer, what) = state.account.take()?;
        match what {
            ReceivedItem::Value(value) => Some(Came::Value(peer, value)),
            ReceivedItem::Message { number, bytes } => {
                let (buffer, offset) = state.place(number);
                let start = buffer.start(offset);
                Some(Came::Message(peer, Filled { number, bytes, start, home: self.clone() }))
            }
        }
    }

    /// Drops received messages, now and at each later call, once `closes` was given.
    pub fn discard(&self, closes: bool) {
        let mut state = self.state();
        state.closed |= closes;
        if let (Some(made), true) = (self.made.get(), state.closed) {
            self.harvest(made, &mut state);
            state.account.discard();
            self.fill(made, &mut state);
        }
    }

    /// Keeps memory as long as this rank exists.
    pub fn keep(&self, memory: Arc<Buffer>) {
        self.state().kept.push(memory);
    }

    fn harvest(&self, made: &Made, state: &mut SharedReceives) {
        let SharedReceives { account, .. } = state;
        let before = account.waiting();
        if let Err(error) = made.completions.poll(&mut |completion| account.completed(&completion)) {
            tracing::error!(%error, "cannot poll for received messages");
        }
        let nothing = account.waiting() == before;
        if nothing || account.are_many_free() {
            self.fill(made, state);
        }
        if state.account.is_low(!nothing)
            && let Err(error) = self.grow(made, state)
        {
            tracing::debug!(%error, "cannot register more receive buffers");
        }
    }

    /// Registers more buffers, or the first ones.
    fn grow(&self, made: &Made, state: &mut SharedReceives) -> Result<(), VerbsError> {
        if made.queue.is_none() {
            return Ok(());
        }
        let more = if state.memory.is_empty() { FIRST } else { MORE };
        let buffer = Buffer::new(&self.domain, more * LONGEST, Access::Local)?;
        state.memory.push(Arc::new(buffer));
        state.account.add(more);
        self.fill(made, state);
        Ok(())
    }

    /// Posts the free buffers.
    fn fill(&self, made: &Made, state: &mut SharedReceives) {
        let Some(queue) = &made.queue else { return };
        let free = state.account.post();
        let piece = |number: u32| {
            let (buffer, offset) = state.place(number);
            (Token::new(0, number.into()), [buffer.piece(offset, LONGEST)])
        };
        let buffers: Vec<_> = free.iter().map(|number| piece(*number)).collect();
        // SAFETY: the buffers stay registered until this rank's queue pairs are destroyed, and they were free, so no
        // other code uses them.
        if let Err(error) = unsafe { queue.post(&buffers) } {
            tracing::error!(%error, "cannot post receive buffers");
        }
    }

    fn give(&self, number: u32) {
        let mut state = self.state();
        if state.account.give(number)
            && let Some(made) = self.made.get()
        {
            self.fill(made, &mut state);
        }
    }

    fn state(&self) -> MutexGuard<'_, SharedReceives> {
        lock(&self.state)
    }
}

impl SharedReceives {
    fn place(&self, number: u32) -> (&Buffer, usize) {
        let number = number as usize;
        match number.checked_sub(FIRST) {
            None => (&self.memory[0], number * LONGEST),
            Some(beyond) => (&self.memory[1 + beyond / MORE], beyond % MORE * LONGEST),
        }
    }
}

impl Drop for Filled {
    fn drop(&mut self) {
        self.home.give(self.number);
    }
}
