//! State of the collectives of a world or team at this rank: the number of calls made, the calls in flight, and the
//! first failure.

use super::asked::Asked;
use super::control::{Control, ControlMsg, Left};
use super::discarded_receives::DiscardedReceives;
use super::history::{CallId, History};
use super::memory::ScratchPool;
use super::signature::{Kind, Signature};
use crate::messages::Error;
use crate::messages::comm::{COLLECTIVES, Comm};
use crate::messages::locked::Core;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use transom_collective::{Hosts, Rules};
use transom_launch::lock;
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::collective::{Breaker, ShmCollective};
use transom_shm_loopback::messages::Bytes;
use transom_shm_loopback::{Biased, Held};

/// The collectives of a world or team, as seen by this rank.
pub(super) struct Group {
    pub(super) comm: Comm,
    /// Rules consulted before the built-in table, or the parse error of TRANSOM_COLLECTIVES.
    rules: Result<Rules, String>,
    /// All ranks share memory and no rule selects another algorithm: every call that can use shared memory does.
    pub(super) by_memory: bool,
    /// All ranks share memory.
    pub(super) shares_memory: bool,
    /// Host of each rank, if some ranks share memory and some do not.
    pub(super) hosts: Option<Hosts>,
    turn: Biased<Turn>,
    made: History,
    /// Started calls that have not ended, however old; `made` remembers only recent calls.
    under_way: Mutex<UnderWay>,
    /// Last call that each rank is known to have finished: (rank, call number). Only ranks that this one asked are
    /// listed.
    over: Mutex<Vec<(Rank, u32)>>,
    /// First failure; once set, every collective of the group fails.
    broken: OnceLock<Error>,
    /// Number of the window or value, if the first failure is a split at some ranks and a window or value creation at
    /// others.
    beside_window: OnceLock<u32>,
    sinks: Mutex<DiscardedReceives>,
    /// Breaker of the board, if a board was opened.
    breaker: OnceLock<Breaker>,
    /// Last question about a slow call: call number in the high half, job rank of the rank asked plus one in the low
    /// half; 0 if none.
    asked: AtomicU64,
    /// Number of the call that waits at the board plus one; 0 if none waits.
    pub(super) waiting: AtomicU32,
    /// Timer of the call that waits at the board.
    patience: Mutex<Backoff>,
}

/// Started calls that have not ended, by number with the starting thread, and the number of such calls per thread.
#[derive(Default)]
struct UnderWay {
    calls: HashMap<u32, (CallId, usize)>,
    threads: HashMap<usize, usize>,
}

/// State owned by the thread that makes a call.
pub(super) struct Turn {
    /// Remaining calls for which [`Group::watch_threads`] still looks for unordered threads.
    watched: u32,
    /// Number of calls that this rank has made.
    calls: u32,
    /// Hash of the rules and of all calls so far. Part of every tag, so that ranks whose earlier calls differed never
    /// match later messages.
    pub history: u64,
    /// Shared-memory board of all ranks, or of this host's ranks if there are several hosts; opened by the first call.
    pub board: Option<ShmCollective>,
}

/// Membership of this rank in a group, held by its world and by each started or persistent collective. Dropping the
/// last holder leaves the group; ranks that ask about a later call are then answered that this rank has left.
pub(super) struct Member {
    group: Arc<Group>,
    control: Arc<Control>,
    scratch: Arc<ScratchPool>,
}

impl std::ops::Deref for Member {
    type Target = Group;

    #[inline]
    fn deref(&self) -> &Group {
        &self.group
    }
}

impl Member {
    /// Takes scratch memory for at least `elements` elements, with unspecified contents.
    pub fn take_scratch<T>(&self, elements: usize) -> Result<Bytes, Error> {
        let taken = elements.checked_mul(size_of::<T>()).and_then(|bytes| self.scratch.take(bytes));
        taken.ok_or_else(|| Error::Misuse {
            why: format!("cannot allocate a temporary buffer of {elements} elements of {} bytes", size_of::<T>()),
        })
    }

