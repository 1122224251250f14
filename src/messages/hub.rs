//! A rank's messages: one engine behind one lock, whichever of its threads and teams they are of, and what has ended but was
//! not asked for yet.

use super::carrier::{self, Carrier, Waiter};
use super::error::Error;
use super::progress::{Events, Progress, Thread};
use crate::provider::Provider;
use std::cell::Cell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::task::Waker;
use std::time::{Duration, Instant};
use transom_channel::wire::Data;
use transom_channel::{Error as Failure, Id, Meter, Room, Short, Status as Came};
use transom_locks::Awaited;
use transom_shm_loopback::messages::{Bytes, Look, Turn};
use transom_windows::Wait;

/// All messages of a rank. Requests keep it, and it does not keep the rank in its job: a request that is leaked harms nobody.
pub(crate) struct Hub {
    waiter: Waiter,
    /// Whether ranks share cores.
    crowded: bool,
    /// None once the rank has left.
    core: Mutex<Option<Core>>,
    /// Turns the engine where the program does not, if it is to.
    pub thread: Thread,
    events: OnceLock<Events>,
}

pub(crate) type Engine = transom_channel::Engine<Carrier>;

pub(crate) struct Core {
    pub engine: Engine,
    /// Works, and the few messages that somebody wants more of than to ask how they ended.
    watched: HashMap<Key, Watch>,
    /// Pipes that were opened, by context and peer.
    pub opened: HashMap<(u32, u32), u32>,
    /// What is done by many messages, a step in each turn.
    works: Vec<(u64, Box<dyn Work>)>,
    /// The number of the next.
    next_work: u64,
    /// To be woken once the lock is free.
    wakers: Vec<Waker>,
    /// Whoever waits is not to sleep now.
    awake: bool,
    /// When a call that does not wait has last looked who is gone.
    checked: Instant,
    /// Told, once, when something has happened.
    pub armed: Option<Events>,
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

    /// Whether a rank that leaves waits for its end.
    fn must_end(&self) -> bool {
        true
    }

    /// The program panics in the scope that lends the buffers: it is to end though other ranks never do their part.
    fn give_up(&mut self, _core: &mut Core) {}

    /// It is turned no more.
    fn stop(&mut self, _core: &mut Core) {}
}

thread_local! {
    /// This thread runs an operation of the program's with the engine locked.
    static IN_OPERATION: Cell<bool> = const { Cell::new(false) };
}

/// Runs an operation of the program's with the engine locked, in which calls of the library panic instead of waiting for ever.
pub(crate) fn in_operation(act: impl FnOnce()) {
    let before = IN_OPERATION.replace(true);
    act();
    IN_OPERATION.set(before);
}

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
    /// Makes a buffer of so many bytes, once the message is known.
    make: Option<fn(usize) -> Option<Bytes>>,
    waker: Option<Waker>,
    /// Nobody will ask for it.
    detached: bool,
    /// How a work ended. A message that has ended is the engine's until somebody asks for it.
    ended: Option<Ended>,
}

/// How often calls that do not wait, or not for long, look who is gone: a program that makes them again and again is told of a
/// death too.
const CHECK: Duration = Duration::from_millis(100);

/// Looks at a ring before a receive becomes a request.
const LOOKS: usize = 64;

/// A panic while the engine runs is an error of this library, and may leave memory to peers that the program uses again.
struct Whole;

impl Drop for Whole {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("transom: the engine of messages has failed; this process cannot go on");
            std::process::abort();
        }
    }
}

impl Hub {
    pub fn open(job: &Provider) -> Result<Arc<Hub>, Error> {
        let (wire, config) = carrier::open(job)?;
        let waiter = wire.waiter();
        let (rank, ranks) = (waiter.rank(), transom_windows::Exchange::size(job));
        let engine = Engine::new(wire, rank as u32, ranks as u32, config).map_err(carrier::misconfigured)?;
        let core = Core {
            engine,
            watched: HashMap::new(),
            opened: HashMap::new(),
            works: Vec::new(),
            next_work: 0,
            wakers: Vec::new(),
            awake: false,
            checked: Instant::now(),
            armed: None,
        };
        let (crowded, core) = (waiter.is_crowded(), Mutex::new(Some(core)));
        let hub = Arc::new(Hub { crowded, waiter, core, thread: Thread::default(), events: OnceLock::new() });
        hub.with(|core| core.engine.wire().turn_in_waits(hub.clone()))?;
        if Progress::asked().map_err(|error| Error::Unavailable { why: error.to_string() })? == Progress::Thread {
            hub.thread.begin(&hub)?;
        }
        Ok(hub)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Core>> {
        match self.core.try_lock() {
            Ok(core) => core,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                assert!(!IN_OPERATION.get(), "an operation of a collective must not call the library");
                self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
            }
        }
    }

