//! The peers of a rank: the lane to each, once there is one, and the order of what a thread does at several.
//!
//! What goes by one lane is in order by itself; what goes by two is not. So a thread that wants what it did at one peer to
//! take effect before what it does next at another marks the first, and waits for the marked requests before it posts to the
//! other. Marks are a thread's own: threads with different peers do not wait for each other.

use super::counts::WorkRequests;
use super::lane::{Lane, Start};
use super::wr::{Received, WorkQueue};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The peers of a rank, itself too, by their numbers in the job.
pub(super) struct Endpoints<Q, L> {
    /// Tells jobs of a process apart.
    id: u64,
    me: usize,
    lanes: Box<[Seat<Q, L>]>,
}

/// Room for a lane. Boxed: most ranks of a large job never need each other.
type Seat<Q, L> = OnceLock<Box<Lane<Q, L>>>;

thread_local! {
    /// What this thread wants complete before it does something elsewhere.
    static MARKS: RefCell<Vec<Mark>> = const { RefCell::new(Vec::new()) };
}

struct Mark {
    endpoints: u64,
    peer: usize,
    request: u64,
}

impl<Q: WorkQueue, L> Endpoints<Q, L> {
    /// Bytes for each peer that this rank has nothing to do with.
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

    /// Makes a connected queue the lane to a peer, or the next queue of the lane that there is: what of that is unfinished
    /// goes on, where the peer has `received` so much of it. Whether it does.
    pub fn add(&self, peer: usize, queue: Q, start: Start, received: Received) -> bool {
        match self.lane(peer) {
            Some(lane) => lane.resume(queue, start, received),
            None => self.lanes[peer].set(Box::new(Lane::new(peer as u32, queue, start))).is_ok(),
        }
    }

    /// All lanes that there are, with their peers.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Lane<Q, L>)> {
        self.lanes.iter().enumerate().filter_map(|(peer, lane)| Some((peer, &**lane.get()?)))
    }

    /// What this thread has posted to a peer so far is to be complete before it posts to another.
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

    /// A peer, and its request, that must be complete before this thread posts to `peer`.
    #[inline]
    pub fn before(&self, peer: usize) -> Option<(usize, u64)> {
        MARKS.with_borrow_mut(|marks| {
            // Mostly there is none.
            if marks.is_empty() {
                return None;
            }
            let left = |mark: &Mark| self.lane(mark.peer).is_some_and(|lane| lane.completed() < mark.request);
            marks.retain(|mark| mark.endpoints != self.id || left(mark));
            let at = marks.iter().position(|mark| mark.endpoints == self.id && mark.peer != peer)?;
            let Mark { peer, request, .. } = marks[at];
            if self.lane(peer).is_some_and(|lane| lane.failure().is_some()) {
                // That it failed is told to whoever waits for it now, once.
                marks.swap_remove(at);
            }
            Some((peer, request))
        })
    }

    /// What was posted to others, and to this rank itself.
    pub fn counts(&self) -> [WorkRequests; 2] {
        let sum = |itself: bool| {
            let of = self.all().filter(|(peer, _)| (*peer == self.me) == itself);
            of.fold(WorkRequests::default(), |sum, (_, lane)| sum + lane.counts())
        };
        [sum(false), sum(true)]
    }

    /// Whose lane has something under way.
    pub fn busy(&self) -> Option<usize> {
        self.all().find(|(_, lane)| !lane.is_idle()).map(|(peer, _)| peer)
    }
}

impl<Q, L> Drop for Endpoints<Q, L> {
    fn drop(&mut self) {
        // Those of other threads are few, and looked at by nobody.
        let _ = MARKS.try_with(|marks| marks.borrow_mut().retain(|mark| mark.endpoints != self.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Queue, START, Thing, completion};
    use crate::lane::Signal;
    use crate::wr::{Failure, Piece, Place, Verb, Why};

    /// Three peers, each with a lane through a queue of its number.
    fn endpoints() -> Endpoints<Queue, Thing> {
        let endpoints = Endpoints::new(0, 4);
        (0..3).for_each(|peer| _ = endpoints.add(peer, Queue::new(peer as u32, 16), START, Received::default()));
        endpoints
    }

    fn post(endpoints: &Endpoints<Queue, Thing>, peer: usize) -> u64 {
        let to = Place { address: 0, key: 0 };
        // SAFETY: the queue only pretends.
        unsafe { endpoints.lane(peer).unwrap().post(Verb::Add(1), to, Piece::NOTHING, Signal::Always, None) }.unwrap()
    }

    fn ends(endpoints: &Endpoints<Queue, Thing>, peer: usize, request: u64, result: Result<(), Failure>) {
        endpoints.lane(peer).unwrap().complete(&completion(peer as u32, peer as u32, request, result));
    }

    #[test]
    fn what_is_marked_comes_before_what_is_done_elsewhere() {
        let endpoints = endpoints();
        let first = post(&endpoints, 1);
        assert_eq!(endpoints.before(2), None, "without a mark there is no order");
        endpoints.mark(1);
        endpoints.mark(2); // nothing is under way there
        endpoints.mark(3); // nor is there a lane
        let second = post(&endpoints, 1);
        assert_eq!(
            (endpoints.before(1), endpoints.before(2)),
            (None, Some((1, first))),
            "a lane is in order by itself"
        );
        endpoints.mark(1);
        ends(&endpoints, 1, first, Ok(()));
        assert_eq!(endpoints.before(0), Some((1, second)), "what was marked last");
        ends(&endpoints, 1, second, Ok(()));
        assert_eq!(endpoints.before(0), None);
        assert_eq!(endpoints.busy(), None);
    }

    #[test]
    fn threads_with_different_peers_do_not_wait_for_each_other() {
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
    fn jobs_of_a_process_have_marks_of_their_own() {
        let (one, other) = (endpoints(), endpoints());
        post(&one, 1);
        one.mark(1);
        assert_eq!(other.before(2), None);
        drop(one);
        assert!(MARKS.with_borrow(Vec::is_empty));
    }

    #[test]
    fn a_failure_of_what_is_marked_is_told_once() {
        let endpoints = endpoints();
        post(&endpoints, 1);
        endpoints.mark(1);
        ends(&endpoints, 1, 1, Err(Failure::known(Why::Refused)));
        assert_eq!(endpoints.before(2), Some((1, 1)), "whoever waits for it is told");
        assert_eq!(endpoints.before(2), None, "and can go on elsewhere");
    }

    #[test]
    fn work_is_counted_by_whom_it_is_for() {
        let endpoints = endpoints();
        for peer in [0, 1, 1, 2] {
            post(&endpoints, peer);
        }
        let adds = |fetch_and_adds| WorkRequests { fetch_and_adds, signalled: fetch_and_adds, ..Default::default() };
        assert_eq!(endpoints.counts(), [adds(3), adds(1)]);
    }
}
