//! Rendezvous: a message waits at its sender until the receiver has matched it. The receiver chooses the
//! mover of the data from a table of rows. Each side is a state machine; a packet or event that does not fit
//! its state is a fault of the peer.

/// Method of moving the data of a large message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mover {
    /// Packets: copied at both ends while others are in flight.
    Copy,
    /// The sender writes into the receiver's memory.
    Write,
    /// The receiver reads the sender's memory; on one host this is the only copy.
    Read,
}

/// Facts by which the receiver chooses a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// True if the [rules](crate::rules) ask for a write or read in place.
    pub in_place: bool,
    /// True if the receive was posted before the RTS arrived.
    pub receiver_first: bool,
    /// True if the sender offered its memory and this rank can read it.
    pub readable: bool,
    /// True if the rails can write and the sender has not declined a write of this message.
    pub writable: bool,
}

type Row = (Mover, fn(&Facts) -> bool);

/// The first row that holds is taken. If the receive was posted first, its CTS can leave at once, and a write
/// is faster. A late receiver reads, which saves a crossing.
const ROWS: [Row; 5] = [
    (Mover::Copy, |facts| !facts.in_place),
    (Mover::Write, |facts| facts.writable && facts.receiver_first),
    (Mover::Read, |facts| facts.readable),
    (Mover::Write, |facts| facts.writable),
    (Mover::Copy, |_| true),
];

/// The movers to try, best first. The caller skips a mover whose memory cannot be registered.
pub fn movers(facts: Facts) -> impl Iterator<Item = Mover> {
    ROWS.into_iter().filter(move |(_, holds)| holds(&facts)).map(|(mover, _)| mover)
}

/// A packet or event that does not fit the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet does not fit the state of its rendezvous")]
pub struct Unfit;

/// State of the sender of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sending {
    /// Nothing was sent yet.
    Queued,
    /// Pieces are sent eagerly; holds the bytes sent so far.
    Pushing(u64),
    /// The RTS was sent; or the whole message was sent, and the sender waits for the acknowledgement of its
    /// match.
    Announced,
    /// Stripes are written; holds the number that the adapters have not completed.
    Writing(u8),
    /// Packets are sent after a CTS; holds the bytes posted and the bytes to post.
    Copying(u64, u64),
    /// The memory belongs to the program again.
    Done,
}

impl Sending {
    /// Records that the RTS or whole message, or the last eager piece, was sent.
    pub fn announce(&mut self) -> Result<(), Unfit> {
        self.step(matches!(self, Sending::Queued | Sending::Pushing(_)), Sending::Announced)
    }

    /// Handles a CTS that asks for a write, which the sender divides into `stripes`.
    pub fn write(&mut self, stripes: u8) -> Result<(), Unfit> {
        self.step(matches!(self, Sending::Announced) && stripes > 0, Sending::Writing(stripes))
    }

    /// Handles a CTS that asks for packets of `length` bytes together.
    pub fn copy(&mut self, length: u64) -> Result<(), Unfit> {
        let to = if length == 0 { Sending::Done } else { Sending::Copying(0, length) };
        self.step(matches!(self, Sending::Announced), to)
    }

    /// Records that the adapter has completed a stripe.
    pub fn written(&mut self) -> Result<(), Unfit> {
        match *self {
            Sending::Writing(1) => self.step(true, Sending::Done),
            Sending::Writing(left) => self.step(true, Sending::Writing(left - 1)),
            _ => Err(Unfit),
        }
    }

    /// Records that a packet of `bytes` was posted.
    pub fn posted(&mut self, bytes: u64) -> Result<(), Unfit> {
        match *self {
            Sending::Copying(at, length) if bytes > 0 && bytes <= length - at => {
                let at = at + bytes;
                self.step(true, if at == length { Sending::Done } else { Sending::Copying(at, length) })
            }
            _ => Err(Unfit),
        }
    }

    /// Handles an acknowledgement: the receiver has matched or read the message.
    pub fn acked(&mut self) -> Result<(), Unfit> {
        self.step(matches!(self, Sending::Announced), Sending::Done)
    }

    fn step(&mut self, fits: bool, to: Sending) -> Result<(), Unfit> {
        if fits {
            *self = to;
            Ok(())
        } else {
            Err(Unfit)
        }
    }
}

/// State of the receiver of a message, once it has chosen a mover.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Receiving {
    /// The sender writes; holds the FINs received. Each FIN states how many stripes there are.
    Written(u8),
    /// This rank reads; holds the number of stripes that the adapters have not completed.
    Reading(u8),
    /// Packets arrive; holds the bytes received and the bytes expected.
    Copied(u64, u64),
    /// The message is complete.
    Done,
}

impl Receiving {
    /// State after the choice of a mover. A read takes `stripes`.
    pub fn new(mover: Mover, length: u64, stripes: u8) -> Receiving {
        match mover {
            Mover::Write => Receiving::Written(0),
            Mover::Read => Receiving::Reading(stripes),
            Mover::Copy if length == 0 => Receiving::Done,
            Mover::Copy => Receiving::Copied(0, length),
        }
    }

    /// Handles one of `lanes` FINs.
    pub fn fin(&mut self, lanes: u8) -> Result<(), Unfit> {
        match *self {
            Receiving::Written(came) if came < lanes => {
                *self = if came + 1 == lanes { Receiving::Done } else { Receiving::Written(came + 1) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// Records that a stripe was read.
    pub fn read(&mut self) -> Result<(), Unfit> {
        match *self {
            Receiving::Reading(left) if left > 0 => {
                *self = if left == 1 { Receiving::Done } else { Receiving::Reading(left - 1) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// Handles a data packet of `bytes` at `offset`.
    pub fn data(&mut self, offset: u64, bytes: u64) -> Result<(), Unfit> {
        match *self {
            Receiving::Copied(at, length) if offset == at && bytes > 0 && bytes <= length - at => {
                *self = if at + bytes == length { Receiving::Done } else { Receiving::Copied(at + bytes, length) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// Handles the sender's refusal to write: packets are used instead.
    pub fn refused(&mut self, length: u64) -> Result<(), Unfit> {
        match *self {
            Receiving::Written(0) => {
                *self = Receiving::new(Mover::Copy, length, 0);
                Ok(())
            }
            _ => Err(Unfit),
        }
    }
}
