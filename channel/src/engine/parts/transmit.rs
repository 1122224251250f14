//! Transmit: packets that wait to be posted to a peer, and their order.

use crate::packet::Body;
use crate::sequence::Outgoing;
use crate::slab::Id;
use crate::wire::Rank;
use std::collections::VecDeque;

/// An answer to a peer.
#[derive(Debug, Clone, PartialEq)]
pub struct Reply {
    pub body: Body,
    /// Rail that it must take, because it follows other requests there.
    pub rail: Option<usize>,
}

/// The packet to post next.
#[derive(Debug, PartialEq)]
pub enum Next {
    /// Nothing waits, or the window is closed.
    Nothing,
    /// An answer, taken from the queue.
    Reply(Reply),
    /// A message, or if that must wait, data of another.
    Message(Id, Option<Id>),
    /// Data of a message that is copied in packets.
    Data(Id),
}

/// Packets to one peer.
pub struct Transmit {
    /// Sequence numbers and window.
    pub window: Outgoing,
    /// Answer packets: at most a few for each request of either side.
    replies: VecDeque<Reply>,
    /// Messages that wait their turn, in order.
    messages: VecDeque<Id>,
    /// Messages whose data is copied in packets.
    copies: VecDeque<Id>,
    /// True if the peer is in the [`TransmitList`].
    listed: bool,
    /// True if nothing waits to be posted, so that the short path may send. Listing the peer unsets it.
    clear: bool,
}

impl Transmit {
    pub fn new(window: u32) -> Transmit {
        let (replies, messages, copies) = Default::default();
        Transmit { window: Outgoing::new(window), replies, messages, copies, listed: false, clear: true }
    }

    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        self.clear
    }

    /// Opens the short path, or keeps it closed.
    #[inline]
    pub fn set_clear(&mut self, clear: bool) {
        debug_assert!(!(clear && self.has_work()));
        self.clear = clear;
    }

    #[inline]
    pub fn has_work(&self) -> bool {
        !(self.replies.is_empty() && self.messages.is_empty() && self.copies.is_empty())
    }

    #[inline]
    pub fn reply(&mut self, body: Body, rail: Option<usize>) {
        self.replies.push_back(Reply { body, rail });
    }

    #[inline]
    pub fn message(&mut self, id: Id) {
        self.messages.push_back(id);
    }

    #[inline]
    pub fn copy(&mut self, id: Id) {
        self.copies.push_back(id);
    }

    /// Chooses the next packet. Answers go first, because they unblock peers. Messages and data alternate by
    /// sequence number.
    #[inline]
    pub fn next(&mut self) -> Next {
        if self.window.room() == 0 {
            return Next::Nothing;
        }
        if let Some(reply) = self.replies.pop_front() {
            return Next::Reply(reply);
        }
        let data_first = self.window.sequence().is_multiple_of(2);
        match (self.copies.front().copied(), self.messages.front().copied()) {
            (Some(copy), _) if data_first => Next::Data(copy),
            (copy, Some(message)) => Next::Message(message, copy),
            (Some(copy), None) => Next::Data(copy),
            (None, None) => Next::Nothing,
        }
    }

    /// Puts back an answer that the wire has refused.
    #[inline]
    pub fn put_back(&mut self, reply: Reply) {
        self.replies.push_front(reply);
    }

    /// Removes the first message from the queue: it was sent or cannot be.
    #[inline]
    pub fn message_done(&mut self) {
        self.messages.pop_front();
    }

    /// Records that data of the first copy was posted. The copy moves to the end of the queue, so that copies
    /// alternate.
    pub fn copied(&mut self, is_done: bool) {
        let copy = self.copies.pop_front();
        self.copies.extend(copy.filter(|_| !is_done));
    }

    /// Removes the last message from the queue, and returns it.
    pub fn withdraw(&mut self) -> Option<Id> {
        self.messages.pop_back()
    }

    pub fn replies(&self) -> impl Iterator<Item = &Reply> {
        self.replies.iter()
    }

    /// Number of messages that wait.
    #[inline]
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Removes and returns the answers that must take this rail.
    pub fn take_bound(&mut self, rail: usize) -> Vec<Reply> {
        super::split_off(&mut self.replies, |reply| reply.rail == Some(rail))
    }

    /// Lengths of the queues, for reports.
    pub fn lengths(&self) -> (usize, usize, usize) {
        (self.replies.len(), self.messages.len(), self.copies.len())
    }
}

