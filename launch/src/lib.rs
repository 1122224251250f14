#![doc = include_str!("../README.md")]
#![doc(html_root_url = "https://docs.rs/transom-launch/0.1.0")]

pub mod bootstrap;
mod descriptors;
mod interfaces;
pub mod launcher;
mod listen;
mod listen_at;
mod lock;
mod process;
mod random;
mod ranges;
mod tcp;
pub mod variables;

pub use interfaces::{Interface, interfaces};
pub use listen::listen;
pub use listen_at::{ListenAt, ListenError, Ports, Selector};
pub use lock::lock;
pub use random::random;
pub use tcp::Tcp;
