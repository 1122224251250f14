//! Receive: the order of a peer's packets, and its message that arrives in pieces.

use crate::error::PeerFailure;
use crate::packet::{Envelope, Packet};
use crate::sequence::{FARTHEST, Incoming};
use crate::slab::Id;

/// A packet that arrived early.
pub struct Held<M> {
    pub packet: Packet,
    pub data: M,
    pub length: usize,
}

/// A message of which some pieces have arrived.
pub struct Gathering<M> {
    pub envelope: Envelope,
    /// The sender's request, if it waits until the message is matched.
    pub sync: Option<Id>,
    pub memory: M,
    /// Bytes that have arrived.
    at: u64,
}

/// Packets from one peer.
pub struct Inbound<M> {
    /// Sequence numbers, and early packets.
    pub order: Incoming<Held<M>>,
    gathering: Option<Gathering<M>>,
}

impl<M> Inbound<M> {
    pub fn new() -> Inbound<M> {
        Inbound { order: Incoming::new(FARTHEST), gathering: None }
    }

    /// Returns true if the packet of this number is expected, and no packet behind it is held.
    #[inline(always)]
    pub fn is_next(&self, sequence: u32) -> bool {
        sequence == self.order.expected() && !self.order.is_holding()
    }

    /// Holds an early packet. Returns the number of held packets.
    pub fn hold(&mut self, early: Held<M>) -> u64 {
        self.order.hold(early.packet.sequence, early);
        self.order.held() as u64
    }

    /// Returns true if a piece is the first of its message; the caller then [begins](Self::begin) it. Fails
    /// if the piece is not the next of its message.
    pub fn is_first(&self, envelope: Envelope, sync: Option<Id>, at: u64) -> Result<bool, PeerFailure> {
        match &self.gathering {
            None if at == 0 => Ok(true),
            Some(begun) if begun.at == at && (begun.envelope, begun.sync) == (envelope, sync) => Ok(false),
            _ => Err(PeerFailure::Broken("a piece is not the next of its message")),
        }
    }

    /// Begins a message in pieces, which are gathered in `memory`.
    pub fn begin(&mut self, envelope: Envelope, sync: Option<Id>, memory: M) {
        self.gathering = Some(Gathering { envelope, sync, memory, at: 0 });
    }

    /// Memory of the message in pieces.
    pub fn memory(&self) -> Option<&M> {
        self.gathering.as_ref().map(|gathering| &gathering.memory)
    }

    /// Records a piece of `length` bytes. Returns the message once it is whole.
    pub fn gathered(&mut self, length: u64) -> Option<Gathering<M>> {
        let gathering = self.gathering.as_mut()?;
        gathering.at += length;
        self.gathering.take_if(|gathering| gathering.at >= gathering.envelope.length)
    }

    pub fn is_gathering(&self) -> bool {
        self.gathering.is_some()
    }

    /// Ends the state of a lost peer. Returns the memory of held packets, and the incomplete message.
    pub fn end(mut self) -> (Vec<M>, Option<Gathering<M>>) {
        (self.order.drain().map(|held| held.data).collect(), self.gathering)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Body, Values};
    use crate::sequence::Arrival;

    fn envelope(length: u64) -> Envelope {
        Envelope { context: 0, tag: 7, length }
    }

    fn early(sequence: u32) -> Held<u32> {
        let packet = Packet { source: 1, sequence, values: Values::default(), body: Body::Ack { sender: id() } };
        Held { packet, data: sequence, length: 0 }
    }

    fn id() -> Id {
        Id::from_wire(1 << 32).unwrap()
    }

    #[test]
    fn held_packets_are_delivered_after_missing_one() {
        let mut rx = Inbound::new();
        assert_eq!((rx.hold(early(1)), rx.hold(early(2))), (1, 2));
        assert_eq!(rx.order.place(0), Arrival::Now);
        assert!(!rx.is_next(0));
        assert_eq!([0, 1].map(|_| rx.order.advance().map(|held| held.data)), [Some(1), Some(2)]);
        assert!(rx.order.advance().is_none());
        assert!(rx.is_next(3) && rx.order.held() == 0);
    }

    #[test]
    fn message_in_pieces_completes_with_last_piece() {
        let mut rx = Inbound::new();
        assert_eq!(rx.is_first(envelope(10), None, 0), Ok(true));
        rx.begin(envelope(10), None, "memory");
        assert!(rx.gathered(4).is_none());
        assert_eq!(rx.is_first(envelope(10), None, 4), Ok(false));
        let whole = rx.gathered(6).unwrap();
        assert_eq!((whole.envelope.length, whole.memory, rx.is_gathering()), (10, "memory", false));
    }

    #[test]
    fn piece_of_another_message_is_refused() {
        let mut rx = Inbound::new();
        assert!(rx.is_first(envelope(10), None, 4).is_err());
        rx.begin(envelope(10), None, ());
        rx.gathered(4);
        let others = [(envelope(10), None, 0), (envelope(11), None, 4), (envelope(10), Some(id()), 4)];
        others.into_iter().for_each(|(envelope, sync, at)| assert!(rx.is_first(envelope, sync, at).is_err()));
        assert_eq!(rx.is_first(envelope(10), None, 4), Ok(false));
    }
}
