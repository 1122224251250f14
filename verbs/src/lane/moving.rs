//! Requests of messages on a lane. When the lane's queue ends, the engine may send them on another lane instead.
//!
//! With returns enabled, the requests are returned while the lane has no queue, whatever becomes of the lane. Empty
//! writes take their places, and no message is posted until the returned requests are taken. Each request is therefore
//! executed at most once over all lanes.

use super::unfinished::RequestRecord;
use super::*;

/// The message requests of a queue that ended, as far as they are not known to be complete.
pub(crate) struct Returned<L> {
    /// Number of the last completed request.
    pub completed: u64,
    /// Requests in order, with their numbers. Requests on memory that is not lent to the lane are omitted.
    pub requests: Vec<(u64, Verb, Bytes<L>)>,
}

/// The payload of a request.
pub(crate) enum Bytes<L> {
    Inline(Box<[u8]>),
    /// The first bytes of a lent object, with their number.
    Lent(L, usize),
}

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Like [`post`](Self::post), for a message.
    ///
    /// # Safety
    /// The contract of [`post`](Self::post) applies, also until the request is [returned](Self::take_returned).
    pub unsafe fn post_message(
        &self,
        verb: Verb,
        to: RemoteAddress,
        piece: Piece,
        signal: Signal,
        lent: Option<L>,
    ) -> Result<u64, (Stop, Option<L>)> {
        let kept = RequestRecord { movable: true, ..RequestRecord::new(verb, to, piece, false) };
        // SAFETY: caller's contract.
        unsafe { self.post_with(kept, &[], signal, lent) }
    }

    /// Like [`post_inline`](Self::post_inline), for a message.
    pub fn post_message_inline(&self, verb: Verb, to: RemoteAddress, bytes: &[u8]) -> Result<u64, Stop> {
        assert!(bytes.len() <= self.inline(), "the bytes fit into a request");
        let kept = RequestRecord { movable: true, ..RequestRecord::new(verb, to, Piece::inline(bytes), true) };
        // SAFETY: the adapter's driver copies the bytes before this returns.
        let posted = unsafe { self.post_with(kept, bytes, Signal::Seldom, None) };
        posted.map_err(|(stop, _)| stop)
    }

    /// Sets whether messages are returned when a queue ends; otherwise the next queue takes them over.
    pub fn return_to_messages(&self, returns: bool) {
        self.sending().returns = returns;
    }

    /// Returns the messages of a queue that is gone: neither it nor the next queue will execute them.
    pub(super) fn return_messages(&self, sending: &mut Sending<Q, L>) {
        if !sending.returns || sending.returned.is_some() {
            return;
        }
        let mut requests = Vec::new();
        let Sending { unfinished, lent, .. } = sending;
        unfinished.complete(self.completed());
        unfinished.hand_over(|number, kept, bytes| {
            if kept.inline {
                requests.push((number, kept.verb, Bytes::Inline(bytes.into())));
            } else if let Ok(at) = lent.binary_search_by_key(&number, |(number, _)| *number) {
                let (_, lent) = lent.remove(at).expect("the entry was found above");
                requests.push((number, kept.verb, Bytes::Lent(lent, kept.piece.bytes as usize)));
            }
        });
        sending.returned = Some(Returned { completed: self.completed(), requests });
        self.cut.store(true, Release);
    }

    /// Takes the returned requests. Afterwards messages can be posted again, once there is a queue.
    pub fn take_returned(&self) -> Option<Returned<L>> {
        let mut sending = self.sending();
        self.cut.store(false, Release);
        sending.returned.take()
    }

    /// Returns whether there are returned requests to take, even if the list is empty.
    #[inline]
    pub fn is_cut(&self) -> bool {
        self.cut.load(Acquire)
    }

    /// Number of the last completed request of messages. Later numbers belong to empty writes in place of returned
    /// requests.
    pub fn completed_of_messages(&self) -> u64 {
        let completed = self.completed();
        if !self.is_cut() {
            return completed;
        }
        self.sending().returned.as_ref().map_or(completed, |returned| returned.completed)
    }

    /// Marks an atomic whose result the caller can recover if it is lost.
    pub fn spare(&self, number: u64) {
        self.sending().unfinished.spare(number);
    }

    /// Returns whether an atomic is in flight whose result would be lost if the connection ended now.
    pub fn has_atomic(&self) -> bool {
        let mut sending = self.sending();
        let sending = &mut *sending;
        sending.unfinished.complete(self.completed());
        if sending.unfinished.last_atomic() <= self.completed() {
            return false;
        }
        let missed = |number: u64| !sending.lent.iter().any(|(of, _)| *of == number);
        sending.unfinished.has_atomic(sending.held.unwrap_or(u64::MAX), missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Events, Queue, START, Thing, completion};
    use crate::wr::{Received, Why};

    const TO: RemoteAddress = RemoteAddress { address: 4096, key: 9 };
    const PIECE: Piece = Piece { address: 64, bytes: 3000, key: 7 }; // 3 packets

    /// A put of a window, then messages with a slot, with the program's memory, and inline, then another put of a
    /// window.
    fn posted() -> (Lane<Queue, Thing>, Queue, Events) {
        let queue = Queue::new(77, 16);
        let (lane, events) = (Lane::new(3, queue.clone(), START), queue.events.clone());
        lane.return_to_messages(true);
        let slot = |name| Some(Thing(name, events.clone()));
        // SAFETY: the fake queue accesses no memory.
        unsafe {
            lane.post(Verb::Write, TO, PIECE, Signal::NowAndThen, slot("of windows")).unwrap();
            lane.post_message(Verb::Send, TO, PIECE, Signal::NowAndThen, slot("of messages")).unwrap();
            lane.post_message(Verb::Read, TO, PIECE, Signal::Always, None).unwrap();
            lane.post_message_inline(Verb::WriteAndTell(5), TO, b"inline").unwrap();
            lane.post(Verb::Write, TO, Piece { bytes: 10, ..PIECE }, Signal::NowAndThen, None).unwrap();
        }
        queue.take();
        (lane, queue, events)
    }

    fn again(lane: &Lane<Queue, Thing>, next: u32) -> Queue {
        let (queue, received) = (Queue::new(78, 16), Received { generation: 1, next: (START.psn + next) % (1 << 24) });
        assert!(lane.resume(queue.clone(), Start { generation: 2, psn: 5000, mtu: 1024 }, received));
        queue
    }

    fn returned(lane: &Lane<Queue, Thing>) -> (u64, Vec<(u64, Verb, String)>) {
        let said = |bytes: Bytes<Thing>| match bytes {
            Bytes::Inline(bytes) => String::from_utf8(bytes.into()).unwrap(),
            Bytes::Lent(thing, length) => format!("{length} {}", thing.0),
        };
        let Returned { completed, requests } = lane.take_returned().expect("requests were returned");
        (completed, requests.into_iter().map(|(number, verb, bytes)| (number, verb, said(bytes))).collect())
    }

    fn message(lane: &Lane<Queue, Thing>) -> Result<u64, Stop> {
        lane.post_message_inline(Verb::Send, TO, b"another")
    }

    #[test]
    fn ended_queue_returns_messages_and_keeps_the_rest() {
        let (lane, _queue, events) = posted();
        lane.complete(&completion(3, 77, 1, Ok(())));
        lane.complete(&completion(3, 77, 2, Err(Failure { why: Why::Silence, status: 12, vendor: 0 })));
        assert!(
            matches!(message(&lane), Err(Stop::Broken)) && !lane.is_cut(),
            "the adapter may still execute requests"
        );
        assert!(lane.retire(drop).is_some() && lane.is_cut() && lane.is_needed());
        // One packet of the message arrived, and nothing after it.
        let queue = again(&lane, 3 + 1);
        let short = |request: &Request| (request.token.request(), request.verb, request.piece.bytes);
        let now: Vec<_> = queue.take().iter().map(short).collect();
        assert_eq!(now, [(2, Verb::Write, 0), (3, Verb::Write, 0), (4, Verb::Write, 0), (5, Verb::Write, 10)]);
        assert!(matches!(message(&lane), Err(Stop::Cut)), "not before the returned requests are taken");
        // SAFETY: the fake queue accesses no memory.
        unsafe { lane.post(Verb::Write, TO, PIECE, Signal::NowAndThen, None) }.unwrap();
        lane.complete(&completion(3, 78, 6, Ok(())));
        assert_eq!((lane.completed(), lane.completed_of_messages()), (6, 1), "empty writes took their places");
        assert_eq!(*events.lock().unwrap(), ["of windows", "queue gone"]);
        let all = [(2, Verb::Send, "3000 of messages".into()), (4, Verb::WriteAndTell(5), "inline".into())];
        assert_eq!(returned(&lane), (1, all.to_vec()));
        assert_eq!((message(&lane).unwrap(), lane.completed_of_messages()), (7, 6));
        // This is the only message in flight.
        lane.retire(drop);
        assert_eq!(returned(&lane), (6, vec![(7, Verb::Send, "another".into())]));
        assert!(!lane.is_needed());
    }

    #[test]
    fn ended_lane_returns_messages_only_if_enabled() {
        let (lane, _queue, _) = posted();
        lane.give_up(Failure::known(Why::Gone));
        assert!(lane.is_cut());
        let (completed, all) = returned(&lane);
        assert_eq!((completed, all.iter().map(|(number, ..)| *number).collect::<Vec<_>>()), (0, vec![2, 4]));

        let (lane, _queue, _) = posted();
        lane.return_to_messages(false);
        lane.retire(drop);
        assert!(!lane.is_cut());
        let sent: Vec<_> = again(&lane, 0).take().iter().map(|request| request.piece.bytes).collect();
        assert_eq!(sent, [3000, 3000, 3000, 6, 10]);
    }

    #[test]
    fn atomic_is_in_flight_until_it_is_complete() {
        let lane: Lane<Queue, Thing> = Lane::new(3, Queue::new(77, 16), START);
        // SAFETY: the fake queue accesses no memory.
        let post = |verb| unsafe { lane.post(verb, TO, PIECE, Signal::Always, None) }.unwrap();
        post(Verb::Write);
        assert!(!lane.has_atomic());
        post(Verb::Add(1));
        post(Verb::Write);
        lane.complete(&completion(3, 77, 1, Ok(())));
        assert!(lane.has_atomic());
        lane.complete(&completion(3, 77, 2, Ok(())));
        assert!(!lane.has_atomic());
    }
}
