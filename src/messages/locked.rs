//! What the lock of a rank's messages has behind it: the engine, works of many messages, and who is to be told what has ended.

use super::ended_lists::{EndedLists, ListId};
use super::error::Error;
use super::partitioned::Expected;
use super::progress::Events;
use super::transport::Transport;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::task::Waker;
use std::time::{Duration, Instant};
use transom_channel::{Error as Failure, Id, Status as Came, Waits};
use transom_shm_loopback::messages::Bytes;

pub(crate) type Engine = transom_channel::Engine<Transport>;

pub(crate) struct Core {
    pub engine: Engine,
    /// Works, and the few messages that somebody wants more of than to ask how they ended.
    watched: HashMap<Key, Watch>,
    /// How many pipes, or tags of parts of messages, were used, by context and peer, of contexts that somebody has.
    pub opened: HashMap<(u32, u32), u32>,
    /// Receive ends of partitioned messages that wait for their announcement.
    pub expected: Expected,
    /// Requests that have ended, for the sets that wait for any of theirs.
    pub lists: EndedLists,
    /// What is done by many messages: works with a step in each turn, with their numbers, and by their numbers those that await messages.
    polled: Vec<(u64, Box<dyn Work>)>,
    waiting: HashMap<u64, Box<dyn Work>>,
    /// The number of the next.
    next_work: u64,
    /// Of the works that await messages those with a step in the next turn.
    ready: Vec<u64>,
    /// Empty between turns. Its memory is used again, since a wait that turns works allocates nothing.
    awaited: Vec<Key>,
    /// Turns of works, and when all of them were turned last.
    turns: u32,
    swept: Instant,
    /// Steps of works so far.
    #[cfg(test)]
    pub steps: u64,
    /// To be woken once the lock is free; and what is the program's, to be dropped then: it may have requests, which ask for the lock.
    pub wakers: Vec<Waker>,
    pub dropped: Vec<Box<dyn Any + Send>>,
    /// Something has ended that other threads of this rank may wait for.
    pub news: bool,
    /// Calls left before the clock is read.
    calls_left: u32,
    /// When the clock was last read, and when this rank last looked for dead ranks.
    clock_read: Instant,
    checked: Instant,
    /// By their numbers. Those that have ended are used again.
    scopes: Vec<Lending>,
    /// Descriptor and tasks to notify, once, when something has happened.
    pub armed: Option<Armed>,
    /// Tasks that have waited for news so far.
    tasks: u64,
    /// Requests that were asked whether they have ended.
    #[cfg(test)]
    pub looks: std::cell::Cell<usize>,
}

#[derive(Default)]
pub(crate) struct Armed {
    pub events: Option<Events>,
    /// Wakers of tasks that wait for news, by the numbers of these tasks.
    wakers: BTreeMap<u64, Waker>,
}

/// What a request of the program is: one message, or a work of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Message(Id),
    Work(u64),
}

/// What is done by many messages: a collective. It is turned with the engine, by whichever call of the rank waits.
pub(crate) trait Work: Send {
    /// Does what can be done now; how it ended, if it has.
    fn turn(&mut self, core: &mut Core) -> Option<Ended>;

    /// After a step: whether the next step is due when one of the messages that it adds here has ended, or one that it added after an
    /// earlier step; else it has a step in each turn. All works have one now and then even so, and when a collective fails.
    fn awaits(&mut self, _awaited: &mut Vec<Key>) -> bool {
        false
    }

    /// Whether a rank that leaves waits for its end.
    fn must_end(&self) -> bool {
        true
    }

    /// The program panics in the scope that lends the buffers: it is to end though other ranks never do their part.
    fn give_up(&mut self, _core: &mut Core) {}
}

/// Requests whose buffers a scope lends. Those that have ended and were asked for go when there are many.
#[derive(Default)]
struct Lending {
    open: bool,
    requests: Vec<Key>,
    /// That many.
    most: usize,
}

/// A scope that is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lender(usize);

