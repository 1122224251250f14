//! Windows of memory that every rank exposes, epochs as types, and the contract of a provider that carries them.
//!
//! A program holds a [`Window`]. A call that synchronises opens an epoch, and the epoch lends [`Target`]s, which have
//! every operation. [`Fabric`] is the provider underneath. The protocols that need only words (lock, fence) come from
//! `transom-locks`.
#![doc(html_root_url = "https://docs.rs/transom-windows/0.1.0")]

mod accumulate;
mod active;
mod address;
pub mod array;
mod array_error;
mod assert;
mod assertions;
mod attached;
mod buffer;
mod caller;
mod checks;
mod core;
mod counters;
mod delayed;
mod dropped;
mod element;
mod elements;
mod epoch;
mod error;
mod fabric;
mod fabric_error;
mod flags;
mod flavor;
mod guard;
mod guarded;
mod local;
mod memory;
mod multi_lock;
mod number;
mod op;
mod request;
mod scope;
mod section;
mod segment;
mod signals;
mod target;
mod updates;
mod user_memory;
mod value;
mod value_name;
mod view;
mod waiting;
mod window;
mod word_wait;
mod words;

pub use address::{Address, Attached};
pub use array::{Distribution, GlobalArray, GlobalPtr};
pub use assert::Assert;
pub use buffer::Buffer;
pub use bytemuck::allocation::BoxBytes;
pub use counters::Counters;
pub use delayed::Delayed;
pub use element::Element;
pub use epoch::{AccessEpoch, FenceEpoch, LockAllEpoch, LockEpoch, ThreadTargets};
pub use error::Error;
pub use fabric::{Fabric, OobExchange, UpdateInPlace};
pub use fabric_error::{FabricError, remedy};
pub use flags::GlobalFlags;
pub use flavor::Flavor;
pub use guard::{ReadGuard, WriteGuard};
pub use guarded::{GlobalMutex, GlobalRwLock};
pub use local::Local;
pub use memory::BufferMemory;
pub use multi_lock::LockRanksEpoch;
pub use number::Number;
pub use op::{Atomic, Op};
pub use request::Request;
pub use scope::{Scope, scope};
pub use section::Section;
pub use signals::Signals;
pub use target::Target;
/// The mode in which a lock is taken: exclusive or shared.
pub use transom_locks::Mode;
/// True if a verb wakes the rank at which its word lies.
pub use transom_locks::Wake;
pub use user_memory::{Owner, UserMemory};
pub use value_name::ValueName;
pub use waiting::{Look, Wait, Waiting, after_empty_poll, has_own_core};
pub use window::Window;
