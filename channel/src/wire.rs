//! The interface between the engine and a provider: lanes to peers, memory, and events.

use crate::Counters;

/// A rank of the job, counted from 0.
pub type Rank = u32;

/// Most rails of a rank.
pub const RAILS: usize = 4;

/// Longest `Send` in bytes that every rail accepts.
pub const SHORTEST: usize = 512;

/// One path for requests to one peer: a queue pair, or a mapped segment. Requests on one lane take effect at
/// the peer in posting order. Exception: on a rail without [`Rail::write`] a `Send` may overtake or follow
/// any other request. Requests on two lanes take effect in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// Rank at the other end of the lane.
    pub peer: Rank,
    /// Index of its rail among the [rails](Wire::rails) to that peer.
    pub rail: usize,
}

/// Transport of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RailKind {
    /// A connection with each peer. A rank that also has datagrams is connected to few peers at a time.
    Connection,
    /// Datagrams to all peers. Sends may be lost; see [`delivery`](crate::delivery).
    Datagram,
    /// Shared memory: the only kind to [near](Wire::is_near) peers, and never used for others. Memory that a
    /// rank reads or writes by itself needs no registration there.
    Memory,
}

/// Guarantees and limits of a device, port or shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rail {
    /// Transport of the rail.
    pub kind: RailKind,
    /// Longest `Send`, head and body together, in bytes; at least [`SHORTEST`].
    pub longest: usize,
    /// The mark of a `Put` is visible only when all its other bytes are (a release store, or a device that
    /// writes the last byte last). An aligned word is never seen torn.
    pub mark_last: bool,
    /// A `Put` of one aligned word is never seen torn, and becomes visible after all earlier puts of the lane. The
    /// bytes of a longer one may become visible in any order.
    pub whole_word: bool,
    /// A `Put` may carry an immediate value, which the peer receives once all the bytes have arrived.
    pub immediate: bool,
    /// `Write` is supported. A wire of lossy datagrams has [windows](Wire::open_window) instead, from which
    /// [`delivery`](crate::delivery) builds `Write`. There a `Send` may still overtake a `Write` that was
    /// posted before it.
    pub write: bool,
    /// `Read` is supported.
    pub read: bool,
    /// Bandwidth relative to the rank's other rails, in any unit; 0 if unknown.
    pub bandwidth: u32,
}

/// Names registered memory to a peer, on one rail. In the derived order, keys of one address are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Address of the memory's first byte, as the provider counts.
    pub address: u64,
    /// Access key that the peer's adapter checks.
    pub key: u64,
}

/// A range of local memory.
#[derive(Debug)]
pub struct Part<'a, M> {
    /// Handle of the memory.
    pub memory: &'a M,
    /// Offset of the range, in bytes.
    pub at: usize,
    /// Length of the range in bytes.
    pub length: usize,
}

impl<M> Clone for Part<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Part<'_, M> {}

impl<M: WireMemory> Part<'_, M> {
    /// Copies the range to offset `at` of other memory, which must be writable.
    #[inline(always)]
    pub fn copy(self, to: &M, at: usize) {
        self.memory.copy(self.at, self.length, to, at);
    }
}

/// A handle on bytes of this process, as a [`Wire`] makes it: a buffer, a slot of an arrived message, or a ring. Methods
/// panic if a range is out of bounds.
pub trait WireMemory {
    /// Copies bytes at offset `at` into a slice.
    fn read(&self, at: usize, into: &mut [u8]);
    /// Copies `length` bytes at offset `at` to offset `to_at` of other memory, which must be writable.
    fn copy(&self, at: usize, length: usize, to: &Self, to_at: usize);
    /// Reads the aligned word at an offset of a ring, with acquire order: all bytes that the peer wrote before it are
    /// visible.
    fn word(&self, at: usize) -> u64;
    /// Hint: the next [`word`](Self::word) is read at this offset of a ring, so that its cache line may be prefetched.
    fn prefetch(&self, at: usize) {
        let _ = at;
    }
}

