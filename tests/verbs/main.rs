//! Properties of the provider verbs. Each file is one behaviour.
#![cfg(feature = "verbs")]

#[path = "../adapter/mod.rs"]
mod adapter;

mod costs;
mod costs_collectives;
mod costs_messages;
mod cuts;
mod failures;
mod large;
mod loss;
mod neighbours;
mod ports;
mod provider;
mod rails;
mod unconnected;