/// Peers with packets or requests to post.
#[derive(Default)]
pub struct TransmitList {
    ranks: VecDeque<Rank>,
    /// True if this processor has written or read memory of a peer by itself, and the wire already holds the
    /// completion.
    moved: bool,
}

impl TransmitList {
    /// Lists a peer, and closes the short path to it.
    #[inline]
    pub fn list(&mut self, rank: Rank, peer: &mut Transmit) {
        peer.clear = false;
        if !std::mem::replace(&mut peer.listed, true) {
            self.ranks.push_back(rank);
        }
    }

    /// Takes the next peer. The caller must [unlist](Self::unlist) it.
    #[inline]
    pub fn next(&mut self) -> Option<Rank> {
        self.ranks.pop_front()
    }

    /// Records that the peer was taken from the list.
    #[inline]
    pub fn unlist(&mut self, peer: &mut Transmit) {
        peer.listed = false;
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub fn set_moved(&mut self) {
        self.moved = true;
    }

    #[inline]
    pub fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sequence::Beyond;
    use crate::slab::Slab;

    fn ids() -> [Id; 2] {
        let mut slab = Slab::default();
        [slab.insert(()), slab.insert(())]
    }

    #[test]
    fn replies_are_sent_before_messages() {
        let ([id, _], mut tx) = (ids(), Transmit::new(8));
        tx.message(id);
        tx.reply(Body::Control, None);
        let Next::Reply(reply) = tx.next() else { panic!("expected the queued reply") };
        tx.put_back(reply);
        assert_eq!(tx.lengths(), (1, 1, 0));
        assert!(matches!(tx.next(), Next::Reply(_)));
        assert_eq!(tx.next(), Next::Message(id, None));
        tx.message_done();
        assert_eq!(tx.next(), Next::Nothing);
    }

    #[test]
    fn messages_and_data_alternate() {
        let ([message, copy], mut tx) = (ids(), Transmit::new(8));
        tx.message(message);
        tx.copy(copy);
        assert_eq!(tx.next(), Next::Data(copy));
        tx.window.sent();
        assert_eq!(tx.next(), Next::Message(message, Some(copy)));
        tx.window.sent();
        assert_eq!(tx.next(), Next::Data(copy));
    }

    #[test]
    fn unfinished_copies_are_served_in_turn() {
        let ([one, two], mut tx) = (ids(), Transmit::new(8));
        tx.copy(one);
        tx.copy(two);
        tx.copied(false);
        assert_eq!(tx.next(), Next::Data(two));
        tx.copied(true);
        assert_eq!(tx.next(), Next::Data(one));
        tx.copied(true);
        assert!(!tx.has_work());
    }

    #[test]
    fn full_window_sends_nothing_until_acked() {
        let mut tx = Transmit::new(1);
        tx.window.sent();
        tx.reply(Body::Control, None);
        assert_eq!(tx.next(), Next::Nothing);
        assert_eq!(tx.window.acked(2), Err(Beyond));
        assert_eq!(tx.window.acked(1), Ok(()));
        assert!(matches!(tx.next(), Next::Reply(_)));
    }

    #[test]
    fn listed_peer_is_queued_once_and_not_clear() {
        let (mut list, mut tx) = (TransmitList::default(), Transmit::new(1));
        list.list(4, &mut tx);
        list.list(4, &mut tx);
        assert!(!tx.is_clear());
        assert_eq!((list.len(), list.next()), (1, Some(4)));
        list.list(4, &mut tx);
        assert!(list.is_empty());
        list.unlist(&mut tx);
        list.list(4, &mut tx);
        assert_eq!(list.next(), Some(4));
    }

    #[test]
    fn replies_bound_to_a_rail_are_removed_with_it() {
        let mut tx = Transmit::new(8);
        [Some(0), None, Some(1), Some(0)].into_iter().for_each(|rail| tx.reply(Body::Control, rail));
        assert_eq!(tx.take_bound(0).len(), 2);
        assert_eq!(tx.replies().map(|reply| reply.rail).collect::<Vec<_>>(), [None, Some(1)]);
    }
}
