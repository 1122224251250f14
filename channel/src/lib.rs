#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![doc(html_root_url = "https://docs.rs/transom-channel/0.1.0")]

mod config;
pub mod connection;
mod counters;
pub mod credit;
pub mod delivery;
mod engine;
mod error;
pub mod matching;
pub mod packet;
pub mod pipe;
pub mod polling;
pub mod rendezvous;
pub mod ring;
pub mod rules;
pub mod sequence;
pub mod sim;
mod slab;
pub mod striping;
mod teams;
mod tuner;
pub mod wire;

pub use config::{Changes, Config, FIELDS, Field, Misconfigured, NAMED, Named, Paths};
pub use counters::Counters;
pub use engine::{AtPeer, Cancelled, Channels, Completion, Engine, RecvBuf, RecvInfo, RecvTarget, Short, Waits};
pub use error::{Error, PeerFailure, Status};
pub use matching::Select;
pub use slab::{Id, Slab};
pub use wire::{Rank, Wire};
