//! The channel's state machines, alone and in the simulator. Each file tests one behaviour.

mod model;

mod adapter;
mod checksum;
mod config;
mod connections;
mod cost;
mod datagrams;
mod deaths;
mod delivery;
mod failover;
mod floods;
mod hostile;
mod lengths;
mod machines;
mod packet;
mod pipe;
mod random;
mod rules;
mod short;
mod skeletons;
mod striping;
mod teams;
mod windows;
