#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod packet;
mod slab;
pub mod wire;

pub use slab::{Id, Slab};
pub use wire::{Rank, Wire};