/// The bytes that follow a head.
#[derive(Debug)]
pub enum Data<'a, M> {
    /// No bytes.
    None,
    /// A range of memory that the engine holds.
    Of(Part<'a, M>),
    /// Bytes borrowed for the call.
    Bytes(&'a [u8]),
}

impl<'a, M> Data<'a, M> {
    /// Length in bytes.
    #[inline(always)]
    pub fn length(&self) -> usize {
        match self {
            Data::None => 0,
            Data::Of(part) => part.length,
            Data::Bytes(bytes) => bytes.len(),
        }
    }

    /// The sub-range of `length` bytes from offset `at`.
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

/// A request to post on a lane.
#[derive(Debug)]
pub enum Request<'a, M> {
    /// Sends into a slot that the peer's provider has posted. The bytes are copied at the post; no completion
    /// is reported.
    Send {
        /// First bytes of the packet.
        head: &'a [u8],
        /// Bytes after the head.
        body: Data<'a, M>,
    },
    /// A short write. The bytes are copied at the post; no completion is reported (a provider may signal one
    /// of several for itself). Peers' rings are written by `Put` only, so a provider may keep a prepared
    /// request for each slot.
    Put {
        /// Key of the peer's memory.
        to: Key,
        /// Offset in that memory, in bytes.
        at: usize,
        /// First bytes written.
        head: &'a [u8],
        /// Bytes after the head.
        body: Data<'a, M>,
        /// The last 8 bytes, at an offset divisible by 8; see [`Rail::mark_last`].
        mark: Option<u64>,
        /// Immediate value; see [`Rail::immediate`].
        immediate: Option<u32>,
    },
    /// Writes to the peer's memory without a copy. The adapter owns the local memory until `Done(token)`.
    Write {
        /// Source; registered on this rail.
        from: Part<'a, M>,
        /// Key of the peer's memory.
        to: Key,
        /// Offset in that memory, in bytes.
        at: usize,
        /// Token of the completion.
        token: u64,
    },
    /// Reads the peer's memory without a copy. The adapter owns the local memory until `Done(token)`; it then
    /// holds the bytes. On shared memory this is the only copy.
    Read {
        /// Key of the peer's memory.
        from: Key,
        /// Offset in that memory, in bytes.
        at: usize,
        /// Destination; registered on this rail.
        into: Part<'a, M>,
        /// Token of the completion.
        token: u64,
    },
    /// Sends a datagram to a [window](Wire::open_window) of the peer, without a copy. It may be lost,
    /// duplicated or late. The adapter owns the local memory until this request, or one posted later on this
    /// lane, is `Done`.
    Piece {
        /// Source; registered on this rail.
        from: Part<'a, M>,
        /// Key of the window.
        to: Key,
        /// Index of the piece in the window.
        index: u8,
        /// Token of a completion that covers this request and all earlier ones on this lane; `None` for no
        /// completion.
        token: Option<u64>,
    },
}

/// Pieces of registered memory that a peer may send datagrams to, each once. The window is a pool queue pair
/// with a receive posted for each piece, in order. A datagram lands in the next posted receive, whichever
/// piece it carries; see [`arrange`](crate::delivery::arrange).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Key of the memory on the window's rail.
    pub into: Key,
    /// Offset of the first of its 64 pieces, in bytes.
    pub at: usize,
    /// Length of a piece in bytes.
    pub piece: usize,
    /// Bit mask of the pieces that may arrive.
    pub wanted: u64,
}

/// The lane accepts no request now. The request had no effect, and may be posted again later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// Reason why a lane has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The job reported that the rank died.
    Died,
    /// The rank has left the job.
    Left,
    /// The network no longer reaches the rank.
    Unreachable,
}

/// An event reported by [`Wire::poll`].
#[derive(Debug)]
pub enum Event<M> {
    /// The lane accepts requests.
    Up(Lane),
    /// A `Write` or `Read` is complete: its token, and the time of completion on the clock of [`Wire::now`].
    /// The time is arbitrary where the peer has only one rail.
    Done(u64, u64),
    /// A `Send` of the peer has arrived. The engine owns the slot until it gives it back.
    Arrived {
        /// Lane on which the packet arrived.
        lane: Lane,
        /// Slot that holds the packet.
        slot: M,
        /// Offset of the packet in the slot, in bytes.
        at: usize,
        /// Length of the packet in bytes.
        length: usize,
    },
    /// A `Put` of the peer with this immediate value has arrived completely.
    Immediate(Lane, u32),
    /// The lane has ended, and with it the peer, whatever its other lanes are. All requests posted to the
    /// peer have ended: neither adapter nor peer accesses their memory any more.
    Failed(Lane, Why),
    /// The lane passes no more requests, but other lanes may still reach the peer. The engine
    /// [drains](Wire::drain_failed) the requests it posted there. Once both ends have drained, and the lane
    /// passes requests again, it is `Up`. On a lane of datagrams [`delivery`](crate::delivery) drains and resends; its
    /// engine uses other lanes.
    Cut(Lane),
    /// The provider has done a bounded part of its work for a peer, and may have more. The engine need only
    /// poll again in its next progress call.
    Worked,
}

