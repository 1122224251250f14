//! Ranks on the channel simulator: each executes its plan over a production engine. After a death the survivors notify
//! each other, as those of `transom` do.

use std::collections::HashMap;
use transom_channel::sim::{Sim, SimMemory};
use transom_channel::wire::WireMemory;
use transom_channel::{Cancelled, Completion, Error, Id, PeerFailure, RecvTarget, Select};
use transom_collective::{Algorithm, Call, Local, Order, Plan, PlanBuffer, Shape, Span};

/// Contexts of the channel: messages of plans, notices of a death (the tag is the dead rank), and probes without an
/// answer.
const PLANS: u32 = 2;
const DEATHS: u32 = 3;
const QUESTIONS: u32 = 4;
const TAG: u32 = 7;

/// One rank: its plan, and its memory as numbers.
pub struct Part {
    rank: u32,
    ranks: u32,
    plan: Plan,
    memory: HashMap<PlanBuffer, Vec<u64>>,
    round: usize,
    posted: bool,
    /// Operations in flight: the peer, and the destination span of a receive (`None` for a send).
    pending: HashMap<Id, (u32, Option<Span>)>,
    asked: bool,
    /// Bytes of its plan's messages received.
    pub received: usize,
    /// The receive for notices of a death, and the receive that discards unwanted messages.
    told: Option<Id>,
    sink: Option<Id>,
    /// The dead rank, once this rank is notified.
    pub lost: Option<u32>,
}

