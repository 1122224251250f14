//! Plans beside what collectives are by their definition, and on the simulator of messages. Each file is one behaviour.

mod interpret;
mod simulated;

mod deaths;
mod plans;
mod rules;
mod sim;