    /// Installs the opened `board` in the turn.
    pub fn open<'t>(&self, turn: &'t mut Turn, board: ShmCollective) -> &'t mut ShmCollective {
        let group = Arc::downgrade(&self.group);
        board.at_long_waits(move || {
            if let Some(group) = group.upgrade() {
                group.ask_of_the_board();
            }
        });
        let breaker = self.breaker.get_or_init(|| board.breaker());
        // Pairs with the fence in `Group::fail`: either this thread sees the failure, or `fail` sees the breaker.
        fence(SeqCst);
        if self.broken.get().is_some() {
            breaker.give_up();
        }
        turn.board.insert(board)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let calls = self.group.turn.try_lock().map_or(0, |turn| turn.calls);
        self.control.leave(self.group.comm.context, Left { calls, broken: self.group.broken(), ..Left::default() });
    }
}

impl Group {
    /// Joins the group of `comm`. `rules`, if given, replace those of TRANSOM_COLLECTIVES.
    pub fn enter_by(
        control: &Arc<Control>,
        scratch: &Arc<ScratchPool>,
        comm: Comm,
        hosts: Option<Hosts>,
        rules: Option<Rules>,
        shares_memory: bool,
    ) -> Result<Arc<Member>, Error> {
        let rules = rules.map_or_else(Asked::rules, Ok);
        let history = u64::from(rules.as_ref().map_or(0, hash));
        let by_memory = shares_memory && rules.as_ref().is_ok_and(Rules::is_empty);
        let group = Arc::new(Group {
            comm,
            hosts,
            rules,
            by_memory,
            shares_memory,
            turn: Biased::new(Turn { watched: WATCHED, calls: 0, history, board: None }),
            made: History::default(),
            under_way: Mutex::default(),
            over: Mutex::default(),
            broken: OnceLock::new(),
            beside_window: OnceLock::new(),
            sinks: Mutex::default(),
            breaker: OnceLock::new(),
            asked: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            patience: Mutex::default(),
        });
        control.join(&group)?;
        Ok(Arc::new(Member { group, control: control.clone(), scratch: scratch.clone() }))
    }

    /// Rules that select algorithms before the built-in table does.
    #[inline]
    pub fn rules(&self) -> Result<&Rules, Error> {
        self.rules.as_ref().map_err(|why| self.refuse(Error::Misuse { why: why.clone() }))
    }