    /// Calls `act` with the engine.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> Result<R, Error> {
        self.enter(act).ok_or(Error::Closed)
    }

    /// As [`with`](Self::with); none if the rank has left.
    #[inline(always)]
    fn enter<R>(&self, act: impl FnOnce(&mut Core) -> R) -> Option<R> {
        let mut held = self.lock();
        let core = held.as_mut()?;
        let whole = Whole;
        let result = act(core);
        std::mem::forget(whole);
        if !core.wakers.is_empty() {
            wake(held);
        }
        Some(result)
    }

    /// Sends a message whole without a request, or does nothing; none if the rank has left.
    #[inline(never)]
    pub fn send_short(&self, to: u32, context: u32, tag: u32, data: &[u8]) -> Option<bool> {
        self.enter(|core| core.engine.try_send(to, context, tag, Data::Bytes(data)))
    }

    /// Receives what lies in the ring of the source, or comes there soon, without a request, as much of it as there is room for;
    /// none if the rank has left.
    #[inline(never)]
    pub fn receive_short(&self, context: u32, source: u32, tag: Option<u32>, into: &mut [u8]) -> Option<Short> {
        match self.enter(|core| core.engine.try_receive(context, source, tag, into)) {
            Some(Short::Nothing) if !self.crowded => self.receive_soon(context, source, tag, into),
            look => look,
        }
    }

    #[cold]
    #[inline(never)]
    fn receive_soon(&self, context: u32, source: u32, tag: Option<u32>, into: &mut [u8]) -> Option<Short> {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            match self.enter(|core| core.engine.try_receive(context, source, tag, into)) {
                Some(Short::Nothing) => {}
                look => return look,
            }
        }
        Some(Short::Nothing)
    }

    /// Waits until `look` finds what it looks for, after a turn of the engine.
    #[inline]
    pub fn wait<R>(
        &self,
        call: &dyn fmt::Display,
        awaited: Awaited,
        mut look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        let wait = Wait { rank: self.waiter.rank(), call, awaited, deadline: None };
        let look = || {
            let looked = self.with(|core| {
                // What is looked for may be there already.
                if let Some(found) = look(core) {
                    return Look::Found(found);
                }
                let busy = self.turn_core(core);
                match look(core) {
                    Some(found) => Look::Found(found),
                    None if busy => Look::Busy,
                    None => Look::Idle,
                }
            });
            match looked {
                Ok(Look::Found(found)) => Look::Found(Ok(found)),
                Ok(Look::Busy) => Look::Busy,
                Ok(Look::Idle) => Look::Idle,
                Err(closed) => Look::Found(Err(closed)),
            }
        };
        self.waiter.wait(wait, look, || self.look_for_the_gone())
    }

    /// As [`wait`](Self::wait), until a time; none if that has come.
    pub fn wait_until<R>(
        &self,
        call: &dyn fmt::Display,
        awaited: Awaited,
        until: Instant,
        mut look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        self.wait(call, awaited, |core| match look(core) {
            Some(found) => Some(Some(found)),
            None => {
                let now = Instant::now();
                core.check(now);
                let left = until.saturating_duration_since(now);
                // A sleep may last longer than that.
                core.awake |= left < Duration::from_millis(100);
                (left == Duration::ZERO).then_some(None)
            }
        })
    }

    /// One turn, for calls that do not wait.
    pub fn turn_now(&self) {
        let _ = self.with(|core| {
            core.check(Instant::now());
            self.turn_core(core)
        });
    }

    /// Turns the engine whenever there is something to do, until the rank leaves.
    pub(super) fn attend(&self) {
        let look = || match self.with(|core| self.turn_core(core)) {
            Ok(true) => Look::Busy,
            Ok(false) => Look::Idle,
            Err(_) => Look::Found(()),
        };
        self.waiter.attend(look, || self.look_for_the_gone());
    }

    /// Wakes the threads that sleep in [`wait`](Self::wait).
    pub fn ring(&self) {
        self.waiter.ring();
    }

    fn look_for_the_gone(&self) {
        let _ = self.with(|core| core.engine.wire().look_for_the_gone());
    }

    /// One turn of the engine. Whether there is more to do soon.
    fn turn_core(&self, core: &mut Core) -> bool {
        let worked = core.engine.progress() > 0;
        let mut ended = core.take_ended();
        if !core.works.is_empty() {
            ended |= core.turn_works();
        }
        if ended {
            // Other threads of this rank may wait for it.
            self.waiter.ring();
        }
        if worked {
            core.happened();
        }
        worked || core.engine.credit_due().is_some() || std::mem::take(&mut core.awake)
    }

    /// Says that this rank receives nothing any more, and ends all; before that, unless `in_haste`, waits until what was sent
    /// is with those who are to have it, or they are gone.
    pub fn close(&self, in_haste: bool) {
        let closing = self.with(|core| {
            core.engine.wire().close();
            core.engine.wire().look_for_the_gone();
        });
        if closing.is_ok() && !in_haste {
            let call = "leaving, until its messages are delivered";
            let _ = self.wait(&call, Awaited::Anyone, |core| (!core.is_needed()).then_some(()));
        }
        let _ = self.with(|core| {
            core.engine.shut();
            core.happened();
        });
        let mut closed = self.lock().take();
        self.waiter.ring();
        // Whoever is woken finds that the world is gone.
        let watched = closed.iter_mut().flat_map(|core| core.watched.values_mut());
        watched.filter_map(|watch| watch.waker.take()).for_each(Waker::wake);
        drop(closed);
        self.thread.end();
    }

    /// What is told when something happens, made when it is first asked for.
    pub fn events(&self) -> Result<&Events, Error> {
        if let Some(events) = self.events.get() {
            return Ok(events);
        }
        let made = Events::new()?;
        Ok(self.events.get_or_init(|| made))
    }

    pub fn meter(&self) -> Result<Meter, Error> {
        self.with(|core| core.engine.meter())
    }
}