impl<M> Event<M> {
    /// Lane of the event; `None` if it concerns no single lane.
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

    /// The same event for another lane, for a wire that renumbers the peers of the wire below it.
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

/// A request posted on a lane before its cut, and not known to have taken effect. It may have taken effect:
/// those that did were posted before all that did not.
#[derive(Debug)]
pub enum Left<M> {
    /// A `Send`: its bytes, and their number.
    Send(M, usize),
    /// A `Put` without its mark: its bytes, and their number.
    Put(M, usize),
    /// A `Write` or `Read` not reported as done: its token.
    Moved(u64),
}

/// The interface between the engine and a provider.
///
/// `Memory` is a handle on bytes: a slot, a ring or a buffer of the user. The engine only passes handles on
/// and never accesses a user's bytes, so it needs no unsafe code, and a provider can avoid copies. Dropping a
/// handle while a request names it must be harmless. Either the provider keeps the bytes until the request
/// ends, or the wire's driver guarantees to, as the engine does.
///
/// The local provider's events are trusted; bytes received from a peer never are.
pub trait Wire {
    /// Handle on bytes.
    type Memory: WireMemory;

    /// The rails to [near](Self::is_near) peers or to the others, best first; empty if there are no such
    /// peers. All ranks have the same number of rails to peers that are not near. There are at most [`RAILS`]
    /// of either. Rail i of one rank reaches rail i of any other.
    fn rails(&self, near: bool) -> &[Rail];
    /// Requests a lane. `Up` or `Failed` follows, at once if the lane was up already. The peer receives `Up`
    /// as well.
    fn connect(&mut self, lane: Lane);
    /// Gives up a lane that both sides have agreed to stop using. Only packets that may be lost are in flight
    /// on it. The peer makes the same call. No event of the lane follows; it can be requested again. Only
    /// lanes of a rank that also has datagrams are given up.
    fn disconnect(&mut self, lane: Lane) {
        let _ = lane;
    }
    /// Number of peers other than `but` with connections that the engine has not requested, or has given up:
    /// connections made by windows and pipes.
    fn connected_besides(&self, but: Rank) -> usize {
        let _ = but;
        0
    }
    /// Returns true if a peer shares memory with this rank. All rails to such a peer, and no others, are
    /// [`RailKind::Memory`]. The answer never changes, and is the same at both ranks.
    fn is_near(&self, peer: Rank) -> bool {
        let _ = peer;
        false
    }
    /// Ends all lanes to a peer. No event of them follows. After the call neither adapter nor peer accesses
    /// memory that requests to this peer named.
    fn abort_peer(&mut self, peer: Rank);

    /// Returns true if a failed connection is [`Cut`](Event::Cut) and its requests are [drained](Self::drain_failed) if
    /// there are several rails. If not, a failed connection ends with its peer.
    fn fails_over(&self) -> bool {
        false
    }

    /// Ends a lane after its [`Cut`](Event::Cut), or after the peer has reported one. After the call no
    /// request posted on it at either end takes effect. Packets that arrived on it, and completions known so
    /// far, have been or will be polled. Returns the other requests that this end had posted, in order; the
    /// engine owns their memory as if [taken](Self::take). No `Up` or `Cut` from before the call is polled
    /// after it.
    fn drain_failed(&mut self, lane: Lane) -> Vec<Left<Self::Memory>> {
        let _ = lane;
        Vec::new()
    }

