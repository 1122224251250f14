//! Hierarchical collectives. The ranks of a host work in shared memory first and last, and one rank per host, its
//! leader, sends between hosts. Messages and bytes between h hosts are then as few as between h ranks. The root leads
//! its host; on other hosts the first rank leads.
//!
//! The ranks of each host must be consecutive where the order of ranks matters: in scans, and in folds that do not
//! commute. An all-to-all is hierarchical for short blocks only.

use super::Algorithm;
use super::direct::{all_gather_v, gather_v, scatter_v};
use super::pairwise::{all_to_all_v, reduce_scatter_v};
use crate::choose::best;
use crate::hosts::Hosts;
use crate::hosts::Rank;
use crate::plan::{Call, Order, Plan, Round, Shape, Span};
use crate::rules::Rules;

/// The plan of one rank for a hierarchical collective.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchical {
    /// Stages, executed in order.
    pub stages: Vec<Stage>,
    /// Elements of scratch memory shared by all stages.
    pub scratch: usize,
}

/// A stage of a hierarchical collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// A collective among the ranks of this host, numbered by their order on the host.
    Inside {
        /// The collective.
        call: Call,
        /// Its input.
        given: Span,
        /// Its result.
        data: Span,
    },
    /// Messages between leaders, and local copies.
    Between(Plan),
}

/// Plans a hierarchical collective; `None` if the call has no hierarchical form for this shape.
///
/// Leaders use the algorithm `by` among themselves if it supports the call, else the one that the table selects.
///
/// # Examples
/// ```
/// use transom_collective::{Call, Hosts, Shape, Stage, by_hosts};
/// let hosts = Hosts::of(&["a", "a", "b"]);
/// let shape = |rank| Shape { rank, ranks: 3, len: 1000, element: 8, hosts: Some(&hosts) };
/// let stages = |rank| by_hosts(Call::Broadcast { root: 0 }, shape(rank), None).unwrap().stages;
/// assert!(matches!(&stages(0)[..], [Stage::Between(_), Stage::Inside { .. }]));
/// assert!(matches!(&stages(1)[..], [Stage::Inside { .. }])); // the other rank of host a sends nothing to b
/// assert!(by_hosts(Call::AllToAll, shape(0), None).is_none()); // blocks are too long
/// ```
pub fn by_hosts(call: Call, shape: Shape<'_>, by: Option<Algorithm>) -> Option<Hierarchical> {
    let hosts = shape.hosts.filter(|hosts| hosts.differ())?;
    let (ranks, len, ordered) = (shape.ranks, shape.len, hosts.in_order());
    let mut parts = Parts::of(call, shape, hosts, by);
    let (none, data) = (Span::data(0..0), Span::data(0..len));
    match call {
        Call::Broadcast { .. } => {
            parts.between(call, none, data);
            parts.inside(call, none, data);
        }
        Call::Reduce { commutes, .. } if commutes || ordered => {
            // A leader that is not the root must keep its data.
            let into = if parts.leads && !parts.is_root { parts.room(len) } else { data };
            parts.local(&[(data, into)]);
            parts.inside(call, none, into);
            parts.between(call, none, into);
        }
        Call::AllReduce { commutes } if commutes || ordered => {
            parts.inside(Call::Reduce { root: 0, commutes }, none, data);
            parts.between(call, none, data);
            parts.inside(Call::Broadcast { root: 0 }, none, data);
        }
        Call::Gather { .. } | Call::AllGather => {
            let everywhere = call == Call::AllGather;
            let here = if parts.leads { parts.room(parts.here.len() * len) } else { none };
            let whole = Span::data(0..ranks * len);
            let all = match parts.leads && (everywhere || parts.is_root) {
                true if !ordered => parts.room(ranks * len),
                true => whole,
                false => none,
            };
            parts.inside(Call::Gather { root: 0 }, Span::given(0..len), here);
            parts.between(call, here, all);
            if all.len > 0 && all != whole {
                parts.local(
                    &parts.by_host(all).map(|(rank, from)| (from, block_of(whole, rank, len))).collect::<Vec<_>>(),
                );
            }
            if everywhere {
                parts.inside(Call::Broadcast { root: 0 }, none, whole);
            }
        }
        Call::Scatter { .. } => {
            let here = if parts.leads { parts.room(parts.here.len() * len) } else { none };
            let whole = Span::given(0..ranks * len);
            let all = if parts.is_root && !ordered { parts.room(ranks * len) } else { whole };
            if parts.is_root && all != whole {
                parts.local(&parts.by_host(all).map(|(rank, to)| (block_of(whole, rank, len), to)).collect::<Vec<_>>());
            }
            parts.between(call, all, here);
            parts.inside(call, here, data);
        }
        Call::Barrier => {
            parts.inside(call, none, none);
            parts.between(call, none, none);
            parts.inside(call, none, none);
        }
        Call::ReduceScatter if ordered => {
            let all = parts.room(ranks * len);
            let here = if parts.leads { parts.room(parts.here.len() * len) } else { none };
            parts.local(&[(Span::given(0..ranks * len), all)]);
            parts.inside(Call::Reduce { root: 0, commutes: false }, none, all);
            parts.between(call, all, here);
            parts.inside(Call::Scatter { root: 0 }, here, data);
        }
        Call::Scan { exclusive } if ordered => {
            // The fold of all preceding hosts precedes the fold within this host.
            let before = parts.room(len);
            parts.local(&[(data, before)]);
            parts.inside(Call::Reduce { root: 0, commutes: false }, none, before);
            parts.between(Call::Scan { exclusive: true }, none, before);
            parts.inside(Call::Broadcast { root: 0 }, none, before);
            parts.inside(call, none, data);
            match (hosts.host(shape.rank), exclusive && shape.rank == parts.here[0]) {
                (0, _) => {}
                (_, true) => parts.local(&[(before, data)]),
                (_, false) => parts.alone(|round| round.fold(data, before, Order::Before)),
            }
        }
        Call::AllToAll if len * shape.element <= TOGETHER => {
            let (here, whole) = (parts.here.len(), ranks * len);
            let mut room = || if parts.leads { parts.room(here * whole) } else { none };
            // Blocks from and for all ranks of this host. `own` serves twice: for the blocks given and for the blocks
            // received.
            let (own, out, come) = (room(), room(), room());
            parts.inside(Call::Gather { root: 0 }, Span::given(0..whole), own);
            if parts.leads {
                let blocks = parts.exchanged(own, out, come);
                parts.local(&blocks.iter().map(|block| (block.gave, block.out)).collect::<Vec<_>>());
                parts.between(call, out, come);
                parts.local(&blocks.iter().map(|block| (block.come, block.gets)).collect::<Vec<_>>());
            }
            parts.inside(Call::Scatter { root: 0 }, own, Span::data(0..whole));
        }
        Call::Reduce { .. } | Call::AllReduce { .. } | Call::ReduceScatter | Call::Scan { .. } | Call::AllToAll => {
            return None;
        }
    }
    Some(parts.made)
}

