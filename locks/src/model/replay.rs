//! A phase's view of the simulated network: the results of its verbs so far, then one more verb, then a stop.

use super::fifo_oracle::{Call, FifoOracle, Verb};
use super::memory::{Channels, Memory, Message};
use crate::{At, Awaited, Network, Rank, Wake};
use std::cell::RefCell;
use std::fmt;

/// The simulator stopped the phase here, and will run it again with one more result. A phase returns it with `?`.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Sim};
/// use transom_locks::{At, Network, Wake};
/// // This phase never sees the error: it runs once more for each verb, from the beginning.
/// let net = Sim::new(1, 1, sim::once(|_, network| network.add(At { rank: 0, word: 0 }, 1, Wake::Home).map(|found| assert_eq!(found, 0))));
/// net.run_random(1).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspended(());

impl fmt::Display for Suspended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("suspended; to be run again with one result more")
    }
}

impl std::error::Error for Suspended {}

/// When a notify, or an addition that is not waited for, takes effect.
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Delivery, Sim};
/// use transom_locks::{At, Network, Wake};
/// // Two ranks notify a third; the program ends in either order of delivery.
/// let notify = sim::once(|rank, network| network.notify(At { rank: 2, word: 0 }, rank as u64, Wake::Home));
/// let net = Sim::new(3, 1, notify).with_delivery(Delivery::Deferred);
/// assert!(net.explore(1000).unwrap() > 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// Immediately.
    Immediate,
    /// In a step of its own, as on a network adapter. Order is FIFO between two ranks; later operations of a rank to
    /// the same destination take effect after.
    Deferred,
    /// Immediately, in memory that all ranks share, as between processes of one host: ranks watch each other's words.
    Watched,
}

/// The reason why a rank cannot take a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blocked {
    /// The rank waits on this word, its own or one that it watches.
    Word(At),
    /// The rank's next verb must follow the messages in flight to this rank.
    Channel(Rank),
    /// The rank waits for the result in this entry of its record.
    Entry(usize),
}

/// The network as one rank sees it in one run of a phase. A program uses it only through [`Network`].
///
/// # Examples
/// ```
/// use transom_locks::model::{sim, Replay, Sim, Suspended};
/// use transom_locks::{At, Network, Wake};
/// fn phase(network: &Replay) -> Result<(), Suspended> {
///     network.notify(At { rank: network.rank(), word: 0 }, 1, Wake::Home)
/// }
/// Sim::new(2, 1, sim::once(|_, network| phase(network))).run_random(1).unwrap();
/// ```
#[derive(Debug)]
pub struct Replay {
    pub(super) rank: Rank,
    pub(super) shape: Shape,
    pub(super) run: RefCell<Run>,
}

/// The constants of a network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub ranks: usize,
    pub words: usize,
    pub delivery: Delivery,
}

/// The network's state during a run of a phase, and the progress of the run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub memory: Memory,
    pub channels: Channels,
    pub oracle: Option<FifoOracle>,
    /// The results of this phase's verbs so far; `None` while an addition is in flight.
    pub record: Vec<Option<u64>>,
    pub phase: usize,
    pub call: Option<Call>,
    /// The number of recorded results consumed in this run.
    pub fed: usize,
    /// True if one more verb may be executed.
    pub may_step: bool,
    pub blocked: Option<Blocked>,
    /// The run has ended: code that cleans up after an error cannot execute further verbs.
    pub ended: bool,
    /// The word that the verb changed, if the verb wakes.
    pub touched: Option<At>,
    /// A violation by the verb, or one that the oracle reports.
    pub fault: Option<String>,
}

impl Replay {
    /// Executes the next verb: replays its recorded result, or takes one step by `act`, or ends this run. `blocked`
    /// returns the reason, if any, why the verb cannot be executed now.
    fn verb(
        &self,
        blocked: impl FnOnce(&Run) -> Option<Blocked>,
        act: impl FnOnce(&mut Run) -> Option<u64>,
    ) -> Result<Option<u64>, Suspended> {
        let run = &mut *self.run.borrow_mut();
        if run.ended {
            return Err(Suspended(()));
        }
        if let Some(&result) = run.record.get(run.fed) {
            run.fed += 1;
            return Ok(result);
        }
        if run.fault.is_none() {
            run.blocked = blocked(run);
        }
        if run.fault.is_some() || run.blocked.is_some() || !std::mem::take(&mut run.may_step) {
            run.ended = true;
            return Err(Suspended(()));
        }
        if let (Some(call), Some(oracle), true) = (run.call, &mut run.oracle, run.record.is_empty()) {
            run.fault = oracle.begins(self.rank, call).err();
        }
        let result = act(run);
        run.record.push(result);
        run.fed += 1;
        run.ended = run.fault.is_some();
        if run.ended { Err(Suspended(())) } else { Ok(result) }
    }

