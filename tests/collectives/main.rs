//! Collectives. Each file is one behaviour.

#[path = "../ranks/numbers.rs"]
mod numbers;
#[path = "../ranks/mod.rs"]
mod ranks;

mod grid;
mod mistakes;
mod random;
mod results;
mod started;
mod threads;
