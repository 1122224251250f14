//! Programs: their parts, and drawing one from a seed.
//!
//! Programs are right by MPI's rules, or race where this library defines the result. The lower half of a part is for
//! plain accesses and the upper half for accumulates, unless all access is exclusive. A rank that put to an element,
//! or reads it by a request, waits (`Settle`) before it accesses the element again.

use std::collections::HashSet;
use transom::{Assert, Op, Rank};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    Allocate,
    Shared,
    Create,
    Dynamic,
}

#[derive(Debug)]
pub struct Program {
    pub flavour: Flavour,
    /// Elements of each rank's part.
    pub lens: Vec<usize>,
    pub phases: Vec<Phase>,
}

#[derive(Debug)]
pub struct Phase {
    pub sync: Sync,
    /// Epochs by rank.
    pub epochs: Vec<Vec<Epoch>>,
    /// Ranks that detach their part at the end of the phase, and attach a new one.
    pub renewed: Vec<bool>,
}

#[derive(Clone, Debug)]
pub enum Sync {
    /// Assertions of each rank, before and after.
    Fence { before: Vec<Assert>, after: Vec<Assert> },
    /// Targets of each rank.
    Pscw { targets: Vec<Vec<Rank>>, asserted: Assert, test: bool },
    /// Each epoch names its own lock.
    Locks,
    /// Puts with signals; each rank waits for all signals to it.
    Signals,
}

#[derive(Debug)]
pub struct Epoch {
    pub on: On,
    pub calls: Vec<Call>,
    /// Ends by being dropped.
    pub dropped: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// Epoch of a fence or a start.
    Group,
    Exclusive(Rank, Assert),
    Shared(Rank, Assert),
    All(Assert),
    /// No epoch: the rank's own part, or other parts by loads and stores.
    Outside,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub target: Rank,
    pub elements: Vec<usize>,
    pub what: Action,
}

#[derive(Clone, Debug)]
pub enum Action {
    Put(How, Vec<u64>),
    Get(How),
    Accumulate(How, Op, Vec<u64>),
    /// And fetch.
    Fetch(How, Op, Vec<u64>),
    Swap {
        expected: u64,
        new: u64,
    },
    /// Loads and stores.
    Load,
    Store(Vec<u64>),
    /// Waits for all requests, and flushes.
    Settle {
        all: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The call for several elements.
    Plain,
    /// The call for one element, if there is one.
    One,
    Section,
    Signal,
    /// A request that is waited for at the next `Settle`, or at the end.
    Request,
    /// A request that is dropped.
    Dropped,
}

impl Program {
    /// Larger seeds give longer programs, so that the first failure is a short one. `shared`: ranks reach all
    /// allocated memory by loads and stores.
    pub fn random(flavour: Flavour, seed: u64, ranks: usize, shared: bool) -> Program {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x1_0001).wrapping_add(ranks as u64));
        let lens: Vec<usize> = (0..ranks).map(|_| if random.u8(..6) == 0 { 0 } else { random.usize(1..9) }).collect();
        let mut maker = Maker { random, flavour, shared, lens };
        let phases = (0..(1 + seed / 2).min(8)).map(|_| maker.phase()).collect();
        Program { flavour, lens: maker.lens, phases }
    }
}

struct Maker {
    random: fastrand::Rng,
    flavour: Flavour,
    shared: bool,
    lens: Vec<usize>,
}

/// Operations that a rank's epoch may do.
#[derive(Clone)]
struct May<'a> {
    targets: &'a [Rank],
    /// All access in the phase is exclusive: no halves.
    anything: bool,
    loads: bool,
}

impl Maker {
    fn ranks(&self) -> usize {
        self.lens.len()
    }

