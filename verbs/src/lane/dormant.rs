//! Giving up the queue of an idle lane. No request is in flight at either end then, so that nothing is lost or repeated.
//! The lane remains, and continues on the next queue.

use super::*;

impl<Q: WorkQueue, L> Lane<Q, L> {
    /// Returns whether the lane can do without its queue while no request is posted: nothing is in flight, the queue is
    /// on the lane's own rail, and messages would not move to another rail.
    pub fn is_spare(&self) -> bool {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        let own = sending.queue.as_ref().is_some_and(|queue| !queue.is_failover());
        let works = self.state.load(Acquire) == WORKS;
        own && works && self.is_idle() && sending.held.is_none() && !sending.returns && !self.stays()
    }

    /// Stops posting until the next queue, unless requests are held back; returns whether all posted ones are complete.
    pub fn drain(&self) -> bool {
        let mut sending = self.sending();
        self.take_back(&mut sending);
        if sending.queue.is_none() {
            return true;
        }
        if sending.held.is_some() {
            return false;
        }
        if self.state.load(Acquire) == WORKS {
            if self.ask_with(&mut sending).is_err() {
                return false;
            }
            let _ = self.state.compare_exchange(WORKS, DORMANT, AcqRel, Relaxed);
        }
        self.is_idle()
    }

    /// Returns whether the lane waits for a queue only because it was idle.
    pub fn is_dormant(&self) -> bool {
        self.state.load(Acquire) == DORMANT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{Queue, START, Thing, completion};
    use crate::wr::{Failure, Received, Why};

    type Tested = Lane<Queue, Thing>;

    const TO: RemoteAddress = RemoteAddress { address: 4096, key: 9 };
    const PIECE: Piece = Piece { address: 64, bytes: 100, key: 7 };

    fn posted(lane: &Tested, signal: Signal) -> Result<u64, Stop> {
        // SAFETY: the fake queue accesses no memory.
        unsafe { lane.post(Verb::Send, TO, PIECE, signal, None) }.map_err(|(stop, _)| stop)
    }

    #[test]
    fn draining_lane_posts_nothing_and_completes() {
        let queue = Queue::new(77, 16);
        let lane: Tested = Lane::new(3, queue.clone(), START);
        assert!(lane.is_spare());
        posted(&lane, Signal::Seldom).unwrap();
        assert!(!lane.is_spare(), "a request is in flight");
        assert!(!lane.drain());
        let last = queue.take().pop().unwrap();
        assert!(last.signalled && last.piece.bytes == 0, "the completion of the unsignalled request is requested");
        assert!(matches!(posted(&lane, Signal::Always), Err(Stop::Broken)));
        assert!(lane.is_dormant() && lane.is_broken() && !lane.drain());
        lane.complete(&completion(3, 77, 2, Ok(())));
        assert!(lane.drain() && !lane.is_spare());
        assert!(lane.retire(drop).is_some() && lane.is_dormant() && lane.drain());
        let next = Queue::new(78, 16);
        let received = Received { generation: 1, next: (START.psn + 2) % (1 << 24) };
        assert!(lane.resume(next.clone(), Start { generation: 2, psn: 5, mtu: 1024 }, received));
        assert!(next.take().is_empty() && lane.is_spare() && !lane.is_dormant());
        assert_eq!(posted(&lane, Signal::Always).unwrap(), 3);
    }

    #[test]
    fn queue_that_breaks_while_draining_is_broken() {
        let lane: Tested = Lane::new(3, Queue::new(77, 16), START);
        posted(&lane, Signal::Always).unwrap();
        assert!(!lane.drain());
        lane.complete(&completion(3, 77, 1, Err(Failure { why: Why::Silence, status: 12, vendor: 0 })));
        assert!(lane.is_broken() && !lane.is_dormant() && !lane.drain());
    }

    #[test]
    fn lane_on_which_others_depend_is_not_spare() {
        let mut failover = Queue::new(77, 16);
        failover.failover = true;
        let lane: Tested = Lane::new(3, failover, START);
        assert!(!lane.is_spare(), "its own rail is cut");
        let lane: Tested = Lane::new(3, Queue::new(77, 16), START);
        lane.return_to_messages(true);
        assert!(!lane.is_spare(), "messages would move to another rail");
        lane.return_to_messages(false);
        lane.stay(true);
        assert!(!lane.is_spare(), "a pipe");
        lane.stay(false);
        assert!(lane.is_spare());
    }
}
