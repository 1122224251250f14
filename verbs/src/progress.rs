//! Progress: takes completions and hands each to the lane that its token names.

use super::endpoint::Endpoints;
use super::rail::{Broken, Health, Polled, Rail};
use super::wr::{Completions, WorkQueue};
use std::sync::Mutex;
use transom_launch::lock;

/// Takes the completions of a rail. Skips a queue that another thread is polling, instead of waiting for it.
#[inline]
pub(super) fn poll<Q: WorkQueue, L>(rail: &Rail, endpoints: &Endpoints<Q, L>) {
    for polled in rail.queues.all() {
        let Polled { queue, polling, health } = &**polled;
        poll_one(&**queue, polling, endpoints, health);
    }
}

fn poll_one<Q: WorkQueue, L>(
    queue: &impl Completions,
    polling: &Mutex<()>,
    endpoints: &Endpoints<Q, L>,
    health: &Health,
) {
    if let Ok(_polling) = polling.try_lock() {
        poll_locked(queue, endpoints, health);
    }
}

/// Returns when all available completions of the queue are recorded, by this thread or another.
pub(super) fn settle<Q: WorkQueue, L>(polled: &Polled, endpoints: &Endpoints<Q, L>) {
    let _polling = lock(&polled.polling);
    poll_locked(&*polled.queue, endpoints, &polled.health);
}

fn poll_locked<Q: WorkQueue, L>(queue: &impl Completions, endpoints: &Endpoints<Q, L>, health: &Health) {
    let polled = queue.poll(&mut |completion| match endpoints.lane(completion.token.lane() as usize) {
        Some(lane) => lane.complete(&completion),
        // Impossible: a queue becomes a lane's before requests are posted to it.
        None => tracing::error!(?completion, "a completion for a lane that does not exist"),
    });
    if let Err(error) = polled {
        health.has_broken(Broken::CompletionQueue { why: error.to_string() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{CompletionQueue, Queue, START, Thing, completion};
    use crate::lane::Signal;
    use crate::wr::{Piece, Received, RemoteAddress, Verb};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    fn post(endpoints: &Endpoints<Queue, Thing>, peer: usize) {
        let to = RemoteAddress { address: 0, key: 0 };
        // SAFETY: the fake queue accesses no memory.
        unsafe { endpoints.lane(peer).unwrap().post(Verb::Read, to, Piece::NOTHING, Signal::Always, None) }.unwrap();
    }

    #[test]
    fn completion_reaches_the_lane_of_its_token() {
        let (endpoints, health, polling) = (Endpoints::<Queue, Thing>::new(0, 4), Health::default(), Mutex::new(()));
        for peer in [1, 2] {
            endpoints.add(peer, Queue::new(10 + peer as u32, 8), START, Received::default());
        }
        [1, 2, 2].into_iter().for_each(|peer| post(&endpoints, peer));
        let queue = CompletionQueue::default();
        // Peer 3 has no lane, and peer 9 does not exist.
        let told = [(2, 12, 1), (3, 13, 1), (9, 19, 1), (2, 12, 2)];
        queue.0.lock().unwrap().extend(told.map(|(lane, pair, request)| Ok(completion(lane, pair, request, Ok(())))));
        poll_one(&queue, &polling, &endpoints, &health);
        assert_eq!([1, 2].map(|peer| endpoints.lane(peer).unwrap().completed()), [0, 2]);
        assert_eq!(health.broken(), None);
    }

    #[test]
    fn failing_completion_queue_breaks_its_rail() {
        let (endpoints, health, polling) = (Endpoints::<Queue, Thing>::new(0, 1), Health::default(), Mutex::new(()));
        let queue = CompletionQueue::default();
        queue.0.lock().unwrap().push_back(Err(std::io::Error::other("poll_cq returned -1")));
        poll_one(&queue, &polling, &endpoints, &health);
        assert_eq!(health.broken().unwrap().to_string(), "its completion queue failed: poll_cq returned -1");
    }

    /// One thread is inside a slow post. Meanwhile the other's lane progresses, and completions of the first lane are
    /// recorded too.
    #[test]
    fn slow_post_does_not_block_other_lanes() {
        let (endpoints, health, polling) = (Endpoints::<Queue, Thing>::new(0, 3), Health::default(), Mutex::new(()));
        let (within, is_within) = mpsc::channel();
        let (go_on, may_go_on) = mpsc::channel::<()>();
        let may_go_on = Mutex::new(may_go_on);
        let hold = move || {
            within.send(()).unwrap();
            may_go_on.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("the other thread is not blocked");
        };
        let mut slow = Queue::new(11, 8);
        slow.hold = Some(Arc::new(hold));
        endpoints.add(1, slow, START, Received::default());
        endpoints.add(2, Queue::new(12, 8), START, Received::default());
        let queue = CompletionQueue::default();
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| post(&endpoints, 1));
            is_within.recv_timeout(Duration::from_secs(20)).unwrap();
            post(&endpoints, 2);
            queue.0.lock().unwrap().extend([1, 2].map(|lane| Ok(completion(lane, 10 + lane, 1, Ok(())))));
            poll_one(&queue, &polling, &endpoints, &health);
            assert_eq!([1, 2].map(|peer| endpoints.lane(peer).unwrap().completed()), [1, 1]);
            go_on.send(()).unwrap();
            slow.join().unwrap();
        });
    }

    #[test]
    fn polling_skips_a_queue_that_is_being_polled() {
        let (endpoints, health, polling) = (Endpoints::<Queue, Thing>::new(0, 1), Health::default(), Mutex::new(()));
        let queue = CompletionQueue::default();
        queue.0.lock().unwrap().push_back(Err(std::io::Error::other("not to be polled")));
        let _other = polling.lock().unwrap();
        poll_one(&queue, &polling, &endpoints, &health);
        assert_eq!(health.broken(), None);
    }
}
