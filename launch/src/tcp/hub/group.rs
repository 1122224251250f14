//! A group of ranks that exchange messages: the job or a team.

use crate::tcp::frames::{MemberState, Part};
use std::collections::HashMap;
use transom_locks::Rank;

pub(super) struct Group {
    pub members: Vec<Rank>,
    /// Index in the group of each member, by job rank.
    numbers: HashMap<Rank, usize>,
    /// State of each member, by index.
    pub states: Vec<MemberState>,
    /// Indices of members that have left or died without the others being notified yet.
    pub news: Vec<usize>,
    /// Parts of the current round, by index.
    parts: Vec<Option<Part>>,
    /// Number of members whose part of the current round is missing.
    missing: usize,
    /// The current round is one among the ranks of each host, once a member has given a part.
    of_hosts: Option<bool>,
}

impl Group {
    pub fn new(members: Vec<Rank>) -> Self {
        let numbers = members.iter().enumerate().map(|(number, &rank)| (rank, number)).collect();
        let (states, parts) = (vec![MemberState::There; members.len()], members.iter().map(|_| None).collect());
        let missing = members.len();
        Group { members, numbers, states, news: Vec::new(), parts, missing, of_hosts: None }
    }

    pub fn number(&self, rank: Rank) -> Option<usize> {
        self.numbers.get(&rank).copied()
    }

    /// Adds a member's part. Returns false if the member already gave a part to this round, or takes part in one of the
    /// other kind.
    pub fn add(&mut self, number: usize, part: Part, of_hosts: bool) -> bool {
        let first = self.parts[number].replace(part).is_none();
        self.missing -= usize::from(first);
        first && *self.of_hosts.get_or_insert(of_hosts) == of_hosts
    }

    /// The parts of all members, once each has given one, and whether the round is among the ranks of each host. Taking
    /// them begins a new round.
    pub fn take_round(&mut self) -> Option<(Vec<Part>, bool)> {
        if self.missing > 0 {
            return None;
        }
        self.missing = self.members.len();
        let parts = self.parts.iter_mut().filter_map(Option::take).collect();
        Some((parts, self.of_hosts.take().unwrap_or(false)))
    }
}
