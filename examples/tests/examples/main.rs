//! The examples as a user runs them. Each file is one behaviour.

mod built;

mod logging;
mod results;