    /// Allocates memory of this rank, for a message without a buffer. `None` if memory is exhausted.
    fn take(&mut self, length: usize) -> Option<Self::Memory>;
    /// Frees memory from [`take`](Self::take), or a slot that arrived.
    fn give(&mut self, memory: Self::Memory);
    /// Allocates zeroed memory that a peer may put to by the key, on rail 0: a ring for that peer. It is
    /// freed like other memory, after its key was released.
    fn ring(&mut self, peer: Rank, length: usize) -> Option<(Self::Memory, Key)>;
    /// Publishes two words beside a ring of this rank, and wakes the peer that writes there if it sleeps. The
    /// peer reads them at any time. A reader that sees the new first word never sees an older second word.
    /// `false` where rings are not in shared memory: the values must then go in a packet.
    fn publish(&mut self, peer: Rank, ring: &Self::Memory, words: [u64; 2]) -> bool {
        let _ = (peer, ring, words);
        false
    }
    /// The last words that a peer has published beside the ring of this key.
    fn published(&mut self, peer: Rank, ring: Key) -> Option<[u64; 2]> {
        let _ = (peer, ring);
        None
    }
    /// Returns true if this rank can put to a peer's [`ring`](Self::ring) of `length` bytes by this key. Called once,
    /// before the first put, where there is no other path.
    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        let _ = (lane, key, length);
        true
    }
    /// Returns true if a `Put` can use a lane that is up. Where sends use another transport the lane may have to be
    /// connected first; the call starts that.
    fn opens(&mut self, lane: Lane) -> bool {
        let _ = lane;
        true
    }
    /// Notes that this rank puts nothing more to this memory.
    fn leave(&mut self, lane: Lane, key: Key) {
        let _ = (lane, key);
    }
    /// Returns true if this rank can read memory that the peer offers on this lane. Called when a mover is chosen.
    fn reads(&mut self, lane: Lane) -> bool;
    /// Returns true if the peer may send the offered message sooner than this rank would read it, because the peer is
    /// blocked and idle.
    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        let _ = (lane, offered);
        false
    }
    /// Registers memory with the adapter of a lane. `None` if that is impossible or not worthwhile.
    fn register(&mut self, memory: &Self::Memory, lane: Lane) -> Option<Key>;
    /// Deregisters memory of a lane, or a ring (a lane of rail 0). After the call no peer can write by the
    /// key.
    fn release(&mut self, lane: Lane, key: Key);

    /// Key of memory that is registered on a rail to peers that are not near; `None` if it is not registered.
    fn key_of(&self, memory: &Self::Memory, rail: usize) -> Option<Key> {
        let _ = (memory, rail);
        None
    }
    /// Another handle on registered memory, if the key covers at least `length` bytes and allows writes where
    /// `written`. Valid until the registration ends.
    fn memory_of(&self, rail: usize, key: Key, length: usize, written: bool) -> Option<Self::Memory> {
        let _ = (rail, key, length, written);
        None
    }
    /// Opens a window: only the peer of `lane` can send datagrams to its pieces, and only by the returned
    /// key. `None` if the limit of windows is reached or none can be made.
    fn open_window(&mut self, lane: Lane, window: Window) -> Option<Key> {
        let _ = (lane, window);
        None
    }
    /// Closes a window. After the call no datagram arrives in it, and the pieces that did are in place.
    /// Returns the mask of these pieces.
    fn close_window(&mut self, rail: usize, window: Key) -> u64 {
        let _ = (rail, window);
        0
    }

    /// Posts a request.
    fn post(&mut self, lane: Lane, request: Request<'_, Self::Memory>) -> Result<(), Busy>;
    /// Posts a [`Request::Read`] from the start of the key's memory. `Ok(true)` if it completed at once, as
    /// is possible on shared memory; no event follows then.
    fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, Self::Memory>, token: u64) -> Result<bool, Busy> {
        self.post(lane, Request::Read { from, at: 0, into, token }).map(|()| false)
    }
    /// The next event; `None` if there is none now.
    fn poll(&mut self) -> Option<Event<Self::Memory>>;
    /// Current time in nanoseconds, from an arbitrary origin.
    fn now(&self) -> u64;
    /// Time of the next necessary [`poll`](Self::poll) if no event arrives earlier. It is set while a posted
    /// request is not known to have arrived, or an acknowledgement to a peer is pending. While it is set, a
    /// rank that leaves the job waits.
    fn due(&self) -> Option<u64> {
        None
    }
    /// Adds the wire's own counters since it was opened to those of its engine: losses that were repaired,
    /// and registered memory. A wire over other wires adds theirs as well.
    fn count(&self, counters: &mut Counters) {
        let _ = counters;
    }

    /// Hint: the mark of the next `Put` to this peer's ring is written at this offset, so that its cache line
    /// may be prefetched.
    fn prefetch_to_write(&self, _peer: Rank, _at: usize) {}
}