/// Longest block, in bytes, of a hierarchical all-to-all. For longer blocks two extra copies cost more than fewer
/// messages save.
const TOGETHER: usize = 1024;

/// The same collective as one plan of messages, used inside hosts too.
pub(super) fn plan(call: Call, shape: Shape<'_>) -> Option<Plan> {
    plan_by(call, shape, None)
}

/// Like [`plan`], with a chosen algorithm between leaders.
pub(super) fn plan_by(call: Call, shape: Shape<'_>, by: Option<Algorithm>) -> Option<Plan> {
    let hosts = shape.hosts?;
    let here = hosts.ranks(hosts.host(shape.rank));
    let Hierarchical { stages, scratch } = by_hosts(call, shape, by)?;
    let mut whole = Plan::with_scratch(scratch);
    for stage in stages {
        let part = match stage {
            Stage::Between(plan) => plan,
            Stage::Inside { call, given, data } => {
                let len = if let Call::Gather { .. } = call { given.len } else { data.len };
                planned(call, Shape { len, ..among(here, shape) }).moved(here, given, data, scratch)
            }
        };
        whole.scratch = whole.scratch.max(part.scratch);
        whole.rounds.extend(part.rounds);
    }
    Some(whole)
}

fn planned(call: Call, shape: Shape<'_>) -> Plan {
    best(call, shape, &Rules::default()).plan(call, shape)
}

/// The shape of a subset of the ranks, which includes this rank.
fn among<'h>(ranks: &[Rank], shape: Shape<'_>) -> Shape<'h> {
    let rank = ranks.iter().position(|rank| *rank == shape.rank).expect("the ranks include this rank");
    Shape { rank, ranks: ranks.len(), len: shape.len, element: shape.element, hosts: None }
}

fn block_of(of: Span, rank: Rank, len: usize) -> Span {
    Span { place: of.place, start: of.start + rank * len, len }
}

/// Builder of the stages.
struct Parts<'h> {
    shape: Shape<'h>,
    hosts: &'h Hosts,
    /// The ranks of this host, in order.
    here: &'h [Rank],
    leaders: Vec<Rank>,
    /// The root, or rank 0 for calls without a root.
    root: Rank,
    is_root: bool,
    leads: bool,
    /// Algorithm between leaders, if the rules name one.
    by: Option<Algorithm>,
    /// Elements of scratch memory reserved so far for all stages. All reservations must precede the first stage.
    room: usize,
    made: Hierarchical,
}

/// A block from a rank of this host to another rank, and the block in the opposite direction.
struct Exchanged {
    /// The outgoing block: in the sender's input, and in the message to the other host.
    gave: Span,
    out: Span,
    /// The incoming block: in the message from the other host, and in the receiver's result.
    come: Span,
    gets: Span,
}

