//! Windows, epochs, operations, locks, arrays and values behind locks. Each file is one behaviour.

#[path = "../arithmetic/mod.rs"]
mod arithmetic;
#[path = "../overlap/mod.rs"]
mod overlap;
#[path = "../patches/mod.rs"]
mod patches;
#[path = "../ranks/mod.rs"]
mod ranks;

mod accumulate;
mod allocate;
mod array;
mod array_elements;
mod assertions;
mod atomics;
mod attached;
mod cost;
mod fence;
mod flags;
mod guarded;
mod halo;
mod layouts;
mod lock_ranks;
mod locks;
mod long_accumulates;
mod mixed;
mod mutexes;
mod operations;
mod owners;
mod programs;
mod pscw;
mod put_get;
mod requests;
mod scope;
mod sections;
mod signals;
mod user_memory;
mod views;
mod windows;
