//! Calls of ranks that share all their memory, straight through it.

use super::history::Made;
use super::reduction::Fold;
use crate::messages::Error;
use transom_collective::{Call, Order, Rank};
use transom_shm_loopback::collective::{Board, Failure};
use transom_windows::FabricError;

/// Makes a call.
#[inline]
pub(super) fn call(
    board: &mut Board,
    what: Call,
    made: Made,
    given: &[u8],
    data: &mut [u8],
    element: usize,
    fold: &impl Fold,
) -> Result<(), Failure> {
    let call = u64::from(made.call.hash(0)) << 32 | u64::from(made.history);
    let fold = &mut |into: &mut [u8], with: &[u8]| fold.fold(into, with, Order::After);
    match what {
        Call::Broadcast { root } => board.broadcast(call, root, data),
        Call::Reduce { root, .. } => board.reduce(call, root, data, element, fold),
        Call::AllReduce { .. } => board.all_reduce(call, data, element, fold),
        Call::Scan { exclusive } => board.scan(call, exclusive, data, element, fold),
        Call::Gather { root } => board.gather(call, root, given, data),
        Call::Scatter { root } => board.scatter(call, root, given, data),
        Call::AllGather => board.all_gather(call, given, data),
        Call::AllToAll => board.all_to_all(call, given, data),
        Call::ReduceScatter => board.reduce_scatter(call, given, data, element, fold),
        Call::Barrier => board.barrier(call),
    }
}

/// What the other ranks, and this one, are told of a failure; none if another rank gave up, which says why itself.
/// `number` is what a rank of the board is in the team.
pub(super) fn error(failure: Failure, made: Made, me: Rank, number: impl Fn(Rank) -> Rank) -> Option<Error> {
    match failure {
        Failure::Fabric(FabricError::GivenUp { .. }) => None,
        Failure::Mismatch { rank, .. } => Some(Error::Mismatch {
            why: format!(
                "rank {} makes another call than rank {me}, which calls {} as number {} of their collectives",
                number(rank),
                made.call,
                made.number.wrapping_add(1)
            ),
        }),
        Failure::Panicked { rank } => Some(Error::OperatorPanicked { rank: number(rank) }),
        Failure::Fabric(FabricError::PeerDied { rank }) => Some(Error::PeerDied { rank: number(rank) }),
        Failure::Fabric(FabricError::PeerLeft { rank }) => Some(Error::PeerLeft { rank: number(rank) }),
        Failure::Fabric(error) => Some(error.into()),
        other => Some(Error::Misuse { why: other.to_string() }),
    }
}