impl<'h> Parts<'h> {
    fn of(call: Call, shape: Shape<'h>, hosts: &'h Hosts, by: Option<Algorithm>) -> Self {
        let root = call.root().unwrap_or(0);
        let leader = |host| if host == hosts.host(root) { root } else { hosts.ranks(host)[0] };
        let leaders: Vec<Rank> = (0..hosts.count()).map(leader).collect();
        let (host, is_root) = (hosts.host(shape.rank), shape.rank == root);
        let (here, leads) = (hosts.ranks(host), leaders[host] == shape.rank);
        Parts { shape, hosts, here, leaders, root, is_root, leads, by, room: 0, made: Hierarchical::default() }
    }

    /// Reserves scratch memory for all stages; each stage's own scratch memory follows it.
    fn room(&mut self, len: usize) -> Span {
        let begin = self.room;
        self.room += len;
        self.made.scratch = self.made.scratch.max(self.room);
        Span::scratch(begin..self.room)
    }

    /// The ranks grouped by host, each with the position of its block in `all`.
    fn by_host(&self, all: Span) -> impl Iterator<Item = (Rank, Span)> {
        let ranks = (0..self.hosts.count()).flat_map(|host| self.hosts.ranks(host));
        ranks.enumerate().map(move |(nth, rank)| (*rank, block_of(all, nth, self.shape.len)))
    }

    fn local(&mut self, copies: &[(Span, Span)]) {
        self.alone(|round| {
            copies.iter().filter(|(from, to)| from != to).for_each(|(from, to)| round.copy(*from, *to));
        });
    }

    /// Adds a stage without messages.
    fn alone(&mut self, write: impl FnOnce(&mut Round)) {
        let mut plan = Plan::default();
        plan.round(write);
        self.made.stages.extend((plan != Plan::default()).then_some(Stage::Between(plan)));
    }

    /// The blocks of an all-to-all that this host's leader forwards: between each rank of this host and every rank.
    fn exchanged(&self, own: Span, out: Span, come: Span) -> Vec<Exchanged> {
        let (hosts, here, len, ranks) = (self.hosts, self.here, self.shape.len, self.shape.ranks);
        let block = |of: Span, nth: usize| block_of(of, nth, len);
        let mut all = Vec::with_capacity(here.len() * ranks);
        for host in 0..hosts.count() {
            // Contiguous for each host: outgoing blocks ordered by sender here, incoming blocks ordered by sender
            // there.
            let (there, first) = (hosts.ranks(host), all.len());
            for i in 0..here.len() {
                for (j, other) in there.iter().enumerate() {
                    all.push(Exchanged {
                        gave: block(own, i * ranks + other),
                        out: block(out, first + i * there.len() + j),
                        come: block(come, first + j * here.len() + i),
                        gets: block(own, i * ranks + other),
                    });
                }
            }
        }
        all
    }

    /// Adds the same collective among the ranks of this host. Its leader is the root.
    fn inside(&mut self, call: Call, given: Span, data: Span) {
        let leader = self.leaders[self.hosts.host(self.shape.rank)];
        let call =
            call.with_root(self.here.iter().position(|rank| *rank == leader).expect("the leader is on its host"));
        self.made.stages.push(Stage::Inside { call, given, data });
    }

    /// Adds the same collective among all leaders.
    fn between(&mut self, call: Call, given: Span, data: Span) {
        if !self.leads {
            return;
        }
        let root = self.hosts.host(self.root);
        let blocks_of = |host| self.hosts.ranks(host).len() * self.shape.len;
        let counts: Vec<usize> = (0..self.hosts.count()).map(blocks_of).collect();
        let (call, shape) = (call.with_root(root), among(&self.leaders, self.shape));
        let even = counts.iter().all(|count| *count == counts[0]);
        let of_here = |counts: &[usize]| counts.iter().map(|count| count * self.here.len()).collect::<Vec<_>>();
        let plan = match call {
            Call::AllToAll if !even => all_to_all_v(shape.rank, &of_here(&counts), &of_here(&counts)),
            Call::AllToAll => self.planned(call, Shape { len: of_here(&counts)[0], ..shape }),
            Call::ReduceScatter if !even => reduce_scatter_v(shape.rank, &counts),
            Call::Gather { .. } if !even => gather_v(shape.rank, root, &counts),
            Call::Scatter { .. } if !even => scatter_v(shape.rank, root, &counts),
            Call::AllGather if !even => all_gather_v(shape.rank, &counts),
            Call::Gather { .. } | Call::Scatter { .. } | Call::AllGather | Call::ReduceScatter => {
                self.planned(call, Shape { len: counts[0], ..shape })
            }
            _ => self.planned(call, shape),
        };
        let plan = plan.moved(&self.leaders, given, data, self.room);
        self.made.scratch = self.made.scratch.max(plan.scratch);
        self.made.stages.push(Stage::Between(plan));
    }

    /// Plans a collective among leaders. The choice depends only on values that all leaders share.
    fn planned(&self, call: Call, shape: Shape<'_>) -> Plan {
        match self.by.filter(|by| by.can(call, shape)) {
            Some(by) => by.plan(call, shape),
            None => planned(call, shape),
        }
    }
}
