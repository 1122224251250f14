//! What a rank has of its adapter, and has asked of it: for programs and tests that want to know its cost.

use super::wr::Verb;

/// How many queue pairs a rank has, and has made. One more takes the datagrams by which ranks ask each other for connections.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairs {
    /// To other ranks, one each by each rail, made when first needed by either, and again where a connection broke.
    pub to_others: usize,
    /// Those to other ranks that there are now: none where a connection broke and nobody needed it since, or messages gave it up
    /// (`paths=both`).
    pub now: usize,
    /// To itself, for words of its own memory and, if data moves through shared memory, of its host's.
    pub to_itself: usize,
}

/// What a rank has posted to queue pairs so far; what is posted again, since a connection broke, counts once.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkRequests {
    /// Writes of data or words.
    pub writes: u64,
    /// Writes that tell a value as well.
    pub told_writes: u64,
    /// Messages to a buffer of the far end.
    pub sends: u64,
    /// Reads.
    pub reads: u64,
    /// Compare-and-swaps.
    pub compare_and_swaps: u64,
    /// Fetch-and-adds.
    pub fetch_and_adds: u64,
    /// Writes of nothing, that tell when the requests before them are complete.
    pub markers: u64,
}

/// How often a rank has needed registered memory for what does not travel through slots, and where it came from.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Registrations {
    /// Operations and messages whose memory was registered already: a buffer's, a window's, or that of a persistent or partitioned
    /// send.
    pub found: u64,
    /// Operations and messages whose memory was registered for them.
    pub passing: u64,
    /// Registrations of those that were refused: they went through slots.
    pub refused: u64,
    /// Buffers, and reads of middle length of which nobody waited at once, for which memory that had come back was used again.
    pub reused: u64,
    /// The same, for which memory was registered.
    pub made: u64,
}

impl WorkRequests {
    pub(super) fn count(&mut self, verb: Verb, bytes: u32) {
        *match verb {
            Verb::Write if bytes == 0 => &mut self.markers,
            Verb::Write => &mut self.writes,
            Verb::WriteAndTell(_) => &mut self.told_writes,
            Verb::Send => &mut self.sends,
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
            told_writes: self.told_writes + other.told_writes,
            sends: self.sends + other.sends,
            reads: self.reads + other.reads,
            compare_and_swaps: self.compare_and_swaps + other.compare_and_swaps,
            fetch_and_adds: self.fetch_and_adds + other.fetch_and_adds,
            markers: self.markers + other.markers,
        }
    }
}

impl std::ops::Add for Registrations {
    type Output = Registrations;

    fn add(self, other: Registrations) -> Registrations {
        Registrations {
            found: self.found + other.found,
            passing: self.passing + other.passing,
            refused: self.refused + other.refused,
            reused: self.reused + other.reused,
            made: self.made + other.made,
        }
    }
}

impl std::ops::Sub for WorkRequests {
    type Output = WorkRequests;

    fn sub(self, before: WorkRequests) -> WorkRequests {
        WorkRequests {
            writes: self.writes - before.writes,
            told_writes: self.told_writes - before.told_writes,
            sends: self.sends - before.sends,
            reads: self.reads - before.reads,
            compare_and_swaps: self.compare_and_swaps - before.compare_and_swaps,
            fetch_and_adds: self.fetch_and_adds - before.fetch_and_adds,
            markers: self.markers - before.markers,
        }
    }
}
