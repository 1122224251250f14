//! What a provider signs for messages: lanes to peers, memory, and events.

use crate::Meter;

/// A rank of the job, counted from 0.
pub type Rank = u32;

/// Rails that a rank can have at most.
pub const RAILS: usize = 4;

/// Bytes that any rail takes at once, at least.
pub const SHORTEST: usize = 512;

/// One way to post requests to one peer: a queue pair, or a mapped segment. Requests on one lane take effect at the peer
/// in the order in which they were posted, but that on a rail without [`Rail::write`] a `Send` may come before or after any
/// others; those of two lanes in any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// Who is at its other end.
    pub peer: Rank,
    /// Which of the [rails](Wire::rails) to that peer it uses, by index.
    pub rail: usize,
}

/// By what a rail reaches peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RailKind {
    /// By a connection with each: where the rank has datagrams too, to few at a time.
    Connection,
    /// Sends are datagrams, to all, and as they are they may be lost; see [`delivery`](crate::delivery).
    Datagram,
    /// By memory that is shared: to those [near](Wire::is_near) by this alone, to others never. What a rank moves itself needs no
    /// registration there.
    Memory,
}

/// What a device, port or memory promises.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// By what it reaches peers.
    pub kind: RailKind,
    /// Longest `Send`, head and body together, in bytes; at least [`SHORTEST`].
    pub longest: usize,
    /// The mark of a `Put` is seen only when all its other bytes are (a release store; a device that writes the last
    /// byte last), and an aligned word is seen whole.
    pub mark_last: bool,
    /// A `Put` of one aligned word is seen whole, though a longer one may be seen in any order.
    pub whole_word: bool,
    /// A `Put` may carry an immediate value, which the peer learns of once all the bytes are there.
    pub immediate: bool,
    /// `Write` is there. A wire whose datagrams may be lost has [windows](Wire::open_window) instead, of which
    /// [`delivery`](crate::delivery) makes it; a `Send` may come before a `Write` that was posted before it all the same.
    pub write: bool,
    /// `Read` is there.
    pub read: bool,
    /// How many bytes it moves in a time, beside the others of its rank; 0 if that is not known.
    pub bandwidth: u32,
}

/// Names registered memory to a peer, on one rail. In order, those of one address are side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Where the memory begins, as the provider counts.
    pub address: u64,
    /// What the peer's adapter checks.
    pub key: u64,
}

/// A stretch of local memory.
#[derive(Debug)]
pub struct Part<'a, M> {
    /// The memory.
    pub memory: &'a M,
    /// Where in it the stretch begins, in bytes.
    pub at: usize,
    /// Its length in bytes.
    pub length: usize,
}

impl<M> Clone for Part<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Part<'_, M> {}

/// The bytes behind a head.
#[derive(Debug)]
pub enum Data<'a, M> {
    /// None.
    None,
    /// Of memory that the engine has.
    Of(Part<'a, M>),
    /// Lent for the call.
    Bytes(&'a [u8]),
}

impl<'a, M> Data<'a, M> {
    /// How many bytes.
    #[inline(always)]
    pub fn length(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Of(part) => part.length,
            Data::Bytes(bytes) => bytes.len(),
        }
    }

    /// So many of them, from this one on.
    pub fn stretch(self, at: usize, length: usize) -> Data<'a, M> {
        match self {
            Data::None => Data::None,
            Data::Of(part) => Data::Of(Part { at: part.at + at, length, ..part }),
            Data::Bytes(bytes) => Data::Bytes(&bytes[at..at + length]),
        }
    }
}

impl<M> Clone for Data<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Data<'_, M> {}

