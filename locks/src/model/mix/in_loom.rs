//! Runs of a mix in loom, with data that its calls order.

use super::Mix;
use crate::model::call::{Call, Group, Handles};
use crate::model::loom::{Net, RankNetwork, Setup, Wrong, explore};
use crate::{Barrier, Error, LockLayout, Mode, Network, Rank};
use ::loom::{cell::UnsafeCell, thread};
use std::rc::Rc;
use std::sync::Arc;

impl<const C: u32> Mix<C> {
    /// Runs the mix on one loom thread per rank: every schedule, or those with at most `preemptions` preemptions.
    /// Returns the number of schedules.
    ///
    /// Each lock protects a data cell, which exclusive holders write and shared holders read, so loom detects a holder
    /// that could miss an earlier holder's write. Ranks also write cells before a barrier and read them after it; origins
    /// write cells within accesses, targets outside exposures. [The page of `model::loom`](crate::model::loom) shows how
    /// to use it.
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
            let net = Net::for_calls(ranks, &mix.targets(), &mix.sync_words(), setup.waiting, setup.orderings);
            let data = Rc::new(Data::new(&mix.rows));
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
        let uses = |target, call: &Call| call.is_on_locks() && call.target().is_none_or(|other| other == target);
        (0..self.rows.len()).filter(|&target| self.rows.iter().flatten().any(|call| uses(target, call))).collect()
    }

    /// The words of the barrier and of access groups, if the mix uses them.
    fn sync_words(&self) -> Vec<usize> {
        let (ranks, uses) = (self.rows.len(), |wanted: fn(&Call) -> bool| self.rows.iter().flatten().any(wanted));
        let barrier = LockLayout::words(ranks);
        let groups = barrier + Barrier::words(ranks);
        let barriers = (barrier..groups).step_by(8).filter(|_| uses(|call| *call == Call::Barrier));
        let epochs = (groups..Handles::<C>::words(ranks)).filter(|_| uses(|call| matches!(call, Call::Post(_))));
        barriers.chain(epochs).collect()
    }

    /// Runs the row of one rank: `rank` reports to the oracle, `network` executes the verbs.
    fn run_row<N: Network<Error = Wrong>>(&self, rank: RankNetwork, network: N, data: &Data) {
        let mut handles = Handles::<C>::new(self.rows.len(), 0);
        let (mut barriers, mut exposed) = (0, Group::default());
        for &call in &self.rows[rank.rank()] {
            match call {
                Call::Barrier => data.parts[rank.rank()][barriers].with_mut(drop),
                Call::Post(origins) => {
                    exposed = origins;
                    data.write_exposed(rank.rank(), exposed);
                }
                _ => {}
            }
            let mut made = || -> Result<(), Error<Wrong>> {
                rank.begins(call)?;
                call.run(&mut handles, &network)?;
                Ok(rank.returned()?)
            };
            if let Err(wrong) = made() {
                panic!("rank {}, {call:?}: {wrong}", rank.rank());
            }
            match call {
                Call::Acquire(target, mode) | Call::TryAcquire(target, mode) | Call::AcquireUntil(target, mode)
                    if handles.locks()[target].is_held() =>
                {
                    match mode {
                        Mode::Exclusive => data.locks[target].with_mut(drop),
                        Mode::Shared => data.locks[target].with(drop),
                    }
                }
                Call::AcquireAll => data.locks.iter().for_each(|data| data.with(drop)),
                Call::Barrier => {
                    data.parts.iter().filter_map(|parts| parts.get(barriers)).for_each(|part| part.with(drop));
                    barriers += 1;
                }
                Call::Start(targets) => {
                    targets.ranks().for_each(|target| data.exposed[target][rank.rank()].with_mut(drop))
                }
                Call::Wait => data.write_exposed(rank.rank(), exposed),
                _ => {}
            }
        }
    }
}

/// Cells that calls order, in which loom finds races.
struct Data {
    /// The data under the lock of each rank.
    locks: Vec<UnsafeCell<()>>,
    /// Per rank and barrier: written by the rank before the barrier, read by all ranks after it.
    parts: Vec<Vec<UnsafeCell<()>>>,
    /// Per target and origin: written by the origin within an access, by the target outside its exposures.
    exposed: Vec<Vec<UnsafeCell<()>>>,
}

impl Data {
    fn new(rows: &[Vec<Call>]) -> Self {
        let cells = |count: usize| (0..count).map(|_| UnsafeCell::new(())).collect::<Vec<_>>();
        let count = |row: &Vec<Call>, wanted: fn(&&Call) -> bool| row.iter().filter(wanted).count();
        let exposes = |row| count(row, |call| matches!(call, Call::Post(_))) > 0;
        Data {
            locks: cells(rows.len()),
            parts: rows.iter().map(|row| cells(count(row, |call| **call == Call::Barrier))).collect(),
            exposed: rows.iter().map(|row| cells(if exposes(row) { rows.len() } else { 0 })).collect(),
        }
    }

    fn write_exposed(&self, target: Rank, origins: Group) {
        origins.ranks().for_each(|origin| self.exposed[target][origin].with_mut(drop));
    }
}
