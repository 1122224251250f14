#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![doc(html_root_url = "https://docs.rs/transom-locks/0.1.0")]

mod all_locks;
mod at_once;
mod barrier;
mod deadline;
mod error;
mod gate;
mod held;
mod layout;
mod line;
mod lock_status;
mod lock_word;
pub mod model;
mod network;
mod one_lock;
mod passive;
mod primitive;
mod pscw;
mod release;
mod shared;
mod target_lock;
mod threads;
mod update_gate;

pub use barrier::Barrier;
pub use error::Error;
pub use held::Held;
pub use layout::{Field, LockLayout};
pub use lock_word::LockWord;
pub use network::{At, Awaited, FoundWord, Network, Rank, Wake};
pub use one_lock::{Begun, OneLock};
pub use passive::{Mode, PassiveLock};
pub use pscw::Pscw;
pub use target_lock::{QueuePosition, TargetLock};
pub use update_gate::{Run, UpdateGate};