/// Why a request failed.
#[derive(Clone)]
pub(crate) enum Fault {
    Message(Failure),
    Work(Error),
}

/// How a request ended, and its buffer.
pub(crate) type Ended = (Result<Came, Fault>, Option<Bytes>);

/// What is to be done when a request ends.
#[derive(Default)]
struct Watch {
    waker: Option<Waker>,
    /// List that the work puts a number on, and that number.
    list: Option<(ListId, usize)>,
    /// The work that awaits it.
    work: Option<u64>,
    /// Nobody will ask for it.
    detached: bool,
    /// How a work ended. A message that has ended is the engine's until somebody asks for it.
    ended: Option<Ended>,
}

/// Requests that a scope keeps however few of them have not ended.
const LENT: usize = 128;

/// Time between two looks for dead ranks, in calls of any kind: short calls in a loop report a death as soon as one long wait does.
const CHECK: Duration = Duration::from_millis(100);
/// Calls between two readings of the clock, at most.
const CALLS: u32 = 64;
/// A program whose calls took longer than this since the last reading has the clock read at every call.
const SLOW_CALLS: Duration = Duration::from_millis(10);

/// Turns of works between two looks at the clock.
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

    /// One turn of the engine, and of works. Whether there is more to do soon.
    #[inline]
    pub fn turn(&mut self) -> bool {
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

    /// The rank has left: whoever waits for anything.
    pub fn abandoned(&mut self) -> impl Iterator<Item = Waker> + '_ {
        self.watched.values_mut().filter_map(|watch| watch.waker.take())
    }

    /// Counts a call. Now and then it looks for dead ranks, and tells the engine of them.
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
            // Calls on the short path never turn the engine themselves.
            if self.engine.progress() > 0 {
                self.happened();
            }
        }
    }

    /// A scope begins.
    pub fn open_scope(&mut self) -> Lender {
        let free = self.scopes.iter().position(|scope| !scope.open).unwrap_or(self.scopes.len());
        if free == self.scopes.len() {
            self.scopes.push(Lending::default());
        }
        self.scopes[free].open = true;
        Lender(free)
    }

    /// A scope lends the buffers of this request.
    #[inline]
    pub fn lend(&mut self, Lender(scope): Lender, request: Key) {
        let lending = &mut self.scopes[scope];
        lending.requests.push(request);
        if lending.requests.len() > lending.most {
            self.sweep(scope);
        }
    }

    #[cold]
    #[inline(never)]
    fn sweep(&mut self, scope: usize) {
        let mut requests = std::mem::take(&mut self.scopes[scope].requests);
        requests.retain(|key| self.is_under_way(*key) || self.has_ended(*key).is_some());
        let most = (2 * requests.len()).max(LENT);
        self.scopes[scope] = Lending { open: true, requests, most };
    }

    /// What a scope lends.
    pub fn lent(&self, Lender(scope): Lender) -> &[Key] {
        &self.scopes[scope].requests
    }

    /// A scope ends, and nothing that it lends is under way: nobody asks for it any more. Why the first of those that were not asked
    /// for has failed.
    pub fn close_scope(&mut self, Lender(scope): Lender) -> Option<Fault> {
        let mut failed = None;
        let mut requests = std::mem::take(&mut self.scopes[scope].requests);
        for key in requests.drain(..) {
            // Most were asked for, and are no more.
            if self.has_ended(key).is_some()
                && let Some((Err(fault), _)) = self.ended(key)
            {
                failed.get_or_insert(fault);
            }
        }
        requests.shrink_to(LENT);
        self.scopes[scope] = Lending { open: false, requests, most: LENT };
        failed
    }

    /// As [`forget`](Self::forget), of a request whose buffer a scope lends: the end of that waits for what it receives, and tells if
    /// it fails.
    pub fn leave_to_scope(&mut self, key: Key) {
        match key {
            Key::Message(id) if self.engine.is_sending(id) => self.forget(key),
            _ => drop(self.ended_well(key)),
        }
    }

    /// A work that the program will ask for.
    pub fn start(&mut self, work: Box<dyn Work>) -> Key {
        let key = Key::Work(self.next_work);
        self.watched.insert(key, Watch::default());
        self.attend(work);
        key
    }

    /// A work that nobody asks for.
    pub fn attend(&mut self, work: Box<dyn Work>) {
        self.waiting.insert(self.next_work, work);
        self.ready.push(self.next_work);
        self.next_work += 1;
    }

    /// Whether others need this rank still.
    pub fn is_needed(&self) -> bool {
        self.engine.is_needed() || self.works_on()
    }

    /// Whether it has works of which others wait for its part.
    pub fn works_on(&self) -> bool {
        self.polled.iter().map(|(_, work)| work).chain(self.waiting.values()).any(|work| work.must_end())
    }

    /// The work, which is not turned any more.
    fn take_out(&mut self, key: Key) -> Option<Box<dyn Work>> {
        let Key::Work(number) = key else { return None };
        let polled = self.polled.iter().position(|(polled, _)| *polled == number);
        polled.map(|at| self.polled.swap_remove(at).1).or_else(|| self.waiting.remove(&number))
    }

    /// Has the works that have something to do take a step; and all, now and then: some look how long they have waited.
    #[cold]
    #[inline(never)]
    fn turn_works(&mut self) {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(SWEPT) && !self.waiting.is_empty() && self.swept.elapsed() >= CHECK {
            self.swept = Instant::now();
            self.turn_all();
        }
        // What becomes ready meanwhile is for the next turn.
        let mut ready = std::mem::take(&mut self.ready);
        let mut polled = std::mem::take(&mut self.polled);
        polled.retain_mut(|(number, work)| self.step(*number, work));
        polled.append(&mut self.polled);
        self.polled = polled;
        // In the order of their starts: another rank awaits the first of them first.
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

    /// A step of a work. Whether there is another.
    fn step(&mut self, number: u64, work: &mut Box<dyn Work>) -> bool {
        #[cfg(test)]
        (self.steps += 1);
        let ended = work.turn(self).map(|ended| self.end(Key::Work(number), ended));
        ended.is_none()
    }

    /// Has each work take a step in the next turn.
    pub fn turn_all(&mut self) {
        self.ready.extend(self.waiting.keys());
    }

    /// Tells whoever is to be told when something happens.
    #[inline]
    pub fn happened(&mut self) {
        if let Some(armed) = self.armed.take() {
            self.tell(armed);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell(&mut self, armed: Armed) {
        armed.events.iter().for_each(Events::tell);
        self.news |= !armed.wakers.is_empty();
        self.wakers.extend(armed.wakers.into_values());
    }

    /// Wakes a task when something has happened, and numbers the task if it has no number yet. The caller drops the earlier waker of
    /// the task, which it gets back, once the lock is free.
    pub fn wake_at_news(&mut self, task: &mut Option<u64>, waker: Waker) -> Option<Waker> {
        let task = *task.get_or_insert_with(|| {
            self.tasks += 1;
            self.tasks
        });
        self.armed.get_or_insert_default().wakers.insert(task, waker)
    }

    /// A task waits for news no more. The caller drops its waker once the lock is free.
    pub fn ignore_news(&mut self, task: u64) -> Option<Waker> {
        let armed = self.armed.as_mut()?;
        let waker = armed.wakers.remove(&task);
        if armed.events.is_none() && armed.wakers.is_empty() {
            self.armed = None;
        }
        waker
    }

    /// A work has ended.
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

    /// Has the engine tell what has ended.
    #[inline(always)]
    pub fn take_ended(&mut self) {
        if self.engine.has_ended() {
            self.end_messages();
        }
    }

    /// Tells whoever is armed what has come by pipes, and what the call has let in beside what it is for.
    #[cold]
    #[inline(never)]
    pub fn tell_news(&mut self) {
        self.engine.hear_pipes();
        if self.engine.take_news() {
            self.happened();
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

    /// What came, and its buffer, if the request is of a message and has ended well; it is no more then.
    #[inline]
    pub fn ended_well(&mut self, key: Key) -> Option<(Came, Option<Bytes>)> {
        match key {
            Key::Message(id) => self.engine.take_well(id),
            Key::Work(_) => None,
        }
    }

    /// Returns true for a receive that has met its message, while the data is coming.
    pub fn is_arriving(&self, key: Key) -> bool {
        matches!(key, Key::Message(id) if self.engine.is_arriving(id))
    }

    /// How the request ended, if it has; it is no more then.
    #[inline]
    pub fn ended(&mut self, key: Key) -> Option<Ended> {
        self.count_look();
        // Who waits looks again and again.
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
                // A probe ends when it has its message.
                None => self.engine.probed(id).map(|came| (Ok(came), None)),
            },
            Key::Work(_) => {
                self.watched.get(&key)?.ended.as_ref()?;
                self.watched.remove(&key)?.ended
            }
        }
    }

    /// Whether the request has ended, and what came, if it ended well.
    pub fn has_ended(&self, key: Key) -> Option<Option<Came>> {
        self.count_look();
        match key {
            Key::Message(id) => self.engine.outcome(id).map(|result| result.as_ref().ok().copied()),
            Key::Work(_) => self.watched.get(&key)?.ended.as_ref().map(|(result, _)| result.as_ref().ok().copied()),
        }
    }

    /// Whether the request has not ended.
    pub fn is_under_way(&self, key: Key) -> bool {
        self.count_look();
        match key {
            Key::Message(id) => self.engine.is_under_way(id),
            Key::Work(_) => self.watched.get(&key).is_some_and(|watch| watch.ended.is_none()),
        }
    }

    /// What a message that has not ended waits for.
    pub fn waits(&self, key: Key) -> Option<Waits> {
        match key {
            Key::Message(id) => self.engine.waits(id),
            Key::Work(_) => None,
        }
    }

    /// The requests that a future awaits.
    pub fn awaited(&self) -> Vec<Key> {
        self.watched.iter().filter(|(_, watch)| watch.waker.is_some()).map(|(key, _)| *key).collect()
    }

    /// Has the request wake somebody when it ends. What it gives back is not needed any more, and to be dropped once the lock is free.
    pub fn wake(&mut self, key: Key, waker: Waker) -> Option<Waker> {
        match self.is_under_way(key) {
            true => self.watched.entry(key).or_default().waker.replace(waker),
            false => Some(waker),
        }
    }

    /// Tasks that wait to be woken; at least so many.
    pub fn waiting_tasks(&self) -> usize {
        self.watched.len() + self.armed.as_ref().map_or(0, |armed| armed.wakers.len())
    }

    /// Has the request put a number on a list when it ends: now, if it has ended.
    pub fn list(&mut self, key: Key, list: ListId, number: usize) {
        match key {
            _ if !self.is_under_way(key) => self.lists.push(list, number),
            Key::Message(id) => self.lists.add_message(id, list, number),
            Key::Work(_) => self.watched.entry(key).or_default().list = Some((list, number)),
        }
    }

    /// Drops this, which is the program's, once the lock is free.
    pub fn let_go<D: Any + Send>(&mut self, dropped: Option<D>) {
        if let Some(dropped) = dropped
            && std::mem::needs_drop::<D>()
        {
            self.news = true;
            self.dropped.push(Box::new(dropped));
        }
    }

    /// Nobody will ask for the request any more. A receive that has no message yet is withdrawn; a work goes on.
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

    /// As [`forget`](Self::forget), of what is to end soon: a work is given up.
    pub fn abandon(&mut self, key: Key) {
        if let (Key::Work(number), Some(mut work)) = (key, self.take_out(key)) {
            work.give_up(self);
            self.waiting.insert(number, work);
            self.ready.push(number);
        }
        self.forget(key);
    }

    /// Withdraws a receive that has no message yet, and gives back its buffer.
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
