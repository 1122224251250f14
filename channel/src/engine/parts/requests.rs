//! Requests of the program, from their start until the program takes their results.

use crate::engine::request::{Completion, Receive, RecvTarget, Request, Unexpected};
use crate::error::{Error, Status};
use crate::packet::Keys;
use crate::slab::{Id, Slab};
use crate::wire::Rank;
use std::collections::VecDeque;

/// Requests of a rank by their numbers.
pub struct Requests<M> {
    all: Slab<Request<M>>,
    /// Requests that have ended, in that order, until they are returned to the program.
    ended: VecDeque<Id>,
    /// Number of requests that have ended and were not taken.
    over: usize,
}

impl<M> Default for Requests<M> {
    fn default() -> Self {
        Requests { all: Slab::default(), ended: VecDeque::new(), over: 0 }
    }
}

impl<M> Requests<M> {
    pub fn insert(&mut self, request: Request<M>) -> Id {
        self.all.insert(request)
    }

    #[inline(always)]
    pub fn get(&self, id: Id) -> Option<&Request<M>> {
        self.all.get(id)
    }

    #[inline(always)]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Request<M>> {
        self.all.get_mut(id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Id, &Request<M>)> {
        self.all.iter()
    }

    /// Removes a request that was cancelled.
    pub fn remove(&mut self, id: Id) -> Option<Request<M>> {
        self.all.remove(id)
    }

    /// Records that a receive into [`RecvTarget::Probe`] was matched: the request becomes the message, and counts
    /// as ended.
    pub fn probed(&mut self, id: Id, message: Unexpected<M>) {
        *self.all.get_mut(id).expect("a receive is kept until it is matched") = Request::Message(message);
        self.ended.push_back(id);
    }

    /// Turns a probed message into a receive. Returns the message, or the room if there is no message of this
    /// number.
    pub fn receive_message(&mut self, id: Id, room: RecvTarget<M>) -> Result<Unexpected<M>, RecvTarget<M>> {
        match self.all.get_mut(id) {
            Some(place @ Request::Message(_)) => match std::mem::replace(place, Request::Receive(Receive::new(room))) {
                Request::Message(message) => Ok(message),
                _ => unreachable!("the request is a message"),
            },
            _ => Err(room),
        }
    }

    /// Ends a send or a receive. Returns its registrations, to be released, and the peer that they were made
    /// for.
    pub fn complete(&mut self, id: Id, result: Result<Status, Error>) -> Option<(Rank, Box<Keys>)> {
        let place = self.all.get_mut(id).expect("a request is kept until it ends");
        // A receive is cleared in place: moving it costs more than a short message.
        let (memory, keys) = match place {
            Request::Receive(receive) => {
                let keys = receive.keys.take().and_then(|keys| Some((receive.moving.as_ref()?.from, keys)));
                (std::mem::replace(&mut receive.room, RecvTarget::Probe).into_memory(), keys)
            }
            _ => match std::mem::replace(place, Request::Receive(Receive::new(RecvTarget::Probe))) {
                Request::Send(send) => (Some(send.memory), send.keys.map(|keys| (send.to, keys))),
                _ => unreachable!("only sends and receives complete, once"),
            },
        };
        *place = Request::Over(result, memory);
        self.end(id);
        keys
    }

    /// Ends a put or get of a pipe.
    pub fn complete_piped(&mut self, id: Id, result: Result<Status, Error>, memory: M) {
        let place = self.all.get_mut(id).expect("a request is kept until it ends");
        debug_assert!(matches!(place, Request::Piped(_)), "a put or get ends once");
        *place = Request::Over(result, Some(memory));
        self.end(id);
    }

    fn end(&mut self, id: Id) {
        self.over += 1;
        self.ended.push_back(id);
    }

    #[inline(always)]
    pub fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    #[inline(always)]
    pub fn next_ended(&mut self) -> Option<Id> {
        self.ended.pop_front()
    }

    /// Takes a request that has ended.
    #[inline]
    pub fn take(&mut self, id: Id) -> Option<Completion<M>> {
        let Some(Request::Over(result, memory)) = self.all.get_mut(id) else { return None };
        let (result, memory) = (std::mem::replace(result, Err(Error::NoMessage)), memory.take());
        self.free(id);
        Some(Completion { id, result, memory })
    }

    /// Takes a request that has ended without an error.
    #[inline]
    pub fn take_well(&mut self, id: Id) -> Option<(Status, Option<M>)> {
        let Some(Request::Over(Ok(status), memory)) = self.all.get_mut(id) else { return None };
        let well = (*status, memory.take());
        self.free(id);
        Some(well)
    }

    #[inline(always)]
    fn free(&mut self, id: Id) {
        self.all.free(id);
        self.over -= 1;
    }

    /// Number of requests that have not ended, including probed messages.
    pub fn under_way(&self) -> usize {
        self.all.len() - self.over
    }

    /// Most requests stored at once.
    pub fn most(&self) -> usize {
        self.all.most()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::request::UnexpectedBody;
    use crate::packet::Envelope;

    const STATUS: Status = Status { peer: 1, tag: 7, length: 4 };

    fn receive(requests: &mut Requests<u32>) -> Id {
        requests.insert(Request::Receive(Receive::new(RecvTarget::Into(42, 4))))
    }

    #[test]
    fn ended_request_is_reported_once_kept_until_taken() {
        let mut requests = Requests::default();
        let id = receive(&mut requests);
        assert_eq!((requests.under_way(), requests.has_ended()), (1, false));
        assert!(requests.complete(id, Ok(STATUS)).is_none());
        assert_eq!((requests.under_way(), requests.next_ended(), requests.next_ended()), (0, Some(id), None));
        assert_eq!(requests.take_well(id), Some((STATUS, Some(42))));
        assert!(requests.take(id).is_none());
    }

    #[test]
    fn take_well_leaves_a_failed_request() {
        let mut requests = Requests::default();
        let id = receive(&mut requests);
        requests.complete(id, Err(Error::NoMessage));
        assert_eq!(requests.take_well(id), None);
        assert_eq!(
            requests.take(id).map(|taken| (taken.result, taken.memory)),
            Some((Err(Error::NoMessage), Some(42)))
        );
    }

    #[test]
    fn probed_message_is_received_by_its_number() {
        let mut requests = Requests::default();
        let id = requests.insert(Request::Receive(Receive::new(RecvTarget::Probe)));
        let envelope = Envelope { context: 0, tag: 7, length: 4 };
        requests.probed(id, Unexpected { from: 1, envelope, what: UnexpectedBody::Eager { data: 5, sync: None } });
        assert_eq!((requests.next_ended(), requests.under_way()), (Some(id), 1));
        assert_eq!(
            requests.receive_message(id, RecvTarget::Allocate).map(|message| message.status()).ok(),
            Some(STATUS)
        );
        assert!(requests.receive_message(id, RecvTarget::Allocate).is_err());
    }
}
