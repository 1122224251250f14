//! State behind the lock of a progress engine: the channel, composite operations, and the tasks to wake when requests
//! end.

mod lending;
mod news;

use super::ended_lists::{EndedLists, ListId};
use super::error::Error;
use super::partitioned::Expected;
use super::transport::Transport;
use lending::{Left, Lending};
use news::Armed;
use std::any::Any;
use std::collections::HashMap;
use std::task::Waker;
use std::time::{Duration, Instant};
use transom_channel::{Error as Failure, Id, Status as Came, Waits};
use transom_shm_loopback::messages::Bytes;

pub(crate) use lending::Lender;

pub(crate) type Engine = transom_channel::Engine<Transport>;

pub(crate) struct Core {
    pub engine: Engine,
    /// Composite operations, and messages with a waker, a list or a composite operation attached.
    watched: HashMap<Key, Watch>,
    /// Tags used so far for pipes and for parts of partitioned messages, by context and peer, for contexts that are
    /// open.
    pub opened: HashMap<(u32, u32), u32>,
    /// Receive ends of partitioned messages that wait for an announcement.
    pub expected: Expected,
    /// Lists of ended requests, one for each waiting set.
    pub lists: EndedLists,
    /// Composite operations with their numbers: those with a step in each progress call here; those that await messages
    /// in `waiting`.
    polled: Vec<(u64, Box<dyn Work>)>,
    waiting: HashMap<u64, Box<dyn Work>>,
    /// Number of the next composite operation.
    next_work: u64,
    /// Composite operations in `waiting` that are due for a step in the next progress call.
    ready: Vec<u64>,
    /// Scratch space, empty between progress calls. Kept, so that progress allocates nothing.
    awaited: Vec<Key>,
    /// Progress calls on composite operations, and the time of the last call that stepped all of them.
    turns: u32,
    swept: Instant,
    /// Steps of composite operations so far.
    #[cfg(test)]
    pub steps: u64,
    /// Wakers to wake, and values of the program to drop, once the lock is released. A drop may drop requests, which
    /// take the lock.
    pub wakers: Vec<Waker>,
    pub dropped: Vec<Box<dyn Any + Send>>,
    /// A request has ended that other threads of this rank may wait for.
    pub news: bool,
    /// Calls left before the next reading of the clock.
    calls_left: u32,
    /// When the clock was last read, and when this rank last looked for dead ranks.
    clock_read: Instant,
    checked: Instant,
    /// Scopes, indexed by [`Lender`]. The entries of ended scopes are reused.
    scopes: Vec<Lending>,
    left: Left,
    /// Descriptor and tasks to notify, once, at the next event.
    pub armed: Option<Armed>,
    /// Number of tasks that have waited for events so far.
    tasks: u64,
    /// Tests of requests so far.
    #[cfg(test)]
    pub looks: std::cell::Cell<usize>,
}

/// Identifies a request of the program: one message, or a composite operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Message(Id),
    Work(u64),
}

/// A composite operation, made of many messages: a collective, for example. Every waiting call of the rank drives it
/// with the engine.
pub(crate) trait Work: Send {
    /// Takes a step: does what is possible now. Returns the result once the operation has ended.
    fn progress(&mut self, core: &mut Core) -> Option<Ended>;

    /// Called after a step. Returns true if the next step is due when a message in `awaited`, added now or after an
    /// earlier step, has ended; false for a step in each progress call. Every operation also gets a step now and then,
    /// and when a collective fails.
    fn awaits(&mut self, _awaited: &mut Vec<Key>) -> bool {
        false
    }

    /// Returns true if a leaving rank must wait for the end of the operation.
    fn must_end(&self) -> bool {
        true
    }

    /// Gives up the operation: the scope that lends its buffers panics. The operation must end even if other ranks
    /// never do their part.
    fn give_up(&mut self, _core: &mut Core) {}
}

/// Cause of a failed request.
#[derive(Clone)]
pub(crate) enum Fault {
    Message(Failure),
    Work(Error),
}

/// Result of a request, and its buffer.
pub(crate) type Ended = (Result<Came, Fault>, Option<Bytes>);

