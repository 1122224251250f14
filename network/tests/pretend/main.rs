//! Tests of the hybrid of shared memory and a network, on threads that simulate ranks on two hosts.

mod messages;
mod network;
mod rma;
mod wire;
