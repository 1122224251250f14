//! The hybrid of shared memory and a network, on threads of one process that pretend to be on two hosts.

mod messages;
mod network;
mod rma;
mod wire;
