//! The peers of a rank: the lane to each connected peer, and the order of a thread's requests to different peers.
//!
//! Requests on one lane are ordered; requests on different lanes are not. A thread orders requests to different peers
//! by marking the first lane. It then waits for the marked requests before it posts to another peer. Marks are per
//! thread, so threads with different peers do not wait for each other.

use super::counts::WorkRequests;
use super::lane::{Lane, Start};
use super::wr::{Received, WorkQueue};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The peers of a rank, including itself, by job rank.
pub(super) struct Endpoints<Q, L> {
    /// Distinguishes several jobs of one process.
    id: u64,
    me: usize,
    lanes: Box<[Seat<Q, L>]>,
}

/// Place for a lane. Boxed, because most pairs of ranks of a large job never communicate.
type Seat<Q, L> = OnceLock<Box<Lane<Q, L>>>;

thread_local! {
    /// Requests that must complete before this thread posts to another peer.
    static MARKS: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
}

struct Mark {
    endpoints: u64,
    peer: usize,
    request: u64,
}

impl<Q: WorkQueue, L> Endpoints<Q, L> {
    /// Bytes per peer without a lane.
    pub const SEAT: usize = size_of::<Seat<Q, L>>();

    pub fn new(me: usize, ranks: usize) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let lanes = (0..ranks).map(|_| OnceLock::new()).collect();
        Endpoints { id: NEXT.fetch_add(1, Relaxed), me, lanes }
    }

    /// The lane to a peer, if there is one.
    #[inline]
    pub fn lane(&self, peer: usize) -> Option<&Lane<Q, L>> {
        self.lanes.get(peer)?.get().map(Box::as_ref)
    }

    /// Makes a connected queue the lane to a peer, or the next queue of the existing lane.
    ///
    /// The lane's unfinished requests continue from the position that the peer has `received`. Returns whether the lane
    /// uses the queue.
    pub fn add(&self, peer: usize, queue: Q, start: Start, received: Received) -> bool {
        match self.lane(peer) {
            Some(lane) => lane.resume(queue, start, received),
            None => self.lanes[peer].set(Box::new(Lane::new(peer as u32, queue, start))).is_ok(),
        }
    }

    /// All lanes, with their peers.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Lane<Q, L>)> {
        self.lanes.iter().enumerate().filter_map(|(peer, lane)| Some((peer, &**lane.get()?)))
    }

    /// Marks the lane to a peer: requests that this thread posted to it so far must complete before the thread posts to
    /// another peer.
    pub fn mark(&self, peer: usize) {
        let Some(lane) = self.lane(peer) else { return };
        let request = lane.posted();
        if lane.completed() >= request {
            return;
        }
        MARKS.with_borrow_mut(|marks| {
            match marks.iter_mut().find(|mark| (mark.endpoints, mark.peer) == (self.id, peer)) {
                Some(mark) => mark.request = request,
                None => marks.push(Mark { endpoints: self.id, peer, request }),
            }
        });
    }

    /// A peer and its request that must complete before this thread posts to `peer`.
    #[inline]
    pub fn before(&self, peer: usize) -> Option<(usize, u64)> {
        MARKS.with_borrow_mut(|marks| {
            // Fast path: most threads have no marks.
            if marks.is_empty() {
                return None;
            }
            let left = |mark: &Mark| self.lane(mark.peer).is_some_and(|lane| lane.completed() < mark.request);
            marks.retain(|mark| mark.endpoints != self.id || left(mark));
            let at = marks.iter().position(|mark| mark.endpoints == self.id && mark.peer != peer)?;
            let Mark { peer, request, .. } = marks[at];
            if self.lane(peer).is_some_and(|lane| lane.failure().is_some()) {
                // The wait for this mark reports the failure, once.
                marks.swap_remove(at);
            }
            Some((peer, request))
        })
    }

    /// Requests posted to other ranks, and to this rank itself.
    pub fn counts(&self) -> [WorkRequests; 2] {
        let sum = |itself: bool| {
            let of = self.all().filter(|(peer, _)| (*peer == self.me) == itself);
            of.fold(WorkRequests::default(), |sum, (_, lane)| sum + lane.counts())
        };
        [sum(false), sum(true)]
    }

    /// A peer whose lane has requests in flight.
    pub fn busy(&self) -> Option<usize> {
        self.all().find(|(_, lane)| !lane.is_idle()).map(|(peer, _)| peer)
    }
}

