//! Work requests, what becomes of them, and who is told: the words that all layers share.

use std::fmt;
use std::io;

/// What is to be done at the far end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Write,
    /// A write that takes a buffer of the far end, which is left as it is, to tell this value once all its bytes are there.
    WriteAndTell(u32),
    /// To a buffer of the far end.
    Send,
    Read,
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    Add(u64),
}

/// How the adapter orders requests: an initiator waits for what the far end answers by data, unless it is of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Sends too: they are ordered and acknowledged as writes are.
    Write,
    Read,
    Atomic,
}

impl Verb {
    pub fn kind(self) -> Kind {
        match self {
            Verb::Write | Verb::WriteAndTell(_) | Verb::Send => Kind::Write,
            Verb::Read => Kind::Read,
            Verb::CompareAndSwap { .. } | Verb::Add(_) => Kind::Atomic,
        }
    }
}

/// A place in a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub address: u64,
    pub key: u32,
}

/// A piece of this rank's memory. Its key is not looked at in a request that takes the bytes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

impl Piece {
    /// No bytes.
    pub const NOTHING: Piece = Piece { address: 0, bytes: 0, key: 0 };

    /// Bytes that a request takes along.
    pub fn inline(bytes: &[u8]) -> Self {
        Piece { address: bytes.as_ptr().expose_provenance() as u64, bytes: bytes.len() as u32, key: 0 }
    }
}

/// Whom a completion is for: a lane, by its number at this rank, and which of its requests, by the low half of its number.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Token(u64);

impl Token {
    pub fn new(lane: u32, request: u64) -> Self {
        Token(u64::from(lane) << 32 | u64::from(request as u32))
    }

    pub fn from_bits(bits: u64) -> Self {
        Token(bits)
    }

    pub fn bits(self) -> u64 {
        self.0
    }

    pub fn lane(self) -> u32 {
        (self.0 >> 32) as u32
    }

    pub fn request(self) -> u32 {
        self.0 as u32
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of lane {}", self.request(), self.lane())
    }
}

/// One request to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub token: Token,
    pub verb: Verb,
    pub to: Place,
    pub piece: Piece,
    /// Its completion is told.
    pub signalled: bool,
    /// It begins when the reads and atomics before it are complete.
    pub fenced: bool,
    /// It takes its bytes along, so that they may be used again once it is posted.
    pub inline: bool,
}

/// What takes requests: a queue pair, or in tests something that pretends to be one.
pub(super) trait WorkQueue {
    /// By which completions name it.
    fn number(&self) -> u32;

    /// Requests that may be under way at once.
    fn depth(&self) -> u32;

    /// Bytes that a request can take along.
    fn inline(&self) -> u32;

    /// Hands a request over.
    ///
    /// # Safety
    /// What it names of this rank's memory must stay registered until it is complete or the queue is gone; or be there now
    /// if it is inline.
    unsafe fn post(&self, request: &Request) -> io::Result<()>;

    /// Whether it has fenced requests wait by itself. Else they are not to be posted before those that they wait for are complete; nor
    /// atomics before all writes are.
    #[inline]
    fn fences(&self) -> bool {
        true
    }

    /// Whether it is of another rail than its lane: then each request is to ask for its [course](Self::course).
    #[inline]
    fn is_elsewhere(&self) -> bool {
        false
    }

    /// How a request of a lane goes on by this.
    fn course(&self, _verb: Verb, _to: Place) -> Course {
        Course::Posted
    }

    /// Has the peer asked to have its own adapter do an atomic, which no other is to do: once, whoever asks how often.
    fn ask(&self, _number: u64, _verb: Verb, _to: Place) {}

    /// Requests with numbers up to this are complete.
    #[inline]
    fn completed(&self, _number: u64) {}
}

/// How a request goes on by a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// It can be posted.
    Posted,
    /// The peer is to do it, once all before it is complete.
    Asked,
    /// Not by this queue: it waits for another, and what is behind it too.
    Waits,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub token: Token,
    /// The queue that it was posted to.
    pub queue_pair: u32,
    /// Of what was received.
    pub bytes: usize,
    /// What a write told that came with it.
    pub value: Option<u32>,
    pub result: Result<(), Failure>,
}

/// What tells of completions: a completion queue, or in tests something that pretends to be one.
pub(super) trait Completions {
    /// Hands over what has completed since.
    fn poll(&self, each: &mut dyn FnMut(Completion)) -> io::Result<()>;
}

/// Why a request failed, and with it all behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub why: Why,
    /// The adapter's number for it, for messages.
    pub status: u32,
    pub vendor: u32,
}

impl Failure {
    /// That nobody told, but is known.
    pub fn known(why: Why) -> Self {
        // Neither is a status: IBV_WC_GENERAL_ERR.
        Failure { why, status: 21, vendor: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The far end's adapter refuses the access.
    Refused,
    /// The far end does not answer.
    Silence,
    /// The queue pair was in error before it was begun, or failed by itself: the connection has ended.
    Ended,
    /// This rank's adapter cannot do it.
    Adapter,
    /// The peer is known to be gone.
    Gone,
}

impl Why {
    /// Whether the two may connect anew, and go on with what was not done.
    pub fn may_be_mended(self) -> bool {
        matches!(self, Why::Silence | Why::Ended)
    }
}

/// What one end of a connection has received before, so that the other knows what to do again.
///
/// Packets of a generation are numbered (PSN, 24 bits) from a random first on, and executed in that order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Received {
    /// The last generation in which something came; zero if nothing ever did.
    pub generation: u32,
    /// The number of the packet that was expected next when it ended.
    pub next: u32,
}

impl Received {
    /// When the queue pair of a generation takes nothing more, that expected the packet `first` at first and `next` at last.
    pub fn after(self, generation: u32, first: u32, next: u32) -> Self {
        if next == first { self } else { Received { generation, next } }
    }
}
