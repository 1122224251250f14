//! Messages and pipes. Each file is one behaviour.

#[path = "../ranks/mod.rs"]
mod ranks;

mod basic;
mod buffer;
mod config;
mod first_send;
mod floods;
mod foreign_executor;
#[cfg(feature = "serde")]
mod objects;
mod partitioned;
mod pipe;
mod random;
mod rendezvous_read;
mod requests;
mod scopes;
