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

/// Counts by their names; two of them can be added up, or the earlier taken from the later.
macro_rules! counts {
    ($(#[$doc:meta])* $counts:ident { $($(#[$of:meta])* $name:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $counts {
            $($(#[$of])* pub $name: u64,)*
        }

        impl std::ops::Add for $counts {
            type Output = $counts;

            fn add(self, other: $counts) -> $counts {
                $counts { $($name: self.$name + other.$name,)* }
            }
        }

        impl std::ops::Sub for $counts {
            type Output = $counts;

            fn sub(self, before: $counts) -> $counts {
                $counts { $($name: self.$name - before.$name,)* }
            }
        }
    };
}

counts! {
    /// What a rank has posted to queue pairs so far; what is posted again, since a connection broke, counts once.
    ///
    /// # Examples
    /// See [`Verbs`](super::Verbs).
    WorkRequests {
        /// Writes of data or words.
        writes,
        /// Writes that tell a value as well.
        told_writes,
        /// Messages to a buffer of the far end.
        sends,
        /// Reads.
        reads,
        /// Compare-and-swaps.
        compare_and_swaps,
        /// Fetch-and-adds.
        fetch_and_adds,
        /// Writes of nothing, that tell when the requests before them are complete.
        markers,
        /// Those of all these that tell when they are complete: so many completions are taken from the completion queue.
        signalled,
    }
}

counts! {
    /// How often a rank has needed registered memory for what does not travel through slots, and where it came from.
    ///
    /// # Examples
    /// See [`Verbs`](super::Verbs).
    Registrations {
        /// Operations and messages whose memory was registered already: a buffer's, a window's, or that of a persistent or partitioned
        /// send.
        found,
        /// Operations and messages whose memory was registered for them.
        passing,
        /// Registrations of those that were refused: they went through slots.
        refused,
        /// Buffers, and reads of middle length of which nobody waited at once, for which memory that had come back was used again.
        reused,
        /// The same, for which memory was registered.
        made,
    }
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