    fn check(&self, at: At) -> Result<(), Suspended> {
        if at.rank < self.shape.ranks && at.word < self.shape.words {
            return Ok(());
        }
        let run = &mut *self.run.borrow_mut();
        if !run.ended {
            (run.fault, run.ended) = (Some(format!("rank {} has no word {}", at.rank, at.word)), true);
        }
        Err(Suspended(()))
    }

    fn wait_at(&self, at: At, until: impl Fn(u64) -> bool) -> Result<u64, Suspended> {
        self.check(at)?;
        let blocked = |run: &Run| (!until(run.memory.get(at))).then_some(Blocked::Word(at));
        self.verb(blocked, |run| Some(run.memory.get(at))).map(Option::unwrap_or_default)
    }

    /// The block of a verb that must follow earlier ones to the same rank.
    fn behind(&self, at: At) -> impl FnOnce(&Run) -> Option<Blocked> {
        let from = self.rank;
        move |run| (!run.channels.is_empty(from, at.rank)).then_some(Blocked::Channel(at.rank))
    }

    fn deferred(&self, at: At) -> bool {
        self.shape.delivery == Delivery::Deferred && at.rank != self.rank
    }
}

impl Run {
    /// Executes a verb on the words; returns the previous value. A rank that waits for the word looks again if the verb
    /// wakes.
    pub fn execute(&mut self, rank: Rank, verb: Verb, wake: Wake) -> u64 {
        let at = verb.at();
        let held = self.memory.get(at);
        let new = match verb {
            Verb::Cas { expected, new, .. } => (held == expected).then_some(new),
            Verb::Add { delta, .. } => Some(held.wrapping_add(delta)),
            Verb::Notify { value, .. } => Some(value),
        };
        if let Some(new) = new {
            self.memory.set(at, new);
            self.touched = (wake == Wake::Home).then_some(at);
        }
        if let Some(oracle) = &mut self.oracle
            && let Err(violation) = oracle.saw(rank, verb, held)
        {
            self.fault = Some(violation);
        }
        held
    }
}

impl Network for Replay {
    type Error = Suspended;
    type Pending = usize;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shape.ranks
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Suspended> {
        self.check(at)?;
        let verb = Verb::Cas { at, expected, new };
        self.verb(self.behind(at), |run| Some(run.execute(self.rank, verb, wake))).map(Option::unwrap_or_default)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<usize, Suspended> {
        self.check(at)?;
        self.verb(
            |_| None,
            |run| {
                if self.deferred(at) {
                    let (phase, entry) = (run.phase, run.fed);
                    run.channels.send(self.rank, at.rank, Message::Add { at, delta, wake, phase, entry });
                    None
                } else {
                    Some(run.execute(self.rank, Verb::Add { at, delta }, wake))
                }
            },
        )?;
        Ok(self.run.borrow().fed - 1)
    }

    fn finish(&self, entry: usize) -> Result<u64, Suspended> {
        let run = &mut *self.run.borrow_mut();
        match run.record[entry] {
            Some(result) => Ok(result),
            None if run.ended => Err(Suspended(())),
            None => {
                (run.blocked, run.ended) = (Some(Blocked::Entry(entry)), true);
                Err(Suspended(()))
            }
        }
    }

    fn try_finish(&self, entry: usize) -> Result<u64, usize> {
        // The same answer each time that this phase is run again, when the result may have come.
        match self.shape.delivery {
            Delivery::Deferred => Err(entry),
            _ => self.finish(entry).map_err(|_| entry),
        }
    }

    fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Suspended> {
        self.check(at)?;
        let verb = Verb::Add { at, delta };
        self.verb(self.behind(at), |run| Some(run.execute(self.rank, verb, wake))).map(Option::unwrap_or_default)
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Suspended> {
        self.check(at)?;
        self.verb(
            |_| None,
            |run| {
                if self.deferred(at) {
                    // The oracle counts the verb now; the delivery reports its effect on the word.
                    run.channels.send(self.rank, at.rank, Message::Notify { at, value, wake });
                    if let Some(oracle) = &mut run.oracle {
                        run.fault = oracle.saw(self.rank, Verb::Notify { at, value }, 0).err();
                    }
                } else {
                    run.execute(self.rank, Verb::Notify { at, value }, wake);
                }
                Some(0)
            },
        )?;
        Ok(())
    }

    fn wait(&self, word: usize, _: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Suspended> {
        self.wait_at(At { rank: self.rank, word }, until)
    }

    fn watches(&self, _: Rank) -> bool {
        self.shape.delivery == Delivery::Watched
    }

    fn watch(&self, at: At, _: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Suspended> {
        self.wait_at(at, until)
    }
}
