//! Mixes of requests on the passive locks, for both model networks.

use super::fifo_oracle::Call;
use super::names;
use super::program::Program;
use super::replay::{Replay, Suspended};
use super::sim::Sim;
use super::state::SimState;
use crate::all_locks::AllLocks;
use crate::lock_word::Tickets;
use crate::{At, Error, Field, LockLayout, LockWord, Mode, Network, Rank, TargetLock};
use std::time::Instant;
#[cfg(feature = "loom")]
use {
    super::loom::{Net, RankNetwork, Setup, Wrong, explore},
    ::loom::{cell::UnsafeCell, thread},
    std::{rc::Rc, sync::Arc},
};

/// A mix of requests on passive locks: one row of calls per rank, checked by a [`FifoOracle`](super::FifoOracle). At
/// the end the locks must be idle and their nodes empty. `C` is the width of the reader counts.
///
/// [`sim`](Self::sim) runs the mix on a simulated network, where verbs are sequentially consistent. With the feature
/// `loom`, `loom` runs it on loom threads, under the C11 memory model.
///
/// # Examples
/// A writer among readers, under every schedule:
/// ```
/// use transom_locks::model::{Call, Mix};
/// use transom_locks::Mode::{Exclusive, Shared};
///
/// let rows = [Call::both(0, Shared), Call::both(0, Exclusive), Call::both(0, Shared)];
/// let states = <Mix>::new(rows).sim().explore(10_000).unwrap();
/// assert!(states > 300, "{states}");
/// ```
#[derive(Clone, Debug)]
pub struct Mix<const C: u32 = 16> {
    rows: Vec<Vec<Call>>,
    /// The ranks that repeat their rows.
    endless: Vec<bool>,
}

impl<const C: u32> Mix<C> {
    /// Creates a mix from one row of calls per rank.
    pub fn new<R: Into<Vec<Call>>>(rows: impl IntoIterator<Item = R>) -> Self {
        let rows: Vec<_> = rows.into_iter().map(Into::into).collect();
        Mix { endless: vec![false; rows.len()], rows }
    }

    /// The same mix with rows that each rank repeats for ever. Use narrow counts, which wrap soon, and
    /// [`Search::starvation`](super::Search::starvation): a violation is then also a call that never returns although
    /// the schedule is fair. In loom each row runs once.
    ///
    /// # Examples
    /// Readers that come and go for ever do not starve a writer.
    /// ```
    /// use transom_locks::model::{Call, Mix, Search};
    /// use transom_locks::Mode::{Exclusive, Shared};
    /// let net = Mix::<3>::new([Call::both(0, Exclusive), Call::both(0, Shared)]).endless().sim();
    /// let search = Search { starvation: true, ..Search::default() };
    /// net.explore_with(&search, (), |_, _| Ok(())).unwrap();
    /// ```
    pub fn endless(mut self) -> Self {
        self.endless.fill(true);
        self
    }

