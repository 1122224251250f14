//! What comes to this rank by messages: buffers that its queue pairs share, filled again as they are given back.
//!
//! The first queue pair brings [`FIRST`] buffers along; more are registered once messages come, so that [`LOW`] are there
//! for the next. A peer that finds none waits, and its adapter asks again.

mod account;

use super::VerbsError;
use super::memory::Buffer;
use super::sys::{Access, CompletionQueue, Domain, SharedQueue};
use super::wr::{Completions, Token};
use account::{Account, What};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use transom_launch::lock;

/// Bytes of a buffer: 8 KiB of a message, and its header.
pub(super) const LONGEST: usize = (8 << 10) + 192;
/// Buffers that are there with the first queue pair; of which more are registered below so many, when messages come, or when none
/// do; how many at a time; and at most.
const FIRST: usize = 16;
const LOW: i64 = 32;
const LOWEST: i64 = 8;
const MORE: usize = 64;
pub(super) const MOST: usize = 1024;
/// As many are handed over at a time, while there are others.
const AT_ONCE: usize = 8;

/// What comes to a rank.
pub(super) struct Receives {
    domain: Arc<Domain>,
    made: OnceLock<Made>,
    state: Mutex<State>,
}

struct Made {
    /// None on a device that has none as long: nothing comes then.
    queue: Option<Arc<SharedQueue>>,
    completions: Arc<CompletionQueue>,
}

#[derive(Default)]
struct State {
    /// Of [`FIRST`] and then [`MORE`] buffers each.
    memory: Vec<Arc<Buffer>>,
    account: Account,
    closed: bool,
    /// Rings of peers that may not know that they are gone.
    kept: Vec<Arc<Buffer>>,
}

/// From whom, and what.
pub(super) enum Came {
    Message(u32, Filled),
    Value(u32, u32),
}

/// A buffer with a message. Handed over again when dropped.
pub(super) struct Filled {
    number: u32,
    pub bytes: usize,
    /// Where it begins.
    pub start: NonNull<u8>,
    home: Arc<Receives>,
}

// SAFETY: the buffer is registered memory that any thread may use, and this one's alone until it is handed over again.
unsafe impl Send for Filled {}

impl Receives {
    pub fn new(domain: &Arc<Domain>) -> Arc<Self> {
        Arc::new(Receives { domain: domain.clone(), made: OnceLock::new(), state: Mutex::default() })
    }

    /// Where a queue pair receives; made for the first. By one thread at a time.
    pub fn ends(&self) -> Result<(&Arc<CompletionQueue>, Option<&Arc<SharedQueue>>), VerbsError> {
        if self.made.get().is_none() {
            let context = &self.domain.context;
            let completions =
                Arc::new(CompletionQueue::new(context, MOST.min(context.limits.max_cqe as usize) as u32)?);
            let queue = self.is_able().then(|| SharedQueue::new(&self.domain, MOST as u32)).transpose();
            let queue = queue.inspect_err(|error| tracing::warn!(%error, "messages cannot be received")).ok().flatten();
            self.made.get_or_init(|| Made { queue: queue.map(Arc::new), completions });
        }
        let made = self.made.get().expect("just made");
        let mut state = self.state();
        if state.memory.is_empty() {
            self.grow(made, &mut state)?;
        }
        Ok((&made.completions, made.queue.as_ref()))
    }

    /// Whether messages can be received, as far as is known.
    pub fn works(&self) -> bool {
        self.made.get().map_or(self.is_able(), |made| made.queue.is_some())
    }

    /// Whether the device has shared queues, of so many buffers.
    fn is_able(&self) -> bool {
        let limits = &self.domain.context.limits;
        limits.max_srq > 0 && limits.max_srq_wr >= MOST as i32 && limits.max_cqe >= MOST as i32
    }

    /// What comes by a queue pair of this number is a peer's from now on.
    pub fn expect(&self, queue_pair: u32, peer: u32) {
        self.state().account.expect(queue_pair, peer);
    }

    /// All that has come by then is remembered with whose it is.
    pub fn settle(&self) {
        if let Some(made) = self.made.get() {
            self.harvest(made, &mut self.state());
        }
    }

    /// A queue pair is gone; `was_connected`: it may have had a buffer whose message did not come whole, and of which not
    /// every driver tells.
    pub fn forget(&self, queue_pair: u32, was_connected: bool) {
        self.state().account.forget(queue_pair, was_connected);
    }

    /// What has come next.
    pub fn take(self: &Arc<Self>) -> Option<Came> {
        let made = self.made.get()?;
        let mut state = self.state();
        if state.account.waiting() == 0 {
            self.harvest(made, &mut state);
        }
        let (peer, what) = state.account.take()?;
        match what {
            What::Value(value) => Some(Came::Value(peer, value)),
            What::Message { number, bytes } => {
                let (buffer, offset) = state.place(number);
                let start = buffer.start(offset);
                Some(Came::Message(peer, Filled { number, bytes, start, home: self.clone() }))
            }
        }
    }

    /// Nobody will take anything any more: what comes is thrown away, now and whenever this is called again.
    pub fn discard(&self, closes: bool) {
        let mut state = self.state();
        state.closed |= closes;
        if let (Some(made), true) = (self.made.get(), state.closed) {
            self.harvest(made, &mut state);
            state.account.discard();
            self.fill(made, &mut state);
        }
    }

    /// Keeps memory as long as this rank is there.
    pub fn keep(&self, memory: Arc<Buffer>) {
        self.state().kept.push(memory);
    }

    fn harvest(&self, made: &Made, state: &mut State) {
        let State { account, .. } = state;
        let before = account.waiting();
        if let Err(error) = made.completions.poll(&mut |completion| account.completed(&completion)) {
            tracing::error!(%error, "messages are not told any more");
        }
        let nothing = account.waiting() == before;
        if nothing || account.are_many_free() {
            self.fill(made, state);
        }
        if state.account.is_low(!nothing)
            && let Err(error) = self.grow(made, state)
        {
            tracing::debug!(%error, "no more memory for messages to come");
        }
    }

    /// Registers some more, or the first.
    fn grow(&self, made: &Made, state: &mut State) -> Result<(), VerbsError> {
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

    /// Hands over what is free.
    fn fill(&self, made: &Made, state: &mut State) {
        let Some(queue) = &made.queue else { return };
        let free = state.account.post();
        let piece = |number: u32| {
            let (buffer, offset) = state.place(number);
            (Token::new(0, number.into()), [buffer.piece(offset, LONGEST)])
        };
        let buffers: Vec<_> = free.iter().map(|number| piece(*number)).collect();
        // SAFETY: registered until this rank's queue pairs are gone, which go first; free, so nobody uses them.
        if let Err(error) = unsafe { queue.post(&buffers) } {
            tracing::error!(%error, "buffers for messages are lost");
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

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
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
