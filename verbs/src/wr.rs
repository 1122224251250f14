//! Vocabulary of all layers: work requests, tokens, completions and failures.

use std::fmt;
use std::io;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Verb {
    Write,
    /// A write with immediate: consumes a receive of the far end, leaves its buffer unchanged, and delivers this value
    /// once all bytes are in place.
    WriteAndTell(u32),
    /// A send into a receive buffer of the far end.
    Send,
    Read,
    CompareAndSwap {
        expected: u64,
        new: u64,
    },
    Add(u64),
}

/// Ordering class of a request. The initiator must wait for answers that carry data, unless the next request is of the
/// same class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Writes and sends, which are ordered and acknowledged alike.
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
pub(super) struct RemoteAddress {
    pub address: u64,
    pub key: u32,
}

/// A piece of this rank's memory. The key is ignored for inline requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    pub address: u64,
    pub bytes: u32,
    pub key: u32,
}

impl Piece {
    /// An empty piece.
    pub const NOTHING: Piece = Piece { address: 0, bytes: 0, key: 0 };

    /// A piece whose bytes are posted inline.
    pub fn inline(bytes: &[u8]) -> Self {
        Piece { address: bytes.as_ptr().expose_provenance() as u64, bytes: bytes.len() as u32, key: 0 }
    }
}

/// Recipient of a completion: the number of a lane at this rank, and the low 32 bits of the request number.
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

/// A request to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub token: Token,
    pub verb: Verb,
    pub to: RemoteAddress,
    pub piece: Piece,
    /// A completion is reported.
    pub signalled: bool,
    /// The request starts only after earlier reads and atomics are complete.
    pub fenced: bool,
    /// The bytes are copied when the request is posted, so they may be reused afterwards.
    pub inline: bool,
}

/// A queue of requests: a queue pair, or a fake in tests.
pub(super) trait WorkQueue {
    /// Queue pair number, as in completions.
    fn number(&self) -> u32;

    /// Most requests in flight.
    fn depth(&self) -> u32;

    /// Largest inline payload, in bytes.
    fn inline(&self) -> u32;

    /// Posts a request.
    ///
    /// # Safety
    /// Memory of this rank that the request names must stay registered until the request is complete or the queue is
    /// destroyed; for an inline request it must be valid during the call.
    unsafe fn post(&self, request: &Request) -> io::Result<()>;

    /// Returns whether the queue supports fenced requests. If not, a fenced request must be posted only after the
    /// requests it waits for are complete, and an atomic only after all writes.
    #[inline]
    fn fences(&self) -> bool {
        true
    }

    /// Returns whether the queue belongs to another rail than its lane. Each request must then ask for its
    /// [course](Self::course).
    #[inline]
    fn is_failover(&self) -> bool {
        false
    }

    /// The way to execute a request of a lane on this queue.
    fn course(&self, _verb: Verb, _to: RemoteAddress) -> Course {
        Course::Posted
    }

    /// Asks the peer to perform an atomic on its own adapter; idempotent by the request number.
    fn ask(&self, _number: u64, _verb: Verb, _to: RemoteAddress) {}

    /// Reports that requests up to this number are complete.
    #[inline]
    fn completed(&self, _number: u64) {}
}

/// The way to execute a request on a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Course {
    /// Post it.
    Posted,
    /// Ask the peer to perform it, once all earlier requests are complete.
    Asked,
    /// Hold it back for another queue, with all later requests.
    Waits,
}

/// The outcome of a request or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    pub token: Token,
    /// Number of its queue pair.
    pub queue_pair: u32,
    /// Bytes received.
    pub bytes: usize,
    /// Immediate value received.
    pub value: Option<u32>,
    pub result: Result<(), Failure>,
}

/// A source of completions: a completion queue, or a fake in tests.
pub(super) trait Completions {
    /// Passes the available completions to `each`.
    fn poll(&self, each: &mut dyn FnMut(Completion)) -> io::Result<()>;
}

/// The reason why a request, and all later ones of its queue, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub why: Why,
    /// Completion status and vendor code, for messages.
    pub status: u32,
    pub vendor: u32,
}

impl Failure {
    /// A failure without a completion.
    pub fn known(why: Why) -> Self {
        // The status that names no specific error: IBV_WC_GENERAL_ERR.
        Failure { why, status: 21, vendor: 0 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The far end's adapter refused the access.
    Refused,
    /// The far end does not answer.
    Silence,
    /// The queue pair was already in error, or failed without a request: the connection has ended.
    Ended,
    /// This rank's adapter cannot execute the request.
    Adapter,
    /// The peer is known to be gone.
    Gone,
}

impl Why {
    /// Returns whether the two ranks may reconnect and continue.
    pub fn may_be_mended(self) -> bool {
        matches!(self, Why::Silence | Why::Ended)
    }
}

/// Received position of one end of a connection, from which the peer derives the requests to repeat.
///
/// Packets of a generation have consecutive numbers (PSN, 24 bits) from a random first one, and are executed in that
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Received {
    /// The last generation in which a packet was received; zero if none ever was.
    pub generation: u32,
    /// The PSN expected next when that generation ended.
    pub next: u32,
}

impl Received {
    /// The position after the queue pair of a generation has stopped receiving. It expected the PSN `first` initially
    /// and expects `next` now.
    pub fn after(self, generation: u32, first: u32, next: u32) -> Self {
        if next == first { self } else { Received { generation, next } }
    }
}
