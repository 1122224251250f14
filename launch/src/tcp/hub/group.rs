//! A group of ranks that exchange messages: the job, or a team.

use crate::tcp::frames::{Part, State};
use std::collections::HashMap;
use transom_locks::Rank;

pub(super) struct Group {
    pub members: Vec<Rank>,
    /// The number in the group of each rank that is in it.
    numbers: HashMap<Rank, usize>,
    /// Of each member.
    pub states: Vec<State>,
    /// Members that have left or died, and the others have not been told.
    pub news: Vec<usize>,
    /// What each member gave to the round under way.
    parts: Vec<Option<Part>>,
    /// How many have not given theirs.
    missing: usize,
}

impl Group {
    pub fn new(members: Vec<Rank>) -> Self {
        let numbers = members.iter().enumerate().map(|(number, &rank)| (rank, number)).collect();
        let (states, parts) = (vec![State::There; members.len()], members.iter().map(|_| None).collect());
        let missing = members.len();
        Group { members, numbers, states, news: Vec::new(), parts, missing }
    }

    pub fn number(&self, rank: Rank) -> Option<usize> {
        self.numbers.get(&rank).copied()
    }

    /// Adds what a member gave; whether it is its first part of this round.
    pub fn add(&mut self, number: usize, part: Part) -> bool {
        let first = self.parts[number].replace(part).is_none();
        self.missing -= usize::from(first);
        first
    }

    /// The parts of all members, once each has given one; a new round begins with that.
    pub fn take_round(&mut self) -> Option<impl Iterator<Item = Part>> {
        if self.missing > 0 {
            return None;
        }
        self.missing = self.members.len();
        Some(self.parts.iter_mut().filter_map(Option::take))
    }
}
