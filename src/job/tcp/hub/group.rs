//! A group of ranks that exchange messages: the job, or a team.

use crate::job::tcp::frames::Part;
use std::collections::HashMap;
use transom_locks::Rank;

pub(super) struct Group {
    pub members: Vec<Rank>,
    /// The number in the group of each rank that is in it.
    numbers: HashMap<Rank, usize>,
    pub statuses: Vec<Status>,
    /// What each member gave to the round under way.
    parts: Vec<Option<Part>>,
}

/// Of a member.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Status {
    There,
    Left,
    Died,
}

impl Group {
    pub fn new(members: Vec<Rank>) -> Self {
        let numbers = members.iter().enumerate().map(|(number, &rank)| (rank, number)).collect();
        let (statuses, parts) = (vec![Status::There; members.len()], members.iter().map(|_| None).collect());
        Group { members, numbers, statuses, parts }
    }

    pub fn number(&self, rank: Rank) -> Option<usize> {
        self.numbers.get(&rank).copied()
    }

    /// Adds what a member gave; whether it is its first part of this round.
    pub fn add(&mut self, number: usize, part: Part) -> bool {
        self.parts[number].replace(part).is_none()
    }

    /// The parts of all members, once each has given one; a new round begins with that.
    pub fn take_round(&mut self) -> Option<impl Iterator<Item = Part>> {
        let complete = self.parts.iter().all(Option::is_some);
        complete.then(|| self.parts.iter_mut().filter_map(Option::take))
    }
}
