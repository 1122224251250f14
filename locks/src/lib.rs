#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod barrier;
mod error;
pub mod model;
mod passive;
mod primitive;
mod pscw;
mod seat;
mod word;
mod words;

pub use barrier::Barrier;
pub use error::Error;
pub use passive::{Mode, PassiveLock};
pub use pscw::Pscw;
pub use seat::{Ahead, Field, Places, Seat};
pub use word::Word;
pub use words::{At, Awaited, Rank, Words};
