//! Messages between ranks that reach each other by their adapters: the wire of `transom-channel`, and how a rank waits for what
//! comes by it. Ranks of one host do so only where they share no memory.
//!
//! # Ways
//! A `Send` goes to a buffer of the peer's, of those that its queue pairs share; a `Put`, of which rings are made, is a
//! write. What fits takes its bytes along in the request; the rest is copied to a registered slot, which the lane has until
//! the request is complete, so that it can be posted again. `Write` and `Read` go from and to the program's memory, which is
//! registered for the message from `TRANSOM_VERBS_REGISTER` bytes on, in requests of 1 MiB; until all of one message are
//! posted nothing else goes to that peer.
//!
//! The mark of a ring's message is written with it where all ranks' adapters write in order; else behind it, where an aligned word is
//! written whole; else (Soft-RoCE copies byte by byte) the write tells a value, which takes a buffer of the peer's.
//!
//! # Datagrams
//! With `TRANSOM_MESSAGES=paths=ud` a `Send` goes by a datagram that may be lost, and `transom_channel::delivery` sees to what becomes of
//! it: the ends are made with the rank and told to all when the job begins. A peer is up at once; a connection is made when a ring, a
//! pipe or a read first needs one.
//!
//! A `Write` by datagrams goes to a window of the peer's: a queue pair whose receives are pieces of the program's memory, each behind 40
//! bytes that the adapter puts elsewhere, and which takes only what brings a key that is new each time. When a window is closed before all
//! have come, its queue pair is reset, and with that the receives are the program's again.
//!
//! With `paths=both` (`aptus`) the datagrams are a rail of their own, behind those of connections. Which peers have connections is the engine's
//! choice, by what both ends say; one that is given up has its queue pair end, unless this rank has ever had a window.
//!
//! # Connections that break
//! Messages take packets and are acknowledged as writes are, so what was executed is known by the same count, and is not
//! posted again. A buffer whose message came in part is told to have failed, or is lost, as the driver has it; others take its
//! place.
//!
//! # Rails that are cut
//! Where there are several rails what was posted by the connection that broke is returned to messages instead, once its queue pair has gone:
//! writes of nothing take its place, beside what windows posted there. The two ends tell each other by another rail how much had come, and
//! the rest goes by that, once (`transom_channel`'s `failover`). It is the connection's thread that ends queue pairs and makes new ones, and a
//! lane is up again when both have. The ring of a rail that was cut is left, and another made when it is back; an adapter whose mark comes
//! by itself (neither NVIDIA's nor Soft-RoCE) has no rings beside other rails, and one that does not tell what it has received is done
//! without from then on. While the lane of the first rail is by another, for windows, messages count it as cut. The memory of a long message has
//! the names of as many rails as it is divided among, and of two at least: where all of these are cut it waits for one of them, though another
//! reaches the peer. A pipe has memory that the first rail writes to: a peer with a pipe keeps that connection, as one with a single rail
//! does. No rail for 20 seconds, and the peer is lost.
//!
//! # A peer that has no buffer
//! The adapter asks it again, each 0.64 ms, and what is behind on that lane waits, windows' operations of this rank to that peer
//! too; lanes to others do not, nor do the lanes of others to it by which no message goes. Every wait of a rank turns its messages,
//! and takes them out of their buffers whether or not they are expected: so this needs a rank that calls nothing while as many
//! packets come as it has buffers. Its thread of connections turns them for it once a second, so nobody waits longer.
//!
//! # What is not here
//! Rings, pipes, datagrams and what stays registered between messages have the first rail alone. Two ranks that first speak while the first rail is cut wait for it.

mod cache;
mod cuts;
mod gone;
mod handles;
mod memory;
mod moves;
mod open;
mod posting;
mod windows;
mod wire;

pub(crate) use open::open;
