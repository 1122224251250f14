//! Starvation: a cycle of states that can repeat for ever under weak fairness, and in which a rank never returns.

use super::event::Event;
use super::explore::{Packed, pack, unpack};
use super::memory::Message;
use super::program::Program;
use super::replay::Blocked;
use super::sim::{Sim, Step};
use super::state::SimState;
use crate::Rank;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// The steps between the states of an exploration, in the order of the states from which they go.
#[derive(Default)]
pub(super) struct Graph {
    /// The first edge of each state.
    first: Vec<usize>,
    /// The next state and the step. The top bit is set if the step ends a phase.
    edges: Vec<Packed>,
    /// The ranks that have ended in each state, one bit each.
    done: Vec<u64>,
    /// The steps that wait for an atomic which has begun, by state. An adapter executes each atomic at some time, so
    /// these count as steps that can be taken.
    held: BTreeMap<u32, Vec<Key>>,
}

/// The ranks of a graph: each has a bit.
const RANKS: usize = 64;
const RETURNED: u16 = 1 << 15;

/// The step of an edge.
fn step(edge: Packed) -> Step {
    unpack((edge.0, edge.1, edge.2 & !RETURNED)).1
}

/// The state that an edge reaches.
fn to(edge: Packed) -> u32 {
    unpack(edge).0
}

impl Graph {
    /// Adds the next state, from which the following edges go.
    pub fn add_state<L>(&mut self, state: &SimState<L>) {
        self.first.push(self.edges.len());
        let bits = state.ranks.iter().take(RANKS).enumerate().map(|(rank, state)| u64::from(state.done) << rank);
        let held: Vec<Key> = held(state).collect();
        if !held.is_empty() {
            self.held.insert(self.done.len() as u32, held);
        }
        self.done.push(bits.sum());
    }

    /// Adds a step from the last state to the state `to`.
    pub fn add_step(&mut self, to: u32, step: Step, returned: bool) {
        let (to, from, other) = pack(to, step);
        self.edges.push((to, from, other | if returned { RETURNED } else { 0 }));
    }

    pub fn bytes(&self) -> usize {
        self.first.capacity() * 8 + self.edges.capacity() * size_of::<Packed>() + self.done.capacity() * 8
    }

    /// A state and a cycle of steps from it that starves a rank, if there is one.
    pub fn starvation(&self, ranks: usize) -> Option<(u32, Vec<Step>)> {
        (0..ranks.min(RANKS)).find_map(|rank| {
            let component = self.components(rank);
            let mut members: HashMap<u32, Vec<u32>> = HashMap::new();
            for state in (0..self.first.len() as u32).filter(|&state| !self.is_done(state, rank)) {
                members.entry(component[state as usize]).or_default().push(state);
            }
            let mut components: Vec<_> = members.into_values().collect();
            components.sort_unstable(); // the shallowest first
            components.iter().find_map(|states| Some((states[0], self.fair_cycle(rank, states, &component)?)))
        })
    }

    fn is_done(&self, state: u32, rank: Rank) -> bool {
        self.done[state as usize] >> rank & 1 == 1
    }

    fn edges(&self, state: u32) -> &[Packed] {
        let end = self.first.get(state as usize + 1).copied().unwrap_or(self.edges.len());
        &self.edges[self.first[state as usize]..end]
    }

    /// The steps that can be taken in a state, or wait for an atomic that has begun.
    fn able(&self, state: u32) -> impl Iterator<Item = Key> {
        let held = self.held.get(&state).into_iter().flatten().copied();
        self.edges(state).iter().map(|&edge| key(step(edge))).chain(held)
    }

    /// The edges of a state on which `rank` does not return.
    fn without_return(&self, state: u32, rank: Rank) -> impl Iterator<Item = Packed> {
        let edges = if self.is_done(state, rank) { &[] } else { self.edges(state) };
        edges.iter().copied().filter(move |edge| edge.2 & RETURNED == 0 || Rank::from(edge.1) != rank)
    }

    /// The strongly connected component of each state, along steps in which `rank` does not return (Tarjan, 1972).
    fn components(&self, rank: Rank) -> Vec<u32> {
        const NEW: u32 = u32::MAX;
        let states = self.first.len();
        let (mut low, mut number, mut component) = (vec![NEW; states], vec![NEW; states], vec![NEW; states]);
        let (mut stack, mut visits, mut count) = (Vec::new(), Vec::new(), 0);
        for root in 0..states as u32 {
            if number[root as usize] != NEW {
                continue;
            }
            visits.push((root, 0));
            while let Some((state, nth)) = visits.pop() {
                let at = state as usize;
                if nth == 0 {
                    (low[at], number[at]) = (count, count);
                    count += 1;
                    stack.push(state);
                }
                if let Some(edge) = self.without_return(state, rank).nth(nth) {
                    visits.push((state, nth + 1));
                    let next = to(edge) as usize;
                    if number[next] == NEW {
                        visits.push((next as u32, 0));
                    } else if component[next] == NEW {
                        low[at] = low[at].min(number[next]);
                    }
                    continue;
                }
                if low[at] == number[at] {
                    while let Some(member) = stack.pop() {
                        component[member as usize] = state;
                        if member == state {
                            break;
                        }
                    }
                }
                if let Some(&(before, _)) = visits.last() {
                    let before = before as usize;
                    low[before] = low[before].min(low[at]);
                }
            }
        }
        component
    }

