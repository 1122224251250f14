//! The provider for ranks on several machines: InfiniBand and RoCE, by libibverbs. Programs have it by the cargo feature `verbs` of `transom`.
//!
//! A remote put, get or atomic is a request to the adapter, which executes it on registered memory of the target while the
//! target does something else, or sleeps. TRANSOM_FABRIC=verbs chooses it where shared memory would do (for tests);
//! TRANSOM_VERBS_ variables say which device and how ([`variables`]).
//!
//! # Layers
//! Each knows only those above it in this table; what decides is tested against queues that pretend.
//!
//! | module | |
//! |---|---|
//! | `wr` | a work request, its token, its completion: the words of all layers |
//! | `sys` | what libibverbs has, freed when dropped; no policy |
//! | `rail` | device, port, GID, protection domain, completion queues; which are chosen; whether they work |
//! | `memory` | slots, leases of registered memory, keys (one for each rail), what is kept for others |
//! | `receive` | what comes by messages: buffers that all queue pairs share |
//! | `lane` | one reliable queue pair after the other: numbers of requests, signalling now and then, what is lent, what is to be done again; a lock of its own |
//! | `endpoint` | the lanes to peers, and the order of what a thread does at several |
//! | `progress` | takes completions and hands each to the lane that its token names |
//! | `datagram` | unreliable datagrams: those that ask for connections, and messages |
//! | `connect` | connections on demand: what both agree by, and the thread that does it |
//! | `messages` | the `Wire` of messages between ranks that share no memory |
//! | `rma` | the `Network` of windows, and collectives over lanes |
//!
//! # Queue pairs
//! One reliable connection for each pair of ranks that need each other, made when either first does: a thread of each
//! rank answers the requests of others, by datagrams. [`Verbs::queue_pairs`] counts them,
//! [`Verbs::work_requests_to_others`] what was posted to them.
//!
//! The datagrams are authenticated with a secret that each rank tells the others through the job's exchange, so that nobody
//! else has a queue pair connected elsewhere. The connections of a pair are numbered by generations: both have one queue
//! pair in each, and where either lost its own, the next is agreed upon as the first was. That thread alone makes and
//! connects queue pairs, while it holds no lock; an operation waits for the connection that it needs, and for no other. Once
//! a second it looks for connections that broke while the rank did something else.
//!
//! A lane's lock is held while a request is posted or its queue pair ends, and never over copies or making queue pairs, nor over
//! registration, unless the lane is by another rail, which registers what a request names; completions are told without it. So threads of
//! a rank with different peers do not wait for each other.
//!
//! # Words
//! Atomics of a processor and of an adapter are not atomic towards each other. So the adapter executes them all, those of
//! the home rank too, through a queue pair that leads from a rank to itself. Where data moves through the memory that
//! ranks of a host share (`TRANSOM_HYBRID`), a rank reaches the words of its neighbours' protocols in the same way, by a
//! registration of its own of these words alone: for locks, fences and the like a host of p ranks has p queue pairs.
//! Atomics on a neighbour's elements, signals and attached memory go through the connection to it; so does everything if
//! its adapter is another, since two adapters' atomics are not atomic towards each other. Memory that the program lends to
//! a window is not shared; its data goes through the connection to its rank.
//!
//! Whether a write puts a word in one piece, and whether its last bytes are seen last, is up to the adapters. Ranks tell each other when
//! they start, and all go by the least that any has: notifications and the marks of rings and pipes are of one kind in a job.
//!
//! # Order
//! What one rank does at another is done in order. What a thread does at several is not, so after
//! [`order`](transom_windows::Fabric::order) its next verb to another waits until what it did before was acknowledged.
//!
//! # Rails
//! A rail is a port of a device, by one of its addresses: those that `TRANSOM_VERBS_DEVICE` names, else the first and every one like it, as
//! many as all ranks have. Each has registrations, connections, receive buffers and a thread. Words, what is small, rings and pipes have the first, and short messages, unless `spread` says otherwise;
//! announced messages, puts and gets of `2 stripe_from` bytes and more (`TRANSOM_MESSAGES`) are divided among all. Further connections to
//! a peer are made when the first of these needs them. One that cannot be made is done without.
//!
//! A window and a buffer are registered with each rail, other memory with those that a put or get uses, for its part. What goes by two
//! rails has no order: so an atomic, a notification, a flush, an `order` waits until all stripes before it are complete, a divided get for
//! the puts before it, and any put for divided gets; puts wait for no puts.
//!
//! With several rails a connection by which something is under way, and nothing is complete at two looks of a tenth of a second, has its
//! peer asked for an answer by datagrams, by that rail and the others. If none came by it for half a second, and one did by another, the
//! rail is cut, and the connection broken; the thread of the peer answers, so that one that computes, or has no buffers, is not taken for
//! that. Nor is a rank that is stopped, by which no rail is heard. Where an atomic is under way for whose result somebody waits the adapter's
//! own word is waited for, 5 seconds at most, since of an atomic that was executed the result would be lost. A rail that is cut is asked for each
//! second, and used again when it answers.
//!
//! A stripe whose connection broke is done again by the lane of the first rail, since nothing that was posted overtook it; once neither end
//! has a queue pair of that connection any more. The peer is asked by all rails to retire its own, ten times a second, and it is an error if none
//! brought its answer for 20 seconds. So packets that a rail held back are not written over what came since.
//!
//! Messages go on by whichever rails are left, the first may be the one that is cut (the documentation of `messages` has how); not with a
//! peer with whom there is a pipe, where they wait for the first rail.
//!
//! What else windows do has the lane of the first rail. Where that rail does not reach a peer, and another does, the lane gets its next queue
//! pair, as after any connection that broke, of the other rail: what is under way goes on in its order, what was executed is not done
//! again, and memory is named as the other rail does. What the two ends say to agree goes by all rails then. Atomics stay with the first rail's
//! adapter of the word's rank, since those of two adapters are not atomic towards each other: the peer's thread is asked by datagrams to do
//! them, through its queue pair to itself; once, however often it is asked, so that no result is lost with that connection, or the next.
//! When the peer has answered by the first rail for a second the lane goes back, which loses nothing either. So a port, a link or a path may be
//! cut; not the adapter of the first rail, by which a rank's own words are changed: a device that fails, or is taken away, is an error as with one rail,
//! and so is one that does nothing any more for its own rank, as Soft-RoCE whose link is taken down at this host.
//! The lane to a peer with whom there is a pipe keeps to the first rail, and windows' operations with that peer wait for it, 20 seconds at most.
//! A rank that is stopped for 20 seconds while its atomics are asked for is not told apart from one that is not reached.
//!
//! # Collectives
//! Between hosts ranks meet by the job's hub when they start and when a team is made. What they do together after that, a
//! barrier or a window, goes by lanes in ceil(log2 n) steps, each of one write and one word to one peer, and for what is
//! made together one read: so each rank has lanes to the ranks at distances that are powers of two. Ranks that all share
//! memory do it there.
//!
//! # Memory
//! Before a rank connects it has 45,056 registered bytes for datagrams (40,960) and counts of attached memory (4,096, with
//! the first window), 93 bytes for each rank of the job, and no completion queue but for datagrams. Each lane has
//! `TRANSOM_VERBS_DEPTH` (128) requests, and as many entries of a completion queue: with n lanes there are at most
//! `2 depth (n + 8)` entries. Slots are registered when first needed: 4 KiB for results of atomics, 1 MiB for what does not
//! travel in its request; a further MiB when that is all under way, where one lane has at most 1 MiB of puts. A lane keeps
//! 64 bytes for each of its requests, and from the first that takes bytes along room for those (`TRANSOM_VERBS_INLINE`), to
//! post them again: 24 KiB by the defaults, which are not registered. The adapter's driver has memory of its own.
//!
//! Messages come to buffers of 8,384 bytes that all queue pairs share (SRQ): 16 are registered with the first queue pair, 64
//! more whenever messages come and less than 32 are left, 1,024 (8.2 MiB) at most, however many peers there are; beside them
//! 264 KiB for what is sent, 512 KiB for what is put into rings and pipes and is longer than a buffer (a pipe's chunks have 16 KiB), each
//! when first needed, and the rings of the few peers that are heard from most.
//!
//! By datagrams (`TRANSOM_MESSAGES=paths=ud`) they come to 1,024 buffers of one MTU and 64 bytes, and go from 64 of one MTU for each queue
//! pair that sends: 1.3 MiB in all where the MTU is 1,024, from the beginning; with an address handle for each peer.
//! What goes into its place so takes 16 queue pairs of 64 receives at most, and one of 256 sends, from the first on.
//!
//! Large puts and gets go from and to the program's memory where it is, in requests of 1 MiB. A table by address knows what
//! this rank has registered for as long as its owner has it: windows, and buffers
//! (`transom::World::buffer`). Other memory, from `TRANSOM_VERBS_REGISTER` bytes on, is registered for the
//! operation: for the call if it is lent for that (`put`, `get`), and until the adapter is done if it is handed over (`rput`,
//! `rget`), even if the request is dropped or leaked. No registration outlives the right to the memory, so none is ever found
//! for memory that has gone, and no hook need watch what the program frees. A call that fails amid its requests ends the
//! queue pair before it gives the memory back. Where memory cannot be registered, slots do; the log says so once.
//!
//! So are messages; those from windows and buffers are offered as they are, and who was offered a buffer may read there as long as
//! this rank has it for buffers. Of other memory only the buffers of persistent and partitioned sends, which are the library's between messages and which
//! the program cannot free, stay registered for the next, `TRANSOM_VERBS_KEEP` bytes at most, what was longest of no use going first;
//! peers may read them meanwhile. What is received is registered for each message: a peer that breaks the rules could write to it when
//! the program has it.
//!
//! Leases are memory that the library has: buffers, and what an `rget` of more than 32 KiB and less than
//! `TRANSOM_VERBS_REGISTER` bytes comes to. What comes back stays registered for the next, 16 MiB at most.
//! [`Verbs::registrations`] counts all these, [`Verbs::copied_bytes`] what went through slots.
//!
//! # Silence
//! A peer that does not answer is asked on, each second in the end, and the log says so ever more rarely: it may be stopped,
//! and only the job says who died. With the connection it is the peer's adapter that answers. An adapter that completes
//! nothing for 20 seconds, a connection that does not come back, and a port that is down for 5 seconds while a connection
//! is wanted, are errors: the rank cannot be reached, and all are told.
//!
//! # Failures
//! A connection breaks where packets are not acknowledged in time (`TRANSOM_VERBS_TIMEOUT`, `TRANSOM_VERBS_RETRY`) or its
//! queue pair fails. While the peer lives it is made anew, under the next generation, and what was under way goes on:
//! whoever waits for it waits longer. Each side ends its queue pair first, so that nothing of it is executed later; asks
//! it up to which packet it has executed the other's; and tells that when both connect anew. So a write that was executed is
//! not written again, though its acknowledgement was lost: the target may have seen what came behind it, and changed the
//! memory since. Nor is an atomic; but where it was executed its result is lost, and that is an error of its operation: the
//! word has changed, and the connection is there. What was not executed, and reads, are posted again in their order. Messages
//! are counted as writes are. An adapter has to tell what it has received, as mlx4, mlx5 and Soft-RoCE do; with others a
//! connection that broke has ended.
//!
//! Soft-RoCE (of Linux 6.1) completes an atomic without what it found where that answer is lost, and so was the
//! acknowledgement of a write before it; and a connection stood still more often where it was to have requests wait (fenced). So with it an atomic is posted
//! when all writes before it are complete, and what is to wait for answers when they have come: one round trip more for an atomic behind a write, and a
//! write of nothing if the last of several was not signalled.
//! Other adapters do that themselves.
//!
//! A connection by which something is under way, and nothing is complete for 5 seconds, counts as broken, too, for windows and for
//! messages: that was seen with Soft-RoCE of Linux 6.1 after a packet was lost, and would last for ever. So a rank that is stopped
//! for longer, while so much is sent to it that its buffers are full, may be taken for one that does not answer.
//!
//! A connection has ended, and with it what is under way there, where the peer's adapter refuses an access, where this
//! rank's cannot do it, where the peer died, or does not answer for 20 seconds (5 while the port is down; here a rank that
//! is stopped is not told apart; with several rails only if something other than messages waits for it), or where nothing was done by 8 queue pairs in a row. Requests before the one that failed
//! are complete, it and those after it fail. The error says why. A device that fails or is taken away, or a completion
//! queue that fails, is told within a tenth of a second to whoever waits, as is the death of a peer.
//!
//! # What is not here
//! Ranks that are threads (`transom::threads`) share memory, whatever TRANSOM_FABRIC says. An access to memory that is no
//! longer registered ends the connection between the two. Words that change wake
//! nobody: a waiter naps in steps of up to half a millisecond. The memory of a rank that died is gone.
//!
//! # Leaving
//! Dropping a window is not collective: its memory stays registered until all have dropped theirs, as they tell each other
//! (8 bytes for each window) when they next make a window, value, array or team of the same world or team. What a team has
//! goes when its members have dropped it, and this is told among the ranks that it was made of. Memory that was detached
//! stays until those who had reached it have dropped their right to: each counts itself on a word of the owner. So memory
//! that the program lent may be registered for a while after it has it back.
//!
//! The last handle on the job, when dropped, says that this rank has left, and returns when the others have, or soon if
//! one died. A team keeps the job that it was made in.
//!
//! # Building
//! `ibverbs-sys` makes the bindings: it needs cmake, pkg-config, libclang, libnl-3-dev, libnl-route-3-dev and
//! libibverbs-dev (the names in Debian). What is built needs none of these, and finds libibverbs when it starts, or says
//! that there is none.

mod connect;
mod counts;
mod datagram;
mod endpoint;
mod error;
#[cfg(test)]
mod fake;
mod lane;
mod memory;
mod messages;
mod progress;
mod rail;
mod receive;
mod rma;
mod settings;
mod sys;
mod values;
pub mod variables;
mod wait;
mod wr;

pub use counts::{QueuePairs, Registrations, WorkRequests};
pub use error::VerbsError;
pub use rma::{Moving, Pending, Region, Remote, Verbs};
pub use transom_network::{Bootstrap, Hybrid, Node};

/// Opens the rails that a job with these messages would use, and describes them in a line.
///
/// # Errors
/// Why there is none: [`VerbsError`].
///
/// # Examples
/// ```
/// match transom_verbs::probe(&Default::default()) {
///     Ok(found) => println!("{found}"),
///     Err(why) => println!("no RDMA here: {why}"),
/// }
/// ```
pub fn probe(messages: &transom_channel::Config) -> Result<String, VerbsError> {
    let rails = rail::Rail::open(&settings::Settings::from_env(messages)?)?;
    Ok(rails.iter().map(rail::Rail::describe).collect::<Vec<_>>().join("; "))
}
