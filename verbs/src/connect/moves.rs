//! Ports that have another address than at the start, by rank.

use super::message::Moved;
use std::collections::HashMap;
use std::sync::Mutex;
use transom_launch::lock;
use transom_locks::Rank;

/// The last known address of each port that has moved.
#[derive(Default)]
pub(super) struct Moves(Mutex<HashMap<Rank, Moved>>);

impl Moves {
    /// The address of a rank's port since its last known move; `None` if the port has that of the start.
    pub fn last(&self, rank: Rank) -> Option<Moved> {
        lock(&self.0).get(&rank).copied()
    }

    /// Records a move; returns false if it, or a later one, is known. Announcements are repeated, and may be late.
    pub fn record(&self, rank: Rank, to: Moved) -> bool {
        let mut moves = lock(&self.0);
        let is_new = moves.get(&rank).is_none_or(|known| known.number < to.number);
        if is_new {
            moves.insert(rank, to);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_announcement_of_a_move_is_ignored() {
        let moves = Moves::default();
        let to = |number, lid| Moved { number, gid: [lid as u8; 16], lid };
        assert_eq!(moves.last(3), None);
        assert!(moves.record(3, to(1, 7)));
        assert!(!moves.record(3, to(1, 7)), "repeated");
        assert!(moves.record(3, to(3, 9)));
        assert!(!moves.record(3, to(2, 8)), "late");
        assert_eq!((moves.last(3), moves.last(2)), (Some(to(3, 9)), None));
        assert!(moves.record(2, to(1, 5)));
    }
}