/// What can be posted on a lane.
#[derive(Debug)]
pub enum Request<'a, M> {
    /// To a slot that the peer's provider has posted. Copied when posted; nothing is told of its end.
    Send {
        /// The first bytes.
        head: &'a [u8],
        /// The bytes after them.
        body: Data<'a, M>,
    },
    /// A short write. Copied when posted; nothing is told of its end (a provider signals one in so many for itself).
    /// A peer's ring is only ever written so: a provider may keep a prepared request for each of its slots.
    Put {
        /// Whose memory.
        to: Key,
        /// Where in it, in bytes.
        at: usize,
        /// The first bytes.
        head: &'a [u8],
        /// The bytes after them.
        body: Data<'a, M>,
        /// The last 8 bytes, at a place divisible by 8; see [`Rail::mark_last`].
        mark: Option<u64>,
        /// See [`Rail::immediate`].
        immediate: Option<u32>,
    },
    /// Without a copy: the memory is the adapter's until `Done(token)`.
    Write {
        /// What is written; registered on this rail.
        from: Part<'a, M>,
        /// Whose memory.
        to: Key,
        /// Where in it, in bytes.
        at: usize,
        /// Says which request is done.
        token: u64,
    },
    /// Without a copy: the memory is the adapter's until `Done(token)`, and holds the bytes then. Where memory is shared
    /// this is the one copy.
    Read {
        /// Whose memory.
        from: Key,
        /// Where in it, in bytes.
        at: usize,
        /// Where to; registered on this rail.
        into: Part<'a, M>,
        /// Says which request is done.
        token: u64,
    },
    /// A datagram to a [window](Wire::open_window) of the peer's, without a copy: it may be lost, come twice or late. The memory is
    /// the adapter's until this one, or one that is posted later on this lane, is `Done`.
    Piece {
        /// What is sent; registered on this rail.
        from: Part<'a, M>,
        /// The window.
        to: Key,
        /// Which piece of it.
        index: u8,
        /// Says that this one has gone, and all before it on this lane.
        token: Option<u64>,
    },
}

/// Pieces of registered memory that a peer may send datagrams to, each once: a pool queue pair, with a receive posted for each
/// piece in turn. A datagram lands where the next receive is, whichever piece it brings; see [`arrange`](crate::delivery::arrange).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The memory, registered with that rail.
    pub into: Key,
    /// Where the first of its 64 pieces begins, in bytes.
    pub at: usize,
    /// Bytes of a piece.
    pub piece: usize,
    /// Which pieces may come.
    pub wanted: u64,
}

/// The lane takes no request now: nothing has happened, and the request can be posted again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// Why a lane has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The job says that the rank died.
    Died,
    /// The rank has left the job.
    Left,
    /// The network no longer reaches it.
    Unreachable,
}

/// What [`Wire::poll`] tells.
#[derive(Debug)]
pub enum Event<M> {
    /// The lane takes requests.
    Up(Lane),
    /// A `Write` or `Read` is done, at the time of [`Wire::now`] given; which is any, where the peer has one rail alone.
    Done(u64, u64),
    /// A `Send` of the peer came. The slot belongs to the engine until it is given back.
    Arrived {
        /// From where.
        lane: Lane,
        /// Where the bytes are.
        slot: M,
        /// Where in it they begin.
        at: usize,
        /// How many.
        length: usize,
    },
    /// A `Put` of the peer with this value has come whole.
    Immediate(Lane, u32),
    /// The lane has ended, and with it the peer, whatever other lanes there are: all that was posted to it has ended, and neither adapter
    /// nor peer touches that memory any more.
    Failed(Lane, Why),
    /// The lane passes nothing any more, and the peer may still be reached by others. The engine [takes
    /// back](Wire::take_back) what it posted there; once both ends have, and when it passes again, it is `Up`.
    Cut(Lane),
    /// The provider has done a bounded piece of what it does for a peer, and there may be more: nothing for the engine to do
    /// but to ask again in its next turn.
    Worked,
}

impl<M> Event<M> {
    /// The lane that it tells of, if it is one's.
    ///
    /// # Examples
    /// ```
    /// # use transom_channel::wire::{Event, Lane};
    /// let lane = Lane { peer: 3, rail: 0 };
    /// assert_eq!(Event::<()>::Up(lane).lane(), Some(lane));
    /// assert_eq!(Event::<()>::Done(7, 0).lane(), None);
    /// ```
    pub fn lane(&self) -> Option<Lane> {
        match self {
            Event::Up(lane) | Event::Immediate(lane, _) | Event::Failed(lane, _) | Event::Cut(lane) => Some(*lane),
            Event::Arrived { lane, .. } => Some(*lane),
            Event::Done(..) | Event::Worked => None,
        }
    }