    /// A cycle in a component along which each rank, and each message, that could always take its step takes it.
    fn fair_cycle(&self, rank: Rank, states: &[u32], component: &[u32]) -> Option<Vec<Step>> {
        let start = states[0];
        let inside = |state: u32| {
            let within = move |edge: &Packed| component[to(*edge) as usize] == component[start as usize];
            self.without_return(state, rank).filter(within)
        };
        let (mut able, mut taken) = (BTreeMap::new(), BTreeSet::new());
        for &state in states {
            self.able(state).for_each(|key| *able.entry(key).or_insert(0) += 1);
            taken.extend(inside(state).map(|edge| key(step(edge))));
        }
        let is_fair = able.iter().all(|(key, &times)| times < states.len() || taken.contains(key));
        if taken.is_empty() || !is_fair {
            return None;
        }
        // The nearest edge or state that fulfils a condition.
        let walk = |from: u32, goal: &dyn Fn(u32, Option<Packed>) -> bool| {
            let (mut before, mut todo) = (HashMap::new(), VecDeque::from([from]));
            let path = |before: &HashMap<u32, (u32, Packed)>, mut state: u32, last: Option<Packed>| {
                let mut path: Vec<Packed> = last.into_iter().collect();
                while state != from {
                    let (earlier, edge) = before[&state];
                    path.push(edge);
                    state = earlier;
                }
                path.reverse();
                path
            };
            while let Some(state) = todo.pop_front() {
                if goal(state, None) {
                    return path(&before, state, None);
                }
                for edge in inside(state) {
                    if goal(state, Some(edge)) {
                        return path(&before, state, Some(edge));
                    }
                    let next = to(edge);
                    if next != from && !before.contains_key(&next) {
                        before.insert(next, (state, edge));
                        todo.push_back(next);
                    }
                }
            }
            Vec::new()
        };
        let can = |state: u32, of: Key| self.able(state).any(|key| key == of);
        let (mut cycle, mut at) = (Vec::new(), start);
        for &of in able.keys() {
            let passed = [start].into_iter().chain(cycle.iter().map(|&edge| to(edge)));
            let is_met =
                cycle.iter().any(|&edge| key(step(edge)) == of) || passed.into_iter().any(|state| !can(state, of));
            if !is_met {
                cycle.extend(walk(at, &|state, edge| match edge {
                    Some(edge) => key(step(edge)) == of,
                    None => !can(state, of),
                }));
                at = cycle.last().map_or(start, |&edge| to(edge));
            }
        }
        if at != start || cycle.is_empty() {
            cycle.extend(walk(at, &|_, edge| edge.is_some_and(|edge| to(edge) == start)));
        }
        Some(cycle.into_iter().map(step).collect())
    }
}

/// A step in an order.
type Key = (Rank, Option<(Rank, usize)>);

fn key(step: Step) -> Key {
    match step {
        Step::Rank(rank) => (rank, None),
        Step::Deliver { from, to, queue } => (from, Some((to, queue))),
    }
}

/// The steps that wait for an atomic which has begun.
fn held<L>(state: &SimState<L>) -> impl Iterator<Item = Key> {
    let ranks = state.ranks.iter().enumerate().filter(|(_, rank)| matches!(rank.blocked, Some(Blocked::Half(_))));
    let waits = |message: &Message| matches!(*message, Message::Add { at, .. } if state.memory.half_at(at).is_some());
    let messages = state.channels.heads().filter(move |(_, message)| waits(message));
    ranks.map(|(rank, _)| (rank, None)).chain(messages.map(|((from, to, queue), _)| (from, Some((to, queue)))))
}

impl<P: Program> Sim<P> {
    /// Describes the starvation if `cycle` leads from the state `start` back to it, is fair, and one of its ranks never
    /// returns.
    pub(super) fn starved(&self, start: &SimState<P::Local>, cycle: &[Step]) -> Option<String> {
        let mut state = start.clone();
        let able = |state: &SimState<_>| self.steps(state).map(key).chain(held(state)).collect::<BTreeSet<Key>>();
        let mut always = able(&state);
        let mut returned = vec![false; state.ranks.len()];
        for &step in cycle {
            let mut event = Event::of(step);
            self.apply(&mut state, step, &mut event).ok()?;
            returned[event.rank] |= event.returned;
            let able = able(&state);
            always.retain(|key| able.contains(key));
        }
        for &step in cycle {
            always.remove(&key(step));
        }
        if state != *start || !always.is_empty() {
            return None;
        }
        let starves = |(rank, state): (Rank, &super::state::RankState<_>)| {
            let call = || {
                self.program().call(rank, state.phase).map_or(format!("phase {}", state.phase), |call| call.to_string())
            };
            (!state.done && !returned[rank]).then(|| format!(" rank {rank} never returns from {};", call()))
        };
        let starving: String = start.ranks.iter().enumerate().filter_map(starves).collect();
        (!starving.is_empty())
            .then(|| format!("starvation:{starving} every rank that always can take a step takes one"))
    }
}