/// Actions at the end of a request.
#[derive(Default)]
struct Watch {
    waker: Option<Waker>,
    /// List on which the composite operation puts a number, and that number.
    list: Option<(ListId, usize)>,
    /// Composite operation that awaits this message.
    work: Option<u64>,
    /// The request is detached: its result is discarded.
    detached: bool,
    /// Result of a composite operation. The channel keeps the result of a message.
    ended: Option<Ended>,
}

/// Time between two checks for dead ranks, in calls of any kind. A loop of short calls reports a death as soon as one
/// long wait does.
const CHECK: Duration = Duration::from_millis(100);
/// Most calls between two readings of the clock.
const CALLS: u32 = 64;
/// Time between two readings beyond which the clock is read at every call, since the program's calls are slow.
const SLOW_CALLS: Duration = Duration::from_millis(10);

/// Progress calls on composite operations between two readings of the clock.
const SWEPT: u32 = 4;

impl Core {
    pub(super) fn new(engine: Engine) -> Core {
        Core {
            engine,
            watched: HashMap::new(),
            opened: HashMap::new(),
            expected: Expected::default(),
            lists: EndedLists::default(),
            polled: Vec::new(),
            waiting: HashMap::new(),
            next_work: 0,
            ready: Vec::new(),
            awaited: Vec::new(),
            turns: 0,
            swept: Instant::now(),
            #[cfg(test)]
            steps: 0,
            wakers: Vec::new(),
            dropped: Vec::new(),
            news: false,
            calls_left: CALLS,
            clock_read: Instant::now(),
            checked: Instant::now(),
            scopes: Vec::new(),
            left: Left::default(),
            armed: None,
            tasks: 0,
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    fn count_look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// Makes progress on the channel and on composite operations. Returns true if more progress is due soon.
    #[inline]
    pub fn progress(&mut self) -> bool {
        let worked = self.engine.progress() > 0;
        self.take_ended();
        if !(self.polled.is_empty() && self.waiting.is_empty()) {
            self.turn_works();
        }
        if worked {
            self.happened();
        }
        worked || !self.ready.is_empty() || self.engine.credit_due().is_some()
    }

    /// Takes the wakers of all requests, for a rank that has left.
    pub fn abandoned(&mut self) -> impl Iterator<Item = Waker> + '_ {
        self.watched.values_mut().filter_map(|watch| watch.waker.take())
    }

    /// Counts a call. Now and then the call checks for dead ranks, and reports them to the channel.
    #[inline(always)]
    pub fn count_call(&mut self) {
        self.calls_left -= 1;
        if self.calls_left == 0 {
            self.read_clock();
        }
    }

    #[cold]
    #[inline(never)]
    fn read_clock(&mut self) {
        let now = Instant::now();
        let are_slow = now.saturating_duration_since(self.clock_read) >= SLOW_CALLS;
        (self.clock_read, self.calls_left) = (now, if are_slow { 1 } else { CALLS });
        if now.saturating_duration_since(self.checked) >= CHECK {
            self.checked = now;
            self.engine.wire().look_for_the_gone();
            // Calls on the short path make no progress themselves.
            if self.engine.progress() > 0 {
                self.happened();
            }
        }
    }

    /// Starts a composite operation whose result the program will take.
    pub fn start(&mut self, work: Box<dyn Work>) -> Key {
        let key = Key::Work(self.next_work);
        self.watched.insert(key, Watch::default());
        self.attend(work);
        key
    }

    /// Starts a detached composite operation.
    pub fn attend(&mut self, work: Box<dyn Work>) {
        self.waiting.insert(self.next_work, work);
        self.ready.push(self.next_work);
        self.next_work += 1;
    }

    /// Returns true if other ranks still need this rank.
    pub fn is_needed(&self) -> bool {
        self.engine.is_needed() || self.works_on()
    }

    /// Returns true if other ranks wait for this rank's part of a composite operation.
    pub fn works_on(&self) -> bool {
        self.polled.iter().map(|(_, work)| work).chain(self.waiting.values()).any(|work| work.must_end())
    }

    /// Takes out a composite operation, which gets no more steps.
    fn take_out(&mut self, key: Key) -> Option<Box<dyn Work>> {
        let Key::Work(number) = key else { return None };
        let polled = self.polled.iter().position(|(polled, _)| *polled == number);
        polled.map(|at| self.polled.swap_remove(at).1).or_else(|| self.waiting.remove(&number))
    }

    /// Steps the composite operations that are due. Now and then it steps all of them, since some check how long they
    /// have waited.
    #[cold]
    #[inline(never)]
    fn turn_works(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(SWEPT) && !self.waiting.is_empty() && self.swept.elapsed() >= CHECK {
            self.swept = Instant::now();
            self.turn_all();
        }
        // Operations that become due meanwhile wait for the next progress call.
        let mut ready = std::mem::take(&mut self.ready);
        let mut polled = std::mem::take(&mut self.polled);
        polled.retain_mut(|(number, work)| self.step(*number, work));
        polled.append(&mut self.polled);
        self.polled = polled;
        // In the order of their starts, since other ranks await the earliest first.
        ready.sort_unstable();
        let mut awaited = std::mem::take(&mut self.awaited);
        for number in ready.drain(..) {
            let Some(mut work) = self.waiting.remove(&number) else { continue };
            if !self.step(number, &mut work) {
                continue;
            }
            match work.awaits(&mut awaited) {
                true => drop(self.waiting.insert(number, work)),
                false => self.polled.push((number, work)),
            }
            for key in awaited.drain(..) {
                self.watched.entry(key).or_default().work = Some(number);
            }
        }
        ready.append(&mut self.ready);
        (self.ready, self.awaited) = (ready, awaited);
    }

    /// Steps a composite operation. Returns true if it goes on.
    fn step(&mut self, number: u64, work: &mut Box<dyn Work>) -> bool {
        #[cfg(test)]
        (self.steps += 1);
        let ended = work.progress(self).map(|ended| self.end(Key::Work(number), ended));
        ended.is_none()
    }

    /// Makes every composite operation due in the next progress call.
    pub fn turn_all(&mut self) {
        self.ready.extend(self.waiting.keys());
    }

    /// Records the end of a composite operation.
    fn end(&mut self, key: Key, ended: Ended) {
        self.happened();
        self.news = true;
        let Some(watch) = self.watched.get_mut(&key) else { return };
        if watch.detached {
            let watch = self.watched.remove(&key);
            return self.let_go(watch.and_then(|watch| watch.waker));
        }
        watch.ended = Some(ended);
        self.wakers.extend(watch.waker.take());
        if let Some((list, number)) = watch.list.take() {
            self.lists.push(list, number);
        }
    }

    /// Handles messages that have ended.
    #[inline(always)]
    pub fn take_ended(&mut self) {
        if self.engine.has_ended() {
            self.end_messages();
        }
    }

    fn end_messages(&mut self) {
        while let Some(id) = self.engine.next_ended() {
            if !self.watched.is_empty() {
                self.end_message(id);
            }
            if !self.lists.have_no_messages() {
                self.lists.end_message(id);
            }
        }
        self.news = true;
        self.happened();
    }

    #[cold]
    #[inline(never)]
    fn end_message(&mut self, id: Id) {
        let key = Key::Message(id);
        let Some(watch) = self.watched.remove(&key) else { return };
        self.wakers.extend(watch.waker);
        self.ready.extend(watch.work);
        if watch.detached {
            self.engine.take(id);
        }
    }

    /// Takes the status and buffer of a message that has ended well; the request then no longer exists.
    #[inline]
    pub fn ended_well(&mut self, key: Key) -> Option<(Came, Option<Bytes>)> {
        match key {
            Key::Message(id) => self.engine.take_well(id),
            Key::Work(_) => None,
        }
    }

    /// Returns true for a receive that has been matched, while its data is arriving.
    pub fn is_arriving(&self, key: Key) -> bool {
        matches!(key, Key::Message(id) if self.engine.is_arriving(id))
    }

    /// Takes the result of a request that has ended; the request then no longer exists.
    #[inline]
    pub fn ended(&mut self, key: Key) -> Option<Ended> {
        self.count_look();
        // The fast path of a waiting call, which tests in a loop.
        if let Key::Message(id) = key
            && self.engine.is_moving(id)
        {
            return None;
        }
        self.take(key)
    }

    #[inline(never)]
    fn take(&mut self, key: Key) -> Option<Ended> {
        match key {
            Key::Message(id) => match self.engine.take(id) {
                Some(done) => Some((done.result.map_err(Fault::Message), done.memory)),
                // A probe ends when it has matched a message.
                None => self.engine.probed(id).map(|came| (Ok(came), None)),
            },
            Key::Work(_) => {
                self.watched.get(&key)?.ended.as_ref()?;
                self.watched.remove(&key)?.ended
            }
        }
    }

    /// Returns `Some` if the request has ended, with the status if it ended well.
    pub fn has_ended(&self, key: Key) -> Option<Option<Came>> {
        self.count_look();
        match key {
            Key::Message(id) => self.engine.outcome(id).map(|result| result.as_ref().ok().copied()),
            Key::Work(_) => self.watched.get(&key)?.ended.as_ref().map(|(result, _)| result.as_ref().ok().copied()),
        }
    }

    /// Returns true if the request is in flight.
    pub fn is_under_way(&self, key: Key) -> bool {
        self.count_look();
        match key {
            Key::Message(id) => self.engine.is_under_way(id),
            Key::Work(_) => self.watched.get(&key).is_some_and(|watch| watch.ended.is_none()),
        }
    }

    /// Describes what a message in flight waits for.
    pub fn waits(&self, key: Key) -> Option<Waits> {
        match key {
            Key::Message(id) => self.engine.waits(id),
            Key::Work(_) => None,
        }
    }

    /// Requests that futures await.
    pub fn awaited(&self) -> Vec<Key> {
        self.watched.iter().filter(|(_, watch)| watch.waker.is_some()).map(|(key, _)| *key).collect()
    }

    /// Registers the waker of a request. Returns the waker that is not needed, which the caller drops once the lock is
    /// released.
    pub fn wake(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.is_under_way(key) {
            true => self.watched.entry(key).or_default().waker.replace(waker),
            false => Some(waker),
        }
    }

    /// Upper bound of the number of waiting tasks.
    pub fn waiting_tasks(&self) -> usize {
        self.watched.len() + self.armed.as_ref().map_or(0, |armed| armed.wakers.len())
    }

    /// Makes the request put `number` on `list` when it ends; at once if it has ended.
    pub fn list(&mut self, key: Key, list: ListId, number: usize) {
        match key {
            _ if !self.is_under_way(key) => self.lists.push(list, number),
            Key::Message(id) => self.lists.add_message(id, list, number),
            Key::Work(_) => self.watched.entry(key).or_default().list = Some((list, number)),
        }
    }

    /// Drops a value of the program once the lock is released.
    pub fn let_go<D: Any + Send>(&mut self, dropped: Option<D>) {
        if let Some(dropped) = dropped
            && std::mem::needs_drop::<D>()
        {
            self.news = true;
            self.dropped.push(Box::new(dropped));
        }
    }

    /// Detaches a request. A receive without a message is withdrawn; a composite operation goes on.
    pub fn forget(&mut self, key: Key) {
        if self.is_under_way(key) {
            let watch = self.watched.entry(key).or_default();
            (watch.detached, watch.list) = (true, None);
            if let Key::Message(id) = key {
                self.lists.remove_message(id);
            }
            self.withdraw(key);
        } else {
            self.ended(key);
        }
    }

    /// Detaches a request as [`forget`](Self::forget), and gives up a composite operation, so that it ends soon.
    pub fn abandon(&mut self, key: Key) {
        if let (Key::Work(number), Some(mut work)) = (key, self.take_out(key)) {
            work.give_up(self);
            self.waiting.insert(number, work);
            self.ready.push(number);
        }
        self.forget(key);
    }

    /// Withdraws a receive without a message, and returns its buffer. `None` if it is too late, or for a composite
    /// operation.
    pub fn withdraw(&mut self, key: Key) -> Option<Option<Bytes>> {
        let Key::Message(id) = key else { return None };
        match self.engine.cancel(id) {
            transom_channel::Cancelled::Withdrawn(bytes) => {
                let watch = self.watched.remove(&key);
                self.let_go(watch.and_then(|watch| watch.waker));
                Some(bytes)
            }
            transom_channel::Cancelled::TooLate => None,
        }
    }
}
