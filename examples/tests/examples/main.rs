//! Runs the examples as a user does. Each file tests one behaviour.

mod built;

mod logging;
mod nas;
mod results;
