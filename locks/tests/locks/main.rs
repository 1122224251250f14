//! The lock, post/start and the barrier in models, and the lock between threads. Each file is one behaviour; the
//! programs beside this one run the same code under loom.

// With loom, the lock's own mutex is loom's, which works in loom's models only.
#![cfg(not(feature = "loom"))]

mod atomics;
mod crowd;
#[path = "../mutants/mod.rs"]
mod mutants;

mod at_once;
mod awaited;
mod barrier;
mod chain;
mod drop;
mod exhaustive;
mod failures;
mod gate;
mod given_up;
mod leaving;
mod misuse;
mod mix;
mod pscw;
mod random;
mod starvation;
mod threads;
mod trace;
mod update_gate;
