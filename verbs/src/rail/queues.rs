//! Completion queues in proportion to the number of lanes: the first has room for a few lanes, and each further one for
//! twice as many. Every request of a lane may complete with an error of its own, so each lane has as many entries as
//! its depth.
//!
//! With depth `d` and `n` lanes there are at most `2 d max(8, n + 8)` entries in at most ceil(log2(n / 8 + 1)) queues,
//! on a device whose queues are large enough.

use super::health::Health;
use crate::VerbsError;
use crate::sys::{CompletionQueue, Context};
use std::iter::successors;
use std::sync::{Arc, Mutex, OnceLock};
use transom_launch::lock;

/// Lanes of the first queue.
const FIRST: usize = 8;

/// Number of lanes of a queue, by index. A queue has at most `most` entries.
pub(super) fn lanes(queue: usize, depth: u32, most: u32) -> usize {
    let fit = (most / depth.max(1)).max(1) as usize;
    FIRST.saturating_mul(1 << queue.min(20)).min(fit)
}

/// Index of the queue for the lane that is created as number `nth`.
pub(super) fn queue_of(nth: usize, depth: u32, most: u32) -> usize {
    let mut before = 0;
    (0..)
        .find(|&queue| {
            before += lanes(queue, depth, most);
            nth < before
        })
        .expect("each queue takes at least one lane")
}

/// The completion queues of a rail's lanes.
pub(crate) struct Queues {
    context: Arc<Context>,
    health: Arc<Health>,
    depth: u32,
    queues: List,
    /// Queues on other rails' devices, one per lane that has failed over.
    failover: List,
    /// Number of lanes so far. Locked while a queue is created, which blocks only other creators of lanes.
    lanes: Mutex<usize>,
}

/// Append-only list. Waiting threads poll all queues repeatedly, without a lock.
type List = OnceLock<Box<Node>>;

struct Node {
    polled: Arc<Polled>,
    next: List,
}

/// A completion queue that one thread at a time polls, which keeps completions of a lane in order. Other threads skip
/// it.
pub(crate) struct Polled {
    pub queue: Arc<CompletionQueue>,
    pub polling: Mutex<()>,
    /// Health of the rail whose device has the queue.
    pub health: Arc<Health>,
}

impl Queues {
    pub fn new(context: &Arc<Context>, health: &Arc<Health>, depth: u32) -> Self {
        let (queues, failover) = Default::default();
        let (context, health) = (context.clone(), health.clone());
        Queues { context, health, depth, queues, failover, lanes: Mutex::default() }
    }

    fn most(&self) -> u32 {
        self.context.limits.max_cqe.max(1) as u32
    }

    /// The queue for one more lane, for all its successive queue pairs.
    pub fn take(&self) -> Result<Arc<Polled>, VerbsError> {
        let mut made = lock(&self.lanes);
        let at = queue_of(*made, self.depth, self.most());
        let existing = nodes(&self.queues).nth(at).map(|node| node.polled.clone());
        let queue = match existing {
            Some(queue) => queue,
            None => {
                let lanes = lanes(at, self.depth, self.most()) as u32;
                let entries = lanes.saturating_mul(self.depth).min(self.most());
                tracing::debug!(entries, "completion queue created");
                append(&self.queues, CompletionQueue::new(&self.context, entries)?, &self.health)
            }
        };
        *made += 1;
        Ok(queue)
    }

    /// Creates the queue for a lane of this rail that fails over to another rail's device, with that rail's health.
    /// Called by one thread at a time.
    pub fn failover(&self, context: &Arc<Context>, health: &Arc<Health>) -> Result<Arc<Polled>, VerbsError> {
        Ok(append(&self.failover, CompletionQueue::new(context, self.depth)?, health))
    }

    /// All queues.
    #[inline]
    pub fn all(&self) -> impl Iterator<Item = &Arc<Polled>> {
        nodes(&self.queues).chain(nodes(&self.failover)).map(|node| &node.polled)
    }
}

#[inline]
fn nodes(of: &List) -> impl Iterator<Item = &Node> {
    successors(of.get(), |node| node.next.get()).map(Box::as_ref)
}

fn append(to: &List, queue: CompletionQueue, health: &Arc<Health>) -> Arc<Polled> {
    let (queue, polling, health) = (Arc::new(queue), Mutex::default(), health.clone());
    let polled = Arc::new(Polled { queue, polling, health });
    let end = nodes(to).last().map_or(to, |last| &last.next);
    let _ = end.set(Box::new(Node { polled: polled.clone(), next: List::new() }));
    polled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(made: usize, depth: u32, most: u32) -> usize {
        let queues = if made == 0 { 0 } else { queue_of(made - 1, depth, most) + 1 };
        (0..queues).map(|queue| lanes(queue, depth, most) * depth as usize).sum()
    }

    #[test]
    fn entries_grow_with_lanes_and_not_with_ranks() {
        assert_eq!(entries(0, 128, 4 << 20), 0, "no entries before the first connection");
        assert_eq!([1, 8, 9, 24, 25].map(|lanes| entries(lanes, 128, 4 << 20)), [1024, 1024, 3072, 3072, 7168]);
        for lanes in 1..3000 {
            let entries = entries(lanes, 128, 4 << 20);
            assert!((lanes * 128..=2 * 128 * (lanes + 8)).contains(&entries), "{lanes} lanes: {entries}");
        }
        assert_eq!(queue_of(9_998, 128, 4 << 20), 10, "11 queues to all of 10,000 ranks");
    }

    /// The depth stays as requested for any number of lanes: Soft-RoCE's largest queue has 32,767 entries.
    #[test]
    fn limited_queue_size_makes_more_queues() {
        assert_eq!(lanes(0, 128, 32_767), 8);
        assert_eq!(lanes(9, 128, 32_767), 255);
        assert!((0..10_000).all(|nth| lanes(queue_of(nth, 128, 32_767), 128, 32_767) * 128 <= 32_767));
        assert_eq!(lanes(3, 32_767, 32_767), 1);
        assert_eq!(queue_of(5, 32_767, 32_767), 5);
    }
}
