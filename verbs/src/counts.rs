//! Counters of a rank's adapter resources and requests, for programs and tests that examine cost.

use super::wr::Verb;

/// The numbers of queue pairs that a rank has and has created. One further queue pair receives connection datagrams.
///
/// # Examples
/// See [`Verbs`](super::Verbs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueuePairs {
    /// Queue pairs to other ranks created so far. One per peer and rail, created when either side first needs it, and
    /// again after a connection broke or was given up.
    pub to_others: usize,
    /// Queue pairs to other ranks that exist now. A connection does not exist if it broke and was not needed since, if
    /// messages released it (`paths=both`), or if it was given up because it was idle (`TRANSOM_VERBS_CONNECTIONS`).
    pub now: usize,
    /// Queue pairs to the rank itself. They serve words of its own memory, and of its host's if data move through
    /// shared memory.
    pub to_itself: usize,
}

/// Defines a struct of named counters with addition and subtraction.
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
    /// Requests posted to queue pairs so far. A request posted again after a connection broke counts once.
    ///
    /// # Examples
    /// See [`Verbs`](super::Verbs).
    WorkRequests {
        /// Writes of data or words.
        writes,
        /// Writes with an immediate value.
        told_writes,
        /// Sends, which consume a receive at the far end.
        sends,
        /// RDMA reads.
        reads,
        /// Compare-and-swaps.
        compare_and_swaps,
        /// Fetch-and-adds.
        fetch_and_adds,
        /// Empty writes whose completion signals that of earlier requests.
        markers,
        /// Signalled requests of all kinds: the number of completions taken from the completion queue.
        signalled,
    }
}

counts! {
    /// Demands for registered memory by transfers that bypass the slots, and how they were met.
    ///
    /// # Examples
    /// See [`Verbs`](super::Verbs).
    Registrations {
        /// Operations and messages whose memory was already registered: in a buffer, a window, or a persistent or
        /// partitioned send.
        found,
        /// Operations and messages whose memory was registered for them alone.
        passing,
        /// Refused registrations; these transfers went through slots.
        refused,
        /// Buffers, and medium-sized reads without an immediate wait, that reused pooled registered memory.
        reused,
        /// The same, for which memory was newly registered.
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