    /// The same, told of another lane: for a wire whose peers have other names below.
    ///
    /// # Examples
    /// ```
    /// # use transom_channel::wire::{Event, Lane};
    /// let event = Event::<()>::Immediate(Lane { peer: 3, rail: 0 }, 42).on(|lane| Lane { peer: lane.peer + 8, ..lane });
    /// assert!(matches!(event, Event::Immediate(Lane { peer: 11, rail: 0 }, 42)));
    /// ```
    pub fn on(mut self, of: impl FnOnce(Lane) -> Lane) -> Self {
        match &mut self {
            Event::Up(lane) | Event::Immediate(lane, _) | Event::Failed(lane, _) | Event::Cut(lane) => {
                *lane = of(*lane)
            }
            Event::Arrived { lane, .. } => *lane = of(*lane),
            Event::Done(..) | Event::Worked => {}
        }
        self
    }
}

/// What had been posted on a lane that was cut, and is not known to have taken effect. It may have: what had, was posted before
/// all that had not.
#[derive(Debug)]
pub enum Left<M> {
    /// The bytes of a `Send`, so many.
    Send(M, usize),
    /// Those of a `Put`, without its mark.
    Put(M, usize),
    /// A `Write` or `Read` that is not told done, by its token.
    Moved(u64),
}

/// The seam between the machines and a provider.
///
/// `Memory` is a handle on bytes: a slot, a ring, a user's buffer. The machines never see the bytes of a user, only pass
/// handles on, so that they need no unsafe code and a provider can do without copies. A handle that is dropped while a
/// request names it must do no harm: the provider keeps the bytes until the request is over, or whoever drives it promises to, as the
/// engine keeps them.
///
/// A provider's own events are trusted; the bytes that come from a peer are not, by nobody.
pub trait Wire {
    /// A handle on bytes.
    type Memory;

    /// The rails to peers that are [near](Self::is_near), or to the others, best first; none if there are no such peers. Those to
    /// the others are as many at all ranks, and there are at most [`RAILS`] of either. Rail i of one rank reaches rail i of any
    /// other.
    fn rails(&self, near: bool) -> &[Rail];
    /// Asks for a lane. `Up` or `Failed` follows, at once if it was up before. The peer is told `Up` as well.
    fn connect(&mut self, lane: Lane);
    /// Gives a lane up that both sides have agreed to use no more; nothing is under way there but packets that may be lost. The peer
    /// does the same. No event of it follows; it can be asked for again. Only lanes of a rank that has datagrams too are given up.
    fn disconnect(&mut self, lane: Lane) {
        let _ = lane;
    }
    /// To how many peers but this one there are connections that the engine has not asked for, or has given up: those that windows and
    /// pipes have made.
    fn connected_besides(&self, but: Rank) -> usize {
        let _ = but;
        0
    }
    /// Whether a peer has this rank's memory, so that there are rails of [`RailKind::Memory`] to it, and those alone. It does not change,
    /// and both say the same of each other.
    fn is_near(&self, peer: Rank) -> bool {
        let _ = peer;
        false
    }
    /// Ends all lanes to a peer; no event of it follows, and when this returns neither adapter nor peer touches memory
    /// that requests to this peer named.
    fn sever(&mut self, peer: Rank);

    /// Whether lanes are [`Cut`](Event::Cut), and what was posted on them [taken back](Self::take_back), where there are several
    /// rails; else they end with the peer.
    fn fails_over(&self) -> bool {
        false
    }

    /// Ends a lane that was [`Cut`](Event::Cut), or of which the peer says so: when this returns, nothing that was posted on it at
    /// either end takes effect any more; what had come by it, and what is known to be done, has been or will be polled. Gives back
    /// what else this end had posted, in its order; memory among it is like what was [taken](Self::take). No `Up` or `Cut` from before
    /// is polled after it.
    fn take_back(&mut self, lane: Lane) -> Vec<Left<Self::Memory>> {
        let _ = lane;
        Vec::new()
    }

