//! Model networks for checking protocols made of [`Network`](crate::Network). The code under check is the code that
//! ships; only the verbs under it are the model's.
//!
//! * [`Sim`] keeps a whole network as plain data. It runs every schedule of the verbs ([`Sim::explore`]), or random
//!   ones with many ranks ([`Sim::run_random`]). Verbs are sequentially consistent; with [`Delivery::Deferred`]
//!   notifications stay in flight for a while, as on a network adapter.
//!   [`Deliver`] describes a network of your own. Programs that run for ever are searched for starvation
//!   ([`Search::starvation`]).
//! * [`failing`] lets a verb of a rank fail, or its network die, on either network.
//! * `loom` (feature `loom`) runs ranks as threads under the C11 memory model, and finds orderings that are too weak.
//!   Its page tells how to set up such a check, how far to go, and what to do when it fails.
//!   `cargo doc -p transom-locks --features loom --open` builds it.
//!
//! # Checking your own protocol
//! Ranks draw numbers. The first version reads and then swaps, and ignores whether the swap succeeded:
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
//! let failure = wrong.explore(10_000).unwrap_err().violation().unwrap();
//! assert!(failure.what.contains("two ranks have one number"), "{failure}");
//!
//! let right = Sim::new(3, 4, sim::once(|_, network| mark(network, network.add(word(0), 1, Wake::Home)?)));
//! right.explore(10_000).unwrap(); // every schedule of three ranks
//!
//! // Many ranks, some schedules. A failure names its seed; run_random with that seed repeats it.
//! let many = Sim::new(40, 41, sim::once(|_, network| mark(network, network.add(word(0), 1, Wake::Home)?)));
//! for seed in 0..20 {
//!     many.run_random(seed).unwrap();
//! }
//! ```
//! A condition on states, rather than on one rank's results, belongs into [`Program::check`]. A condition on steps is a
//! monitor ([`Sim::explore_with`]); an [`OrderBook`] in its memory checks first come, first served. A violation prints a
//! shortest schedule ([`Trace`]).
//!
//! # Checking the lock under your own mix of requests
//! [`Mix`] runs rows of calls on the passive lock under a [`FifoOracle`]. The oracle checks that no request is
//! overtaken, that readers share, that no call exceeds its cost, and that all words are idle at the end. [`Mix::sim`]
//! runs the mix on a simulated network; `Mix::loom` (feature `loom`) runs it in loom.
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
//! [`Sim::explore`] keeps about 40 bytes for each state, and finds a shortest schedule to a violation. [`Search`] bounds its
//! memory, and a monitor of steps ([`Sim::explore_with`]) checks properties of schedules.

mod bounds;
mod call;
mod delivery;
mod event;
mod explore;
pub mod failing;
mod fifo_oracle;
mod fingerprint;
#[cfg(feature = "loom")]
pub mod loom;
mod memory;
mod mix;
mod names;
mod order_book;
mod program;
mod replay;
pub mod sim;
mod starvation;
mod state;
mod sync_oracle;
mod tla;
mod trace;

pub use bounds::Bound;
pub use call::{Call, Group, Handles};
pub use delivery::{Deliver, Delivery};
pub use event::{Action, Event};
pub use explore::{Explored, Search, Stopped};
pub use fifo_oracle::{FifoOracle, Verb};
pub use mix::Mix;
pub use order_book::OrderBook;
pub use program::Program;
pub use sim::{Failure, Replay, Sim, Step, Suspended};
pub use state::SimState;
pub use tla::NotExported;
pub use trace::Trace;
