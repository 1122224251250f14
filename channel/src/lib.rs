#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod credit;
pub mod matching;
mod meter;
pub mod packet;
pub mod polling;
pub mod rendezvous;
pub mod ring;
pub mod sequence;
mod slab;
pub mod wire;

pub use meter::Meter;
pub use slab::{Id, Slab};
pub use wire::{Rank, Wire};
