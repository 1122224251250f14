//! The provider for ranks on several machines: InfiniBand and RoCE, by libibverbs. Behind the cargo feature `verbs`.
//!
//! A remote put, get or atomic is a request to the adapter, which executes it on registered memory of the target while the
//! target does something else, or sleeps. TRANSOM_FABRIC=verbs chooses it where shared memory would do (for tests);
//! TRANSOM_VERBS_ variables say which device and how ([`crate::job::variables`]).
//!
//! # Queue pairs
//! One reliable connection for each pair of ranks that need each other, made when either first does: a thread of each
//! rank answers the requests of others, by datagrams. [`Verbs::queue_pairs`] counts them,
//! [`Verbs::work_requests_to_others`] what was posted to them.
//!
//! The datagrams are authenticated with a secret that each rank tells the others through the job's exchange, so that nobody
//! else has a queue pair connected elsewhere. The connections of a pair are numbered by generations: both have one queue
//! pair in each, and where either lost its own, the next is agreed upon as the first was. That thread alone makes and
//! connects queue pairs, while it holds no lock; an operation waits for the connection that it needs, and for no other.
//!
//! # Silence
//! A peer that does not answer is asked on, each second in the end, and the log says so ever more rarely: it may be stopped,
//! and only the job says who died. With the connection it is the peer's adapter that answers. An adapter that tells that
//! packets are not acknowledged (some seconds, by TRANSOM_VERBS_TIMEOUT), or that completes nothing for 20 seconds, and a
//! port that is down for 5 seconds while a connection is wanted, are errors: the rank cannot be reached, and all are told.
//!
//! # Words
//! Atomics of a processor and of an adapter are not atomic towards each other. So the adapter executes them all, those of
//! the home rank too, through a queue pair that leads from a rank to itself. Where data moves through the memory that
//! ranks of a host share (`TRANSOM_HYBRID`), a rank reaches its neighbours' words in the same way, by a registration of its
//! own of their memory: p queue pairs on a host of p ranks. Memory that the program lends to a window is not shared; its
//! words and data go through the connection to its rank.
//!
//! # Order
//! What one rank does at another is done in order. What it does at several is not, so after
//! [`order`](transom_windows::Fabric::order) a verb to one waits until the others have acknowledged.
//!
//! # What is not here
//! Ranks that are threads ([`crate::threads`]) share memory, whatever TRANSOM_FABRIC says. A connection that failed stays
//! so for the rank whose operation failed, though its peer may get another; an access to memory that is no longer registered ends the connection between the two. Words that change wake
//! nobody: a waiter naps in steps of up to half a millisecond. The memory of a rank that died is gone.
//!
//! # Leaving
//! Dropping a window, or detaching memory, is not collective: the memory stays registered until all have let go of it,
//! as they tell each other when they next make a window or pass a barrier of the world together, or until all have left
//! the job. So memory that the program lent may be registered for a while after it has it back.
//!
//! The last handle on the job, when dropped, says that this rank has left, and returns when the others have, or soon if
//! one died. A team keeps the job that it was made in.
//!
//! # Building
//! `ibverbs-sys` makes the bindings: it needs cmake, pkg-config, libclang, libnl-3-dev, libnl-route-3-dev and
//! libibverbs-dev (the names in Debian). What is built needs none of these, and finds libibverbs when it starts, or says
//! that there is none.

mod bootstrap;
mod connect;
mod counts;
mod datagram;
mod deferred;
mod device;
mod engine;
mod error;
mod fabric;
mod library;
mod member;
mod memory;
mod queue;
pub(crate) mod settings;
mod wait;

pub use bootstrap::{Bootstrap, Node};
pub use counts::{QueuePairs, WorkRequests};
pub use error::VerbsError;
pub use fabric::{Pending, Reading, Region, Remote, Verbs};

/// Opens the device that a job would use, and describes it in a line.
///
/// # Errors
/// Why there is none: [`VerbsError`].
///
/// # Examples
/// See [`VerbsError`].
pub fn probe() -> Result<String, VerbsError> {
    let settings = settings::Settings::from_env()?;
    Ok(device::Device::open(&settings)?.describe())
}

/// What is wrong with the value of a TRANSOM_VERBS_ variable, if something is.
pub fn mistake(name: &str) -> Option<crate::job::variables::VariableError> {
    settings::mistake(name)
}
