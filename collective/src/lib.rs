//! Collectives as plans.
//!
//! A [`Plan`] is one rank's part of a collective: in each round it sends and receives spans of its memory, then copies
//! and folds them. Plans are pure data in units of elements, independent of types, operations and network. One runner
//! therefore executes all of them, blocking or not, and a test interprets them for a thousand ranks.
//!
//! ```
//! use transom_collective::{Call, Rules, Shape, choose};
//!
//! // Rank 2 of 8, one element, an operation that commutes.
//! let shape = Shape { rank: 2, ranks: 8, len: 1, element: 8, hosts: None };
//! let algorithm = choose::best(Call::AllReduce { commutes: true }, shape, &Rules::default());
//! let plan = algorithm.plan(Call::AllReduce { commutes: true }, shape);
//! assert_eq!(algorithm.name(), "recursive_doubling");
//! assert_eq!(plan.rounds.len(), 3);
//! ```
#![forbid(unsafe_code)]
#![doc(html_root_url = "https://docs.rs/transom-collective/0.1.0")]

mod algorithms;
pub mod choose;
mod hosts;
mod plan;
mod rules;

pub use algorithms::{
    Algorithm, Grid, Hierarchical, Layout, Stage, all_gather_v, all_to_all_sections, all_to_all_v, by_hosts, gather_v,
    neighbours, reduce_scatter_v, scatter_v,
};
pub use hosts::{Hosts, Rank};
pub use plan::{Call, Local, Order, Plan, PlanBuffer, Round, Shape, Span, block};
pub use rules::{Rules, RulesError};