impl<Q, L> Drop for Endpoints<Q, L> {
    fn drop(&mut self) {
        // Marks of other threads remain; they are few and have no effect.
        let _ = MARKS.try_with(|marks| marks.borrow_mut().retain(|mark| mark.endpoints != self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Queue, START, Thing, completion};
    use crate::lane::Signal;
    use crate::wr::{Failure, Piece, RemoteAddress, Verb, Why};

    /// Three peers with a lane each, whose queue has the peer's number.
    fn endpoints() -> Endpoints<Queue, Thing> {
        let endpoints = Endpoints::new(0, 4);
        (0..3).for_each(|peer| _ = endpoints.add(peer, Queue::new(peer as u32, 16), START, Received::default()));
        endpoints
    }

    fn post(endpoints: &Endpoints<Queue, Thing>, peer: usize) -> u64 {
        let to = RemoteAddress { address: 0, key: 0 };
        // SAFETY: the fake queue accesses no memory.
        unsafe { endpoints.lane(peer).unwrap().post(Verb::Add(1), to, Piece::NOTHING, Signal::Always, None) }.unwrap()
    }

    fn ends(endpoints: &Endpoints<Queue, Thing>, peer: usize, request: u64, result: Result<(), Failure>) {
        endpoints.lane(peer).unwrap().complete(&completion(peer as u32, peer as u32, request, result));
    }

    #[test]
    fn marked_requests_precede_posts_to_other_peers() {
        let endpoints = endpoints();
        let first = post(&endpoints, 1);
        assert_eq!(endpoints.before(2), None, "without a mark there is no order");
        endpoints.mark(1);
        endpoints.mark(2); // no request in flight
        endpoints.mark(3); // no lane
        let second = post(&endpoints, 1);
        assert_eq!((endpoints.before(1), endpoints.before(2)), (None, Some((1, first))), "a lane is ordered by itself");
        endpoints.mark(1);
        ends(&endpoints, 1, first, Ok(()));
        assert_eq!(endpoints.before(0), Some((1, second)), "the last mark counts");
        ends(&endpoints, 1, second, Ok(()));
        assert_eq!(endpoints.before(0), None);
        assert_eq!(endpoints.busy(), None);
    }

    #[test]
    fn threads_with_different_peers_are_unordered() {
        let endpoints = endpoints();
        post(&endpoints, 1);
        endpoints.mark(1);
        assert_eq!(endpoints.before(2), Some((1, 1)));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(endpoints.before(2), None, "another thread's mark");
                post(&endpoints, 2);
                endpoints.mark(2);
            });
        });
        assert_eq!(endpoints.before(1), None);
        assert_eq!(endpoints.busy(), Some(1));
    }

    #[test]
    fn jobs_of_a_process_have_separate_marks() {
        let (one, other) = (endpoints(), endpoints());
        post(&one, 1);
        one.mark(1);
        assert_eq!(other.before(2), None);
        drop(one);
        assert!(MARKS.with_borrow(Vec::is_empty));
    }

    #[test]
    fn failure_of_a_marked_request_is_reported_once() {
        let endpoints = endpoints();
        post(&endpoints, 1);
        endpoints.mark(1);
        ends(&endpoints, 1, 1, Err(Failure::known(Why::Refused)));
        assert_eq!(endpoints.before(2), Some((1, 1)), "the wait for it reports the failure");
        assert_eq!(endpoints.before(2), None, "and the thread can post to other peers");
    }

    #[test]
    fn requests_are_counted_for_peers_and_itself() {
        let endpoints = endpoints();
        for peer in [0, 1, 1, 2] {
            post(&endpoints, peer);
        }
        let adds = |fetch_and_adds| WorkRequests { fetch_and_adds, signalled: fetch_and_adds, ..Default::default() };
        assert_eq!(endpoints.counts(), [adds(3), adds(1)]);
    }
}
