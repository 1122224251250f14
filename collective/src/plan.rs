//! Plans: one rank's part of a collective.

use crate::hosts::{Hosts, Rank};
use std::ops::Range;

/// A collective call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// No rank returns before all ranks have called.
    Barrier,
    /// Copies `len` elements of the root to all ranks.
    Broadcast {
        /// The source rank.
        root: Rank,
    },
    /// Folds `len` elements of each rank, in rank order, at the root.
    Reduce {
        /// The rank that gets the result.
        root: Rank,
        /// The operation commutes, so ranks may be folded in any order.
        commutes: bool,
    },
    /// Folds `len` elements of each rank, in rank order, at all ranks.
    AllReduce {
        /// The operation commutes, so ranks may be folded in any order.
        commutes: bool,
    },
    /// Folds one block of `len` elements per rank, and gives each rank its own block.
    ReduceScatter,
    /// Folds, for each rank, the elements of all ranks up to it.
    Scan {
        /// Excludes the rank itself. Rank 0's data stay unchanged.
        exclusive: bool,
    },
    /// Concatenates `len` elements of each rank at the root.
    Gather {
        /// The rank that gets the result.
        root: Rank,
    },
    /// Distributes one block of `len` elements of the root to each rank.
    Scatter {
        /// The source rank.
        root: Rank,
    },
    /// Concatenates `len` elements of each rank at all ranks.
    AllGather,
    /// Sends one block of `len` elements from each rank to each rank.
    AllToAll,
}

/// The size of a collective, as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape<'h> {
    /// The rank to plan for.
    pub rank: Rank,
    /// Number of ranks.
    pub ranks: usize,
    /// Elements per rank, or per block where each rank has several blocks.
    pub len: usize,
    /// Bytes per element.
    pub element: usize,
    /// Placement of the ranks; `None` if all are on one host.
    pub hosts: Option<&'h Hosts>,
}

/// A memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PlanBuffer {
    /// The program's input, which is only read. One block per rank in a reduce-scatter, an all-to-all, and at the root
    /// of a scatter; this rank's block in the gathers.
    Given,
    /// The program's result; also its input, in place, for calls without [`Given`](Self::Given).
    Data,
    /// [`Plan::scratch`] elements with undefined initial values.
    Scratch,
}

/// A contiguous range of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The memory that holds the elements.
    pub place: PlanBuffer,
    /// Index of the first element.
    pub start: usize,
    /// Number of elements.
    pub len: usize,
}

/// A local step of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Local {
    /// Copies elements.
    Copy {
        /// The source.
        from: Span,
        /// The destination, of the same length.
        to: Span,
    },
    /// Folds elements into others by the operation.
    Fold {
        /// The first operand and the result.
        into: Span,
        /// The second operand, of the same length.
        with: Span,
        /// Side of the operation on which `with` is.
        order: Order,
    },
    /// Packs a scattered block. The runner knows the positions of its elements.
    Pack {
        /// The destination rank of the block.
        block: Rank,
        /// The program's whole input.
        from: Span,
        /// The packed block.
        to: Span,
    },
    /// Unpacks a scattered block, the inverse of [`Pack`](Self::Pack).
    Unpack {
        /// The source rank of the block.
        block: Rank,
        /// The packed block.
        from: Span,
        /// The program's whole result.
        to: Span,
    },
}

/// The side of a fold's second operand; operations need not commute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// `into = into o with`: `with` comes from higher ranks.
    After,
    /// `into = with o into`: `with` comes from lower ranks.
    Before,
}

/// One round: all sends and receives start at once; the local steps follow, in order, when all are complete.
///
/// A span that is received overlaps no other span sent or received in the round. Messages of a pair are received in the
/// order in which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// Source rank and destination span of each receive.
    pub receives: Vec<(Rank, Span)>,
    /// Destination rank and source span of each send.
    pub sends: Vec<(Rank, Span)>,
    /// Local steps that follow.
    pub then: Vec<Local>,
}

/// One rank's part of a collective.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Rounds, executed in order.
    pub rounds: Vec<Round>,
    /// Elements of scratch memory.
    pub scratch: usize,
}

impl Call {
    /// The names of all calls, as used in rules.
    pub const NAMES: [&str; 10] = [
        "barrier",
        "broadcast",
        "reduce",
        "all_reduce",
        "reduce_scatter",
        "scan",
        "gather",
        "scatter",
        "all_gather",
        "all_to_all",
    ];

