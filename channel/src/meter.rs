//! What went where, counted.

macro_rules! meter {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the rank started; peaks are named so.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Meter {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Meter {
            /// Each count by its name.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

meter! {
    /// Messages that were sent at once, in one packet or several.
    eager,
    /// Messages that were announced by an RTS.
    rendezvous,
    /// Their bytes that moved in packets.
    copied_bytes,
    /// Their bytes that were written.
    written_bytes,
    /// Their bytes that were read.
    read_bytes,
    /// Bytes that were written or read by another rail than the first.
    other_rails_bytes,
    /// Packets, writes and reads that went by another rail since theirs was cut.
    rerouted,
    /// Packets by a ring.
    ring_packets,
    /// Packets by a queue.
    queue_packets,
    /// Those of them that went by datagrams.
    datagram_packets,
    /// Bytes of the packets by a queue, with their headers.
    queue_bytes,
    /// Those of them that went by datagrams.
    datagram_bytes,
    /// Packets by a queue though there is a ring: no slot was free.
    fallbacks,
    /// Packets for nothing but values.
    controls,
    /// Values that were left beside a ring, in place of such a packet.
    published,
    /// Requests that the wire did not take at once.
    busy,
    /// Packets that came early, by another lane than those before them.
    held,
    /// Packets that came again.
    old,
    /// The most packets held at once, of one peer.
    held_peak,
    /// Datagrams that were sent again: their acknowledgement did not come in time, or that of later ones did.
    resends,
    /// Datagrams for nothing but an acknowledgement.
    acknowledgements,
    /// Datagrams that came and were none of a peer's, or not as they were sent.
    spoiled,
    /// Windows that were opened for datagrams which bring announced messages into their places.
    datagram_windows,
    /// The most of these open at once.
    datagram_windows_peak,
    /// Pieces of those that came as packets: they were lost twice, or are the last and short.
    datagram_repairs,
    /// Messages that came before their receive.
    unexpected,
    /// The most bytes of these at once, with 64 for each header.
    unexpected_peak,
    /// Messages that were discarded: this rank had dropped their team.
    discarded,
    /// The most requests of this rank at once, with those that had ended and were not taken.
    requests_peak,
    /// The most bytes that all peers might send at once, beside what each may before it is heard.
    granted_peak,
    /// Messages that were announced, or sent short, on overdraft: the peer had left too many unreceived.
    overdrawn,
    /// Rings made for peers.
    joins,
    /// Rings taken back.
    leaves,
    /// Connections made with peers that are spoken with most, where there are datagrams for all.
    connects,
    /// Connections given up for others.
    disconnects,
    /// Connections that a peer had no room for.
    refusals,
    /// Bytes that are registered and used by messages now, or stay registered for later ones; where adapters need that.
    registered_bytes,
    /// Messages, or their parts on a rail, whose memory was registered for them.
    registered,
    /// Those whose memory was registered already.
    found_registered,
    /// Sleeps of this process that their time-out ended, and no ring, though something had come: one for each wake-up that was lost.
    missed_wakes,
    /// Receives that were answered by another mover than the best, since memory could not be registered.
    downgrades,
}