/// Wakes who waits for what has ended, once the lock is free.
#[cold]
#[inline(never)]
fn wake(mut held: MutexGuard<'_, Option<Core>>) {
    let wakers = held.as_mut().map(|core| std::mem::take(&mut core.wakers));
    drop(held);
    wakers.into_iter().flatten().for_each(Waker::wake);
}

impl Turn for Hub {
    fn turn(&self) -> bool {
        self.with(|core| self.turn_core(core)).unwrap_or(false)
    }
}

impl Core {
    /// Looks who is gone, if nobody has for some time.
    fn check(&mut self, now: Instant) {
        if now.saturating_duration_since(self.checked) >= CHECK {
            self.checked = now;
            self.engine.wire().look_for_the_gone();
        }
    }

    /// A request that the program will ask for. If it has no buffer yet, `make` makes one when the message is known.
    pub fn note(&mut self, id: Id, make: Option<fn(usize) -> Option<Bytes>>) {
        if make.is_some() {
            self.watched.insert(Key::Message(id), Watch { make, ..Watch::default() });
        }
        self.take_ended();
    }

    /// A work that the program will ask for.
    pub fn start(&mut self, work: Box<dyn Work>) -> Key {
        let key = Key::Work(self.next_work);
        self.watched.insert(key, Watch::default());
        self.works.push((self.next_work, work));
        self.next_work += 1;
        key
    }

    /// Ends a work without a result.
    pub fn stop(&mut self, key: Key) {
        self.watched.remove(&key);
        if let Some(at) = self.works.iter().position(|(number, _)| Key::Work(*number) == key) {
            self.works.swap_remove(at).1.stop(self);
        }
    }

    /// Whether others need this rank still.
    fn is_needed(&self) -> bool {
        self.engine.is_needed() || self.works.iter().any(|(_, work)| work.must_end())
    }

    /// Turns each work once. Whether any has ended.
    #[cold]
    #[inline(never)]
    fn turn_works(&mut self) -> bool {
        let works = std::mem::take(&mut self.works);
        let mut any = false;
        for (number, mut work) in works {
            match work.turn(self) {
                None => self.works.push((number, work)),
                Some((result, memory)) => {
                    any = true;
                    self.end(Key::Work(number), (result, memory));
                }
            }
        }
        any
    }

    /// Tells whoever is to be told when something happens.
    #[inline]
    fn happened(&mut self) {
        if let Some(events) = self.armed.take() {
            events.tell();
        }
    }

