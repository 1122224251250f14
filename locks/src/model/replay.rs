//! A phase's view of the simulated network: the results of its verbs so far, then one more verb, then a stop.

use super::call::Call;
use super::delivery::{Deliver, QUEUES};
use super::event::Action;
use super::fifo_oracle::{FifoOracle, Verb};
use super::memory::{Channels, Message, SimWords};
use crate::{At, Awaited, Network, Rank, Wake};
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

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

/// The reason why a rank cannot take a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Blocked {
    /// The rank waits on this word, its own or one that it watches.
    Word(At),
    /// The rank's next verb must follow the messages in flight to this rank in this queue.
    Channel(Rank, usize),
    /// The rank's next verb is an atomic on this word, at which another rank's atomic has begun.
    Half(At),
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
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub ranks: usize,
    pub words: usize,
    pub delivery: Arc<dyn Deliver + Send + Sync>,
}

/// The network's state during a run of a phase, and the progress of the run.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub memory: SimWords,
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
    /// The verb executed, and the values of its word before and after. `None` for values if the verb is in flight.
    pub acted: Option<(Action, Option<(u64, u64)>)>,
    /// The phase begins again ([`Replay::retry`]).
    pub retried: bool,
    /// The verb was the first step of an atomic that takes two.
    pub is_half: bool,
    /// A violation by the verb, or one that the oracle reports.
    pub fault: Option<String>,
}

impl Replay {
    /// Begins the phase again: forgets the results of its verbs, but keeps the program's state as the phase has changed it.
    /// For loops that try until they succeed: without it, each round would be another state. Return the result as the
    /// phase's error. The verbs of a round must not be followed by more before this call.
    ///
    /// # Examples
    /// Two ranks poll until a third has set a flag. Under weak fairness both return, and there are few states.
    /// ```
    /// use transom_locks::model::{sim, Search, Sim};
    /// use transom_locks::{At, Network, Wake};
    /// let flag = At { rank: 0, word: 0 };
    /// let net = Sim::new(3, 1, sim::once(move |rank, network| match rank {
    ///     0 => network.notify(flag, 1, Wake::Nobody),
    ///     _ if network.add(flag, 0, Wake::Nobody)? == 1 => Ok(()),
    ///     _ => Err(network.retry()),
    /// }));
    /// let search = Search { starvation: true, ..Search::default() };
    /// assert_eq!(net.explore_with(&search, (), |_, _| Ok(())).unwrap().states, 5);
    /// ```
    pub fn retry(&self) -> Suspended {
        let run = &mut *self.run.borrow_mut();
        if !run.ended {
            (run.ended, run.retried) = (true, true);
        }
        Suspended(())
    }

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
        if let (Some(call), Some(oracle), true) = (run.call, &mut run.oracle, run.record.is_empty())
            && !oracle.is_in_call(self.rank)
        {
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
        let read = |run: &mut Run| {
            let value = run.memory.get(at);
            run.acted = Some((Action::Wait(at), Some((value, value))));
            Some(value)
        };
        self.verb(blocked, read).map(Option::unwrap_or_default)
    }

    /// Executes an atomic that is waited for. It must follow earlier verbs to the same rank.
    fn atomic(&self, verb: Verb, wake: Wake) -> Result<u64, Suspended> {
        let (me, at) = (self.rank, verb.at());
        self.check(at)?;
        let queue = self.queue(at)?;
        let blocked = |run: &Run| match (run.memory.half_at(at), queue) {
            (Some(rank), _) if rank != me => Some(Blocked::Half(at)),
            (_, Some(queue)) if !run.channels.is_empty(me, at.rank, queue) => Some(Blocked::Channel(at.rank, queue)),
            _ => None,
        };
        if self.shape.delivery.is_torn(me, at) && blocked(&self.run.borrow()).is_none() {
            self.first_half(verb)?;
        }
        self.verb(blocked, |run| Some(run.execute(me, verb, wake))).map(Option::unwrap_or_default)
    }

