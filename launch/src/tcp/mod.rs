//! The exchange of ranks on several hosts: each rank has a TCP connection to the hub, which the launcher runs, or rank 0
//! if another launcher started the ranks. The exchange carries what ranks tell each other when they make something
//! together, and which of them have left or died. Data goes through a provider.
//!
//! Each side of a connection proves that it knows the job's secret before the other believes anything else, and all is
//! encrypted ([`wire`]). A connection that ends before its rank said that it leaves means that the rank died. That a host
//! vanished is noticed ten seconds after its last sign of life; a rank that computes, or is stopped, is alive ([`silence`]).

mod connection;
mod contact;
mod exchange;
mod frames;
mod hub;
mod silence;
#[cfg(test)]
mod tests;
mod wire;

pub(crate) use contact::{Addresses, Contact};
pub use exchange::Tcp;
pub(crate) use exchange::{HubAt, JoinError};
pub(crate) use hub::Hub;
pub(crate) use wire::Secret;