    fn phase(&mut self) -> Phase {
        let (n, all) = (self.ranks(), (0..self.ranks()).collect::<Vec<_>>());
        let group = May { targets: &all, anything: false, loads: true };
        let (sync, epochs) = match self.random.u8(..7) {
            6 => (Sync::Locks, self.crowd()),
            0 => (
                Sync::Fence { before: vec![], after: vec![] },
                self.each(|maker, rank| vec![maker.epoch(rank, On::Group, &group)]),
            ),
            1 => {
                let targets: Vec<Vec<Rank>> = self.each(|maker, _| {
                    let mut targets: Vec<Rank> = (0..n).filter(|_| maker.random.bool()).collect();
                    maker.random.shuffle(&mut targets);
                    targets
                });
                let asserted = if self.random.bool() { Assert::NOCHECK } else { Assert::empty() };
                let epochs = self.each(|maker, rank| {
                    vec![maker.epoch(rank, On::Group, &May { targets: &targets[rank], ..group.clone() })]
                });
                (Sync::Pscw { targets, asserted, test: self.random.bool() }, epochs)
            }
            2 => (Sync::Signals, self.each(|maker, _| maker.signals())),
            3 => {
                // Exclusive locks alone: whatever the calls are, epochs run one after the other.
                let epochs = self.each(|maker, rank| {
                    maker.some_epochs(|maker| {
                        let target = maker.random.usize(..n);
                        let may = May { targets: &[target], anything: true, loads: false };
                        maker.epoch(rank, On::Exclusive(target, Assert::empty()), &may)
                    })
                });
                (Sync::Locks, epochs)
            }
            4 => {
                // No two ranks contend: locks need not be taken.
                let (shift, shared, all_ranks) = (self.random.usize(..n), self.random.bool(), self.random.bool());
                let asserted = if self.random.bool() { Assert::NOCHECK } else { Assert::empty() };
                let epochs = self.each(|maker, rank| {
                    let target = (rank + shift) % n;
                    let may = May { targets: &[target], anything: false, loads: false };
                    let on = if shared { On::Shared(target, asserted) } else { On::Exclusive(target, asserted) };
                    match shared && all_ranks {
                        true => vec![maker.epoch(rank, On::All(asserted), &group)],
                        false => vec![maker.epoch(rank, on, &may)],
                    }
                });
                (Sync::Locks, epochs)
            }
            _ => {
                let epochs = self.each(|maker, rank| {
                    maker.some_epochs(|maker| {
                        let target = maker.random.usize(..n);
                        let one = May { targets: &[target], anything: false, loads: false };
                        match maker.random.u8(..7) {
                            0 | 1 => maker.epoch(rank, On::Exclusive(target, Assert::empty()), &one),
                            2 | 3 => maker.epoch(rank, On::Shared(target, Assert::empty()), &one),
                            4 | 5 => maker.epoch(rank, On::All(Assert::empty()), &group),
                            _ => maker.epoch(rank, On::Outside, &group.clone()),
                        }
                    })
                });
                (Sync::Locks, epochs)
            }
        };
        let renews = self.flavour == Flavour::Dynamic && self.random.bool();
        let renewed = self.each(|maker, _| renews && maker.random.bool());
        let mut phase = Phase { sync, epochs, renewed };
        phase.assert_what_holds(&mut self.random);
        phase
    }

    fn each<R>(&mut self, mut make: impl FnMut(&mut Self, Rank) -> R) -> Vec<R> {
        (0..self.ranks()).map(|rank| make(self, rank)).collect()
    }

    fn some_epochs(&mut self, mut make: impl FnMut(&mut Self) -> Epoch) -> Vec<Epoch> {
        (0..self.random.usize(1..3)).map(|_| make(self)).collect()
    }

