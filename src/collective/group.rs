//! What the ranks of a world or team know of each other's collectives: how many there were, and whether one failed.

use super::asked::Asked;
use super::control::{Control, Left, Saying};
use super::history::{History, Made};
use super::memory::ScratchPool;
use super::signature::{Kind, Signature};
use super::sinks::Sinks;
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
use transom_shm_loopback::collective::{Board, Breaker};
use transom_shm_loopback::messages::Bytes;
use transom_shm_loopback::{Biased, Held};

/// The collectives of a world or team, as this rank makes them.
pub(super) struct Group {
    pub(super) comm: Comm,
    /// By which algorithms are chosen before the table, or what is wrong with the variable.
    rules: Result<Rules, String>,
    /// All calls that can go through memory that all ranks share, and do: nothing else is asked for.
    pub(super) by_memory: bool,
    /// Whether all ranks share memory.
    pub(super) shares_memory: bool,
    /// Where ranks are, if some share memory and not all.
    pub(super) hosts: Option<Hosts>,
    turn: Biased<Turn>,
    made: History,
    /// Of these the calls that were started and have not ended, however long ago.
    under_way: Mutex<UnderWay>,
    /// The last call that each rank is known to have ended, of those that this one asked for: who, and its number.
    over: Mutex<Vec<(Rank, u32)>>,
    /// The first failure: no collective is any more.
    broken: OnceLock<Error>,
    /// If the first failure is a split at some ranks and the making of a window or value at others: the number of the latter.
    beside_window: OnceLock<u32>,
    sinks: Mutex<Sinks>,
    /// Of the board, if there is one.
    breaker: OnceLock<Breaker>,
    /// For who asks why a call takes long: its number, and whom this rank has asked about it last, one more than the rank's number
    /// in the job.
    asked: AtomicU64,
    /// One more than the number of the call that waits there; 0 if none does.
    pub(super) waiting: AtomicU32,
    /// How long that call has waited.
    patience: Mutex<Patience>,
}

/// The started calls that have not ended, by their numbers, and how many of them each thread has started.
#[derive(Default)]
struct UnderWay {
    calls: HashMap<u32, (Made, usize)>,
    threads: HashMap<usize, usize>,
}

/// What the thread has to itself that makes a call.
pub(super) struct Turn {
    /// How many more calls that a thread starts beside those of another keep the turn.
    watched: u32,
    /// How many this rank has made.
    calls: u32,
    /// A hash of the rules and of all of them: part of every tag, so that ranks which once made different calls never take a later one for the same.
    pub history: u64,
    /// Where ranks share memory, those of one host if there are several, once the first call was made.
    pub board: Option<Board>,
}

