//! The program `transom` as a user calls it: starting ranks, their environment, and benchmarks. Each file is one
//! behaviour.

mod copies;
#[cfg(feature = "verbs")]
#[path = "../../../tests/adapter/library.rs"]
mod fake_adapter;
#[path = "../../../tests/ranks/mod.rs"]
mod ranks;

mod bench;
mod bootstrap;
mod culprit;
mod doctor;
#[cfg(feature = "verbs")]
mod doctor_rails;
mod help;
#[cfg(feature = "verbs")]
mod info;
mod launcher;
mod launcher_hosts;
mod leaving;
mod limits;
mod namespaces;
mod nesting;
mod operating;
mod renamed;
mod verify;
