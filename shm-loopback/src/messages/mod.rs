//! Messages in shared memory: the wire of `transom-channel` ([`ShmWire`]), and how a rank waits for messages.
//!
//! # Memory
//! Each rank has an inbox from the time it joins, whatever the number of peers: 64 cells of 16 KiB, and one bit per
//! peer ([`inbox_bytes`]). Untouched pages use no memory. Each of the few peers that it receives from most
//! ([`Config::rings`](transom_channel::Config::rings)) also gets a ring of its own, created once that pair has
//! exchanged enough messages ([`ring_bytes`]).
//!
//! The message memory of a rank is therefore at most `inbox_bytes(ranks) + rings x ring_bytes(slots x bytes)` bytes for
//! all peers, plus the messages that the engine keeps ([`Engine::kept`](transom_channel::Engine::kept)).

mod bytes;
pub(crate) mod inbox;
mod joint;
mod peer_failure;
mod reading;
mod wait;
mod wire;

pub use crate::progress::ProgressHook;
pub use bytes::{Bytes, Lasting, Owner, WireCache};
pub use inbox::{CELLS, inbox_bytes, ring_bytes};
pub(crate) use joint::FROM_ANY as BOTH_COPY_FROM;
pub use wait::{Arrivals, Look, Naps, Waiter};
pub use wire::ShmWire;