    /// The name of the call, as used in rules.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_collective::Call::Scan { exclusive: true }.name(), "scan");
    /// ```
    #[inline]
    pub fn name(&self) -> &'static str {
        Call::NAMES[match self {
            Call::Barrier => 0,
            Call::Broadcast { .. } => 1,
            Call::Reduce { .. } => 2,
            Call::AllReduce { .. } => 3,
            Call::ReduceScatter => 4,
            Call::Scan { .. } => 5,
            Call::Gather { .. } => 6,
            Call::Scatter { .. } => 7,
            Call::AllGather => 8,
            Call::AllToAll => 9,
        }]
    }

    /// The root, for calls that have one.
    pub(crate) fn root(&self) -> Option<Rank> {
        match *self {
            Call::Broadcast { root } | Call::Reduce { root, .. } | Call::Gather { root } | Call::Scatter { root } => {
                Some(root)
            }
            _ => None,
        }
    }

    /// The same call with another root.
    pub(crate) fn with_root(self, root: Rank) -> Call {
        match self {
            Call::Broadcast { .. } => Call::Broadcast { root },
            Call::Reduce { commutes, .. } => Call::Reduce { root, commutes },
            Call::Gather { .. } => Call::Gather { root },
            Call::Scatter { .. } => Call::Scatter { root },
            other => other,
        }
    }
}

impl Span {
    /// A span of the input.
    pub(crate) fn given(range: Range<usize>) -> Span {
        Span { place: PlanBuffer::Given, start: range.start, len: range.len() }
    }

    /// A span of the result.
    pub(crate) fn data(range: Range<usize>) -> Span {
        Span { place: PlanBuffer::Data, start: range.start, len: range.len() }
    }

    /// A span of scratch memory.
    pub(crate) fn scratch(range: Range<usize>) -> Span {
        Span { place: PlanBuffer::Scratch, start: range.start, len: range.len() }
    }
}

impl Round {
    /// Adds a send, unless the span is empty.
    pub(crate) fn send(&mut self, to: Rank, span: Span) {
        self.sends.extend((span.len > 0).then_some((to, span)));
    }

    /// Adds a send, even of an empty span. For lengths that only sender and receiver know, so that the receiver detects
    /// a length other than the one it expects.
    pub(crate) fn send_any(&mut self, to: Rank, span: Span) {
        self.sends.push((to, span));
    }

    /// Adds a receive that matches [`send_any`](Self::send_any).
    pub(crate) fn receive_any(&mut self, from: Rank, span: Span) {
        self.receives.push((from, span));
    }

    /// Adds a receive, unless the span is empty.
    pub(crate) fn receive(&mut self, from: Rank, span: Span) {
        self.receives.extend((span.len > 0).then_some((from, span)));
    }

    pub(crate) fn copy(&mut self, from: Span, to: Span) {
        debug_assert_eq!(from.len, to.len);
        self.then.extend((from.len > 0).then_some(Local::Copy { from, to }));
    }

    pub(crate) fn fold(&mut self, into: Span, with: Span, order: Order) {
        debug_assert_eq!(into.len, with.len);
        self.then.extend((into.len > 0).then_some(Local::Fold { into, with, order }));
    }

    pub(crate) fn pack(&mut self, block: Rank, from: Span, to: Span) {
        self.then.extend((to.len > 0).then_some(Local::Pack { block, from, to }));
    }

    pub(crate) fn unpack(&mut self, block: Rank, from: Span, to: Span) {
        self.then.extend((from.len > 0).then_some(Local::Unpack { block, from, to }));
    }
}

impl Plan {
    pub(crate) fn with_scratch(scratch: usize) -> Plan {
        Plan { rounds: Vec::new(), scratch }
    }

    /// Adds a round, unless it is empty.
    pub(crate) fn round(&mut self, write: impl FnOnce(&mut Round)) {
        let mut round = Round::default();
        write(&mut round);
        if round != Round::default() {
            self.rounds.push(round);
        }
    }

    /// Translates a plan to the ranks in `ranks`, to memories that begin at `given` and `data`, and to scratch memory
    /// that begins after `scratch` elements.
    pub(crate) fn moved(mut self, ranks: &[Rank], given: Span, data: Span, scratch: usize) -> Plan {
        let span = |span: &mut Span| {
            let (place, start) = match span.place {
                PlanBuffer::Given => (given.place, given.start),
                PlanBuffer::Data => (data.place, data.start),
                PlanBuffer::Scratch => (PlanBuffer::Scratch, scratch),
            };
            *span = Span { place, start: start + span.start, len: span.len };
        };
        for round in &mut self.rounds {
            for (rank, at) in round.receives.iter_mut().chain(&mut round.sends) {
                *rank = ranks[*rank];
                span(at);
            }
            for local in &mut round.then {
                let (Local::Copy { from: a, to: b }
                | Local::Fold { into: a, with: b, .. }
                | Local::Pack { from: a, to: b, .. }
                | Local::Unpack { from: a, to: b, .. }) = local;
                span(a);
                span(b);
            }
        }
        self.scratch += scratch;
        self
    }
}

/// The share of `rank` when `len` elements are divided among `ranks` ranks. Shares differ by at most one element.
///
/// # Examples
/// ```
/// use transom_collective::block;
/// assert_eq!([0, 1, 2].map(|rank| block(10, 3, rank)), [0..3, 3..6, 6..10]);
/// ```
pub fn block(len: usize, ranks: usize, rank: Rank) -> Range<usize> {
    let at = |rank: usize| (len as u128 * rank as u128 / ranks as u128) as usize;
    at(rank)..at(rank + 1)
}
