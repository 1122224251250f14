//! A message that waits at its sender until it is matched. The receiver chooses how its data moves: movers are rows of a
//! table. Both sides are one machine each, in which a packet or event that does not fit is a peer's mistake.

/// How the data of a large message moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mover {
    /// In packets, copied at both ends while others are under way.
    Copy,
    /// The sender writes into the receiver's memory.
    Write,
    /// The receiver reads the sender's memory; on one host this is the one copy.
    Read,
}

/// What the receiver chooses by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// It is to be written or read in place, as the [rules](crate::rules) say.
    pub in_place: bool,
    /// The receive was posted before the RTS came.
    pub receiver_first: bool,
    /// The sender offered its memory, and this rank can read it.
    pub readable: bool,
    /// The rails write, and the receiver has not been refused it for this message.
    pub writable: bool,
}

type Row = (Mover, fn(&Facts) -> bool);

/// The first row that holds is taken. A receiver that was first has its CTS under way at once, and writing wins; one that is
/// late reads, and saves a crossing.
const ROWS: [Row; 5] = [
    (Mover::Copy, |facts| !facts.in_place),
    (Mover::Write, |facts| facts.writable && facts.receiver_first),
    (Mover::Read, |facts| facts.readable),
    (Mover::Write, |facts| facts.writable),
    (Mover::Copy, |_| true),
];

/// The movers to try, best first: one whose memory cannot be registered is passed over.
pub fn movers(facts: Facts) -> impl Iterator<Item = Mover> {
    ROWS.into_iter().filter(move |(_, holds)| holds(&facts)).map(|(mover, _)| mover)
}

/// The event does not fit the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a packet of a rendezvous that does not fit its state")]
pub struct Unfit;

/// Where a sender stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sending {
    /// Nothing has gone to the receiver.
    Queued,
    /// It goes in pieces, unasked: bytes that have gone.
    Pushing(u64),
    /// The RTS is out; or the whole message, and its sender wants to know when it is matched.
    Announced,
    /// Stripes that the adapters have not ended.
    Writing(u8),
    /// Bytes that were posted, and how many are to be.
    Copying(u64, u64),
    /// The memory is the program's again.
    Done,
}

impl Sending {
    /// The first packet is out; or the last piece.
    pub fn announce(&mut self) -> Result<(), Unfit> {
        self.step(matches!(self, Sending::Queued | Sending::Pushing(_)), Sending::Announced)
    }

    /// The CTS asks for so many bytes, which the sender is going to write in so many stripes.
    pub fn write(&mut self, stripes: u8) -> Result<(), Unfit> {
        self.step(matches!(self, Sending::Announced) && stripes > 0, Sending::Writing(stripes))
    }

    /// The CTS asks for packets.
    pub fn copy(&mut self, length: u64) -> Result<(), Unfit> {
        let to = if length == 0 { Sending::Done } else { Sending::Copying(0, length) };
        self.step(matches!(self, Sending::Announced), to)
    }

    /// A stripe has ended.
    pub fn written(&mut self) -> Result<(), Unfit> {
        match *self {
            Sending::Writing(1) => self.step(true, Sending::Done),
            Sending::Writing(left) => self.step(true, Sending::Writing(left - 1)),
            _ => Err(Unfit),
        }
    }

    /// A packet with so many bytes was posted.
    pub fn posted(&mut self, bytes: u64) -> Result<(), Unfit> {
        match *self {
            Sending::Copying(at, length) if bytes > 0 && bytes <= length - at => {
                let at = at + bytes;
                self.step(true, if at == length { Sending::Done } else { Sending::Copying(at, length) })
            }
            _ => Err(Unfit),
        }
    }

    /// The receiver has matched, or read, the message.
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

/// Where a receiver stands, once it has chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Receiving {
    /// FINs that came; each says how many lanes there are.
    Written(u8),
    /// Stripes that the adapters have not ended.
    Reading(u8),
    /// Bytes that came, and how many are to come.
    Copied(u64, u64),
    /// The message is there.
    Done,
}

impl Receiving {
    /// The mover is chosen; a read takes so many stripes.
    pub fn new(mover: Mover, length: u64, stripes: u8) -> Receiving {
        match mover {
            Mover::Write => Receiving::Written(0),
            Mover::Read => Receiving::Reading(stripes),
            Mover::Copy if length == 0 => Receiving::Done,
            Mover::Copy => Receiving::Copied(0, length),
        }
    }

    /// A FIN came, one of `lanes`.
    pub fn fin(&mut self, lanes: u8) -> Result<(), Unfit> {
        match *self {
            Receiving::Written(came) if came < lanes => {
                *self = if came + 1 == lanes { Receiving::Done } else { Receiving::Written(came + 1) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// A stripe was read.
    pub fn read(&mut self) -> Result<(), Unfit> {
        match *self {
            Receiving::Reading(left) if left > 0 => {
                *self = if left == 1 { Receiving::Done } else { Receiving::Reading(left - 1) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// A packet with these bytes came.
    pub fn data(&mut self, offset: u64, bytes: u64) -> Result<(), Unfit> {
        match *self {
            Receiving::Copied(at, length) if offset == at && bytes > 0 && bytes <= length - at => {
                *self = if at + bytes == length { Receiving::Done } else { Receiving::Copied(at + bytes, length) };
                Ok(())
            }
            _ => Err(Unfit),
        }
    }

    /// The sender cannot write: packets instead.
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
