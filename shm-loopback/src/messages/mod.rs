//! Messages on memory that ranks share: the wire of `transom-channel` ([`ShmWire`]), and how a rank waits for what comes by
//! it.
//!
//! # Memory
//! A rank has an inbox from when it joins, however many peers it has: 64 cells of 16 KiB, and a bit for each peer
//! ([`inbox_bytes`]). Pages of it that were never used take none. Each of the few peers that it hears from most
//! ([`Config::rings`](transom_channel::Config::rings)) has a ring of its own beside it, made when that pair has talked a
//! while ([`ring_bytes`]). So a rank has at most
//! `inbox_bytes(ranks) + rings x ring_bytes(slots x bytes)` bytes of memory for messages of all peers, and what is kept of
//! them ([`Engine::kept`](transom_channel::Engine::kept)).

mod bytes;
mod gone;
pub(crate) mod inbox;
mod joint;
mod reading;
mod wait;
mod wire;

pub use crate::progress::Turn;
pub use bytes::{Bytes, Lasting, Owner, Place};
pub use inbox::{CELLS, inbox_bytes, ring_bytes};
pub(crate) use joint::FROM_ANY as BOTH_COPY_FROM;
pub use wait::{Look, Naps, Waiter};
pub use wire::ShmWire;
