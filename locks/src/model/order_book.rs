//! The order book of any lock: who came first, and who is inside.

use crate::{Mode, Rank};

/// Checks that a lock grants first come, first served. It serves for a lock of your own: tell it when a request takes
/// its place, when it enters, and when it leaves. It is plain data, so it can be the memory of a monitor
/// ([`Sim::explore_with`](super::Sim::explore_with)) or lie behind a mutex in loom. The passive lock has its own
/// checker, [`FifoOracle`](super::FifoOracle), which also knows deadlines and costs.
///
/// # Examples
/// ```
/// use transom_locks::Mode::{Exclusive, Shared};
/// use transom_locks::model::OrderBook;
/// let mut book = OrderBook::default();
/// book.placed(0, Shared).unwrap();
/// book.placed(1, Exclusive).unwrap();
/// book.placed(2, Shared).unwrap();
/// book.entered(0).unwrap();
/// // Rank 2 shares with rank 0, but rank 1 came before it.
/// assert_eq!(book.entered(2).unwrap_err(), "rank 2 entered (Shared) before rank 1 (Exclusive), which came first");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct OrderBook {
    /// The requests that have a place and have not left, in order, and whether each is inside.
    places: Vec<(Rank, Mode, bool)>,
}

impl OrderBook {
    /// Records that the request of `rank` took its place: the atomic that decides the order was executed.
    ///
    /// # Errors
    /// The rank has a place already.
    pub fn placed(&mut self, rank: Rank, mode: Mode) -> Result<(), String> {
        if self.places.iter().any(|place| place.0 == rank) {
            return Err(format!("rank {rank} took a second place"));
        }
        self.places.push((rank, mode, false));
        Ok(())
    }

    /// Records that `rank` entered the critical section.
    ///
    /// # Errors
    /// The rank has no place, or a request in conflict came before it and has not left.
    pub fn entered(&mut self, rank: Rank) -> Result<(), String> {
        let Some(nth) = self.places.iter().position(|place| place.0 == rank) else {
            return Err(format!("rank {rank} entered without a place"));
        };
        let mode = self.places[nth].1;
        let conflict = |place: &&(Rank, Mode, bool)| [mode, place.1].contains(&Mode::Exclusive);
        if let Some((first, how, _)) = self.places[..nth].iter().find(conflict) {
            return Err(format!("rank {rank} entered ({mode:?}) before rank {first} ({how:?}), which came first"));
        }
        self.places[nth].2 = true;
        Ok(())
    }

    /// Records that `rank` left: its release begins.
    ///
    /// # Errors
    /// The rank is not inside.
    pub fn left(&mut self, rank: Rank) -> Result<(), String> {
        match self.places.iter().position(|place| place.0 == rank && place.2) {
            Some(nth) => {
                self.places.remove(nth);
                Ok(())
            }
            None => Err(format!("rank {rank} left without having entered")),
        }
    }
}