    /// Creates a mix from a text: rows separated by `|`, requests by spaces. `W` is an exclusive request and its
    /// release, `R` a shared one; `TW` and `TR` are attempts, `DW` and `DR` requests with a deadline that may pass at
    /// any step, `A` all locks. A number after it names the rank whose lock is meant, which is rank 0 otherwise.
    /// `W0+R1` acquires one lock within the other. A row that ends with `*` repeats for ever ([`endless`](Self::endless)).
    ///
    /// # Errors
    /// A description of the first word that is not understood, or of too many ranks for narrow counts.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::Mix;
    /// let net = <Mix>::parse("W W | R R1 | TW").unwrap().sim();
    /// assert!(net.explore(100_000).is_ok());
    /// let deadlock = <Mix>::parse("W0+W1 | W1+W0").unwrap().sim().explore(1000).unwrap_err().violation().unwrap();
    /// assert!(deadlock.what.starts_with("deadlock"), "{deadlock}");
    /// assert_eq!(<Mix>::parse("W | X").unwrap_err(), "X is no request; write W, R, TW, TR, DW, DR or A");
    /// ```
    pub fn parse(text: &str) -> Result<Self, String> {
        let ranks = text.split('|').count();
        Self::check_ranks(ranks)?;
        let request = |word: &str| -> Result<Vec<Call>, String> {
            let (name, target) = word.split_at(word.find(|letter: char| letter.is_ascii_digit()).unwrap_or(word.len()));
            let target = if target.is_empty() { Ok(0) } else { target.parse::<Rank>() };
            let target = target.ok().filter(|&target| target < ranks);
            let target = target.ok_or(format!("{word} names a rank that does not exist; there are {ranks} rows"))?;
            let timed = |mode| vec![Call::AcquireUntil(target, mode), Call::ReleaseHeld(target), Call::Settle(target)];
            Ok(match name {
                "W" => Call::both(target, Mode::Exclusive).into(),
                "R" => Call::both(target, Mode::Shared).into(),
                "TW" => Call::attempt(target, Mode::Exclusive).into(),
                "TR" => Call::attempt(target, Mode::Shared).into(),
                "DW" => timed(Mode::Exclusive),
                "DR" => timed(Mode::Shared),
                "A" => vec![Call::AcquireAll, Call::ReleaseAll],
                _ => return Err(format!("{word} is no request; write W, R, TW, TR, DW, DR or A")),
            })
        };
        let nested = |word: &str| -> Result<Vec<Call>, String> {
            let requests = word.split('+').map(request).collect::<Result<Vec<_>, _>>()?;
            if requests.len() > 1 && requests.iter().any(|calls| !matches!(calls[..], [Call::Acquire(..), _])) {
                return Err(format!("{word} nests a request that is not W or R"));
            }
            let acquires = requests.iter().map(|calls| calls[0]);
            Ok(acquires.chain(requests.iter().rev().flat_map(|calls| calls[1..].to_vec())).collect())
        };
        let row = |row: &str| -> Result<Vec<Call>, String> {
            Ok(row.split_whitespace().map(nested).collect::<Result<Vec<_>, _>>()?.concat())
        };
        let split =
            |row: &'_ str| row.trim_end().strip_suffix('*').map_or((row.to_string(), false), |row| (row.into(), true));
        let (rows, endless): (Vec<String>, Vec<bool>) = text.split('|').map(split).unzip();
        if let Some(rank) = (0..ranks).find(|&rank| endless[rank] && rows[rank].trim().is_empty()) {
            return Err(format!("row {rank} repeats no request; write a request before *"));
        }
        Ok(Mix { rows: rows.iter().map(|text| row(text)).collect::<Result<_, _>>()?, endless })
    }

    /// Returns whether any rank repeats its row for ever.
    pub fn is_endless(&self) -> bool {
        self.endless.contains(&true)
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.rows.len()
    }

    /// Creates a simulated network that runs the mix.
    ///
    /// # Panics
    /// If a mix with narrow counts has more ranks than its tickets, of 3 bits, can tell apart.
    pub fn sim(self) -> Sim<Self> {
        Self::check_ranks(self.rows.len()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let ranks = self.rows.len();
        Sim::new(ranks, LockLayout::words(ranks), self)
    }

    /// Tells that a mix has more ranks than its tickets can tell apart.
    fn check_ranks(ranks: usize) -> Result<(), String> {
        match Tickets::<C>::LAST as usize {
            most if ranks <= most => Ok(()),
            most => Err(format!(
                "a mix has {ranks} ranks, but counts of {C} bits come with tickets for at most {most}; use wide counts"
            )),
        }
    }

    /// Checks the nonzero words after all calls have returned and every lock was released.
    fn check_end(&self, nonzero: impl IntoIterator<Item = (At, u64)>) -> Result<(), String> {
        let layout = LockLayout::new(0, self.rows.len());
        nonzero.into_iter().try_for_each(|(at, value)| match layout.field(at) {
            Some((_, Field::Word)) if LockWord::<C>(value).is_idle() => Ok(()),
            Some((_, Field::Link)) => Ok(()),
            Some((_, Field::Tickets)) if Tickets::<C>(value).next() == Tickets::<C>(value).turn() => Ok(()),
            Some((target, field)) => {
                Err(format!("at the end {field:?} at rank {}, lock of rank {target}: {value:#x}", at.rank))
            }
            None => Err(format!("{at:?} is no word of a lock, and holds {value:#x}")),
        })
    }
}

#[cfg(feature = "loom")]
impl<const C: u32> Mix<C> {
    /// Runs the mix on one loom thread per rank: every schedule, or those with at most `preemptions` preemptions.
    /// Returns the number of schedules.
    ///
    /// Each lock protects a data cell, which exclusive holders write and shared holders read, so loom detects a holder
    /// that could miss an earlier holder's write. [The page of `model::loom`](super::loom) shows how to use it.
    ///
    /// # Panics
    /// In the first schedule in which loom or the oracle finds a violation.
    ///
    /// # Examples
    /// ```
    /// use transom_locks::model::{Call, Mix};
    /// use transom_locks::Mode::{Exclusive, Shared};
    ///
    /// let two = <Mix>::new([Call::both(0, Shared), Call::both(0, Exclusive)]);
    /// assert!(two.loom(None) > 10); // every schedule
    /// let three = <Mix>::new([Call::both(0, Shared), Call::both(0, Exclusive), Call::both(0, Exclusive)]);
    /// assert!(three.loom(Some(2)) > 100); // those with two preemptions at most
    /// ```
    pub fn loom(&self, preemptions: Option<usize>) -> usize {
        self.loom_with(Setup { preemptions, ..Setup::default() }, |network| network)
    }

