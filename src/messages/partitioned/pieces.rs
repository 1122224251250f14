//! The messages of one round, one for each part of the sender.

use crate::messages::Error;
use crate::messages::comm::Comm;
use crate::messages::locked::{Core, Key};
use std::ops::Range;
use transom_channel::Status as Came;

/// The message of one part.
#[derive(Debug, Clone)]
pub(super) enum Piece {
    /// Nothing is sent yet.
    Held,
    UnderWay(Key),
    /// The part was not made ready.
    PeerFailure,
    Ended(Result<(), Error>),
}

/// All messages of a round. A receive has one for each part of the sender.
pub(super) struct Pieces(Vec<Piece>);

impl Piece {
    pub fn is_held(&self) -> bool {
        matches!(self, Piece::Held)
    }
}

impl Pieces {
    pub fn new(number: usize, piece: Piece) -> Pieces {
        Pieces(vec![piece; number])
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn all(&mut self) -> &mut [Piece] {
        &mut self.0
    }

    /// Takes the results of messages in `range` that have ended. `judge` classifies a message that arrived. Returns
    /// true if all have ended.
    pub fn take(
        &mut self,
        core: &mut Core,
        comm: &Comm,
        range: Range<usize>,
        judge: impl Fn(usize, Came) -> Piece,
    ) -> bool {
        let mut all = true;
        for index in range {
            let Piece::UnderWay(key) = self.0[index] else { continue };
            match core.ended(key) {
                Some((Ok(came), _)) => self.0[index] = judge(index, came),
                Some((Err(fault), _)) => self.0[index] = Piece::Ended(Err(comm.fault(fault, 1))),
                None => all = false,
            }
        }
        all
    }

    /// Fails every piece whose receive is unmatched.
    pub fn fail_unmatched(&mut self, core: &mut Core, error: &Error) {
        for piece in &mut self.0 {
            if let Piece::UnderWay(key) = *piece
                && core.withdraw(key).is_some()
            {
                *piece = Piece::Ended(Err(error.clone()));
            }
        }
    }

    /// Returns the combined result of the pieces in `range`.
    pub fn outcome(&self, range: Range<usize>) -> Result<(), Error> {
        let pieces = &self.0[range];
        if let Some(error) =
            pieces.iter().find_map(|piece| if let Piece::Ended(Err(error)) = piece { Some(error) } else { None })
        {
            return Err(error.clone());
        }
        match pieces.iter().filter(|piece| matches!(piece, Piece::PeerFailure)).count() {
            0 => Ok(()),
            missing => Err(Error::PartsNotReady { missing }),
        }
    }

    /// Detaches the messages, whose results will not be taken.
    pub fn forget(&mut self, core: &mut Core) {
        for piece in self.0.drain(..) {
            if let Piece::UnderWay(key) = piece {
                core.forget(key);
            }
        }
    }
}
