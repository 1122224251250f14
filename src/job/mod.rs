//! Jobs: starting the ranks of a program, and how they find each other. What ranks then do with each other is not known
//! here.
//!
//! [`launcher`] starts ranks; [`bootstrap`] joins them, whatever started them. Both use [`tcp`], the exchange of ranks on
//! several hosts, and [`variables`], the environment.

pub(crate) mod bootstrap;
mod descriptors;
pub mod launcher;
pub(crate) mod process;
pub(crate) mod tcp;
pub mod variables;
