//! The provider for ranks on several machines: InfiniBand and RoCE, through libibverbs.
//!
//! Programs use it through the cargo feature `verbs` of `transom`. A remote put, get or atomic is a request to the
//! adapter. The adapter executes it on registered memory of the target, while the target computes or sleeps.
//! TRANSOM_FABRIC=verbs selects this provider even if shared memory would suffice (for tests). TRANSOM_VERBS_ variables
//! select and configure devices ([`variables`]).
//!
//! # Layers
//! Each layer knows only those above it in this table. Decisions are tested against fake queues.
//!
//! | module | |
//! |---|---|
//! | `wr` | work requests, tokens, completions: the vocabulary of all layers |
//! | `sys` | safe wrappers of libibverbs objects, destroyed when dropped; no policy |
//! | `rail` | device, port, GID, protection domain and completion queues; their selection and health |
//! | `memory` | slots, a pool of registered memory, keys (one per rail), deferred release |
//! | `receive` | reception of messages: buffers that all queue pairs share |
//! | `lane` | successive reliable queue pairs to one peer: request numbers, selective signalling, lent memory, reposting; its own lock |
//! | `endpoint` | the lanes to peers, and the order of a thread's requests to several of them |
//! | `progress` | takes completions and hands each to the lane that its token names |
//! | `datagram` | unreliable datagrams: connection requests, and messages |
//! | `connect` | connections on demand: the protocol, and the thread that runs it |
//! | `messages` | the `Wire` of messages between ranks that share no memory |
//! | `rma` | the `Network` of windows, and collectives over lanes |
//!
//! # Queue pairs
//! Each pair of ranks that communicates has one reliable connection, created when either side needs it. A rank with more
//! than `TRANSOM_VERBS_CONNECTIONS` gives up those that neither end has used for 0.3 seconds. A thread
//! of each rank answers connection requests, which are datagrams. [`Verbs::queue_pairs`] counts queue pairs, and
//! [`Verbs::work_requests_to_others`] the requests posted to them.
//!
//! The datagrams are authenticated with a secret that each rank publishes through the job's exchange, so that no third
//! party can redirect a connection. The connections of a pair are numbered by generations. Each side has at most one
//! queue pair per generation. If a side loses its queue pair, both agree on the next generation in the same way as on
//! the first. Only the connecting thread creates queue pairs, and has them connected by other threads where an
//! address must be resolved; it holds no lock. An operation waits
//! for the connection that it needs, and for no other. Once a second the thread looks for connections that broke while
//! the rank was busy elsewhere.
//!
//! A lane's lock is held while a request is posted or its queue pair ends. It is never held during copies or the
//! creation of queue pairs, nor during registration, except on a failover lane, which registers the memory of its
//! requests. Completions are recorded without it. Threads of a rank with different peers therefore do not wait for each
//! other.
//!
//! # Words
//! Atomics of a processor and of an adapter are not atomic with respect to each other. The adapter therefore executes
//! all of them, including those of the home rank, which has a queue pair to itself. Where data move through the shared
//! memory of a host (`TRANSOM_INTRANODE`), a rank reaches the protocol words of its host neighbours in the same way, by
//! its own registration of these words. For locks, fences and the like a host of p ranks thus needs p queue pairs.
//! Atomics on a neighbour's elements, signals and attached memory use the connection to the neighbour. So does
//! everything if the neighbour uses another adapter, because atomics of two adapters are not atomic with respect to
//! each other. Memory that the program lends to a window is not shared; its data use the connection to its rank.
//!
//! InfiniBand does not promise when the bytes of a write become visible, except before a later send, immediate value or
//! atomic. A word that follows data is therefore written by compare-and-swap. Devices are asked whether the bytes of
//! one write become visible in order. Ranks publish the answer at start, and all use the weakest one: the completion
//! flags of rings are of one kind in a job, part of the data or immediate values. Pipes use immediate values.
//! `TRANSOM_VERBS_WORD_WRITE` forces either.
//!
//! # Order
//! Operations of one rank on another are ordered. A thread's operations on several ranks are not. After
//! [`order`](transom_windows::Fabric::order), the thread's next verb to another rank waits until the earlier operations
//! are acknowledged.
//!
//! # Rails
//! A rail is a port of a device with one of its GIDs. The rails are those that `TRANSOM_VERBS_DEVICE` names. By default
//! the ranks exchange their usable ports at the start. The n-th rails of all ranks are in one network, and a rank
//! prefers fast ports and those near its cores; ranks of a host begin with different ones of these. Each rail has its
//! own registrations, connections, receive buffers and thread. The first rail carries words, small transfers, rings and
//! pipes, and short messages unless `spread` says otherwise. Rendezvous messages, and puts and gets of at least `2 stripe_from` bytes
//! (`TRANSOM_MESSAGES`), are divided among all rails. Connections on further rails are created when the first such
//! transfer needs them; a rail without a connection is skipped.
//!
//! A window and a buffer are registered with every rail, other memory with the rails that a put or get uses, for its
//! parts. Transfers on two rails are unordered. Therefore an atomic, a notification, a flush and an `order` wait for
//! all earlier stripes, a divided get for all earlier puts, and any put for divided gets. Puts never wait for puts.
//!
//! With several rails, a busy connection without a completion in two 100 ms checks has its peer probed by datagrams, on
//! its own rail and on the others. If no answer arrived on its rail for half a second while one arrived on another, the
//! rail counts as cut and the connection as broken. The peer's thread answers, so a peer that computes, or has no
//! receive buffers, does not count as cut. Neither does a stopped rank, which answers on no rail. While an atomic with
//! a waiting caller is in flight, the adapter's own error is awaited for at most 5 seconds, because an executed atomic
//! would lose its result. A cut rail is probed every second, and used again once the peer answers on it.
//!
//! A stripe whose connection broke is repeated on the lane of the first rail, once neither end has a queue pair of the
//! broken connection. This is safe because no later request has overtaken the stripe. The peer is asked on all rails,
//! ten times a second, to retire its queue pair. The operation fails if no rail delivers its confirmation for 20
//! seconds. Packets delayed on the cut rail therefore never overwrite newer data.
//!
//! Messages continue on the remaining rails, even if the first one is cut (see the documentation of `messages`). With a
//! peer to which there is a pipe they wait for the first rail.
//!
//! All other RMA operations use the lane of the first rail. If that rail does not reach a peer and another does, the
//! lane fails over: its next queue pair is on the other rail. Requests in flight continue in order, executed ones are
//! not repeated, and memory keys are translated to those of the other rail. Connection messages then travel on all
//! rails. Atomics stay with the first-rail adapter of the word's rank, because atomics of two adapters are not atomic
//! with respect to each other. The origin asks the peer's thread by datagrams, and that thread performs the atomic on
//! the peer's queue pair to itself. The request is idempotent, so no result is lost with the connection or the next
//! one.
//!
//! The lane returns once the peer has answered on the first rail for a second, again without loss. A port, a link or a
//! path may therefore be cut. The adapter of the first rail must work, because it changes the rank's own words. A
//! device that fails or is removed is an error, as with a single rail. So is a device that does nothing for its own
//! rank any more, such as Soft-RoCE whose link is down on this host. The lane to a peer with a pipe stays on the first
//! rail, and RMA with that peer waits for it, for at most 20 seconds. A rank that is stopped for 20 seconds while
//! atomics are requested of it counts as unreachable.
//!
//! # Collectives
//! Between hosts, ranks use the job's hub at start and when they form a team. Later barriers, and the collective
//! creation of windows, use lanes. They take ceil(log2 n) steps, each with one write and one word to one peer, and for
//! a creation one read. Each rank therefore has lanes to the ranks at distances that are powers of two. Ranks that all
//! share memory use that memory instead.
//!
//! # Memory
//! Before its first connection a rank has 45,056 registered bytes: 40,960 for datagrams, and 4,096 for counts of
//! attached memory, with the first window. It has 93 bytes per rank of the job, and no completion queue except for
//! datagrams. Each lane has `TRANSOM_VERBS_DEPTH` (128) requests, and as many completion queue entries: n lanes have at
//! most `2 depth (n + 8)` entries. Slots are registered at first need: 4 KiB for results of atomics, and 1 MiB for puts
//! that are not inline. Another MiB is registered when all slots are in flight; one lane has at most 1 MiB of puts in
//! flight. To post requests again, a lane keeps 64 bytes per request and, from its first inline request on, the inline
//! bytes (`TRANSOM_VERBS_INLINE`): 24 KiB by default, not registered. The adapter's driver has memory of its own.
//!
//! Messages arrive in buffers of 8,384 bytes that all queue pairs share (SRQ). The first queue pair registers 16 of
//! them. While messages arrive and fewer than 32 are left, 64 more are registered, up to 1,024 (8.2 MiB) for any number
//! of peers. Sending takes another 264 KiB. Puts into rings and pipes that exceed a buffer take 512 KiB (a pipe's
//! chunks have 16 KiB). Both are registered at first need. The most active peers have rings besides.
//!
//! Messages sent as datagrams (`TRANSOM_MESSAGES=paths=ud`) arrive, on each rail, in 1,024 buffers of one MTU plus 64
//! bytes. They leave from 64 buffers of one MTU per sending queue pair. With an MTU of 1,024 that is 1.3 MiB per rail from
//! the start, plus an address handle per peer. Zero-copy reception adds at most 16 queue pairs with 64 receives and one
//! with 256 sends per rail, from its first use on.
//!
//! Large puts and gets access the program's memory in place, in requests of 1 MiB. A table by address holds this rank's
//! registrations of windows and of buffers (`transom::World::buffer`) as long as their owner has the memory. Other
//! memory is registered for the operation if the transfer has at least `TRANSOM_VERBS_ZCOPY_MIN` bytes. The
//! registration lasts for the call if the memory is lent (`put`, `get`). If the memory is handed over (`rput`, `rget`)
//! it lasts until the adapter is done, even if the request is dropped or leaked. No registration outlives the right to
//! the memory. A lookup therefore never finds a registration of freed memory, and no hook needs to watch frees. A call
//! that fails between its requests ends the queue pair before it returns the memory. If registration fails, slots are
//! used, and the log says so once.
//!
//! Messages work likewise. Peers read windows and buffers in place, and a peer that was offered a buffer may read it as
//! long as this rank has it as a buffer. Of other memory only the buffers of persistent and partitioned sends stay
//! registered between messages: they belong to the library then, and the program cannot free them. At most
//! `TRANSOM_VERBS_REGCACHE_BYTES` bytes are kept; the least recently used go first. Peers may read them meanwhile.
//! Received messages are registered one by one: a peer that violates the protocol could otherwise write to memory that
//! the program has.
//!
//! The registration pool holds memory of the library: buffers, and destinations of an `rget` of more than 32 KiB and
//! less than `TRANSOM_VERBS_ZCOPY_MIN` bytes. Returned memory stays registered for reuse, up to 16 MiB.
//! [`Verbs::registrations`] counts all of these, and [`Verbs::copied_bytes`] the bytes copied through slots.
//!
//! # Silence
//! A silent peer is asked again, at last once a second, and logged ever more rarely: it may be stopped, and only the
//! job reports deaths. On several hosts the job is asked after 15 seconds whether the peer's process runs. If it does,
//! and no datagram of the peer arrives within 5 more, the peer is unreachable. A rank whose port gets another address
//! announces it to the peers that it has talked with; their connections are restored. On a connection the peer's
//! adapter answers. It is an error if an adapter completes nothing for 20 seconds, if a connection cannot be restored,
//! or if a port is down for 5 seconds while a connection is wanted. The rank then cannot be reached, and all ranks are
//! notified.
//!
//! # Failures
//! A connection breaks if packets are not acknowledged in time (`TRANSOM_VERBS_TIMEOUT`, `TRANSOM_VERBS_RETRY`) or its
//! queue pair fails. While the peer lives, the connection is restored under the next generation, and requests in flight
//! continue, with a longer wait. Each side first ends its queue pair, so that no late packet is executed. It then reads
//! the position up to which it has executed the peer's packets, and reports that position when both reconnect. An
//! executed write is thus not repeated even if its acknowledgement was lost, because the target may have seen later
//! data and changed the memory since. An executed atomic is not repeated either, but its result is lost. That is an
//! error of the operation: the word has changed, and the connection works. Unexecuted requests and reads are posted
//! again, in order. Messages count as writes. The adapter must report its received position, as mlx4, mlx5 and
//! Soft-RoCE do. With other adapters a broken connection has ended.
//!
//! Soft-RoCE (of Linux 6.1) completes an atomic without its result if that answer is lost together with the
//! acknowledgement of an earlier write. Its connections also stall more often with fenced requests. On Soft-RoCE an
//! atomic is therefore posted after all earlier writes are complete, and a request that needs a fence after the earlier
//! answers have arrived. This costs one more round trip for an atomic after a write, and an empty write if the last of
//! several writes was unsignalled. Other adapters need neither.
//!
//! A busy connection without a completion for 5 seconds also counts as broken, for RMA and for messages. Soft-RoCE of
//! Linux 6.1 was seen to stall for ever after a lost packet. A rank that is stopped for longer than that, while its
//! receive buffers are full, may therefore count as unreachable.
//!
//! A connection ends for good, with the requests in flight on it, if the peer's adapter refuses an access, if this
//! rank's adapter cannot execute a request, or if the peer died. It also ends after 8 successive queue pairs without
//! progress, or if the peer does not answer for 20 seconds. The last limit is 5 seconds while the port is down, and a
//! stopped rank is not told apart. With several rails it applies only if something other than messages waits for the
//! peer. Requests before the failed one are complete; it and all later ones fail. The error gives the reason. A device
//! or completion queue that fails, and the death of a peer, are reported to waiting callers within a tenth of a second.
//!
//! # Limitations
//! Ranks that are threads (`transom::threads`) share memory, whatever TRANSOM_FABRIC says. An access to memory that is
//! no longer registered ends the connection between the two ranks. A changed word wakes no thread: a waiting rank
//! polls, with sleeps of up to half a millisecond. The memory of a rank that died is gone.
//!
//! # Leaving
//! Dropping a window is not collective. Its memory stays registered until all ranks have dropped theirs. They report
//! that to each other (8 bytes per window) when they next make a window, value, array or team of the same world or
//! team. The resources of a team are released when all its members have dropped it; the ranks of the team's parent
//! exchange these reports. Detached memory stays until all ranks that attached it have dropped their handles: each
//! counts itself on a word of the owner. Memory that the program lent may therefore stay registered for a while after
//! the program has it back.
//!
//! Dropping the last handle of the job announces that this rank has left. It returns when all others have left, or soon
//! if one died. A team keeps its parent job alive.
//!
//! # Building
//! `ibverbs-sys` generates the bindings. It needs cmake, pkg-config, libclang, libnl-3-dev, libnl-route-3-dev and
//! libibverbs-dev (Debian's names). The built program needs none of these. It loads libibverbs when it starts, or
//! reports that libibverbs is missing.
#![doc(html_root_url = "https://docs.rs/transom-verbs/0.1.0")]

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
pub use rail::RailInfo;
pub use rma::{Pending, Region, Remote, Transfer, Verbs};
pub use transom_network::{Bootstrap, Hybrid, Node};

/// Opens the rails that a job with these message settings would use if it had only this rank, and describes them in one
/// line. Each rail is tried out: with queue pairs, a shared receive queue and an atomic.
///
/// # Errors
/// [`VerbsError`] if there is no usable rail. It names the function that each device lacks, and what to do.
///
/// # Examples
/// ```
/// match transom_verbs::probe(&Default::default()) {
///     Ok(found) => println!("{found}"),
///     Err(why) => println!("no RDMA here: {why}"),
/// }
/// ```
pub fn probe(messages: &transom_channel::Config) -> Result<String, VerbsError> {
    let rails = rail::Survey::new(&settings::Settings::from_env(messages)?)?.open_alone()?;
    rails.iter().try_for_each(rail::Rail::try_out)?;
    Ok(rails.iter().map(rail::Rail::describe).collect::<Vec<_>>().join("; "))
}
