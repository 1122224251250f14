//! The layout of the words of a family of locks.

use crate::{At, Rank};

/// Words per cache line. The lock word and each node have a line of their own.
const LINE: usize = 8;

const NODE_WORDS: usize = 6;

/// Slots beside a node. The slots number less than twice the nodes.
const SLOTS: usize = LINE - NODE_WORDS;

/// The words of a node, in memory order.
const NODE: [Field; NODE_WORDS] = [Field::Next, Field::Go, Field::Drained, Field::Waiters, Field::Grant, Field::Link];

/// The purpose of a word of lock memory; README.md beside the code draws the words.
///
/// # Examples
/// ```
/// use transom_locks::{At, Field, LockLayout};
/// // In the memory of rank 1, the first word of its node for the lock of rank 0.
/// assert_eq!(LockLayout::new(0, 2).field(At { rank: 1, word: 8 }), Some((0, Field::Next)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The exclusive request just after the node's rank, and the number of readers between.
    Next,
    /// Notification by the predecessor: the node's rank is first, once the given number of readers have departed.
    Go,
    /// The number of departures reported to the node's rank.
    Drained,
    /// The stack of readers that registered with the node's rank.
    Waiters,
    /// Grant of the lock to a waiting reader, with the rank that it notifies on release.
    Grant,
    /// The value of `waiters` that the node's rank found when it registered.
    Link,
    /// The lock word, which is in no node.
    Word,
    /// The tickets of the lock's gate, in the line of the lock word.
    Tickets,
    /// The meeting place of a ticket's rank and the rank whose turn comes before it. Slots lie at the lock's home, in
    /// the words that nodes leave free.
    Slot,
}

impl Field {
    /// Returns whether the word belongs to the lock of the rank at which it lies, rather than to a node there.
    #[cfg(feature = "loom")]
    pub(crate) fn is_at_home(self) -> bool {
        matches!(self, Field::Word | Field::Tickets | Field::Slot)
    }
}

/// The layout of a family of locks (one lock at each rank), the same at every rank. A line from `base` on holds the
/// rank's own lock word and the tickets of its gate. One node per target lock follows. The last two words of a node's
/// line are slots of that gate.
///
/// # Examples
/// ```
/// use transom_locks::{At, Field, LockLayout};
/// assert_eq!(LockLayout::words(64), 8 * 65);
/// assert_eq!(LockLayout::new(16, 64).field(At { rank: 5, word: 16 }), Some((5, Field::Word)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LockLayout {
    base: usize,
    ranks: usize,
}

impl LockLayout {
    /// The layout of the locks of `ranks` ranks from word `base` on, which should begin a cache line.
    pub const fn new(base: usize, ranks: usize) -> Self {
        LockLayout { base, ranks }
    }

    /// Words of lock memory at each rank: `8 (ranks + 1)`, one cache line for the lock word and one for each node.
    pub const fn words(ranks: usize) -> usize {
        LINE * (ranks + 1)
    }

    /// The lock (its target) and the field that a word belongs to; `None` for padding and for words outside lock
    /// memory.
    pub fn field(self, at: At) -> Option<(Rank, Field)> {
        let word = at.word.checked_sub(self.base)?;
        match (word / LINE, word % LINE) {
            (0, 0) => Some((at.rank, Field::Word)),
            (0, 1) => Some((at.rank, Field::Tickets)),
            (line, NODE_WORDS..) if (1..=self.ranks).contains(&line) => Some((at.rank, Field::Slot)),
            (line, place) if (1..=self.ranks).contains(&line) => Some((line - 1, *NODE.get(place)?)),
            _ => None,
        }
    }

    /// The lock word of the lock of `target`.
    #[inline]
    pub(crate) fn home(self, target: Rank) -> At {
        At { rank: target, word: self.base }
    }

    /// The tickets of the gate of the lock of `target`.
    pub(crate) fn tickets(self, target: Rank) -> At {
        At { rank: target, word: self.base + 1 }
    }

    /// The slot of a ticket for the lock of `target`. The slots are a power of two, at least the number of ranks, so
    /// that ticket numbers may wrap.
    pub(crate) fn slot(self, target: Rank, ticket: u32) -> At {
        let slot = ticket as usize & (self.ranks.next_power_of_two() - 1);
        let (line, place) = (1 + slot / SLOTS, NODE_WORDS + slot % SLOTS);
        At { rank: target, word: self.base + LINE * line + place }
    }

    /// A word of the node of `rank` for the lock of `target`.
    #[inline]
    pub(crate) fn node(self, rank: Rank, target: Rank, field: Field) -> At {
        At { rank, word: self.base + LINE * (target + 1) + field as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_word_maps_back_to_its_field() {
        let layout = LockLayout::new(24, 3);
        for target in 0..3 {
            for (place, field) in NODE.into_iter().enumerate() {
                let at = layout.node(1, target, field);
                assert_eq!(at, At { rank: 1, word: 24 + 8 * (target + 1) + place });
                assert_eq!(layout.field(at), Some((target, field)));
            }
        }
        assert_eq!(layout.field(layout.tickets(1)), Some((1, Field::Tickets)));
        for word in [0, 23, 26, 31, 24 + 8 * 4] {
            assert_eq!(layout.field(At { rank: 1, word }), None, "{word}");
        }
    }

    #[test]
    fn consecutive_tickets_have_distinct_slots() {
        for ranks in [1, 2, 3, 4, 5, 32, 33] {
            let layout = LockLayout::new(8, ranks);
            for first in [0, 1, u32::MAX - 1] {
                let mut slots: Vec<_> =
                    (0..ranks as u32).map(|ticket| layout.slot(0, first.wrapping_add(ticket))).collect();
                slots.iter().for_each(|&slot| assert_eq!(layout.field(slot), Some((0, Field::Slot)), "{ranks} ranks"));
                slots.sort_by_key(|slot| slot.word);
                slots.dedup();
                assert_eq!(slots.len(), ranks);
            }
        }
    }
}
