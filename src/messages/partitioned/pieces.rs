//! The messages of one round, one for each part of the sender's.

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
    /// It was not made ready.
    Lost,
    Ended(Result<(), Error>),
}

/// All of a round; of those of a receive the same number as the sender has parts.
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

    /// Looks which of these have ended, and lets `judge` say of a message that came what it is. Whether all of them have.
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

    /// Fails every piece whose receive has no message yet.
    pub fn fail_unmatched(&mut self, core: &mut Core, error: &Error) {
        for piece in &mut self.0 {
            if let Piece::UnderWay(key) = *piece
                && core.withdraw(key).is_some()
            {
                *piece = Piece::Ended(Err(error.clone()));
            }
        }
    }

    /// How these have ended.
    pub fn outcome(&self, range: Range<usize>) -> Result<(), Error> {
        let pieces = &self.0[range];
        if let Some(error) =
            pieces.iter().find_map(|piece| if let Piece::Ended(Err(error)) = piece { Some(error) } else { None })
        {
            return Err(error.clone());
        }
        match pieces.iter().filter(|piece| matches!(piece, Piece::Lost)).count() {
            0 => Ok(()),
            missing => Err(Error::PartsNotReady { missing }),
        }
    }

    /// Nobody will ask for them any more.
    pub fn forget(&mut self, core: &mut Core) {
        for piece in self.0.drain(..) {
            if let Piece::UnderWay(key) = piece {
                core.forget(key);
            }
        }
    }
}
