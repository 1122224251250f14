//! Windows of memory that every rank exposes, epochs as types, and what a provider must sign to carry them.
//!
//! [`Window`] is what a program holds; a call that synchronises opens an epoch, and the epoch lends [`Target`]s, which
//! have every operation. [`Fabric`] is the provider underneath. The protocols that only need words (lock, fence) come
//! from `transom-locks`.

mod accumulate;
pub mod array;
mod array_error;
mod assertions;
mod attached;
mod bulk;
mod core;
mod counters;
mod delayed;
mod epoch;
mod error;
mod fabric;
mod flavor;
mod guard;
mod guarded;
mod local;
mod op;
mod request;
mod section;
mod segment;
mod signals;
mod target;
mod user_memory;
mod waiting;
mod window;
mod words;

pub use array::{Distribution, GlobalArray, GlobalPtr};
pub use assertions::Assert;
pub use attached::{Address, Attached};
pub use counters::Counters;
pub use delayed::Delayed;
pub use epoch::{AccessEpoch, FenceEpoch, LockAllEpoch, LockEpoch, ThreadTargets};
pub use error::Error;
pub use fabric::{Exchange, Fabric, FabricError, Wake};
pub use flavor::Flavor;
pub use guard::{ReadGuard, WriteGuard};
pub use guarded::{GlobalMutex, GlobalRwLock};
pub use local::Local;
pub use op::{Atomic, Op};
pub use request::{Request, Requests};
pub use section::Section;
pub use signals::Signals;
pub use target::Target;
/// Exclusive or shared: how a lock is taken.
pub use transom_locks::Mode;
pub use user_memory::UserMemory;
pub use waiting::{Look, Wait, Waiting};
pub use window::Window;
