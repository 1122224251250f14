//! Datagrams that may be lost, come twice, late or spoiled, and each packet once all the same.
//!
//! [`Outgoing`] and [`Incoming`] are the two halves for one peer: pure, and told the time. [`Delivery`] is a
//! [`Wire`](crate::Wire) made of them and of another wire whose sends may be lost.
//!
//! A packet has a number among those to its peer, and each time that it goes another among all that went: so what came says
//! which time of sending it was, for round trips and for what is missing. Acknowledgements name all before a number, a mask
//! of the 64 after it, and the newest time of sending that has come; they ride on whatever goes back, or go alone, late.
//!
//! Packets are delivered in the order in which they come, once: who needs order has a [`sequence`](crate::sequence).
//!
//! Where the wire below has [windows](crate::Wire::open_window), what is written goes by datagrams too, into its place, each piece
//! once; what of it is lost is found out by its receiver, window by window.

mod arrange;
mod header;
mod incoming;
mod note;
mod outgoing;
mod packet;
mod round;
mod windows;
mod wire;

pub use arrange::{Place, arrange};
pub use header::{HEADER, Header, Kind, Spoiled};
pub use incoming::{Come, Incoming};
pub use outgoing::{Acknowledgement, Expired, Outgoing};
pub use round::RoundTrip;
pub use wire::Delivery;

/// Packets to one peer that are not acknowledged at most: as many as a mask tells of.
pub const FLYING: u64 = 64;

/// Times and choices of a rank. Times are nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// What is not acknowledged is sent again after as much at least.
    pub floor: u64,
    /// And after as much at most, however often that was in vain.
    pub ceiling: u64,
    /// A peer of whom nothing is heard for so long, while something is under way to it, is not reached any more.
    pub give_up: u64,
    /// An acknowledgement that nothing takes along goes alone after this; much less than the floor, or what has come is sent
    /// again.
    pub delay: u64,
    /// Packets that come before one goes alone at once.
    pub every: u32,
    /// Whether packets that this rank sends bring a checksum, which who has them compares.
    pub checksum: bool,
    /// Datagrams that may come to this rank before it looks, from all its peers together.
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