    fn signals(&mut self) -> Vec<Epoch> {
        let mut calls = Vec::new();
        let mut touched = HashSet::new();
        for _ in 0..self.random.usize(..5) {
            let target = self.random.usize(..self.ranks());
            let Some(elements) = self.elements(target, 0, self.lens[target] / 2, true) else { continue };
            if elements.iter().any(|&at| !touched.insert((target, at))) {
                continue;
            }
            let values = self.values(elements.len());
            calls.push(Call { target, elements, what: Action::Put(How::Signal, values) });
        }
        vec![Epoch { on: On::All(Assert::empty()), calls, dropped: self.random.bool() }]
    }

    /// All calls are on one element, for long enough to overlap. Every call returns what it found and leaves a unique
    /// value, so that few orders explain the results.
    fn crowd(&mut self) -> Vec<Vec<Epoch>> {
        let target = self.random.usize(..self.ranks());
        let element = self.lens[target].saturating_sub(1);
        let calls = if self.lens[target] == 0 { 0 } else { 300 };
        self.each(|maker, _| {
            let call = |maker: &mut Self| {
                let op =
                    maker.random.choice([Op::Sum, Op::Xor, Op::Replace]).expect("the list of choices is not empty");
                let how = maker
                    .random
                    .choice([How::One, How::Plain, How::Request])
                    .expect("the list of choices is not empty");
                Call { target, elements: vec![element], what: Action::Fetch(how, op, maker.values(1)) }
            };
            let calls = (0..calls).map(|_| call(maker)).collect();
            vec![Epoch { on: On::All(Assert::empty()), calls, dropped: false }]
        })
    }

    fn epoch(&mut self, rank: Rank, on: On, may: &May<'_>) -> Epoch {
        let mut calls: Vec<Call> = Vec::new();
        // Elements that a call in flight accesses.
        let mut pending: HashSet<(Rank, usize)> = HashSet::new();
        let wanted = self.random.usize(..6);
        let outside = on == On::Outside;
        for _ in 0..wanted {
            let local = outside || may.loads && self.random.u8(..4) == 0;
            let Some(call) = (if local { self.local_call(rank) } else { self.remote_call(may) }) else { continue };
            let places: Vec<_> = call.elements.iter().map(|&at| (call.target, at)).collect();
            if places.iter().any(|place| pending.contains(place)) {
                let settle = Action::Settle { all: self.random.bool() };
                calls.push(Call { target: call.target, elements: vec![], what: settle });
                pending.clear();
            }
            if let Action::Put(..) | Action::Get(How::Request | How::Dropped) = call.what {
                pending.extend(places);
            }
            calls.push(call);
        }
        Epoch { on, calls, dropped: self.random.bool() }
    }

    /// A load or a store: of the rank's own part, or of another rank's where memory is shared.
    fn local_call(&mut self, rank: Rank) -> Option<Call> {
        let shared = self.shared && matches!(self.flavour, Flavour::Shared | Flavour::Allocate);
        let target = if shared { self.random.usize(..self.ranks()) } else { rank };
        let elements = self.elements(target, 0, self.lens[target] / 2, true)?;
        let what = if self.random.bool() { Action::Store(self.values(elements.len())) } else { Action::Load };
        Some(Call { target, elements, what })
    }

