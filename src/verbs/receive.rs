//! What comes to this rank by messages: buffers that its queue pairs share, filled again as they are given back.
//!
//! The first queue pair brings [`FIRST`] buffers along; more are registered once messages come, so that [`LOW`] are there
//! for the next. A peer that finds none waits, and its adapter asks again.

use super::VerbsError;
use super::memory::Buffer;
use super::sys::{Access, CompletionQueue, Domain, SharedQueue};
use super::wr::{Completions, Token};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Bytes of a buffer: 8 KiB of a message, and its header.
pub(super) const LONGEST: usize = (8 << 10) + 192;
/// Buffers that are there with the first queue pair; of which more are registered below so many; how many at a time; and at
/// most.
const FIRST: usize = 16;
const LOW: i64 = 32;
const MORE: usize = 64;
const MOST: usize = 1024;
/// As many are handed over at a time, while there are others.
const AT_ONCE: usize = 8;

/// What comes to a rank.
pub(super) struct Receives {
    domain: Arc<Domain>,
    made: OnceLock<Made>,
    state: Mutex<State>,
}

struct Made {
    /// None on a device that has none: nothing comes then.
    queue: Option<Arc<SharedQueue>>,
    completions: Arc<CompletionQueue>,
}

#[derive(Default)]
struct State {
    /// Of [`FIRST`] and then [`MORE`] buffers each.
    memory: Vec<Arc<Buffer>>,
    all: usize,
    /// Not more than these can be with the adapter; fewer if queue pairs that broke took some along.
    posted: i64,
    /// To be handed over again.
    free: Vec<u32>,
    came: VecDeque<(u32, What)>,
    pairs: HashMap<u32, Pair>,
    closed: bool,
    /// Rings of peers that may not know that they are gone.
    kept: Vec<Arc<Buffer>>,
}

struct Pair {
    peer: u32,
    /// What it had begun was told to have failed.
    flushed: bool,
}

enum What {
    Message { number: u32, bytes: usize },
    Value(u32),
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
                Arc::new(CompletionQueue::new(context, (MOST as u32).min(context.limits.max_cqe as u32))?);
            let depth = (MOST as u32).min(context.limits.max_srq_wr.max(1) as u32);
            let queue = SharedQueue::new(&self.domain, depth);
            let queue = queue.inspect_err(|error| tracing::warn!(%error, "messages cannot be received")).ok();
            let made = self.made.get_or_init(|| Made { queue: queue.map(Arc::new), completions });
            let mut state = self.state();
            self.grow(made, &mut state, FIRST)?;
        }
        let Made { queue, completions } = self.made.get().expect("just made");
        Ok((completions, queue.as_ref()))
    }

    /// Whether messages can be received, as far as is known.
    pub fn works(&self) -> bool {
        self.made.get().map_or(self.domain.context.limits.max_srq > 0, |made| made.queue.is_some())
    }

    /// What comes by a queue pair of this number is a peer's from now on.
    pub fn expect(&self, queue_pair: u32, peer: u32) {
        self.state().pairs.insert(queue_pair, Pair { peer, flushed: false });
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
        let mut state = self.state();
        if let Some(pair) = state.pairs.remove(&queue_pair)
            && was_connected
            && !pair.flushed
        {
            state.posted -= 1;
        }
    }

    /// What has come next.
    pub fn take(self: &Arc<Self>) -> Option<Came> {
        let made = self.made.get()?;
        let mut state = self.state();
        if state.came.is_empty() {
            self.harvest(made, &mut state);
        }
        let (peer, what) = state.came.pop_front()?;
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
            let State { came, free, .. } = &mut *state;
            let numbers = came.drain(..).filter_map(|(_, what)| match what {
                What::Message { number, .. } => Some(number),
                What::Value(_) => None,
            });
            free.extend(numbers);
            self.fill(made, &mut state);
        }
    }

    /// Keeps memory as long as this rank is there.
    pub fn keep(&self, memory: Arc<Buffer>) {
        self.state().kept.push(memory);
    }

    fn harvest(&self, made: &Made, state: &mut State) {
        let before = state.came.len();
        let polled = made.completions.poll(&mut |completion| {
            let number = completion.token.request();
            state.posted -= 1;
            let pair = state.pairs.get_mut(&completion.queue_pair);
            match (completion.result, completion.value, pair) {
                (Ok(()), Some(value), Some(pair)) => {
                    state.came.push_back((pair.peer, What::Value(value)));
                    state.free.push(number);
                }
                (Ok(()), None, Some(pair)) => {
                    state.came.push_back((pair.peer, What::Message { number, bytes: completion.bytes.min(LONGEST) }));
                }
                (_, _, pair) => {
                    pair.into_iter().for_each(|pair| pair.flushed = true);
                    state.free.push(number);
                }
            }
        });
        if let Err(error) = polled {
            tracing::error!(%error, "messages are not told any more");
        }
        if state.came.len() == before || state.free.len() >= AT_ONCE {
            self.fill(made, state);
        } else if state.posted < LOW
            && let Err(error) = self.grow(made, state, MORE)
        {
            tracing::debug!(%error, "no more memory for messages to come");
        }
    }

    /// Registers some more.
    fn grow(&self, made: &Made, state: &mut State, more: usize) -> Result<(), VerbsError> {
        if made.queue.is_none() || state.all + more > MOST {
            return Ok(());
        }
        let buffer = Buffer::new(&self.domain, more * LONGEST, Access::Local)?;
        state.memory.push(Arc::new(buffer));
        state.free.extend((state.all..state.all + more).map(|number| number as u32));
        state.all += more;
        self.fill(made, state);
        Ok(())
    }

    /// Hands over what is free.
    fn fill(&self, made: &Made, state: &mut State) {
        let Some(queue) = made.queue.as_ref().filter(|_| !state.free.is_empty()) else { return };
        let free = std::mem::take(&mut state.free);
        let piece = |number: u32| {
            let (buffer, offset) = state.place(number);
            (Token::new(0, number.into()), buffer.piece(offset, LONGEST))
        };
        let buffers: Vec<_> = free.iter().map(|number| piece(*number)).collect();
        state.posted += buffers.len() as i64;
        // SAFETY: registered until this rank's queue pairs are gone, which go first; free, so nobody uses them.
        if let Err(error) = unsafe { queue.post(&buffers) } {
            tracing::error!(%error, "buffers for messages are lost");
        }
    }

    fn give(&self, number: u32) {
        let mut state = self.state();
        state.free.push(number);
        if state.free.len() >= AT_ONCE
            && let Some(made) = self.made.get()
        {
            self.fill(made, &mut state);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
