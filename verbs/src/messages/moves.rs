//! Zero-copy writes and reads, in requests of one piece each.

use crate::lane::{Lane, Signal, Stop};
use crate::wr::{Piece, RemoteAddress, Verb, WorkQueue};
use std::collections::VecDeque;

/// Bytes of one request.
const PIECE: usize = 1 << 20;

/// Transfers to one peer, in order.
#[derive(Default)]
pub(super) struct Moves {
    all: VecDeque<Move>,
    /// Number of leading transfers whose requests are all posted.
    posted: usize,
}

/// A zero-copy transfer. Its memory stays registered until the transfer completes or the lane has ended.
pub(super) struct Move {
    pub token: u64,
    pub verb: Verb,
    /// Address and key at the peer.
    pub at: RemoteAddress,
    /// Local address of the next byte to post.
    pub address: u64,
    pub key: u32,
    /// Bytes that are not posted yet.
    pub left: usize,
    /// Number of the last posted request.
    pub last: u64,
}

impl Moves {
    pub fn push(&mut self, next: Move) {
        self.all.push_back(next);
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Posts requests until all transfers are posted or the lane accepts no more.
    ///
    /// # Errors
    /// The reason why the lane accepts no more requests.
    ///
    /// # Safety
    /// The local memory of the transfers must stay registered until they complete or the lane has ended.
    pub unsafe fn post<Q: WorkQueue, L>(&mut self, lane: &Lane<Q, L>) -> Result<(), Stop> {
        while let Some(next) = self.all.get_mut(self.posted) {
            // A transfer of 0 bytes also posts one request, so that its completion is reported.
            loop {
                let bytes = next.left.min(PIECE);
                let piece = Piece { address: next.address, bytes: bytes as u32, key: next.key };
                let signal = if bytes == next.left { Signal::Always } else { Signal::NowAndThen };
                // SAFETY: caller's contract.
                let posted = unsafe { lane.post_message(next.verb, next.at, piece, signal, None) };
                next.last = posted.map_err(|(stop, _)| stop)?;
                next.left -= bytes;
                next.address += bytes as u64;
                next.at.address = next.at.address.wrapping_add(bytes as u64);
                if next.left == 0 {
                    break;
                }
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Takes all incomplete transfers in order: number of the last request (`u64::MAX` if not all are posted) and
    /// token.
    pub fn take(&mut self) -> impl Iterator<Item = (u64, u64)> + use<> {
        let posted = std::mem::take(&mut self.posted);
        let all = std::mem::take(&mut self.all);
        all.into_iter().enumerate().map(move |(at, of)| (if at < posted { of.last } else { u64::MAX }, of.token))
    }

    /// The token of the next completed transfer, if requests up to number `completed` are complete.
    pub fn done(&mut self, completed: u64) -> Option<u64> {
        if self.posted == 0 || self.all.front()?.last > completed {
            return None;
        }
        self.posted -= 1;
        self.all.pop_front().map(|done| done.token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Queue, START, Thing, completion};

    fn lane() -> (Lane<Queue, Thing>, Queue) {
        let queue = Queue::new(7, 8);
        (Lane::new(1, queue.clone(), START), queue)
    }

    fn a_move(token: u64, left: usize) -> Move {
        Move {
            token,
            verb: Verb::Write,
            at: RemoteAddress { address: 1 << 32, key: 3 },
            address: 4096,
            key: 5,
            left,
            last: 0,
        }
    }

    #[test]
    fn long_move_is_reported_after_its_last_piece() {
        let ((lane, queue), mut moves) = (lane(), Moves::default());
        moves.push(a_move(40, (2 << 20) + 100));
        moves.push(a_move(41, 10));
        // SAFETY: a fake queue, which accesses no memory.
        unsafe { moves.post(&lane) }.unwrap();
        let posted = queue.take();
        let pieces: Vec<_> = posted.iter().map(|of| (of.piece.address, of.piece.bytes, of.to.address)).collect();
        let far = 1 << 32;
        assert_eq!(
            pieces,
            [
                (4096, 1 << 20, far),
                (4096 + (1 << 20), 1 << 20, far + (1 << 20)),
                (4096 + (2 << 20), 100, far + (2 << 20)),
                (4096, 10, far),
            ]
        );
        assert!(posted[2].signalled && posted[3].signalled, "the last piece of a move must be signalled");
        for (completed, told) in [(1, None), (2, None), (3, Some(40))] {
            lane.complete(&completion(1, 7, completed, Ok(())));
            assert_eq!(moves.done(lane.completed()), told);
        }
        assert_eq!(moves.done(lane.completed()), None);
        lane.complete(&completion(1, 7, 4, Ok(())));
        assert_eq!((moves.done(lane.completed()), moves.is_empty()), (Some(41), true));
    }

    #[test]
    fn move_stopped_by_a_full_queue_resumes() {
        let ((lane, queue), mut moves) = (lane(), Moves::default());
        moves.push(a_move(9, 10 << 20));
        // SAFETY: as above.
        let stopped = unsafe { moves.post(&lane) };
        assert!(matches!(stopped, Err(Stop::Full)), "{stopped:?}");
        assert_eq!(moves.done(u64::MAX), None, "an incompletely posted move was reported complete");
        let first = queue.take().iter().filter(|of| of.piece.bytes > 0).count();
        lane.complete(&completion(1, 7, lane.posted(), Ok(())));
        // SAFETY: as above.
        unsafe { moves.post(&lane) }.unwrap();
        let rest = queue.take();
        assert_eq!(first + rest.len(), 10);
        assert_eq!(rest[0].piece.address, 4096 + ((first as u64) << 20));
        lane.complete(&completion(1, 7, lane.posted(), Ok(())));
        assert_eq!(moves.done(lane.completed()), Some(9));
    }
}
