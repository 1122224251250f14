//! Model networks, on which protocols made of [`Words`](crate::Words) are checked as they ship.

mod book;
#[cfg(feature = "loom")]
pub mod loom;
mod memory;
mod program;
mod replay;
pub mod sim;

pub use book::{Book, Call, Verb};
pub use program::{Mix, Program};
pub use sim::{Delivery, Failure, Replay, Sim, State, Step, Suspended};
