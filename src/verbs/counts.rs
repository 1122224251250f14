//! What a rank has of its adapter, and has asked of it: for programs and tests that want to know its cost.

use super::wr::Verb;

/// How many queue pairs a rank has made. One more takes the datagrams by which ranks ask each other for connections.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairs {
    /// To other ranks, one each, made when first needed by either.
    pub to_others: usize,
    /// To itself, for words of its own memory and, if data moves through shared memory, of its host's.
    pub to_itself: usize,
}

/// What a rank has posted to queue pairs so far.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkRequests {
    /// Writes of data or words.
    pub writes: u64,
    /// Reads.
    pub reads: u64,
    /// Compare-and-swaps.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_and_adds: u64,
    /// Writes of nothing, that tell when the requests before them are complete.
    pub markers: u64,
}

/// How often a rank has needed registered memory for a read of which nobody waited at once, too long for a slot.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registrations {
    /// What had come back was lent again.
    pub reused: u64,
    /// It was registered.
    pub made: u64,
}

impl WorkRequests {
    pub(super) fn count(&mut self, verb: Verb, bytes: u32) {
        *match verb {
            Verb::Write if bytes == 0 => &mut self.markers,
            Verb::Write => &mut self.writes,
            Verb::Read => &mut self.reads,
            Verb::CompareAndSwap { .. } => &mut self.compare_and_swaps,
            Verb::Add(_) => &mut self.fetch_and_adds,
        } += 1;
    }
}

impl std::ops::Add for WorkRequests {
    type Output = WorkRequests;

    fn add(self, other: WorkRequests) -> WorkRequests {
        WorkRequests {
            writes: self.writes + other.writes,
            reads: self.reads + other.reads,
            compare_and_swaps: self.compare_and_swaps + other.compare_and_swaps,
            fetch_and_adds: self.fetch_and_adds + other.fetch_and_adds,
            markers: self.markers + other.markers,
        }
    }
}

impl std::ops::Sub for WorkRequests {
    type Output = WorkRequests;

    fn sub(self, before: WorkRequests) -> WorkRequests {
        WorkRequests {
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            compare_and_swaps: self.compare_and_swaps - before.compare_and_swaps,
            fetch_and_adds: self.fetch_and_adds - before.fetch_and_adds,
            markers: self.markers - before.markers,
        }
    }
}