    fn remote_call(&mut self, may: &May<'_>) -> Option<Call> {
        let &target = self.random.choice(may.targets.iter())?;
        let (half, len) = (self.lens[target] / 2, self.lens[target]);
        let plain = if may.anything { 0..len } else { 0..half };
        let atomic = if may.anything { 0..len } else { half..len };
        let how = self.random.choice([How::Plain, How::One, How::Section, How::Request, How::Dropped, How::Signal]);
        let how = how.expect("the list of choices is not empty");
        let (elements, what) = match self.random.u8(..7) {
            0 | 1 => {
                let elements = self.elements(target, plain.start, plain.end, how != How::Section)?;
                let values = self.values(elements.len());
                (elements, Action::Put(how, values))
            }
            2 | 3 => {
                let contiguous = !matches!(how, How::Section);
                // Elements that accumulates may be changing are read one by one.
                let (elements, how) = match self.random.bool() && !may.anything {
                    true => (vec![self.elements(target, atomic.start, atomic.end, true)?[0]], How::One),
                    false => (self.elements(target, plain.start, plain.end, contiguous)?, how),
                };
                (elements, Action::Get(how))
            }
            4 => {
                let elements = self.elements(target, atomic.start, atomic.end, true)?;
                let operands = self.operands(elements.len());
                (elements, Action::Accumulate(how, self.op(), operands))
            }
            5 => {
                let elements = self.elements(target, atomic.start, atomic.end, true)?;
                let operands = self.operands(elements.len());
                (elements, Action::Fetch(how, self.op(), operands))
            }
            _ => {
                let elements = vec![self.elements(target, atomic.start, atomic.end, true)?[0]];
                let [expected, new] = [self.operands(1)[0], self.operands(1)[0]];
                (elements, Action::Swap { expected, new })
            }
        };
        Some(Call { target, elements, what }.fitting())
    }

    /// Some elements of `from..to`, each once.
    fn elements(&mut self, target: Rank, from: usize, to: usize, contiguous: bool) -> Option<Vec<usize>> {
        if from == to || to > self.lens[target] {
            return None;
        }
        if contiguous {
            let first = self.random.usize(from..to);
            return Some((first..self.random.usize(first..to) + 1).collect());
        }
        let mut elements: Vec<usize> = (from..to).collect();
        self.random.shuffle(&mut elements);
        elements.truncate(self.random.usize(1..=elements.len()));
        Some(elements)
    }

    fn values(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| self.random.u64(..)).collect()
    }

    /// Small values too, so that swaps find what they expect.
    fn operands(&mut self, count: usize) -> Vec<u64> {
        (0..count).map(|_| if self.random.bool() { self.random.u64(..3) } else { self.random.u64(..) }).collect()
    }

    fn op(&mut self) -> Op {
        self.random.choice(Op::ALL).expect("the list of choices is not empty")
    }
}

impl Call {
    /// The call for one element has no more than one.
    fn fitting(mut self) -> Self {
        use Action::{Accumulate, Fetch, Get, Put};
        let how = match &self.what {
            Put(how, _) | Get(how) | Accumulate(how, ..) | Fetch(how, ..) => Some(*how),
            _ => None,
        };
        if how == Some(How::One) {
            self.elements.truncate(1);
            if let Action::Put(_, values) | Action::Accumulate(_, _, values) | Action::Fetch(_, _, values) =
                &mut self.what
            {
                values.truncate(1);
            }
        }
        self
    }

    /// Returns whether the call may change elements of a rank's part.
    fn changes(&self, rank: Rank) -> bool {
        let changing = !matches!(self.what, Action::Get(_) | Action::Load | Action::Settle { .. });
        changing && self.target == rank
    }
}

impl Phase {
    /// Assertions that hold, some of the time.
    fn assert_what_holds(&mut self, random: &mut fastrand::Rng) {
        let Sync::Fence { before, after } = &mut self.sync else { return };
        let ranks = self.epochs.len();
        let calls = |of: Rank| self.epochs[of].iter().flat_map(|epoch| &epoch.calls);
        let (none_before, none_after) = (random.bool(), random.bool());
        for rank in 0..ranks {
            // Between phases no rank operates on the window, or stores to it.
            let mut first = if none_before { Assert::NOPRECEDE } else { Assert::empty() };
            first.set(Assert::NOSTORE, random.bool());
            let changed = (0..ranks).any(|origin| calls(origin).any(|call| call.changes(rank)));
            first.set(Assert::NOPUT, !changed && random.bool());
            before.push(first);
            let mut last = if none_after { Assert::NOSUCCEED } else { Assert::empty() };
            let stored = calls(rank).any(|call| matches!(call.what, Action::Store(_)));
            last.set(Assert::NOSTORE, !stored && random.bool());
            after.push(last);
        }
    }
}