    /// [`loom`](Self::loom) with another setup, in which each rank uses the result of `network` as its network. It
    /// serves to see that the check fails where the verbs order less, or a step is left out.
    ///
    /// # Panics
    /// The same as [`loom`](Self::loom).
    ///
    /// # Examples
    /// If a notify orders nothing, a rank may enter without seeing the writes of the holder before it.
    /// ```
    /// use std::sync::atomic::Ordering::Relaxed;
    /// use transom_locks::model::loom::{Orderings, Setup, Waiting};
    /// use transom_locks::model::{Call, Mix};
    /// use transom_locks::Mode::Exclusive;
    ///
    /// let mix = <Mix>::new([Call::both(0, Exclusive), Call::both(0, Exclusive)]);
    /// let orderings = Orderings { notify: Relaxed, ..Orderings::default() };
    /// let setup = Setup { waiting: Waiting::Spins, orderings, ..Setup::default() };
    /// assert!(std::panic::catch_unwind(|| mix.loom_with(setup, |network| network)).is_err());
    /// ```
    pub fn loom_with<N>(&self, setup: Setup, network: impl Fn(RankNetwork) -> N + Send + Sync + 'static) -> usize
    where
        N: Network<Error = Wrong> + 'static,
    {
        Self::check_ranks(self.rows.len()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let mix = Arc::new(self.clone());
        let network = Arc::new(network);
        explore(setup.preemptions, move || {
            let ranks = mix.rows.len();
            let net = Net::for_locks(ranks, &mix.targets(), setup.waiting, setup.orderings);
            let data: Rc<Vec<UnsafeCell<()>>> = Rc::new((0..ranks).map(|_| UnsafeCell::new(())).collect());
            let run = |rank: Rank| {
                let net = if setup.watches { net.rank(rank).watching() } else { net.rank(rank) };
                let (mix, data, network) = (mix.clone(), data.clone(), network.clone());
                move || mix.run_row(net.clone(), network(net), &data)
            };
            let others: Vec<_> = (1..ranks).map(|rank| thread::spawn(run(rank))).collect();
            if ranks > 0 {
                run(0)();
            }
            others.into_iter().for_each(|other| other.join().expect("loom stops at the first panic"));
            if setup.check_end
                && let Err(wrong) = mix.check_end(net.nonzero())
            {
                panic!("{wrong}");
            }
        })
    }

    /// The targets of the locks that the mix uses.
    fn targets(&self) -> Vec<Rank> {
        let uses = |target: Rank, call: &Call| call.target().is_none_or(|other| other == target);
        (0..self.rows.len()).filter(|&target| self.rows.iter().flatten().any(|call| uses(target, call))).collect()
    }

    /// Runs the row of one rank: `rank` reports to the oracle, `network` executes the lock's verbs.
    fn run_row<N: Network<Error = Wrong>>(&self, rank: RankNetwork, network: N, data: &[UnsafeCell<()>]) {
        let mut locks = vec![TargetLock::<C>::new(); data.len()];
        for &call in &self.rows[rank.rank()] {
            let mut made = || -> Result<(), Error<Wrong>> {
                rank.begins(call)?;
                call.run(&mut locks, &network, 0)?;
                Ok(rank.returned()?)
            };
            if let Err(wrong) = made() {
                panic!("rank {}, {call:?}: {wrong}", rank.rank());
            }
            match call {
                Call::Acquire(target, mode) | Call::TryAcquire(target, mode) | Call::AcquireUntil(target, mode)
                    if locks[target].is_held() =>
                {
                    match mode {
                        Mode::Exclusive => data[target].with_mut(drop),
                        Mode::Shared => data[target].with(drop),
                    }
                }
                Call::AcquireAll => data.iter().for_each(|data| data.with(drop)),
                _ => {}
            }
        }
    }
}

impl<const C: u32> Program for Mix<C> {
    type Local = Vec<TargetLock<C>>;

    fn start(&self, _: Rank) -> Self::Local {
        vec![TargetLock::new(); self.rows.len()]
    }

    fn phases(&self, rank: Rank) -> usize {
        self.rows[rank].len()
    }

    fn phase(
        &self,
        rank: Rank,
        phase: usize,
        locks: &mut Self::Local,
        network: &Replay,
    ) -> Result<(), Error<Suspended>> {
        self.rows[rank][phase].run(locks, network, 0)
    }

    fn locks(&self) -> Option<LockLayout> {
        Some(LockLayout::new(0, self.rows.len()))
    }

    fn call(&self, rank: Rank, phase: usize) -> Option<Call> {
        self.rows[rank].get(phase).copied()
    }

    fn show(&self, at: At, value: u64) -> String {
        names::value::<C>(Program::locks(self), at, value)
    }

    /// The last rank before this one with the same row. Rank 0 differs from all others where the lock is its own, and
    /// with several locks no two ranks are interchangeable.
    fn alike(&self, rank: Rank) -> Option<Rank> {
        let one_lock = self.rows.iter().flatten().all(|call| call.target() == Some(0));
        let is_alike = |other: Rank| self.rows[other] == self.rows[rank] && self.endless[other] == self.endless[rank];
        (1..rank).rev().find(|&other| one_lock && is_alike(other))
    }

    fn repeats(&self, rank: Rank) -> bool {
        self.endless[rank]
    }

    fn check(&self, state: &SimState<Self::Local>) -> Result<(), String> {
        if state.is_done() { self.check_end(state.nonzero()) } else { Ok(()) }
    }
}

impl Call {
    /// Makes the call on the locks of one rank, whose words begin at `base`.
    ///
    /// # Errors
    /// The errors of the corresponding calls of [`PassiveLock`](crate::PassiveLock).
    pub fn run<N: Network, const C: u32>(
        self,
        locks: &mut [TargetLock<C>],
        network: &N,
        base: usize,
    ) -> Result<(), Error<N::Error>> {
        let layout = LockLayout::new(base, network.ranks());
        let ranks = locks.len();
        let no_such = |rank| Error::NoSuchRank { rank, ranks };
        match self {
            Call::Acquire(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                match mode {
                    Mode::Exclusive => lock.exclusive(network, layout, target)?,
                    Mode::Shared => lock.shared(network, layout, target)?,
                };
            }
            Call::TryAcquire(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                match mode {
                    Mode::Exclusive => lock.try_exclusive(network, layout, target)?,
                    Mode::Shared => lock.try_shared(network, layout, target)?,
                };
            }
            Call::AcquireUntil(target, mode) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                // A deadline that has passed at each reading of the clock, so that a rank does the same in each run of
                // its row.
                let passed = Instant::now();
                match mode {
                    Mode::Exclusive => lock.exclusive_until(network, layout, target, passed)?,
                    Mode::Shared => lock.shared_until(network, layout, target, passed)?,
                };
            }
            Call::Settle(target) => locks.get_mut(target).ok_or(no_such(target))?.settle(network, layout, target)?,
            Call::Release(target) | Call::ReleaseHeld(target) => {
                let lock = locks.get_mut(target).ok_or(no_such(target))?;
                if lock.is_held() || self == Call::Release(target) {
                    lock.release(network, layout, target)?;
                }
            }
            Call::AcquireAll | Call::ReleaseAll => {
                let in_flight = &mut (0..ranks).map(|_| None).collect::<Vec<_>>();
                let mut all = AllLocks { network, layout, locks, in_flight };
                match self {
                    Call::AcquireAll => drop(all.acquire()?),
                    _ => all.release()?,
                }
            }
        }
        Ok(())
    }
}