    /// Memory of this rank's own, for a message that has no other yet. `None` if there is not so much.
    fn take(&mut self, length: usize) -> Option<Self::Memory>;
    /// Gives back what was taken, or a slot that arrived.
    fn give(&mut self, memory: Self::Memory);
    /// Memory of this rank's own, all 0, that a peer may put to by the key, on rail 0: a ring for that peer. Given back like
    /// other memory, after its key was released.
    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Self::Memory, Key)>;
    /// Leaves two words beside a ring of this rank's, where the peer that writes there reads them when it likes, and wakes it if it
    /// sleeps. Who finds the first finds no second that is older. `false` where rings are no memory of both: then what is to be told
    /// goes by a packet.
    fn publish(&mut self, peer: Rank, ring: &Self::Memory, words: [u64; 2]) -> bool {
        let _ = (peer, ring, words);
        false
    }
    /// What a peer has left last beside the ring that it has given by this key.
    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        let _ = (peer, ring);
        None
    }
    /// Whether this rank can put to memory that a peer has made as a [`ring`](Self::ring) of so many bytes and named by this
    /// key. Asked once, before the first put, where there is no other path.
    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        let _ = (lane, key, length);
        true
    }
    /// Whether a `Put` can go by a lane that is up. Where sends go another way it may have to be connected first, which this
    /// sees to.
    fn opens(&mut self, lane: Lane) -> bool {
        let _ = lane;
        true
    }
    /// Nothing is put there any more.
    fn leave(&mut self, lane: Lane, key: Key) {
        let _ = (lane, key);
    }
    /// Whether this rank can read at the peer what that offers on a rail. Asked once a mover is to be chosen.
    fn reads(&mut self, lane: Lane) -> bool;
    /// Whether the peer may send what it offers there sooner than this rank would read it: it waits, and has nothing else to do.
    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        let _ = (lane, offered);
        false
    }
    /// Makes memory known to the adapter of a lane; `None` if that cannot be done, or is not worth it.
    fn register(&mut self, memory: &Self::Memory, lane: Lane) -> Option<Key>;
    /// Ends a registration that was made for a lane, or a ring's for a lane of rail 0: when this returns no peer can write by the key.
    fn release(&mut self, lane: Lane, key: Key);

    /// The key by which memory is registered with a rail to peers that are not near, if it is.
    fn key_of(&self, memory: &Self::Memory, rail: usize) -> Option<Key> {
        let _ = (memory, rail);
        None
    }
    /// Another handle on registered memory, if the key is of so many bytes at least, which may be `written` to: of use until the
    /// registration ends.
    fn memory_of(&self, rail: usize, key: Key, length: usize, written: bool) -> Option<Self::Memory> {
        let _ = (rail, key, length, written);
        None
    }
    /// Lets a peer send datagrams to pieces of memory by the key that this gives, and nobody by any other. `None` if there are as many
    /// windows as can be, or none can be made.
    fn open_window(&mut self, lane: Lane, window: Window) -> Option<Key> {
        let _ = (lane, window);
        None
    }
    /// Ends a window: when this returns nothing comes there any more, and all pieces that did are in their places. Says which.
    fn close_window(&mut self, rail: usize, window: Key) -> u64 {
        let _ = (rail, window);
        0
    }

    /// Posts a request.
    fn post(&mut self, lane: Lane, request: Request<'_, Self::Memory>) -> Result<(), Busy>;
    /// Posts a [`Request::Read`] of what begins where the key says. Whether it is done already, as it can be where memory is shared: then
    /// no event tells so.
    fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, Self::Memory>, token: u64) -> Result<bool, Busy> {
        self.post(lane, Request::Read { from, at: 0, into, token }).map(|()| false)
    }
    /// The next event, if there is one.
    fn poll(&mut self) -> Option<Event<Self::Memory>>;
    /// The time in nanoseconds, from any beginning.
    fn now(&self) -> u64;
    /// When [`poll`](Self::poll) is to be called though nothing comes, if something that was posted is not known to have come,
    /// or a peer is to be told that what it posted has. Then a rank that leaves waits.
    fn due(&self) -> Option<u64> {
        None
    }
    /// Adds what the wire has counted itself, since it was opened, to what its engine has: what was lost on the way and made good,
    /// and what is registered. A wire over others lets those add theirs.
    fn count(&self, meter: &mut Meter) {
        let _ = meter;
    }

    /// Copies bytes out.
    fn read(&self, memory: &Self::Memory, at: usize, into: &mut [u8]);
    /// A hint: the next [`word`](Self::word) is that at this place of a ring, so that its cache line may be prefetched.
    fn prefetch(&self, _ring: &Self::Memory, _at: usize) {}
    /// A hint: the mark of the next `Put` to this peer's ring goes to this place, so that its cache line may be prefetched.
    fn prefetch_to_write(&self, _peer: Rank, _at: usize) {}
    /// The aligned word at a place of a ring, read so that all that was written before it is seen as well.
    fn word(&self, ring: &Self::Memory, at: usize) -> u64;
    /// Copies bytes from one memory to another.
    fn copy(&mut self, from: Part<'_, Self::Memory>, to: &Self::Memory, at: usize);
}
