//! The progress engine of a rank: one channel behind one lock, shared by all its threads and teams.

use super::asked::Progress;
use super::error::Error;
use super::locked::{Core, Engine, Key};
use super::progress::Thread;
use super::transport;
use crate::provider::Provider;
use std::cell::Cell;
use std::fmt;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use transom_channel::wire::Data;
use transom_channel::{Counters, RecvBuf, Short, Status as Came};
use transom_launch::lock;
use transom_locks::Awaited;
use transom_shm_loopback::messages::{Bytes, Look, ProgressHook, Waiter};
use transom_shm_loopback::{Biased, Held};
use transom_windows::{Wait, has_own_core};

/// The progress engine of a rank. Requests keep it alive, but it does not keep the rank in its job, so that a leaked
/// request is harmless.
pub(crate) struct ProgressEngine {
    waiter: Waiter,
    /// The cores are oversubscribed: ranks share cores.
    oversubscribed: bool,
    /// Engine state; `None` once the rank has left.
    core: Biased<Option<Core>>,
    /// Contexts of dropped teams that the engine has still to close. They queue here because the dropping thread, or
    /// another one, may hold the engine; the next team made or dropped closes them.
    disbanded: Mutex<Vec<RangeInclusive<u32>>>,
    /// This rank has made no message call yet. Until a message arrives, waits skip the engine.
    untouched: AtomicBool,
    /// Consecutive brief waits that found nothing.
    waits_in_vain: AtomicU32,
    /// Progress thread, if the rank has one.
    pub thread: Thread,
}

thread_local! {
    /// True while this thread runs an operation of the program with the engine locked.
    static IN_OPERATION: Cell<bool> = const { Cell::new(false) };
}

/// Runs an operation of the program with the engine locked. Calls of the library inside it panic instead of
/// deadlocking.
pub(crate) fn in_operation(act: impl FnOnce()) {
    let before = IN_OPERATION.replace(true);
    act();
    IN_OPERATION.set(before);
}

/// Panics inside an operation of the program. Callers check this before they lend memory to the engine, since nothing
/// may unwind afterwards.
pub(crate) fn must_not_be_in_operation() {
    assert!(!IN_OPERATION.get(), "an operation of a collective must not call the library");
}

/// Polls of rings before a receive becomes a request.
const LOOKS: usize = 64;
/// Consecutive polls of one ring with the engine locked. Between two such rows, other threads of this rank may take the
/// engine.
const IN_A_ROW: usize = 8;

/// Longest sleep of a brief wait, divided among all waiting tasks.
const NAP: Duration = Duration::from_micros(500);

/// Aborts the process if the engine panics. Such a panic is an error of this library, and peers may still access memory
/// that the program would reuse.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("transom: the message engine panicked, an error of this library; aborting the process");
            std::process::abort();
        }
    }
}

impl ProgressEngine {
    pub fn open(job: &Provider) -> Result<Arc<ProgressEngine>, Error> {
        let transport::Opened { wire, config, near } = transport::open(job)?;
        let waiter = wire.waiter();
        let (rank, ranks) = (waiter.rank(), transom_windows::OobExchange::size(job));
        let engine = Engine::with_near(wire, rank as u32, ranks as u32, config, near);
        let engine = engine.map_err(transport::misconfigured)?;
        let core = Core::new(engine);
        let (oversubscribed, core) = (waiter.is_oversubscribed(), Biased::new(Some(core)));
        let progress_engine = Arc::new(ProgressEngine {
            oversubscribed,
            waiter,
            core,
            disbanded: Mutex::default(),
            untouched: AtomicBool::new(true),
            waits_in_vain: AtomicU32::new(0),
            thread: Thread::default(),
        });
        // Fallible steps come first: `progress_in_waits` keeps the engine alive.
        if Progress::asked().map_err(|error| Error::Unavailable { why: error.to_string() })? == Progress::Thread {
            progress_engine.thread.begin(&progress_engine)?;
        }
        progress_engine.with(|core| core.engine.wire().progress_in_waits(progress_engine.clone()))?;
        Ok(progress_engine)
    }

    /// Records a message or collective call of this rank. From then on, waits make progress.
    pub fn touch(&self) {
        self.untouched.store(false, Relaxed);
    }

