//! Counters of messages, packets and memory.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the rank started; fields named `peak` hold maxima.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// Iterates over all counters as (name, value).
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Messages sent eagerly, in one packet or several.
    eager,
    /// Messages sent by rendezvous (RTS).
    rendezvous,
    /// Bytes of rendezvous messages that moved in packets.
    copied_bytes,
    /// Bytes of rendezvous messages that were written.
    written_bytes,
    /// Bytes of rendezvous messages that were read.
    read_bytes,
    /// Bytes written or read on a rail other than the first.
    other_rails_bytes,
    /// Packets, writes and reads moved to another rail after their lane was cut.
    rerouted,
    /// Packets sent through a ring.
    ring_packets,
    /// Packets sent through a queue.
    queue_packets,
    /// Queue packets that went as datagrams.
    datagram_packets,
    /// Bytes of queue packets, with headers.
    queue_bytes,
    /// Bytes of queue packets that went as datagrams, with headers.
    datagram_bytes,
    /// Packets sent through a queue because the peer's ring had no free slot.
    fallbacks,
    /// Packets that carry acknowledgement and credit values only.
    controls,
    /// Values published beside a ring instead of in such a packet.
    published,
    /// Requests that the wire refused at first as busy.
    busy,
    /// Packets that arrived early, on another lane than their predecessors.
    held,
    /// Duplicate packets.
    old,
    /// Most early packets of one peer held at once.
    held_peak,
    /// Datagrams resent: their acknowledgement was late, or later datagrams were acknowledged first.
    resends,
    /// Datagrams that carry an acknowledgement only.
    acknowledgements,
    /// Received datagrams that came from no peer, or were corrupted.
    spoiled,
    /// Windows opened for datagrams that bring rendezvous messages into place.
    datagram_windows,
    /// Most datagram windows open at once.
    datagram_windows_peak,
    /// Pieces of such windows that arrived as packets: pieces lost twice, and short last pieces.
    datagram_repairs,
    /// Messages that arrived before their receive was posted.
    unexpected,
    /// Most bytes of unexpected messages at once, with 64 for each envelope.
    unexpected_peak,
    /// Messages discarded because this rank had dropped their team.
    discarded,
    /// Most requests of this rank at once, with completed requests that the program had not taken.
    requests_peak,
    /// Most credit granted to all peers at once beyond their floors, in bytes.
    granted_peak,
    /// RTS packets and short messages sent on overdraft: the peer had left too many messages unreceived.
    overdrawn,
    /// Rings offered to peers.
    joins,
    /// Rings taken back from peers.
    leaves,
    /// Connections made with the peers of most traffic, where all peers have datagrams.
    connects,
    /// Connections given up for other peers.
    disconnects,
    /// Connections that a peer refused for lack of room.
    refusals,
    /// Bytes registered now, in use by messages or cached for later ones; 0 where no adapter needs
    /// registration.
    registered_bytes,
    /// Messages, or their parts on a rail, whose memory was newly registered.
    registered,
    /// Messages, or their parts on a rail, whose memory was registered already.
    found_registered,
    /// Sleeps of this process that timed out although data had arrived: one for each lost wake-up.
    missed_wakes,
    /// Receives that used a slower mover because memory could not be registered.
    downgrades,
}