    /// Takes the turn for the calling thread. A blocking call holds it until it returns; a call that starts a
    /// collective holds it until its first messages are posted. A second thread that calls meanwhile is not ordered
    /// with the first.
    #[inline(always)]
    pub fn enter(&self) -> Result<Held<'_, Turn>, Error> {
        self.turn.try_lock().ok_or_else(|| self.collided())
    }

    /// Fails the group at all ranks because two threads called at once. Other ranks may count these two calls in the
    /// opposite order, so no later call could be matched either.
    #[cold]
    #[inline(never)]
    fn collided(&self) -> Error {
        let why = format!(
            "two threads of rank {} call collectives of one team at once, so that the calls have no order; order them \
             (a mutex around each call), or split a team for each thread",
            self.comm.rank()
        );
        let failed = self.comm.progress_engine.with(|core| self.fail(core, Error::Mismatch { why: why.clone() }));
        failed.err().unwrap_or(Error::Misuse { why })
    }

    /// Numbers and records the next call.
    #[inline(always)]
    pub fn begin(&self, turn: &mut Turn, call: Signature) -> Result<CallId, Error> {
        if let Some(error) = self.broken() {
            return Err(error);
        }
        turn.history = call.hash(turn.history);
        let made = CallId { number: turn.calls, history: (turn.history >> 32) as u32, call };
        turn.calls = turn.calls.wrapping_add(1);
        self.made.note(made);
        Ok(made)
    }

    /// [`begin`](Self::begin) for a started call, which is recorded as in flight.
    pub fn begin_to_start(&self, turn: &mut Turn, call: Signature) -> Result<CallId, Error> {
        let made = self.begin(turn, call)?;
        let (thread, mut under_way) = (this_thread(), lock(&self.under_way));
        under_way.calls.insert(made.number, (made, thread));
        *under_way.threads.entry(thread).or_default() += 1;
        Ok(made)
    }

    /// Removes a finished call from those in flight.
    pub fn has_ended(&self, made: CallId) {
        let mut under_way = lock(&self.under_way);
        let Some((_, thread)) = under_way.calls.remove(&made.number) else { return };
        if let Entry::Occupied(mut started) = under_way.threads.entry(thread) {
            *started.get_mut() -= 1;
            if *started.get() == 0 {
                started.remove();
            }
        }
    }

    /// Detects unordered threads. Keeps the turn after this call was started, if another thread has a call in flight,
    /// until this call ends or [`WATCHED_FOR`] passes. Unordered threads are likely to collide meanwhile; ordered
    /// threads cannot. After [`WATCHED`] such calls the threads are assumed to be ordered.
    pub fn watch_threads(&self, turn: &mut Turn, made: CallId) {
        if turn.watched == 0 || lock(&self.under_way).threads.len() < 2 {
            return;
        }
        turn.watched -= 1;
        let begun = Instant::now();
        while lock(&self.under_way).calls.contains_key(&made.number) && begun.elapsed() < WATCHED_FOR {
            self.comm.progress_engine.progress_now();
            std::thread::yield_now();
        }
    }

    /// Refuses a call locally: no data is sent, and ranks that wait for this call learn of the refusal.
    pub fn refuse(&self, error: Error) -> Error {
        let begun = self.enter().and_then(|mut turn| self.begin(&mut turn, Signature::without(Kind::Refused)));
        begun.err().unwrap_or(error)
    }

    /// Group rank of board member `rank`; with several hosts the board numbers the ranks of this host only.
    pub fn on_board(&self, rank: Rank) -> Rank {
        let here = self.hosts.as_ref().map(|hosts| hosts.ranks(hosts.host(self.comm.rank())));
        here.and_then(|here| here.get(rank)).copied().unwrap_or(rank)
    }

    /// The error for two ranks that make different calls.
    pub fn mismatch(one: (Rank, CallId), other: (Rank, CallId)) -> Error {
        let ((a, first), (b, second)) = if one.0 < other.0 { (one, other) } else { (other, one) };
        let number = first.number.wrapping_add(1);
        Error::Mismatch {
            why: match first.call == second.call {
                false => {
                    let [one, other] = [first.call, second.call].map(|call| call.to_string());
                    // The signature holds only a hash of the grid, so the texts can be equal.
                    let other = if one == other { other.replace("on a grid", "on another grid") } else { other };
                    format!("rank {a} calls {one}, rank {b} calls {other}, as collective number {number}")
                }
                true if number == 1 => format!(
                    "ranks {a} and {b} choose algorithms by different rules (TRANSOM_COLLECTIVES, or what \
                     `World::collectives_by` was given)"
                ),
                true => format!(
                    "ranks {a} and {b} have made different calls before {}, collective number {number}",
                    first.call
                ),
            },
        }
    }

    /// The error for a message whose length differs from the expected one, in a call whose blocks differ in length.
    /// `bytes` and `expected` are in bytes, `element` is the element size.
    pub fn odd(&self, made: CallId, from: Rank, bytes: u64, expected: usize, element: usize) -> Error {
        let (me, number, name) = (self.comm.rank(), made.number.wrapping_add(1), made.call.name());
        let (element, expected) = (element as u64, expected as u64);
        let (given, taken, unit) = match bytes.checked_rem(element) {
            Some(0) => (bytes / element, expected / element, ""),
            _ => (bytes, expected, " bytes"),
        };
        Error::Mismatch {
            why: format!(
                "in {name}, collective number {number}, rank {from} sends rank {me} a block of length {given}{unit}, \
                 and rank {me} expects length {taken}{unit}"
            ),
        }
    }

    /// The group's failure, if it failed.
    #[inline]
    pub fn broken(&self) -> Option<Error> {
        self.broken.get().cloned()
    }

    /// The control message that reports the group's failure.
    fn why_broken(&self) -> Option<ControlMsg> {
        match (ControlMsg::why(self.broken.get()?)?, self.beside_window.get()) {
            (ControlMsg::Mismatch(why), Some(window)) => Some(ControlMsg::BesideWindow(*window, why)),
            (saying, _) => Some(saying),
        }
    }

    /// Fails the group: reports `error` to all other ranks, and discards the messages that they have sent, so that
    /// their sends complete.
    pub fn fail(&self, core: &mut Core, error: Error) {
        let error = match error {
            // A rank that left the job left its teams too.
            Error::PeerLeft { rank } if self.comm.is_team() => Error::TeamDropped { rank },
            error => error,
        };
        if self.broken.set(error).is_err() {
            return;
        }
        let Some(saying) = self.why_broken() else { return };
        self.others().for_each(|rank| self.tell(core, rank, &saying));
        self.take_all(core);
        // Ends the started calls.
        core.turn_all();
        fence(SeqCst);
        if let Some(breaker) = self.breaker.get() {
            breaker.give_up();
        }
    }

    /// Handles the report that rank `from` creates window `window` and has not made call `number`.
    pub fn hear_of_window(&self, core: &mut Core, (from, window): (Rank, u32), number: u32) {
        // The call may have ended meanwhile.
        if let Some(made) = self.made.find(number).filter(|made| made.call.is_split()) {
            let (me, number) = (self.comm.rank(), number.wrapping_add(1));
            let why = format!(
                "rank {from} makes a window or value, rank {me} calls {}, as collective number {number}",
                made.call
            );
            self.fail_beside_window(core, window, why);
        }
    }

    /// Fails the group because some ranks split while others create the window or value of this number.
    pub fn fail_beside_window(&self, core: &mut Core, window: u32, why: String) {
        if self.broken.get().is_none() {
            let _ = self.beside_window.set(window);
            self.fail(core, Error::Mismatch { why });
        }
    }

    /// The number of the window or value, if the group failed because ranks created it while others split.
    pub fn broken_beside_window(&self) -> Option<u32> {
        self.beside_window.get().copied()
    }

    /// Fails the group after a shared-memory call failed. The cause is `error`, or the one that another rank reports
    /// within [`PATIENCE`].
    #[cold]
    pub fn stopped(&self, error: Option<Error>) -> Error {
        let call = "a collective that another rank abandoned";
        let reason = match error {
            Some(error) => self.comm.progress_engine.with(|core| self.fail(core, error)),
            None => {
                let told = Instant::now() + PATIENCE;
                let told = self.comm.progress_engine.wait_until(&call, Awaited::Anyone, told, |_| self.broken());
                told.and_then(|told| match told {
                    Some(_) => Ok(()),
                    None => {
                        let why = "another rank abandoned a collective call and gave no reason".into();
                        self.comm.progress_engine.with(|core| self.fail(core, Error::Mismatch { why }))
                    }
                })
            }
        };
        reason.err().or_else(|| self.broken()).unwrap_or(Error::Closed)
    }

    /// All ranks of the group except this one.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.comm.rank();
        (0..self.comm.size()).filter(move |rank| *rank != me)
    }

    pub fn tell(&self, core: &mut Core, to: Rank, saying: &ControlMsg) {
        if let Ok(job) = self.comm.to_job(to) {
            saying.send(core, job, self.comm.context);
        }
    }

    /// Discards all messages that other ranks send to the failed group.
    fn take_all(&self, core: &mut Core) {
        let ranks = self.others().filter_map(|rank| self.comm.to_job(rank).ok());
        lock(&self.sinks).begin(core, self.comm.context + COLLECTIVES, ranks);
    }

    /// Ends the discarding receives from job rank `of`, which has left.
    pub fn end_sink(&self, core: &mut Core, of: u32) {
        lock(&self.sinks).end(core, of);
    }

    /// Takes the discarding receives when this rank leaves; other ranks may still send.
    pub fn take_sinks(&self) -> DiscardedReceives {
        std::mem::take(&mut lock(&self.sinks))
    }

    /// Asks rank `to`, for which this rank waits, whether it makes the same call.
    pub fn ask(&self, core: &mut Core, to: Rank, made: CallId) {
        if let Ok(job) = self.comm.to_job(to) {
            self.asked.store(u64::from(made.number) << 32 | (u64::from(job) + 1), Relaxed);
        }
        self.ask_one(core, to, made);
    }

    /// Job rank that call `number` was last found waiting for, if it has waited long enough to ask.
    pub fn awaited(&self, number: u32) -> Option<u32> {
        let asked = self.asked.load(Relaxed);
        (asked as u32).checked_sub(1).filter(|_| (asked >> 32) as u32 == number)
    }

    fn ask_one(&self, core: &mut Core, to: Rank, made: CallId) {
        tracing::debug!(rank = self.comm.rank(), of = to, call = %made.call, "comparing the call with that of another rank");
        self.tell(core, to, &ControlMsg::Ask(made));
    }

    /// Answers rank `from`, which waits in call `theirs`; returns false if this rank has not made a call of that number
    /// yet. If this rank made a different call, neither can complete and the group fails. If the call is too old to be
    /// remembered, the asker decides: by then it has received all messages that this rank sent for it. If the group has
    /// failed, the answer is the failure.
    pub fn answer(&self, core: &mut Core, from: Rank, theirs: CallId) -> bool {
        if let Some(saying) = self.why_broken() {
            self.tell(core, from, &saying);
            return true;
        }
        let number = theirs.number;
        let started = || lock(&self.under_way).calls.get(&number).map(|(made, _)| *made);
        match self.made.find(number).or_else(started) {
            Some(mine) if mine != theirs => {
                self.fail(core, Group::mismatch((self.comm.rank(), mine), (from, theirs)));
            }
            Some(_) => {}
            None if self.made.has_forgotten(number) => self.tell(core, from, &ControlMsg::Over(number)),
            None => return false,
        }
        true
    }

    /// Records that rank `from` has finished its call of this number.
    pub fn hear_over(&self, from: Rank, number: u32) {
        let mut over = lock(&self.over);
        over.retain(|(rank, _)| *rank != from);
        over.push((from, number));
    }

    /// True if `rank` is known to have finished call `number`. Its messages for that call arrived before its report.
    pub fn is_over(&self, rank: Rank, number: u32) -> bool {
        lock(&self.over).contains(&(rank, number))
    }

    /// The error for a rank that finished its call of this number without sending the message that this rank waits for.
    pub fn different(&self, from: Rank, made: CallId) -> Error {
        let (me, number, call) = (self.comm.rank(), made.number.wrapping_add(1), made.call);
        let why = format!(
            "rank {me} calls {call}, as collective number {number}; rank {from} has made another call there, and many \
             more since"
        );
        Error::Mismatch { why }
    }

    /// Asks all ranks about the call that waits at the board, once it has waited for [`PATIENCE`]. Called regularly by
    /// the waiting thread.
    fn ask_of_the_board(&self) {
        let waiting = self.waiting.load(Relaxed);
        if lock(&self.patience).ends(waiting)
            && let Some(made) = self.made.find(waiting.wrapping_sub(1))
        {
            let _ =
                self.comm.progress_engine.with(|core| self.others().for_each(|rank| self.ask_one(core, rank, made)));
        }
    }
}

/// Limits of [`Group::watch_threads`]: number of watched calls per team, and time per call.
const WATCHED: u32 = 64;
const WATCHED_FOR: Duration = Duration::from_millis(1);

/// A number that identifies this thread among all live threads.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Hash of the rules, equal at all ranks for equal rules; 0 for empty rules.
fn hash(rules: &Rules) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619); // FNV-1a
    rules.to_string().bytes().fold(0, mix)
}

/// Timer of one wait.
#[derive(Default)]
pub(super) struct Backoff {
    what: u32,
    until: Option<Instant>,
}

/// Interval after which a waiting rank asks whether others make the same call.
const PATIENCE: Duration = Duration::from_secs(1);

impl Backoff {
    /// True once per [`PATIENCE`] of waiting for `what` (not 0). A different `what` restarts the timer.
    pub fn ends(&mut self, what: u32) -> bool {
        if what == 0 || self.what != what {
            *self = Backoff { what, until: None };
            return false;
        }
        let now = Instant::now();
        let ends = now >= *self.until.get_or_insert(now + PATIENCE);
        if ends {
            self.until = Some(now + PATIENCE);
        }
        ends
    }
}

#[cfg(all(test, not(miri)))]
mod tests;
