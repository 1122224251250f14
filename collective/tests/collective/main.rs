//! Plans compared with the definitions of collectives, and executed on the message simulator. Each file is one
//! behaviour.

mod interpret;
mod simulated;

mod deaths;
mod plans;
mod rules;
mod sim;