    fn may_do_something(&self) -> bool {
        if self.untouched.load(Relaxed) {
            if !self.waiter.may_have_come() {
                return false;
            }
            self.touch();
        }
        true
    }

    #[inline(always)]
    fn lock(&self) -> Held<'_, Option<Core>> {
        self.core.try_lock().unwrap_or_else(|| self.wait_for_lock())
    }

    #[cold]
    #[inline(never)]
    fn wait_for_lock(&self) -> Held<'_, Option<Core>> {
        must_not_be_in_operation();
        self.core.lock()
    }

    /// Calls `act` with the engine. The call counts towards the next check for dead ranks.
    #[inline]
    pub fn with<R>(&self, act: impl FnOnce(&mut Core) -> R) -> Result<R, Error> {
        let counted = |core: &mut Core| {
            core.count_call();
            act(core)
        };
        self.enter(counted).ok_or(Error::Closed)
    }

    /// Calls `act` as [`with`](Self::with), without a check for dead ranks: for short calls that depend on one living
    /// rank. `None` if this rank has left.
    #[inline(always)]
    fn enter<R>(&self, act: impl FnOnce(&mut Core) -> R) -> Option<R> {
        self.act(self.lock(), act)
    }

    #[inline(always)]
    fn act<R>(&self, mut held: Held<'_, Option<Core>>, act: impl FnOnce(&mut Core) -> R) -> Option<R> {
        let core = held.as_mut()?;
        let whole = AbortOnPanic;
        let result = act(core);
        if core.armed.is_some() {
            core.tell_news();
        }
        core.take_ended();
        std::mem::forget(whole);
        if std::mem::take(&mut core.news) {
            self.waiter.ring();
            if !(core.wakers.is_empty() && core.dropped.is_empty()) {
                wake(held);
            }
        }
        Some(result)
    }

    /// Registers a team: only `ranks` send in `contexts`.
    pub fn team(&self, contexts: RangeInclusive<u32>, ranks: &[u32]) -> Result<(), Error> {
        self.with(|core| {
            self.close_disbanded(core);
            core.engine.team(contexts, ranks.iter().copied());
        })
    }

    /// Closes the contexts of a dropped team. The engine discards unreceived messages of the team, also those that
    /// arrive later.
    pub fn disband(&self, contexts: RangeInclusive<u32>) {
        self.disbanded().push(contexts);
        if let Some(held) = self.core.try_lock() {
            self.act(held, |core| self.close_disbanded(core));
        }
    }

    fn close_disbanded(&self, core: &mut Core) {
        let disbanded = std::mem::take(&mut *self.disbanded());
        for contexts in disbanded {
            core.opened.retain(|(context, _), _| !contexts.contains(context));
            core.expected.disband(&contexts);
            core.engine.disband(contexts);
        }
    }

    fn disbanded(&self) -> MutexGuard<'_, Vec<RangeInclusive<u32>>> {
        lock(&self.disbanded)
    }

    /// Sends a message eagerly without a request. Returns false, and sends nothing, if that is not possible; `None` if
    /// the rank has left.
    #[inline(never)]
    pub fn send_short(&self, to: u32, context: u32, tag: u32, data: &[u8]) -> Option<bool> {
        self.enter(|core| core.engine.try_send(to, context, tag, Data::Bytes(data)))
    }

    /// Number of consecutive polls of one ring, and number of such rows, before a receive becomes a request.
    #[inline(always)]
    fn looks(&self) -> (u32, usize) {
        if self.oversubscribed { (1, 4) } else { (IN_A_ROW as u32, LOOKS / IN_A_ROW) }
    }

    /// Receives a short message from the ring of `source`, now or soon, without a request, as much of it as fits.
    /// `None` if the rank has left.
    #[inline(never)]
    pub fn receive_short<S: RecvBuf + ?Sized>(
        &self,
        context: u32,
        source: u32,
        tag: Option<u32>,
        into: &mut S,
    ) -> Option<Short> {
        let (looks, mut left) = self.looks();
        loop {
            left -= 1;
            match self.enter(|core| core.engine.try_receive(context, source, tag, into, looks)) {
                Some(Short::Nothing) if left > 0 && has_own_core() => std::hint::spin_loop(),
                look => return look,
            }
        }
    }

    /// Receives as [`receive_short`](Self::receive_short) from any source, and returns the source.
    #[inline(never)]
    pub fn receive_any<S: RecvBuf + ?Sized>(
        &self,
        context: u32,
        tag: Option<u32>,
        into: &mut S,
    ) -> Option<(u32, Short)> {
        for _ in 0..if self.oversubscribed { 1 } else { LOOKS } {
            let look = |core: &mut Core| {
                core.count_call();
                core.engine.try_receive_any(context, tag, &mut *into)
            };
            match self.enter(look)? {
                (_, Short::Nothing) if has_own_core() => std::hint::spin_loop(),
                found => return Some(found),
            }
        }
        Some((0, Short::Nothing))
    }

    /// Matches posted receives with messages in the ring of `source`, now or soon, without a full progress call, until
    /// the receive `id` has ended well. Returns its result.
    #[inline(never)]
    pub fn receive_posted(&self, source: u32, id: Key) -> Option<(Came, Option<Bytes>)> {
        let (looks, times) = self.looks();
        for _ in 0..times {
            let (needs_turn, ended) = self.enter(|core| {
                let mut lies = core.engine.receive_posted(source, looks);
                while lies == Some(true) {
                    lies = core.engine.receive_posted(source, 1);
                }
                // Only a full progress call takes messages that no receive of this path matches, and notices the later
                // chunks of long messages.
                let ended = core.ended_well(id);
                (lies.is_some() || ended.is_none() && core.is_arriving(id), ended)
            })?;
            if ended.is_some() || needs_turn || !has_own_core() {
                return ended;
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Marks this thread as about to wait, until the returned guard is dropped.
    pub fn attending(&self) -> Option<impl Drop + '_> {
        self.waiter.attending()
    }

    /// Makes progress until `look` returns a value.
    #[inline]
    pub fn wait<R>(
        &self,
        call: &dyn fmt::Display,
        awaited: Awaited,
        look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        self.wait_by(call, awaited, None, look)
    }

    #[inline]
    fn wait_by<R>(
        &self,
        call: &dyn fmt::Display,
        awaited: Awaited,
        deadline: Option<Instant>,
        mut look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<R, Error> {
        let wait = Wait { rank: self.waiter.rank(), call, awaited, deadline };
        let look = || {
            let looked = self.with(|core| {
                // Progress is not needed if the result is already there.
                if let Some(found) = look(core) {
                    return Look::Found(found);
                }
                let busy = core.progress();
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

    /// Waits as [`wait`](Self::wait), until a deadline; `None` after it. The call makes progress at least once, so that
    /// a program that polls with a timeout of zero gets on.
    pub fn wait_until<R>(
        &self,
        call: &dyn fmt::Display,
        awaited: Awaited,
        until: Instant,
        mut look: impl FnMut(&mut Core) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        let mut turned = false;
        self.wait_by(call, awaited, Some(until), |core| match look(core) {
            Some(found) => Some(Some(found)),
            None if !std::mem::replace(&mut turned, true) => None,
            None => (Instant::now() >= until).then_some(None),
        })
    }

    /// Waits until `look`, which runs with no lock held, returns a value; `None` after `until`. The engine makes
    /// progress between two looks. With `polls`, `look` checks state that wakes no thread, so the wait does not sleep.
    pub fn wait_for_any<R>(
        &self,
        call: &dyn fmt::Display,
        until: Option<Instant>,
        polls: bool,
        mut look: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        let wait = Wait { rank: self.waiter.rank(), call, awaited: Awaited::Anyone, deadline: until };
        let look = || {
            if let Some(found) = look() {
                return Look::Found(Some(found));
            }
            let busy = self.with(Core::progress).unwrap_or(true);
            match look() {
                Some(found) => Look::Found(Some(found)),
                None if until.is_some_and(|until| until <= Instant::now()) => Look::Found(None),
                None if busy || polls => Look::Busy,
                None => Look::Idle,
            }
        };
        self.waiter.wait(wait, look, || self.look_for_the_gone())
    }

    /// Makes progress once, for calls that do not wait. On oversubscribed cores, a fruitless call yields the core.
    pub fn progress_now(&self) {
        let turned = self.with(Core::progress);
        if self.oversubscribed && matches!(turned, Ok(false)) {
            transom_windows::after_empty_poll();
        }
    }

    /// Waits briefly for progress, on behalf of a task that is polled again at once. The wait spins and yields the
    /// core. After several fruitless waits it sleeps until something arrives, for at most [`NAP`].
    pub fn wait_briefly(&self) {
        let is_busy = || self.with(|core| core.progress()).unwrap_or(true);
        let (looks, yields) = if self.oversubscribed { (1, 4) } else { (LOOKS, LOOKS as u32) };
        let in_vain = self.waits_in_vain.fetch_add(1, Relaxed);
        let found = (0..looks).any(|_| is_busy()) || {
            if in_vain < yields {
                return std::thread::yield_now();
            }
            // The executor may poll every waiting task before the one that can go on, so the tasks share the time.
            let tasks = self.with(|core| core.waiting_tasks()).unwrap_or(1).max(1);
            self.waiter.park(NAP / tasks as u32, is_busy)
        };
        if found {
            self.waits_in_vain.store(0, Relaxed);
            // The work may be due later, as a credit report is. Other threads get the core until then.
            if self.oversubscribed {
                std::thread::yield_now();
            }
        }
    }

    /// Makes progress whenever there is work, until the rank leaves. Body of the progress thread.
    pub(super) fn attend(&self) {
        let look = || match self.with(|core| core.progress()) {
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

    /// Makes the rank leave. Unless `in_haste`, the call first waits for the collectives that this rank has started. It
    /// then announces that this rank receives nothing any more, waits (unless `in_haste`) until its messages are
    /// delivered or their receivers gone, and ends all requests.
    pub fn close(&self, in_haste: bool) {
        if !in_haste {
            // Otherwise two ranks that leave at once would each see the other as gone.
            let call = "leaving the job, until its started collectives complete";
            let _ = self.wait(&call, Awaited::Anyone, |core| (!core.works_on()).then_some(()));
        }
        let closing = self.with(|core| {
            core.engine.wire().close();
            core.engine.wire().look_for_the_gone();
        });
        if closing.is_ok() && !in_haste {
            let call = "leaving the job, until its messages are delivered";
            let _ = self.wait(&call, Awaited::Anyone, |core| (!core.is_needed()).then_some(()));
        }
        let _ = self.with(|core| {
            core.engine.shut();
            core.happened();
        });
        let mut closed = self.lock().take();
        self.waiter.ring();
        // Woken tasks find the engine closed.
        closed.iter_mut().flat_map(Core::abandoned).for_each(|waker| contained(|| waker.wake()));
        contained(|| drop(closed));
        self.thread.end();
    }

    pub fn counters(&self) -> Result<Counters, Error> {
        self.with(|core| core.engine.counters())
    }
}

/// Wakes the waiting tasks, and drops values of the program that the engine no longer needs. Both run code of the
/// program, so the lock is released first.
#[cold]
#[inline(never)]
fn wake(mut held: Held<'_, Option<Core>>) {
    let wakers = held.as_mut().map(|core| (std::mem::take(&mut core.wakers), std::mem::take(&mut core.dropped)));
    drop(held);
    if let Some((wakers, dropped)) = wakers {
        wakers.into_iter().for_each(|waker| contained(|| waker.wake()));
        dropped.into_iter().for_each(|dropped| contained(|| drop(dropped)));
    }
}

/// Runs code of the program and contains its panic. The caller may have lent a buffer to the engine, past which nothing
/// may unwind, and may have more to run. The panic hook has reported the panic.
fn contained(act: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(act)) {
        // The drop of the payload may panic as well.
        std::mem::forget(panic);
    }
}

impl ProgressHook for ProgressEngine {
    fn progress(&self) -> bool {
        self.may_do_something() && self.with(|core| core.progress()).unwrap_or(false)
    }

    fn try_progress(&self) {
        if self.may_do_something()
            && let Some(held) = self.core.try_lock()
        {
            self.act(held, |core| core.progress());
        }
    }
}
