#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod barrier;
mod error;
mod lock_word;
pub mod model;
mod network;
mod passive;
mod primitive;
mod pscw;
mod target_lock;

pub use barrier::Barrier;
pub use error::Error;
pub use lock_word::LockWord;
pub use network::{At, Awaited, Network, Rank};
pub use passive::{Mode, PassiveLock};
pub use pscw::Pscw;
pub use target_lock::{Ahead, Field, LockLayout, TargetLock};
