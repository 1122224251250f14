//! Model networks, on which protocols made of [`Network`](crate::Network) are checked as they ship: the code under
//! check is the code that runs on a real network, and only the verbs under it are the model's.
//!
//! * [`Sim`], where a whole network is plain data: every schedule of the verbs ([`Sim::explore`]), or random ones with
//!   many ranks ([`Sim::run_random`]). Verbs are sequentially consistent; with [`Delivery::Deferred`] notifications are
//!   under way for a while, as on a network adapter.
//! * `loom` (feature `loom`), where ranks are threads under the C11 memory model: it finds orderings that are too weak.
//!   Its page says how to set such a check up, how far to go, and what to do when it fails.
//!
//! # A protocol of one's own
//! Ranks take numbers. The first attempt reads and then swaps, and does not look whether the swap succeeded:
//! ```
//! use transom_locks::model::{sim, Sim};
//! use transom_locks::{At, Error, Network, Wake};
//!
//! fn word(word: usize) -> At { At { rank: 0, word } }
//! fn mark<N: Network>(network: &N, number: u64) -> Result<(), Error<N::Error>> {
//!     match network.add(word(1 + number as usize), 1, Wake::Home)? {
//!         0 => Ok(()),
//!         _ => Err(Error::Epoch("two ranks have one number")),
//!     }
//! }
//!
//! let wrong = Sim::new(3, 4, sim::once(|_, network| {
//!     let number = network.add(word(0), 0, Wake::Home)?;
//!     network.cas(word(0), number, number + 1, Wake::Home)?;
//!     mark(network, number)
//! }));
//! let failure = wrong.explore(10_000).unwrap_err();
//! assert!(failure.what.contains("two ranks have one number"), "{failure}");
//!
//! let right = Sim::new(3, 4, sim::once(|_, network| mark(network, network.add(word(0), 1, Wake::Home)?)));
//! right.explore(10_000).unwrap(); // every schedule of three ranks
//!
//! // Many ranks, some schedules. A failure names its seed, and run_random of that seed shows it again.
//! let many = Sim::new(40, 41, sim::once(|_, network| mark(network, network.add(word(0), 1, Wake::Home)?)));
//! for seed in 0..20 {
//!     many.run_random(seed).unwrap();
//! }
//! ```
//! What is to be true of states, rather than of one rank's results, is a [`Program::check`].
//!
//! # The lock under one's own mix
//! [`Mix`] runs rows of calls on the passive lock, and keeps an order [`Book`] of them: nobody is overtaken, readers
//! share, no call costs more than it should, and all is idle at the end. [`Mix::sim`] runs it on a simulated network;
//! with the feature `loom`, `Mix::loom` runs it in loom.
//! ```
//! use transom_locks::model::{Call, Mix};
//! use transom_locks::Mode::{Exclusive, Shared};
//!
//! // Ranks read a table twice while another changes it, and then reads one at rank 1.
//! let reads = Call::both(0, Shared).repeat(2);
//! let changes = [Call::both(0, Exclusive), Call::both(1, Shared)].concat();
//! let net = <Mix>::new([reads.clone(), changes.clone()]).sim();
//! assert!(net.explore(100_000).unwrap() > 100);
//! let net = <Mix>::new([vec![changes], vec![reads; 20]].concat()).sim();
//! for seed in 0..20 {
//!     net.run_random(seed).unwrap();
//! }
//! ```
//! [`Sim::explore`] keeps every state; for many millions of states give [`Sim::steps`] and [`Sim::step`] to a model
//! checker, as `tests/exhaustive.rs` does with stateright.

mod book;
#[cfg(feature = "loom")]
pub mod loom;
mod memory;
mod mix;
mod program;
mod replay;
pub mod sim;
mod state;

pub use book::{Book, Call, Verb};
pub use mix::Mix;
pub use program::Program;
pub use sim::{Delivery, Failure, Replay, Sim, Step, Suspended};
pub use state::State;
