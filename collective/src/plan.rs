//! What one rank does in one collective.

use crate::hosts::{Hosts, Rank};
use std::ops::Range;

/// Which collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Call {
    /// Nobody returns before all have called.
    Barrier,
    /// `len` elements of the root's, to all.
    Broadcast {
        /// Whose.
        root: Rank,
    },
    /// `len` elements of each, folded in the order of ranks, to the root.
    Reduce {
        /// Whose data becomes the result.
        root: Rank,
        /// Ranks may be folded in any order.
        commutes: bool,
    },
    /// `len` elements of each, folded in the order of ranks, to all.
    AllReduce {
        /// Ranks may be folded in any order.
        commutes: bool,
    },
    /// A block of `len` elements for each rank, folded: its own to each.
    ReduceScatter,
    /// Of each rank the fold of it and those before it.
    Scan {
        /// The fold of those before it alone; the first rank's data is left as it was.
        exclusive: bool,
    },
    /// `len` elements of each, side by side, to the root.
    Gather {
        /// Who gathers.
        root: Rank,
    },
    /// `len` elements to each, from the root.
    Scatter {
        /// Who has them.
        root: Rank,
    },
    /// `len` elements of each, side by side, to all.
    AllGather,
    /// A block of `len` elements from each to each.
    AllToAll,
}

/// Of what size a collective is, as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape<'h> {
    /// This rank.
    pub rank: Rank,
    /// How many there are.
    pub ranks: usize,
    /// Elements of a rank; of each block, where there are blocks.
    pub len: usize,
    /// Bytes of an element.
    pub element: usize,
    /// Where the ranks are, if not all on one host.
    pub hosts: Option<&'h Hosts>,
}

/// Which memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// What the program gives, and is only read. Of a reduce-scatter and an all-to-all, a block for each rank; of a scatter,
    /// the same at the root; of the gathers, this rank's block.
    Given,
    /// What the program gets, in place where nothing is given.
    Data,
    /// [`Plan::scratch`] elements of whatever value.
    Scratch,
}

/// Elements side by side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// In which memory.
    pub place: Place,
    /// The first of them.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// What a rank does by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Local {
    /// Copies elements.
    Copy {
        /// Which.
        from: Span,
        /// As many others.
        to: Span,
    },
    /// Folds elements into others.
    Fold {
        /// Which, and where the result goes.
        into: Span,
        /// As many others.
        with: Span,
        /// On which side of the operation they are.
        order: Order,
    },
    /// Packs a scattered block: the runner knows its section of the program's elements.
    Pack {
        /// The rank that the block goes to.
        block: Rank,
        /// All elements that the program gives.
        from: Span,
        /// The packed block.
        to: Span,
    },
    /// Unpacks a scattered block, as [`Pack`](Self::Pack) the other way.
    Unpack {
        /// The rank that the block comes from.
        block: Rank,
        /// The packed block.
        from: Span,
        /// All elements that the program gets.
        to: Span,
    },
}

/// On which side the second operand of a fold is; operations need not commute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// `into = into o with`: of ranks behind.
    After,
    /// `into = with o into`: of ranks before.
    Before,
}

/// Sends and receives at once; when all of them are done, the rest, in order. What is received is not sent or received
/// otherwise in the round. Messages of a pair are received in the order in which they were sent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Round {
    /// From whom, and where to.
    pub receives: Vec<(Rank, Span)>,
    /// To whom, and what.
    pub sends: Vec<(Rank, Span)>,
    /// After that.
    pub then: Vec<Local>,
}

/// What one rank does in one collective.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// One after the other.
    pub rounds: Vec<Round>,
    /// Elements of memory beside the program's.
    pub scratch: usize,
}

impl Call {
    /// The names of all.
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

    /// Its name.
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

    /// The rank that is not like the others, if there is one.
    pub(crate) fn root(&self) -> Option<Rank> {
        match *self {
            Call::Broadcast { root } | Call::Reduce { root, .. } | Call::Gather { root } | Call::Scatter { root } => {
                Some(root)
            }
            _ => None,
        }
    }

    /// The same with another such rank.
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
    /// Elements of what is given.
    pub(crate) fn given(range: Range<usize>) -> Span {
        Span { place: Place::Given, start: range.start, len: range.len() }
    }

    /// Elements of the result.
    pub(crate) fn data(range: Range<usize>) -> Span {
        Span { place: Place::Data, start: range.start, len: range.len() }
    }

    /// Elements beside them.
    pub(crate) fn scratch(range: Range<usize>) -> Span {
        Span { place: Place::Scratch, start: range.start, len: range.len() }
    }
}

impl Round {
    /// Sends elements, if there are any.
    pub(crate) fn send(&mut self, to: Rank, span: Span) {
        self.sends.extend((span.len > 0).then_some((to, span)));
    }

    /// Sends elements, or an empty message: for lengths that only the two of them know, so that whoever expects others finds out.
    pub(crate) fn send_any(&mut self, to: Rank, span: Span) {
        self.sends.push((to, span));
    }

    /// Receives what [`send_any`](Self::send_any) sends.
    pub(crate) fn receive_any(&mut self, from: Rank, span: Span) {
        self.receives.push((from, span));
    }

    /// Receives elements, if there are any.
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

    /// Adds a round, if anything is done in it.
    pub(crate) fn round(&mut self, write: impl FnOnce(&mut Round)) {
        let mut round = Round::default();
        write(&mut round);
        if round != Round::default() {
            self.rounds.push(round);
        }
    }

    /// The same among these ranks, and on memory that begins there; its own comes behind so many elements.
    pub(crate) fn moved(mut self, ranks: &[Rank], given: Span, data: Span, scratch: usize) -> Plan {
        let span = |span: &mut Span| {
            let (place, start) = match span.place {
                Place::Given => (given.place, given.start),
                Place::Data => (data.place, data.start),
                Place::Scratch => (Place::Scratch, scratch),
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

/// The part of `len` elements that is the share of `rank`: shares differ by one element at most.
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
