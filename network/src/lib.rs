#![doc = include_str!("../README.md")]

mod bootstrap;
mod deferred_free;
mod error;
mod hybrid;
mod network;
mod node;
mod transport;
pub mod variables;
mod wire;

pub use bootstrap::Bootstrap;
pub use deferred_free::DeferredFree;
pub use error::NetworkError;
pub use hybrid::{Direct, Far, Hybrid, Mapped};
pub use network::{Atomics, Attach, MemoryKind, Network};
pub use node::Node;
pub use transport::{NetworkWire, Transport};
pub use wire::HybridWire;