impl Part {
    pub fn new(algorithm: Algorithm, call: Call, shape: Shape<'_>) -> Part {
        let Shape { rank, ranks, len, .. } = shape;
        let at = |root: usize, many: usize| if rank == root { many } else { 0 };
        let (given, data) = match call {
            Call::AllGather => (len, ranks * len),
            Call::AllToAll => (ranks * len, ranks * len),
            Call::ReduceScatter => (ranks * len, len),
            Call::Gather { root } => (len, at(root, ranks * len)),
            Call::Scatter { root } => (at(root, ranks * len), len),
            _ => (0, len),
        };
        let plan = algorithm.plan(call, shape);
        let numbers = |many: usize| (0..many).map(|index| number(rank, index)).collect::<Vec<_>>();
        let scratch = vec![u64::MAX; plan.scratch];
        let memory =
            [(PlanBuffer::Given, numbers(given)), (PlanBuffer::Data, numbers(data)), (PlanBuffer::Scratch, scratch)]
                .into();
        let (rank, ranks) = (rank as u32, ranks as u32);
        let pending = HashMap::new();
        Part {
            rank,
            ranks,
            plan,
            memory,
            round: 0,
            posted: false,
            pending,
            asked: false,
            received: 0,
            told: None,
            sink: None,
            lost: None,
        }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn is_done(&self) -> bool {
        self.round == self.plan.rounds.len()
    }

    /// Returns whether no operation of its plan is in flight.
    pub fn is_quiet(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn data(&self) -> &[u64] {
        &self.memory[&PlanBuffer::Data]
    }

    fn read(&self, span: Span) -> &[u64] {
        &self.memory[&span.place][span.start..span.start + span.len]
    }

    fn write(&mut self, span: Span, numbers: &[u64]) {
        self.memory.get_mut(&span.place).unwrap()[span.start..span.start + span.len].copy_from_slice(numbers);
    }

    /// Starts to accept notices of deaths.
    pub fn listen(&mut self, sim: &mut Sim) {
        let select = Select { context: DEATHS, source: None, tag: None };
        self.told = Some(sim.engine(self.rank).receive(select, RecvTarget::Allocate));
    }

    /// Progresses as far as messages allow; returns whether anything changed.
    pub fn progress(&mut self, sim: &mut Sim) -> bool {
        let mut moved = false;
        while let Some(done) = sim.engine(self.rank).completed() {
            moved |= self.ended(sim, done);
        }
        while self.lost.is_none() && !self.is_done() {
            if !self.posted {
                self.post(sim);
                (self.posted, moved) = (true, true);
            }
            if !self.pending.is_empty() {
                break;
            }
            self.fold();
            (self.round, self.posted, self.asked) = (self.round + 1, false, false);
        }
        moved
    }

    /// Probes the ranks it waits for, once per round: a rank without a connection to a dead rank would not learn of its
    /// death. Returns whether it sent a probe.
    pub fn ask(&mut self, sim: &mut Sim) -> bool {
        if self.lost.is_some() || self.asked {
            return false;
        }
        self.asked = true;
        for (peer, _) in self.pending.values() {
            sim.engine(self.rank).send(*peer, QUESTIONS, TAG, SimMemory::zero(0), 0, false);
        }
        !self.pending.is_empty()
    }

    fn ended(&mut self, sim: &mut Sim, done: Completion<SimMemory>) -> bool {
        let told = self.told == Some(done.id);
        match (&done.result, self.pending.remove(&done.id).map(|(_, into)| into)) {
            (Ok(status), _) if told => self.give_up(sim, status.tag),
            (Ok(status), Some(Some(into))) => {
                self.received += status.length as usize;
                let mut bytes = vec![0; into.len * 8];
                done.memory.expect("a completed receive returns its memory").read(0, &mut bytes);
                let numbers: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                self.write(into, &numbers);
            }
            (Ok(_), _) => {}
            (Err(Error::PeerFailure { rank, lost: PeerFailure::Died }), _) => self.give_up(sim, *rank),
            // A message that is longer than the discarding receive.
            (Err(Error::Truncated { .. }), None) if self.sink == Some(done.id) => {}
            (Err(other), _) => panic!("rank {}: {other}", self.rank),
        }
        if told {
            self.listen(sim);
        }
        let sunk = self.sink == Some(done.id);
        if sunk {
            self.want_nothing(sim);
        }
        told || sunk || self.lost.is_some()
    }

    /// Notifies the other ranks, cancels receives without a message, and discards what is still sent to it.
    fn give_up(&mut self, sim: &mut Sim, dead: u32) {
        if self.lost.replace(dead).is_some() {
            return;
        }
        let engine = sim.engine(self.rank);
        for to in (0..self.ranks).filter(|to| *to != self.rank && *to != dead) {
            engine.send(to, DEATHS, dead, SimMemory::zero(0), 0, false);
        }
        self.pending.retain(|id, (_, into)| into.is_none() || !matches!(engine.cancel(*id), Cancelled::Withdrawn(_)));
        self.want_nothing(sim);
    }

    fn want_nothing(&mut self, sim: &mut Sim) {
        let select = Select { context: PLANS, source: None, tag: None };
        self.sink = Some(sim.engine(self.rank).receive(select, RecvTarget::Into(SimMemory::zero(0), 0)));
    }

    fn post(&mut self, sim: &mut Sim) {
        let round = self.plan.rounds[self.round].clone();
        let engine = sim.engine(self.rank);
        for (from, into) in round.receives {
            let select = Select { context: PLANS, source: Some(from as u32), tag: Some(TAG) };
            let room = RecvTarget::Into(SimMemory::zero(into.len * 8), into.len * 8);
            self.pending.insert(engine.receive(select, room), (from as u32, Some(into)));
        }
        for (to, span) in round.sends {
            let bytes: Vec<u8> = self.read(span).iter().flat_map(|number| number.to_le_bytes()).collect();
            let id = engine.send(to as u32, PLANS, TAG, SimMemory::bytes(&bytes), bytes.len(), false);
            self.pending.insert(id, (to as u32, None));
        }
    }

    fn fold(&mut self) {
        for local in std::mem::take(&mut self.plan.rounds[self.round].then) {
            let (into, with, fold): (_, _, Option<Order>) = match local {
                Local::Copy { from, to } => (to, from, None),
                Local::Fold { into, with, order } => (into, with, Some(order)),
                Local::Pack { .. } | Local::Unpack { .. } => unreachable!("no call of these jobs has sections"),
            };
            let operands = self.read(with).to_vec();
            let mut elements = self.read(into).to_vec();
            for (element, operand) in elements.iter_mut().zip(operands) {
                *element = if fold.is_some() { element.wrapping_add(operand) } else { operand };
            }
            self.write(into, &elements);
        }
    }
}

fn number(rank: usize, index: usize) -> u64 {
    (rank * 1_000_003 + index) as u64
}

/// Checks a rank's result against the definition of the collective.
pub fn check(call: Call, ranks: usize, len: usize, rank: usize, got: &[u64]) {
    let sum = |ranks: std::ops::Range<usize>, index: usize| ranks.map(|rank| number(rank, index)).sum::<u64>();
    let own = || (0..len).map(|index| number(rank, index)).collect();
    let of_each = || (0..ranks).flat_map(|rank| (0..len).map(move |index| number(rank, index))).collect();
    let want: Vec<u64> = match call {
        Call::Barrier => own(),
        Call::Broadcast { root } => (0..len).map(|index| number(root, index)).collect(),
        Call::Reduce { root, .. } if rank != root => own(),
        Call::Reduce { .. } | Call::AllReduce { .. } => (0..len).map(|index| sum(0..ranks, index)).collect(),
        Call::ReduceScatter => (0..len).map(|index| sum(0..ranks, rank * len + index)).collect(),
        Call::Scan { exclusive: true } if rank == 0 => own(),
        Call::Scan { exclusive } => (0..len).map(|index| sum(0..rank + usize::from(!exclusive), index)).collect(),
        Call::Gather { root } if rank != root => Vec::new(),
        Call::Gather { .. } | Call::AllGather => of_each(),
        Call::Scatter { root } => (0..len).map(|index| number(root, rank * len + index)).collect(),
        Call::AllToAll => {
            (0..ranks).flat_map(|from| (0..len).map(move |index| number(from, rank * len + index))).collect()
        }
    };
    assert!(*got == want, "rank {rank} of {ranks}, {call:?}");
}
