//! Reordering of pieces that landed in the receive of another piece.

/// Location of a piece while pieces are reordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceLoc {
    /// The place of this piece in the window.
    Piece(u8),
    /// Spare memory for one piece, outside the window.
    Spare,
}

/// Plans the copies that put pieces into place. `came[i]` is the piece that the i-th receive took; receives
/// were posted for the pieces in `wanted`, in order. Returns the copies (source, destination), to be made in
/// this order, and the mask of pieces then in place. Duplicates and unwanted pieces are ignored.
///
/// ```
/// use transom_channel::delivery::{PieceLoc::*, arrange};
/// // Piece 1 was lost, and pieces 2 and 3 landed in the places of 1 and 2.
/// let (copies, there) = arrange(0b1111, &[0, 2, 3]);
/// assert_eq!(copies, [(Piece(2), Piece(3)), (Piece(1), Piece(2))]);
/// assert_eq!(there, 0b1101);
/// ```
pub fn arrange(wanted: u64, came: &[u8]) -> (Vec<(PieceLoc, PieceLoc)>, u64) {
    let mut places = (0..64).filter(|piece| wanted >> piece & 1 == 1);
    let mut there = 0;
    // Source and destination of each move. Each place is the source of at most one move and the destination
    // of at most one.
    let mut moves: Vec<(PieceLoc, PieceLoc)> = Vec::new();
    for &piece in came {
        let Some(place) = places.next() else { break };
        if piece < 64 && wanted >> piece & 1 == 1 && there >> piece & 1 == 0 {
            there |= 1 << piece;
            if place != piece {
                moves.push((PieceLoc::Piece(place), PieceLoc::Piece(piece)));
            }
        }
    }
    let mut copies = Vec::new();
    while !moves.is_empty() {
        // Copy a piece whose destination holds no piece that still has to move. If there is none, all
        // remaining moves form cycles.
        let free = moves.iter().position(|(_, goal)| moves.iter().all(|(source, _)| source != goal));
        match free {
            Some(free) => copies.push(moves.swap_remove(free)),
            None => {
                let source = std::mem::replace(&mut moves[0].0, PieceLoc::Spare);
                copies.push((source, PieceLoc::Spare));
            }
        }
    }
    (copies, there)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Memory of 64 places and the spare one, after each receive took its piece.
    fn landed(wanted: u64, came: &[u8]) -> [Option<u8>; 65] {
        let mut memory = [None; 65];
        let places = (0..64).filter(|piece| wanted >> piece & 1 == 1);
        places.zip(came).for_each(|(place, piece)| memory[place] = Some(*piece));
        memory
    }

    fn at(place: PieceLoc) -> usize {
        if let PieceLoc::Piece(piece) = place { piece.into() } else { 64 }
    }

    proptest! {
        #[test]
        fn received_pieces_are_moved_to_their_places(wanted: u64, came in prop::collection::vec(0..70_u8, 0..70)) {
            let room = wanted.count_ones() as usize;
            let mut memory = landed(wanted, &came);
            let (copies, there) = arrange(wanted, &came);
            for (from, to) in &copies {
                memory[at(*to)] = memory[at(*from)];
            }
            let expected = came.iter().take(room).filter(|piece| **piece < 64 && wanted >> **piece & 1 == 1);
            let expected = expected.fold(0_u64, |mask, piece| mask | 1 << piece);
            prop_assert_eq!(there, expected);
            for piece in (0..64).filter(|piece| there >> piece & 1 == 1) {
                prop_assert_eq!(memory[piece], Some(piece as u8));
            }
            // Copies write only places that a peer may write to, each at most once except to break cycles.
            prop_assert!(copies.iter().all(|(_, to)| *to == PieceLoc::Spare || wanted >> at(*to) & 1 == 1));
            prop_assert!(copies.len() <= room + room / 2);
        }

        #[test]
        fn shuffled_full_window_is_put_in_order(order in Just((0..64_u8).collect::<Vec<_>>()).prop_shuffle()) {
            let mut memory = landed(u64::MAX, &order);
            let (copies, there) = arrange(u64::MAX, &order);
            copies.iter().for_each(|(from, to)| memory[at(*to)] = memory[at(*from)]);
            prop_assert_eq!(there, u64::MAX);
            prop_assert!((0..64).all(|piece| memory[piece] == Some(piece as u8)));
        }
    }

    #[test]
    fn pieces_in_order_need_no_copies() {
        let all: Vec<u8> = (0..64).collect();
        assert_eq!(arrange(u64::MAX, &all), (vec![], u64::MAX));
        assert_eq!(arrange(0b1010, &[1, 3]), (vec![], 0b1010));
        // A cycle of two.
        use PieceLoc::{Piece, Spare};
        let circle = vec![(Piece(1), Spare), (Piece(3), Piece(1)), (Spare, Piece(3))];
        assert_eq!(arrange(0b1010, &[3, 1]), (circle, 0b1010));
    }
}
