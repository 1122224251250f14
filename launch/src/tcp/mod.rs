//! The exchange between ranks on several hosts. Each rank has a connection to the hub, which the launcher runs, or rank 0 if
//! another launcher started the ranks. Where an agent started the ranks of a host, one TCP connection of the agent carries
//! theirs ([`uplink`]). The exchange carries the out-of-band data of collective creation, and reports ranks that left or
//! died. Application data goes through a provider.
//!
//! Each side of a connection proves that it knows the job's secret before the other side trusts any byte, and all data
//! are encrypted ([`wire`]). A connection that ends before its rank said that it leaves means that the rank died. A
//! vanished host is detected within ten seconds of its last sign of life; a rank that computes or is stopped counts as
//! alive ([`silence`]).

mod channels;
mod connection;
mod contact;
mod exchange;
mod frames;
mod hub;
mod silence;
#[cfg(test)]
mod tests;
mod uplink;
mod wire;

pub(crate) use contact::{Addresses, Contact};
pub use exchange::Tcp;
pub(crate) use exchange::{HubAt, JoinError};
pub(crate) use hub::Hub;
pub(crate) use uplink::Uplink;
pub(crate) use wire::Secret;
