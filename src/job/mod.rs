//! Jobs: starting the ranks of a program, and how they find each other. What they then do with each other is not known
//! here.

pub(crate) mod bootstrap;
pub mod launcher;
pub(crate) mod tcp;
pub mod variables;