    /// Takes one step to read the word of an atomic that will write it, unless that is done.
    fn first_half(&self, verb: Verb) -> Result<(), Suspended> {
        let run = &mut *self.run.borrow_mut();
        let is_next = run.may_step && !run.ended && run.fed == run.record.len();
        let writes = !matches!(verb, Verb::Cas { at, expected, .. } if run.memory.get(at) != expected);
        if is_next && writes && run.memory.half_at(verb.at()).is_none() {
            run.memory.begin_half(self.rank, verb.at());
            run.acted = Some((Action::Verb(verb), None));
            (run.may_step, run.ended, run.is_half) = (false, true, true);
            return Err(Suspended(()));
        }
        Ok(())
    }

    /// The queue in which a message to this word travels, if it does.
    fn queue(&self, at: At) -> Result<Option<usize>, Suspended> {
        let queue = self.shape.delivery.queue(self.rank, at);
        match queue {
            Some(queue) if queue >= QUEUES => {
                let run = &mut *self.run.borrow_mut();
                if !run.ended {
                    run.fault =
                        Some(format!("{:?} names queue {queue}; write 0 to {}", self.shape.delivery, QUEUES - 1));
                    run.ended = true;
                }
                Err(Suspended(()))
            }
            _ => Ok(queue),
        }
    }
}

impl Run {
    /// Executes a verb on the words; returns the previous value. A rank that waits for the word looks again if the verb
    /// wakes.
    pub fn execute(&mut self, rank: Rank, verb: Verb, wake: Wake) -> u64 {
        let at = verb.at();
        let half = if matches!(verb, Verb::Notify { .. }) { None } else { self.memory.end_half(rank) };
        let held = half.unwrap_or_else(|| self.memory.get(at));
        let new = match verb {
            Verb::Cas { expected, new, .. } => (held == expected).then_some(new),
            Verb::Add { delta, .. } => Some(held.wrapping_add(delta)),
            Verb::Notify { value, .. } => Some(value),
        };
        if let Some(new) = new {
            self.memory.set(at, new);
            self.touched = (wake == Wake::Home).then_some(at);
        }
        self.acted = Some((Action::Verb(verb), Some((held, new.unwrap_or(held)))));
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
    /// The entry of the record with the result, and whether the addition travels in a queue.
    type Pending = (usize, bool);
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.shape.ranks
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, Suspended> {
        self.atomic(Verb::Cas { at, expected, new }, wake)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<(usize, bool), Suspended> {
        self.check(at)?;
        let (verb, queue) = (Verb::Add { at, delta }, self.queue(at)?);
        if let Some(queue) = queue {
            let send = |run: &mut Run| {
                let (phase, entry) = (run.phase, run.fed);
                run.acted = Some((Action::Verb(verb), None));
                run.channels.send((self.rank, at.rank, queue), Message::Add { at, delta, wake, phase, entry });
                None
            };
            self.verb(|_| None, send)?;
        } else {
            self.atomic(verb, wake)?;
        }
        Ok((self.run.borrow().fed - 1, queue.is_some()))
    }

    fn finish(&self, (entry, _): (usize, bool)) -> Result<u64, Suspended> {
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

    fn try_finish(&self, (entry, is_queued): (usize, bool)) -> Result<u64, (usize, bool)> {
        // The same answer each time that this phase is run again, when the result may have come.
        if is_queued { Err((entry, true)) } else { self.finish((entry, false)).map_err(|_| (entry, false)) }
    }

    fn add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, Suspended> {
        self.atomic(Verb::Add { at, delta }, wake)
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), Suspended> {
        self.check(at)?;
        let queue = self.queue(at)?;
        self.verb(
            |_| None,
            |run| {
                if let Some(queue) = queue {
                    // The oracle counts the verb now; the delivery reports its effect on the word.
                    run.channels.send((self.rank, at.rank, queue), Message::Notify { at, value, wake });
                    run.acted = Some((Action::Verb(Verb::Notify { at, value }), None));
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

    fn watches(&self, rank: Rank) -> bool {
        self.shape.delivery.watches(self.rank, rank)
    }

    fn watch(&self, at: At, _: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, Suspended> {
        self.wait_at(at, until)
    }
}