/// That this rank makes the collectives of a group: its world does, and what was started or prepared there. With the last of them it
/// leaves the group, and says so to whoever asks for it.
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
    /// Takes scratch memory for at least `elements` elements, of any value.
    pub fn take_scratch<T>(&self, elements: usize) -> Result<Bytes, Error> {
        let taken = elements.checked_mul(size_of::<T>()).and_then(|bytes| self.scratch.take(bytes));
        taken.ok_or_else(|| Error::Misuse {
            why: format!(
                "there is no memory for {elements} elements of {} bytes beside the program's own",
                size_of::<T>()
            ),
        })
    }

    /// The board that was opened.
    pub fn open<'t>(&self, turn: &'t mut Turn, board: Board) -> &'t mut Board {
        let group = Arc::downgrade(&self.group);
        board.at_long_waits(move || {
            if let Some(group) = group.upgrade() {
                group.ask_of_the_board();
            }
        });
        let breaker = self.breaker.get_or_init(|| board.breaker());
        // Here, or where it failed, one sees the other.
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
    /// `rules`: in place of those of the variable.
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

    /// By which algorithms are chosen before the table.
    #[inline]
    pub fn rules(&self) -> Result<&Rules, Error> {
        self.rules.as_ref().map_err(|why| self.refuse(Error::Misuse { why: why.clone() }))
    }

    /// The turn of the calling thread. A call holds it until it returns, a call that starts a collective until its first messages are
    /// posted: a second thread that calls meanwhile has no order to the first.
    #[inline(always)]
    pub fn enter(&self) -> Result<Held<'_, Turn>, Error> {
        self.turn.try_lock().ok_or_else(|| self.collided())
    }

    /// Two threads call at once. Other ranks may count these calls in the other order, so no later call can be matched either: the
    /// group fails at all ranks.
    #[cold]
    #[inline(never)]
    fn collided(&self) -> Error {
        let why = format!(
            "two threads of rank {} are in collectives of one team at once, and ranks cannot tell which of the two calls is first; \
             order the calls of threads (a mutex around each call), or split a team for each thread",
            self.comm.rank()
        );
        let failed = self.comm.hub.with(|core| self.fail(core, Error::Mismatch { why: why.clone() }));
        failed.err().unwrap_or(Error::Misuse { why })
    }

    /// The next call.
    #[inline(always)]
    pub fn begin(&self, turn: &mut Turn, call: Signature) -> Result<Made, Error> {
        if let Some(error) = self.broken() {
            return Err(error);
        }
        turn.history = call.hash(turn.history);
        let made = Made { number: turn.calls, history: (turn.history >> 32) as u32, call };
        turn.calls = turn.calls.wrapping_add(1);
        self.made.note(made);
        Ok(made)
    }

    /// [`begin`](Self::begin), of one that is waited for later.
    pub fn begin_to_start(&self, turn: &mut Turn, call: Signature) -> Result<Made, Error> {
        let made = self.begin(turn, call)?;
        let (thread, mut under_way) = (this_thread(), lock(&self.under_way));
        under_way.calls.insert(made.number, (made, thread));
        *under_way.threads.entry(thread).or_default() += 1;
        Ok(made)
    }

    /// A call that was started has ended.
    pub fn has_ended(&self, made: Made) {
        let mut under_way = lock(&self.under_way);
        let Some((_, thread)) = under_way.calls.remove(&made.number) else { return };
        if let Entry::Occupied(mut started) = under_way.threads.entry(thread) {
            *started.get_mut() -= 1;
            if *started.get() == 0 {
                started.remove();
            }
        }
    }

    /// Keeps the turn, after this call was started, if a call that another thread has started is under way: until this one ends, or for
    /// a while. Threads without an order are likely to collide meanwhile, and threads with one cannot. After some calls the order of
    /// the threads is taken for granted.
    pub fn watch_threads(&self, turn: &mut Turn, made: Made) {
        if turn.watched == 0 || lock(&self.under_way).threads.len() < 2 {
            return;
        }
        turn.watched -= 1;
        let begun = Instant::now();
        while lock(&self.under_way).calls.contains_key(&made.number) && begun.elapsed() < WATCHED_FOR {
            self.comm.hub.turn_now();
            std::thread::yield_now();
        }
    }

    /// A call that this rank refuses to itself: nothing is sent, and whoever waits for it learns that.
    pub fn refuse(&self, error: Error) -> Error {
        let begun = self.enter().and_then(|mut turn| self.begin(&mut turn, Signature::without(Kind::Refused)));
        begun.err().unwrap_or(error)
    }

    /// The rank of this number on the board: it is that of this host, if there are several.
    pub fn on_board(&self, rank: Rank) -> Rank {
        let here = self.hosts.as_ref().map(|hosts| hosts.ranks(hosts.host(self.comm.rank())));
        here.and_then(|here| here.get(rank)).copied().unwrap_or(rank)
    }

    /// That two ranks make different calls.
    pub fn mismatch(one: (Rank, Made), other: (Rank, Made)) -> Error {
        let ((a, first), (b, second)) = if one.0 < other.0 { (one, other) } else { (other, one) };
        let number = first.number.wrapping_add(1);
        Error::Mismatch {
            why: match first.call == second.call {
                false => {
                    let [one, other] = [first.call, second.call].map(|call| call.to_string());
                    // What a call says of its grid is a hash.
                    let other = if one == other { other.replace("on a grid", "on another grid") } else { other };
                    format!("rank {a} calls {one}, rank {b} calls {other}, as number {number} of their collectives")
                }
                true if number == 1 => format!(
                    "ranks {a} and {b} choose algorithms by different rules (TRANSOM_COLLECTIVES, or what \
                     `World::collectives_by` was given)"
                ),
                true => format!(
                    "ranks {a} and {b} have made different calls before {}, number {number} of their collectives",
                    first.call
                ),
            },
        }
    }

    /// A message of another length than this rank expects, in elements of so many bytes: of a call whose blocks differ in length.
    pub fn odd(&self, made: Made, from: Rank, bytes: u64, expected: usize, element: usize) -> Error {
        let (me, number, name) = (self.comm.rank(), made.number.wrapping_add(1), made.call.name());
        let (element, expected) = (element as u64, expected as u64);
        let (given, taken, unit) = match bytes.checked_rem(element) {
            Some(0) => (bytes / element, expected / element, ""),
            _ => (bytes, expected, " bytes"),
        };
        Error::Mismatch {
            why: format!(
                "in {name}, number {number} of their collectives, rank {from} gives rank {me} a block of length {given}{unit}, and rank {me} \
                 expects length {taken}{unit}"
            ),
        }
    }

    /// Why there are no collectives any more, if so.
    #[inline]
    pub fn broken(&self) -> Option<Error> {
        self.broken.get().cloned()
    }

    /// The same as other ranks are told.
    fn why_broken(&self) -> Option<Saying> {
        match (Saying::why(self.broken.get()?)?, self.beside_window.get()) {
            (Saying::Mismatch(why), Some(window)) => Some(Saying::BesideWindow(*window, why)),
            (saying, _) => Some(saying),
        }
    }

    /// There are no collectives any more: tells all, and takes what they have sent, so that they need not wait for it.
    pub fn fail(&self, core: &mut Core, error: Error) {
        if self.broken.set(error).is_err() {
            return;
        }
        let Some(saying) = self.why_broken() else { return };
        self.others().for_each(|rank| self.tell(core, rank, &saying));
        self.take_all(core);
        // Started calls end now.
        core.turn_all();
        fence(SeqCst);
        if let Some(breaker) = self.breaker.get() {
            breaker.give_up();
        }
    }

    /// A rank makes the window or value of this number, and has not made the call of that number.
    pub fn hear_of_window(&self, core: &mut Core, (from, window): (Rank, u32), number: u32) {
        // It may have ended meanwhile.
        if let Some(made) = self.made.find(number).filter(|made| made.call.is_split()) {
            let (me, number) = (self.comm.rank(), number.wrapping_add(1));
            let why = format!(
                "rank {from} makes a window or value, rank {me} calls {}, as number {number} of their collectives",
                made.call
            );
            self.fail_beside_window(core, window, why);
        }
    }

    /// Some ranks split, and others make the window or value of this number.
    pub fn fail_beside_window(&self, core: &mut Core, window: u32, why: String) {
        if self.broken.get().is_none() {
            let _ = self.beside_window.set(window);
            self.fail(core, Error::Mismatch { why });
        }
    }

    /// The window or value that some ranks make while others split, if there are no collectives any more for that.
    pub fn broken_beside_window(&self) -> Option<u32> {
        self.beside_window.get().copied()
    }

    /// A call through shared memory has failed: so do all, and for this reason, or for that which another rank tells.
    #[cold]
    pub fn stopped(&self, error: Option<Error>) -> Error {
        let call = "a collective that another rank gave up";
        let reason = match error {
            Some(error) => self.comm.hub.with(|core| self.fail(core, error)),
            None => {
                let told = Instant::now() + PATIENCE;
                let told = self.comm.hub.wait_until(&call, Awaited::Anyone, told, |_| self.broken());
                told.and_then(|told| match told {
                    Some(_) => Ok(()),
                    None => {
                        let why = "another rank gave up a collective call, and did not say why".into();
                        self.comm.hub.with(|core| self.fail(core, Error::Mismatch { why }))
                    }
                })
            }
        };
        reason.err().or_else(|| self.broken()).unwrap_or(Error::Closed)
    }

    /// All but this rank.
    pub fn others(&self) -> impl Iterator<Item = Rank> + use<> {
        let me = self.comm.rank();
        (0..self.comm.size()).filter(move |rank| *rank != me)
    }

    pub fn tell(&self, core: &mut Core, to: Rank, saying: &Saying) {
        if let Ok(job) = self.comm.to_job(to) {
            saying.send(core, job, self.comm.context);
        }
    }

    /// Receives into nothing all that others send to collectives that are no more.
    fn take_all(&self, core: &mut Core) {
        let ranks = self.others().filter_map(|rank| self.comm.to_job(rank).ok());
        lock(&self.sinks).begin(core, self.comm.context + COLLECTIVES, ranks);
    }

    /// A rank of the job has left.
    pub fn end_sink(&self, core: &mut Core, of: u32) {
        lock(&self.sinks).end(core, of);
    }

    /// This rank has left: the others may not have.
    pub fn take_sinks(&self) -> Sinks {
        std::mem::take(&mut lock(&self.sinks))
    }

    /// Asks a rank that is waited for whether it makes the same call.
    pub fn ask(&self, core: &mut Core, to: Rank, made: Made) {
        if let Ok(job) = self.comm.to_job(to) {
            self.asked.store(u64::from(made.number) << 32 | (u64::from(job) + 1), Relaxed);
        }
        self.ask_one(core, to, made);
    }

    /// A rank, by its number in the job, that the call of this number has waited for, if it has waited for long.
    pub fn awaited(&self, number: u32) -> Option<u32> {
        let asked = self.asked.load(Relaxed);
        (asked as u32).checked_sub(1).filter(|_| (asked >> 32) as u32 == number)
    }

    fn ask_one(&self, core: &mut Core, to: Rank, made: Made) {
        tracing::debug!(rank = self.comm.rank(), of = to, call = %made.call, "asking whether it makes the same call");
        self.tell(core, to, &Saying::Ask(made));
    }

    /// Another rank waits in a call. Whether this one has made that of this number; if as another, neither can ever be. If it was long
    /// ago the other finds out itself whether it was the same: then it has all that this rank sends there. Or there are no
    /// collectives any more, which the other was told before it made its first.
    pub fn answer(&self, core: &mut Core, from: Rank, theirs: Made) -> bool {
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
            None if self.made.has_forgotten(number) => self.tell(core, from, &Saying::Over(number)),
            None => return false,
        }
        true
    }

    /// A rank has ended its call of this number.
    pub fn hear_over(&self, from: Rank, number: u32) {
        let mut over = lock(&self.over);
        over.retain(|(rank, _)| *rank != from);
        over.push((from, number));
    }

    /// Whether a rank is known to have ended its call of this number. What it sent there came before it said so.
    pub fn is_over(&self, rank: Rank, number: u32) -> bool {
        lock(&self.over).contains(&(rank, number))
    }

    /// A rank has ended its call of this number without what this one waits for.
    pub fn different(&self, from: Rank, made: Made) -> Error {
        let (me, number, call) = (self.comm.rank(), made.number.wrapping_add(1), made.call);
        let why = format!(
            "rank {me} calls {call}, as number {number} of their collectives, where rank {from} has made another call, and many \
             more since"
        );
        Error::Mismatch { why }
    }

    /// Asks all ranks about the call that waits at the board, if it has waited for long. Called by the thread that waits, now and then.
    fn ask_of_the_board(&self) {
        let waiting = self.waiting.load(Relaxed);
        if lock(&self.patience).ends(waiting)
            && let Some(made) = self.made.find(waiting.wrapping_sub(1))
        {
            let _ = self.comm.hub.with(|core| self.others().for_each(|rank| self.ask_one(core, rank, made)));
        }
    }
}

