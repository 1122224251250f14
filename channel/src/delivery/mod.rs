//! Reliable delivery over datagrams that may be lost, duplicated, late or corrupted. Each packet is delivered
//! once.
//!
//! [`Outgoing`] and [`Incoming`] are the two halves for one peer. Both are pure state machines; callers pass
//! the time. [`Delivery`] is a [`Wire`](crate::Wire) made of them and of another wire whose sends may be
//! lost.
//!
//! A packet has a sequence number for its peer. Each transmission of it has a number among all transmissions.
//! So a received datagram identifies its transmission, for measuring round trips and detecting losses. An
//! acknowledgement covers all packets before a number, the 64 after it by a mask, and names the newest
//! transmission received. Datagrams in the other direction carry acknowledgements; after a delay they go
//! alone.
//!
//! Packets are delivered once, in the order of arrival. Users that need order use a
//! [`sequence`](crate::sequence).
//!
//! Writes go by datagrams too if the wire below has [windows](crate::Wire::open_window): each piece goes into
//! place without a copy. The receiver detects lost pieces, window by window.

mod arrange;
mod header;
mod incoming;
mod note;
mod outgoing;
mod packet;
mod round;
mod windows;
mod wire;

pub use arrange::{PieceLoc, arrange};
pub use header::{HEADER, Header, Kind, Spoiled};
pub use incoming::{Come, Incoming};
pub use outgoing::{Acknowledgement, Expired, Outgoing};
pub use round::RoundTrip;
pub use wire::Delivery;

/// Most packets to one peer that may be unacknowledged: the number of bits in a mask.
pub const FLYING: u64 = 64;

/// Timers and options of a rank. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Shortest resend timeout.
    pub floor: u64,
    /// Longest resend timeout, after any number of timeouts.
    pub ceiling: u64,
    /// Time without any datagram from a peer, while packets to it are in flight, after which the peer is
    /// unreachable.
    pub give_up: u64,
    /// Delay after which an acknowledgement goes alone. It must be much shorter than the floor, or received
    /// packets are resent.
    pub delay: u64,
    /// Number of packets received after which an acknowledgement goes alone at once.
    pub every: u32,
    /// True if packets that this rank sends carry a checksum, by connections as well. Receivers verify checksums where
    /// present. The same at all ranks that have connections.
    pub checksum: bool,
    /// Datagrams from all peers together that may arrive at this rank between two polls.
    pub room: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            floor: 500_000,
            ceiling: 1_000_000_000,
            give_up: 120_000_000_000,
            delay: 100_000,
            every: 16,
            checksum: false,
            room: 1024,
        }
    }
}
