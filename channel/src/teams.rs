//! Contexts of teams: the ranks that send in each, and the contexts closed because this rank has dropped the
//! team.

use crate::wire::Rank;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Contexts in which only some ranks send, and contexts in which no receive is posted any more.
#[derive(Debug, Default)]
pub(crate) struct Teams {
    /// Members of this rank's teams, keyed by the first context of each, with the last context.
    live: BTreeMap<u32, (u32, Box<[Rank]>)>,
    /// Ranges of closed contexts, from the first to the last. Adjacent ranges are merged.
    closed: BTreeMap<u32, u32>,
}

impl Teams {
    /// Restricts these contexts to messages from `members`.
    pub fn open(&mut self, contexts: RangeInclusive<u32>, members: impl IntoIterator<Item = Rank>) {
        self.live.insert(*contexts.start(), (*contexts.end(), members.into_iter().collect()));
    }

    /// Closes the contexts of a team that this rank has dropped: messages that arrive in them are discarded.
    pub fn close(&mut self, contexts: RangeInclusive<u32>) {
        let (mut first, mut last) = contexts.into_inner();
        self.live.remove(&first);
        if let Some((&start, &end)) = self.closed.range(..=first).next_back()
            && end.saturating_add(1) >= first
        {
            (first, last) = (start, last.max(end));
        }
        if let Some(end) = last.checked_add(1).and_then(|next| self.closed.remove(&next)) {
            last = end;
        }
        self.closed.insert(first, last);
    }

    /// Returns true if a context is closed.
    #[inline]
    pub fn is_closed(&self, context: u32) -> bool {
        !self.closed.is_empty() && self.closed.range(..=context).next_back().is_some_and(|(_, last)| context <= *last)
    }

    /// Ranks that send in a context; `None` if all ranks do.
    pub fn members(&self, context: u32) -> Option<&[Rank]> {
        let (_, (last, members)) = self.live.range(..=context).next_back()?;
        (context <= *last).then_some(members)
    }

    /// Number of this rank's teams.
    pub fn len(&self) -> usize {
        self.live.len()
    }
}

#[cfg(test)]
mod tests {
    use super::Teams;

    #[test]
    fn closed_adjacent_contexts_merge_into_one_run() {
        let mut teams = Teams::default();
        for first in [7, 21, 35, 14, 28] {
            teams.open(first..=first + 6, [0, 1]);
            assert_eq!(teams.members(first + 6), Some(&[0, 1][..]));
            teams.close(first..=first + 6);
        }
        assert_eq!((teams.len(), teams.closed.len()), (0, 1));
        let is_closed: Vec<u32> = (0..60).filter(|context| teams.is_closed(*context)).collect();
        assert_eq!(is_closed, (7..42).collect::<Vec<_>>());
        assert_eq!(teams.members(10), None);
    }

    #[test]
    fn closed_runs_end_at_open_contexts() {
        let mut teams = Teams::default();
        teams.open(14..=20, [3]);
        teams.close(7..=13);
        teams.close(21..=27);
        teams.close(u32::MAX - 6..=u32::MAX);
        assert_eq!(teams.closed.len(), 3);
        assert_eq!(
            [13, 14, 20, 21, u32::MAX].map(|context| teams.is_closed(context)),
            [true, false, false, true, true]
        );
        assert_eq!(teams.members(20), Some(&[3][..]));
    }
}