/// Calls of each team, and the time for each of them, by [`Group::watch_threads`].
const WATCHED: u32 = 64;
const WATCHED_FOR: Duration = Duration::from_millis(1);

/// A number of this thread, unlike that of any other that lives.
fn this_thread() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The same of the same rules at every rank; 0 of none.
fn hash(rules: &Rules) -> u32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619); // FNV-1a
    rules.to_string().bytes().fold(0, mix)
}

/// How long something is waited for.
#[derive(Default)]
pub(super) struct Patience {
    what: u32,
    until: Option<Instant>,
}

/// After how long a rank that waits asks whether others make the same call.
const PATIENCE: Duration = Duration::from_secs(1);

impl Patience {
    /// Now and then in a wait for this, which is not 0: whether it has lasted for a second, or another.
    pub fn ends(&mut self, what: u32) -> bool {
        if what == 0 || self.what != what {
            *self = Patience { what, until: None };
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
mod tests {
    use crate::Op;
    use crate::messages::{Source, Tag};

    /// What is received for a team that has failed ends when all have left it, in whichever order.
    #[test]
    fn of_teams_that_failed_and_were_dropped_nothing_is_left() {
        const TAG: Tag<u8> = Tag::new(1);
        crate::threads(3, |world| {
            let (me, n) = (world.rank(), world.size());
            let hub = &world.space().comm().unwrap().hub;
            // The messages that say so are of other calls than these.
            let meet = || {
                (0..n).for_each(|to| world.send(to, TAG, &[1]).unwrap());
                (0..n).for_each(|_| drop(world.recv(Source::Any, TAG).unwrap()));
            };
            let under_way = || hub.with(|core| core.engine.under_way()).unwrap();
            let settles = |most: usize| {
                let begun = std::time::Instant::now();
                while under_way() > most && begun.elapsed().as_secs() < 5 {
                    world.progress().unwrap();
                }
                under_way()
            };
            world.all_reduce_one(1, Op::Sum).unwrap();
            meet();
            let before = settles(1);
            for round in 0..6 {
                let team = world.split(Some(0), 0).unwrap().unwrap();
                // In the last, one makes no collective.
                if round < 5 || me > 0 {
                    let elements = if me == 2 { 2 } else { 1 };
                    team.all_reduce(&mut vec![1; elements], Op::Sum).unwrap_err();
                }
                if round % 3 == me {
                    // The others have left before.
                    meet();
                    (0..20).for_each(|_| world.progress().unwrap());
                    drop(team);
                } else {
                    drop(team);
                    world.progress().unwrap();
                    meet();
                }
            }
            meet();
            assert_eq!(settles(before), before, "rank {me}");
            meet();
        })
        .unwrap();
    }

    /// A turn takes one step, the listener's, however many teams made collectives and however many started ones wait; and to start one
    /// takes as many more as it has rounds.
    #[test]
    fn turns_walk_neither_teams_nor_started_calls() {
        crate::threads(2, |world| {
            let hub = &world.space().comm().unwrap().hub;
            let steps = || hub.with(|core| core.steps).unwrap();
            let teams: Vec<_> = (0..100).map(|_| world.split(Some(0), 0).unwrap().unwrap()).collect();
            teams.iter().for_each(|team| team.barrier().unwrap());
            let meet = || {
                let other = 1 - world.rank();
                world.sendrecv(other, TAG, &[0_u8], other, TAG, &mut [0_u8]).unwrap();
            };
            const TAG: Tag<u8> = Tag::new(7);
            let turns = |many: u64| (0..many).for_each(|_| world.progress().unwrap());
            meet();
            turns(10);
            let before = steps();
            turns(50);
            assert!(steps() - before <= 60, "{} steps in 50 turns beside 100 teams", steps() - before);
            // Rank 1 has not started these.
            if world.rank() == 0 {
                let mut started: Vec<_> = (0..300).map(|_| world.iall_reduce(vec![1], Op::Sum)).collect();
                turns(10);
                let before = steps();
                started.extend((0..50).map(|_| world.iall_reduce(vec![1], Op::Sum)));
                // A look at all of them, each tenth of a second, may come in between.
                assert!(steps() - before <= 150 + 2 * 350, "{} steps to start 50 beside 300", steps() - before);
                meet();
                started.into_iter().for_each(|started| assert_eq!(started.wait().unwrap(), [2]));
            } else {
                meet();
                let started: Vec<_> = (0..350).map(|_| world.iall_reduce(vec![1], Op::Sum)).collect();
                started.into_iter().for_each(|started| assert_eq!(started.wait().unwrap(), [2]));
            }
        })
        .unwrap();
    }
}
