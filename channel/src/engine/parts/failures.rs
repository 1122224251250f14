//! Failures: lost ranks, and the receives from any source that end because of them.

use crate::error::{Error, PeerFailure};
use crate::matching::Select;
use crate::teams::Teams;
use crate::wire::Rank;
use std::collections::{BTreeSet, HashMap};

/// Failed ranks, and the teams that they belong to.
pub struct Failures {
    rank: Rank,
    ranks: Rank,
    lost: HashMap<Rank, PeerFailure>,
    /// Ranks that died, in order, each with the contexts where a receive from any source has ended because of it.
    dead: Vec<(Rank, BTreeSet<u32>)>,
    pub teams: Teams,
}

impl Failures {
    pub fn new(rank: Rank, ranks: Rank) -> Failures {
        Failures { rank, ranks, lost: HashMap::new(), dead: Vec::new(), teams: Teams::default() }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lost.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Rank, &PeerFailure)> {
        self.lost.iter().map(|(&rank, lost)| (rank, lost))
    }

    /// Fails if the rank is lost.
    pub fn check(&self, rank: Rank) -> Result<(), Error> {
        self.lost.get(&rank).map_or(Ok(()), |lost| Err(Error::PeerFailure { rank, lost: lost.clone() }))
    }

    /// Fails if the rank is lost or does not exist.
    #[inline]
    pub fn check_rank(&self, rank: Rank) -> Result<(), Error> {
        match rank < self.ranks {
            true if self.lost.is_empty() => Ok(()),
            true => self.check(rank),
            false => Err(Error::NoSuchRank { rank, ranks: self.ranks }),
        }
    }

    /// Records that a rank is lost. Returns false if that is known.
    pub fn insert(&mut self, rank: Rank, lost: &PeerFailure) -> bool {
        let is_new = !self.lost.contains_key(&rank);
        if is_new {
            self.lost.insert(rank, lost.clone());
        }
        is_new
    }

    /// Contexts, of those where receives from any source are posted, in which these end because a rank is
    /// lost. After a death these are the rank's contexts; after a departure, those in which no other rank is
    /// left.
    pub fn ended(&mut self, rank: Rank, contexts: impl Iterator<Item = u32>) -> BTreeSet<u32> {
        let died = self.lost.get(&rank) != Some(&PeerFailure::Left);
        let ends = |context: &u32| if died { self.concerns(*context, rank) } else { self.deserted(*context).is_some() };
        let ended: BTreeSet<u32> = contexts.filter(ends).collect();
        if died {
            self.dead.push((rank, ended.clone()));
        }
        ended
    }

    /// The reason why no message that matches `select` can arrive; `None` if one can. For any source, each
    /// death is reported once per context.
    #[inline]
    pub fn never(&mut self, select: Select) -> Option<Error> {
        let rank = match select.source {
            Some(rank) => rank,
            None => self.report(select.context)?,
        };
        self.check_rank(rank).err()
    }

    /// Failed rank to report to a receive from any source.
    fn report(&mut self, context: u32) -> Option<Rank> {
        let Some(at) = self.unreported(context) else { return self.deserted(context) };
        self.dead[at].1.insert(context);
        Some(self.dead[at].0)
    }

    /// Returns true if a death is unreported in this context.
    #[inline]
    pub fn is_unreported(&self, context: u32) -> bool {
        self.unreported(context).is_some()
    }

    #[inline]
    fn unreported(&self, context: u32) -> Option<usize> {
        if self.dead.is_empty() {
            return None;
        }
        let unreported =
            |(rank, told): &(Rank, BTreeSet<u32>)| self.concerns(context, *rank) && !told.contains(&context);
        self.dead.iter().position(unreported)
    }

    /// Restricts a receive from any source to the dead rank while a death is unreported. So the death is
    /// reported after the messages of that rank, even if other ranks send without end.
    #[inline]
    pub fn narrowed(&self, select: Select) -> Select {
        match self.unreported(select.context) {
            Some(at) if select.source.is_none() => Select { source: Some(self.dead[at].0), ..select },
            _ => select,
        }
    }

    #[inline]
    fn concerns(&self, context: u32, rank: Rank) -> bool {
        self.teams.members(context).is_none_or(|members| members.contains(&rank))
    }

    /// A rank that sent in a context, if all others there are lost; a departed rank is preferred. Deaths are
    /// reported first.
    fn deserted(&self, context: u32) -> Option<Rank> {
        let one_of = |others: &mut dyn Iterator<Item = Rank>| {
            others.min_by_key(|rank| (self.lost[rank] != PeerFailure::Left, *rank))
        };
        match self.teams.members(context) {
            Some(members) => {
                let mut others = members.iter().copied().filter(|rank| *rank != self.rank);
                let all = others.clone().all(|rank| self.lost.contains_key(&rank));
                all.then(|| one_of(&mut others)).flatten()
            }
            None if self.lost.len() as u32 == self.ranks - 1 => one_of(&mut self.lost.keys().copied()),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIED: PeerFailure = PeerFailure::Died;

    fn any(context: u32) -> Select {
        Select { context, source: None, tag: None }
    }

    fn lost(failures: &mut Failures, select: Select) -> Option<Rank> {
        failures.never(select).map(|error| match error {
            Error::PeerFailure { rank, .. } => rank,
            error => panic!("{error}"),
        })
    }

    #[test]
    fn death_is_reported_once_in_each_context() {
        let mut failures = Failures::new(0, 4);
        assert!(failures.insert(2, &DIED) && !failures.insert(2, &PeerFailure::Left));
        assert_eq!(failures.ended(2, [5].into_iter()), BTreeSet::from([5]));
        assert_eq!(lost(&mut failures, any(5)), None);
        assert_eq!(failures.narrowed(any(6)).source, Some(2));
        assert_eq!([lost(&mut failures, any(6)), lost(&mut failures, any(6))], [Some(2), None]);
        assert_eq!(failures.narrowed(any(6)).source, None);
    }

    #[test]
    fn death_outside_a_team_is_not_reported_in_it() {
        let mut failures = Failures::new(0, 4);
        failures.teams.open(7..=8, [0, 1]);
        failures.insert(2, &DIED);
        assert!(failures.ended(2, [7].into_iter()).is_empty());
        assert_eq!((failures.is_unreported(7), failures.is_unreported(9)), (false, true));
    }

    #[test]
    fn receive_ends_when_all_others_have_left() {
        let mut failures = Failures::new(0, 3);
        failures.insert(1, &PeerFailure::Left);
        assert!(failures.ended(1, [0].into_iter()).is_empty());
        assert_eq!(lost(&mut failures, any(0)), None);
        failures.insert(2, &PeerFailure::Left);
        assert_eq!(failures.ended(2, [0].into_iter()), BTreeSet::from([0]));
        assert_eq!([lost(&mut failures, any(0)), lost(&mut failures, any(0))], [Some(1), Some(1)]);
    }

    #[test]
    fn unknown_source_rank_fails_with_no_such_rank() {
        let mut failures = Failures::new(0, 3);
        let select = Select { source: Some(3), ..any(0) };
        assert!(matches!(failures.never(select), Some(Error::NoSuchRank { rank: 3, ranks: 3 })));
        assert_eq!(failures.check(1), Ok(()));
    }
}
