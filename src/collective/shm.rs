//! Collectives of ranks that share memory, executed on the board.

use super::history::CallId;
use super::reduction::Fold;
use crate::messages::Error;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use transom_collective::{Call, Rank};
use transom_shm_loopback::collective::{Failure, ShmCollective};
use transom_windows::FabricError;

/// Buffers that a rank passes to a call.
pub(super) struct Buffers<'b, F> {
    pub given: &'b [u8],
    pub data: &'b mut [u8],
    /// Element size in bytes.
    pub element: usize,
    pub fold: &'b F,
}

/// Failure of a call on the board.
pub(super) enum Stop {
    Failed(Failure),
    /// The program's operation panicked with this payload.
    Panicked(Box<dyn Any + Send>),
}

/// Executes call `what` on the board. `call` is the history hash, which the board compares between ranks.
#[inline(always)]
pub(super) fn call<F: Fold>(
    board: &mut ShmCollective,
    what: Call,
    call: u64,
    buffers: Buffers<'_, F>,
) -> Result<(), Stop> {
    let Buffers { given, data, element, fold } = buffers;
    let fold = &mut |into: &mut [u8], with: &[u8], order| fold.fold(into, with, order);
    let done = match what {
        Call::Broadcast { root } => board.broadcast(call, root, data),
        Call::Reduce { root, .. } => return folding(|| board.reduce(call, root, data, element, fold)),
        Call::AllReduce { .. } => return folding(|| board.all_reduce(call, data, element, fold)),
        Call::Scan { exclusive } => return folding(|| board.scan(call, exclusive, data, element, fold)),
        Call::Gather { root } => board.gather(call, root, given, data),
        Call::Scatter { root } => board.scatter(call, root, given, data),
        Call::AllGather => board.all_gather(call, given, data),
        Call::AllToAll => board.all_to_all(call, given, data),
        Call::ReduceScatter => return folding(|| board.reduce_scatter(call, given, data, element, fold)),
        Call::Barrier => board.barrier(call),
    };
    done.map_err(Stop::Failed)
}

/// Runs a call in which the program's operation may panic.
#[inline(always)]
fn folding(call: impl FnOnce() -> Result<(), Failure>) -> Result<(), Stop> {
    // The failure is stored outside: returning a `Result` through `catch_unwind` would cost time in each call.
    let mut failed = None;
    let called = catch_unwind(AssertUnwindSafe(|| {
        if let Err(failure) = call() {
            failed = Some(failure);
        }
    }));
    match (called, failed) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some(failure)) => Err(Stop::Failed(failure)),
        (Err(panic), _) => Err(Stop::Panicked(panic)),
    }
}

/// The error for this rank and all other ranks; `None` if another rank gave up, because that rank reports the cause.
/// `number` converts a board rank to a rank of the team.
pub(super) fn error(failure: Failure, made: CallId, me: Rank, number: impl Fn(Rank) -> Rank) -> Option<Error> {
    match failure {
        Failure::Fabric(FabricError::GivenUp { .. }) => None,
        Failure::Mismatch { rank, .. } => Some(Error::Mismatch {
            why: format!(
                "rank {} makes a different collective call than rank {me}, or has made one before: rank {me} calls {} \
                 as collective number {}",
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