    /// A work has ended.
    fn end(&mut self, key: Key, ended: Ended) {
        self.happened();
        let Some(watch) = self.watched.get_mut(&key) else { return };
        if watch.detached {
            self.watched.remove(&key);
            return;
        }
        watch.ended = Some(ended);
        self.wakers.extend(watch.waker.take());
    }

    /// Has the engine tell what has ended. Whether anything has.
    #[inline]
    fn take_ended(&mut self) -> bool {
        let mut any = false;
        while let Some(id) = self.engine.next_ended() {
            any = true;
            if !self.watched.is_empty() {
                self.end_message(id);
            }
        }
        if any {
            self.happened();
        }
        any
    }

    #[cold]
    #[inline(never)]
    fn end_message(&mut self, id: Id) {
        let key = Key::Message(id);
        let Some(watch) = self.watched.get_mut(&key) else { return };
        if let (Some(make), Some(came)) = (watch.make.take(), self.engine.probed(id)) {
            let length = came.length as usize;
            // Without memory the engine finds out as well, and says so.
            let room = make(length).map_or(Room::Allocate, |bytes| Room::Into(bytes, length));
            let received = self.engine.receive_message(id, room);
            debug_assert!(received.is_ok(), "a message that was matched is there");
        } else if let Some(watch) = self.watched.remove(&key) {
            self.wakers.extend(watch.waker);
            if watch.detached {
                self.engine.take(id);
            }
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

    /// How the request ended, if it has; it is no more then.
    pub fn ended(&mut self, key: Key) -> Option<Ended> {
        match key {
            Key::Message(id) => match self.engine.take(id) {
                Some(done) => Some((done.result.map_err(Fault::Message), done.memory)),
                None => self.probed(id),
            },
            Key::Work(_) => {
                self.watched.get(&key)?.ended.as_ref()?;
                self.watched.remove(&key)?.ended
            }
        }
    }

    /// A probe ends when it has its message; a receive that makes its buffer then goes on.
    #[cold]
    #[inline(never)]
    fn probed(&self, id: Id) -> Option<Ended> {
        let came = self.engine.probed(id)?;
        let goes_on = self.watched.get(&Key::Message(id)).is_some_and(|watch| watch.make.is_some());
        (!goes_on).then_some((Ok(came), None))
    }

    /// Whether the request has ended, and what came, if it ended well.
    pub fn has_ended(&self, key: Key) -> Option<Option<Came>> {
        match key {
            Key::Message(id) => self.engine.outcome(id).map(|result| result.as_ref().ok().copied()),
            Key::Work(_) => self.watched.get(&key)?.ended.as_ref().map(|(result, _)| result.as_ref().ok().copied()),
        }
    }

    /// Whether the request has not ended.
    pub fn is_under_way(&self, key: Key) -> bool {
        match key {
            Key::Message(id) => self.engine.is_under_way(id),
            Key::Work(_) => self.watched.get(&key).is_some_and(|watch| watch.ended.is_none()),
        }
    }

    /// Has the request wake somebody when it ends.
    pub fn wake(&mut self, key: Key, waker: &Waker) {
        if self.is_under_way(key) {
            self.watched.entry(key).or_default().waker = Some(waker.clone());
        }
    }

    /// Nobody will ask for the request any more. A receive that has no message yet is withdrawn; a work goes on.
    pub fn forget(&mut self, key: Key) {
        if self.is_under_way(key) {
            self.watched.entry(key).or_default().detached = true;
            self.withdraw(key);
        } else {
            self.ended(key);
        }
    }

    /// As [`forget`](Self::forget), of what is to end soon: a work is given up.
    pub fn abandon(&mut self, key: Key) {
        if let Some(at) = self.works.iter().position(|(number, _)| Key::Work(*number) == key) {
            let (number, mut work) = self.works.swap_remove(at);
            work.give_up(self);
            self.works.push((number, work));
        }
        self.forget(key);
    }

    /// Withdraws a receive that has no message yet, and gives back its buffer.
    pub fn withdraw(&mut self, key: Key) -> Option<Option<Bytes>> {
        let Key::Message(id) = key else { return None };
        match self.engine.cancel(id) {
            transom_channel::Cancelled::Withdrawn(bytes) => {
                self.watched.remove(&key);
                Some(bytes)
            }
            transom_channel::Cancelled::TooLate => None,
        }
    }
}
