//! Properties of the provider verbs. Each file is one behaviour.
#![cfg(feature = "verbs")]

#[path = "../adapter/mod.rs"]
mod adapter;

mod adapters;
mod connections;
mod costs;
mod costs_collectives;
mod costs_messages;
mod datagram_rails;
mod failures;
mod host_peers;
mod host_words;
mod large;
mod moved;
mod order;
mod packet_classes;
mod packet_loss;
mod ports;
mod provider;
mod rail_failures;
mod rails;
mod registrations;
mod unconnected;
mod unreached;
