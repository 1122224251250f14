//! Messages between ranks that reach each other through their adapters: the wire of `transom-channel`, and how a rank
//! waits for messages. Ranks of one host use it only if they share no memory.
//!
//! # Operations
//! A `Send` arrives in a buffer of the peer from the pool that its queue pairs share. A `Put`, which rings consist of,
//! is an RDMA write. A short message is sent inline in the request. A longer one is copied to a registered slot, which
//! the lane keeps until the request is complete, so that it can be posted again.
//!
//! `Write` and `Read` access the program's memory, in requests of 1 MiB. The memory is registered for the message if it
//! has at least `TRANSOM_VERBS_ZCOPY_MIN` bytes. Until all requests of one message are posted, nothing else is posted
//! to that peer.
//!
//! The completion flag of a ring's message is part of the same write if the adapters of all ranks write in order.
//! Otherwise it is a second write if adapters write an aligned word as a whole. Otherwise (Soft-RoCE copies byte by
//! byte) the write carries immediate data, which consumes a receive buffer of the peer.
//!
//! # Datagrams
//! With `TRANSOM_MESSAGES=paths=ud` a `Send` is a datagram that may be lost; `transom_channel::delivery` makes delivery
//! reliable. The datagram queue pairs are created with the rank, and their addresses are exchanged when the job starts.
//! A peer is up at once; a connection is established when a ring, a pipe or a read first needs it.
//!
//! A `Write` by datagrams goes to a segment group of the peer (a `Window` of the wire): a queue pair whose receives are
//! pieces of the program's memory. The adapter puts the GRH that precedes each datagram elsewhere. The queue pair
//! accepts only datagrams with a Q_Key that is new for each group. If a group is closed before all pieces have arrived,
//! its queue pair is reset; the receives then belong to the program again.
//!
//! Each rail has its own mailbox: queue pairs, receive buffers and segment groups. A rail whose port is down is cut: pieces
//! in flight there are ended, and the engine uses the others until the port is back.
//!
//! With `paths=both` (`aptus`) the rails of datagrams follow the rails of connections. The engine
//! decides which peers have connections, in agreement with the peer. When a connection is given up its queue pair ends,
//! unless this rank has ever had an RMA window.
//!
//! # Connections that break
//! Sends use packets and acknowledgements like writes. The same count therefore tells which requests were executed;
//! these are not posted again. A buffer with a partial message is reported as failed or lost, depending on the driver;
//! other buffers replace it.
//!
//! # Rails that are cut
//! With several rails, requests posted on a broken connection are returned to the messages once its queue pair has
//! ended. Empty writes take their place between the requests of windows. The two ends tell each other on another rail
//! how much had arrived, and the rest is sent there exactly once (`failover` of `transom_channel`).
//!
//! The connecting thread ends queue pairs and creates new ones; a lane is up again once both ends have reconnected. The
//! ring of a cut rail is abandoned, and a new one is created when the rail is back. An adapter that needs a separate
//! request for the completion flag (neither NVIDIA's nor Soft-RoCE) has no rings if there are several rails. A rail
//! whose adapter does not report what it has received is not used after a cut. While windows use a failover queue pair
//! for the first rail, messages treat that lane as cut.
//!
//! A long message is registered with each rail that it is striped over, and with two at least. If all of these are cut,
//! it waits for one of them, even if another rail reaches the peer. The memory of a pipe is written on the first rail
//! only: a peer with a pipe keeps that connection, as with a single rail. A peer that no rail reaches for 20 seconds is
//! lost.
//!
//! # A peer that has no buffer
//! The adapter retries every 0.64 ms (receiver not ready). Meanwhile later requests on that lane wait, including this
//! rank's window operations to that peer. Lanes to other peers do not wait, nor do lanes of other ranks to that peer
//! that carry no message.
//!
//! Every wait of a rank progresses its messages and takes them out of their buffers, expected or not. A peer therefore
//! runs out of buffers only if it makes no call while as many packets arrive as it has buffers. Its connecting thread
//! progresses messages once per second, which bounds the wait.
//!
//! # Limits
//! Rings and pipes use only the first rail.

mod cache;
mod cuts;
mod handles;
mod memory;
mod moves;
mod open;
mod peer_failure;
mod posting;
mod windows;
mod wire;

pub(crate) use open::open;
