//! Descriptions of collective calls, shared by the blocking, started and persistent forms.

use super::Reduction;
use super::memory::ALIGNED;
use super::reduction::{Nothing, Typed};
use super::signature::{Kind, Signature};
use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use std::marker::PhantomData;
use transom_collective::{self as plans, Call, Grid, Plan, Rank};

/// A described call of this rank whose arguments have passed all local checks.
pub(super) struct Described<F, W = PlanSource> {
    /// Signature that all ranks compare.
    pub signature: Signature,
    pub what: W,
    pub fold: F,
}

/// Source of this rank's plan.
pub(super) enum PlanSource {
    /// A call with its length in elements (of each rank or each block); the algorithm is not chosen yet.
    Chosen(Call, usize),
    /// A finished plan, for calls with a single algorithm.
    Planned(Plan),
}

pub(super) type Of<F> = Result<Described<F>, Error>;

impl PlanSource {
    /// The rounds that this rank executes.
    pub fn plan<T>(self, world: &World) -> Result<Plan, Error> {
        match self {
            PlanSource::Chosen(call, len) => world.plan::<T>(call, len),
            PlanSource::Planned(plan) => Ok(plan),
        }
    }
}

fn chosen<F>(signature: Signature, call: Call, len: usize, fold: F) -> Of<F> {
    Ok(Described { signature, what: PlanSource::Chosen(call, len), fold })
}

fn planned<F>(signature: Signature, plan: Plan, fold: F) -> Of<F> {
    Ok(Described { signature, what: PlanSource::Planned(plan), fold })
}

/// One description per call. The arguments are the numbers of elements that this rank passes and has room for.
impl World {
    #[inline]
    pub(super) fn of_barrier(&self) -> Of<Nothing> {
        chosen(Signature::without(Kind::Barrier), Call::Barrier, 0, Nothing)
    }

    #[inline]
    pub(super) fn of_broadcast<T: 'static>(&self, root: Rank, len: usize) -> Of<Nothing> {
        self.check_root::<T>(root)?;
        chosen(Signature::of::<T>(Kind::Broadcast, len).root(root), Call::Broadcast { root }, len, Nothing)
    }

    #[inline]
    pub(super) fn of_reduce<T: Pod, R: Reduction<T>>(&self, root: Rank, len: usize, op: R) -> Of<Typed<T, R>> {
        self.check_root::<T>(root)?;
        self.check_operation::<T, R>(&op)?;
        let signature = Signature::of::<T>(Kind::Reduce, len).root(root).by(op.number(), R::COMMUTES);
        chosen(signature, Call::Reduce { root, commutes: R::COMMUTES }, len, Typed(op, PhantomData))
    }

    #[inline]
    pub(super) fn of_all_reduce<T: Pod, R: Reduction<T>>(&self, len: usize, op: R) -> Of<Typed<T, R>> {
        self.check_operation::<T, R>(&op)?;
        let signature = Signature::of::<T>(Kind::AllReduce, len).by(op.number(), R::COMMUTES);
        chosen(signature, Call::AllReduce { commutes: R::COMMUTES }, len, Typed(op, PhantomData))
    }

    pub(super) fn of_scan<T: Pod, R: Reduction<T>>(&self, exclusive: bool, len: usize, op: R) -> Of<Typed<T, R>> {
        self.check_operation::<T, R>(&op)?;
        let kind = if exclusive { Kind::Exscan } else { Kind::Scan };
        let signature = Signature::of::<T>(kind, len).by(op.number(), R::COMMUTES);
        chosen(signature, Call::Scan { exclusive }, len, Typed(op, PhantomData))
    }

    pub(super) fn of_reduce_scatter<T: Pod, R: Reduction<T>>(
        &self,
        data: usize,
        into: usize,
        op: R,
    ) -> Of<Typed<T, R>> {
        self.check_operation::<T, R>(&op)?;
        self.check_blocks("reduce_scatter", data, into)?;
        let signature = Signature::of::<T>(Kind::ReduceScatter, into).by(op.number(), R::COMMUTES);
        chosen(signature, Call::ReduceScatter, into, Typed(op, PhantomData))
    }

    pub(super) fn of_reduce_scatter_v<T: Pod, R: Reduction<T>>(
        &self,
        data: usize,
        counts: &[usize],
        into: usize,
        op: R,
    ) -> Of<Typed<T, R>> {
        self.check_operation::<T, R>(&op)?;
        self.check_counts("reduce_scatter_v", ("counts", counts), ("data", data))?;
        self.check_own("reduce_scatter_v", ("counts", counts), ("into", into))?;
        let signature = Signature::of::<T>(Kind::ReduceScatterV, data).by(op.number(), R::COMMUTES);
        planned(signature, plans::reduce_scatter_v(self.rank(), counts), Typed(op, PhantomData))
    }

    /// Describes a gather; `into` is ignored at ranks other than the root.
    pub(super) fn of_gather<T: 'static>(&self, root: Rank, mine: usize, into: usize) -> Of<Nothing> {
        self.check_root::<T>(root)?;
        if root == self.rank() {
            self.check_blocks("gather", into, mine)?;
        }
        chosen(Signature::of::<T>(Kind::Gather, mine).root(root), Call::Gather { root }, mine, Nothing)
    }

    /// Describes a gather of different lengths; `counts` and `into` are ignored at ranks other than the root.
    pub(super) fn of_gather_v<T: 'static>(
        &self,
        root: Rank,
        mine: usize,
        counts: &[usize],
        into: usize,
    ) -> Of<Nothing> {
        self.check_root::<T>(root)?;
        let signature = Signature::of::<T>(Kind::GatherV, 0).root(root);
        let plan = match root == self.rank() {
            true => {
                self.check_counts("gather_v", ("counts", counts), ("into", into))?;
                self.check_own("gather_v", ("counts", counts), ("mine", mine))?;
                plans::gather_v(self.rank(), root, counts)
            }
            false => plans::gather_v(self.rank(), root, &self.counts_of_one(mine)),
        };
        planned(signature, plan, Nothing)
    }

    /// Describes a scatter; `data` is ignored at ranks other than the root.
    pub(super) fn of_scatter<T: 'static>(&self, root: Rank, data: usize, into: usize) -> Of<Nothing> {
        self.check_root::<T>(root)?;
        if root == self.rank() {
            self.check_blocks("scatter", data, into)?;
        } else if into.checked_mul(self.size()).and_then(|all| all.checked_mul(size_of::<T>())).is_none() {
            self.refuse(format!(
                "scatter: {into} elements for each of {} ranks exceed the address space",
                self.size()
            ))?;
        }
        chosen(Signature::of::<T>(Kind::Scatter, into).root(root), Call::Scatter { root }, into, Nothing)
    }

    /// Describes a scatter of different lengths; `data` and `counts` are ignored at ranks other than the root.
    pub(super) fn of_scatter_v<T: 'static>(
        &self,
        root: Rank,
        data: usize,
        counts: &[usize],
        into: usize,
    ) -> Of<Nothing> {
        self.check_root::<T>(root)?;
        let signature = Signature::of::<T>(Kind::ScatterV, 0).root(root);
        let plan = match root == self.rank() {
            true => {
                self.check_counts("scatter_v", ("counts", counts), ("data", data))?;
                self.check_own("scatter_v", ("counts", counts), ("into", into))?;
                plans::scatter_v(self.rank(), root, counts)
            }
            false => plans::scatter_v(self.rank(), root, &self.counts_of_one(into)),
        };
        planned(signature, plan, Nothing)
    }

    pub(super) fn of_all_gather<T: 'static>(&self, mine: usize, into: usize) -> Of<Nothing> {
        self.check_elements::<T>()?;
        self.check_blocks("all_gather", into, mine)?;
        chosen(Signature::of::<T>(Kind::AllGather, mine), Call::AllGather, mine, Nothing)
    }

    pub(super) fn of_all_gather_v<T: 'static>(&self, mine: usize, counts: &[usize], into: usize) -> Of<Nothing> {
        self.check_elements::<T>()?;
        self.check_counts("all_gather_v", ("counts", counts), ("into", into))?;
        self.check_own("all_gather_v", ("counts", counts), ("mine", mine))?;
        let signature = Signature::of::<T>(Kind::AllGatherV, into);
        planned(signature, plans::all_gather_v(self.rank(), counts), Nothing)
    }

    pub(super) fn of_all_to_all<T: 'static>(&self, data: usize, into: usize) -> Of<Nothing> {
        self.check_elements::<T>()?;
        let block = data / self.size();
        self.check_blocks("all_to_all", data, block)?;
        self.check_blocks("all_to_all", into, block)?;
        chosen(Signature::of::<T>(Kind::AllToAll, block), Call::AllToAll, block, Nothing)
    }

    /// Describes an exchange of `given[i]` elements to rank `i` and `taken[i]` elements from rank `i`.
    pub(super) fn of_all_to_all_v<T: 'static>(&self, given: &[usize], taken: &[usize], into: usize) -> Of<Nothing> {
        self.check_elements::<T>()?;
        self.check_counts("all_to_all_v", ("taken", taken), ("into", into))?;
        let (blocks, ranks) = (given.len(), self.size());
        if blocks != ranks {
            return self
                .refuse(format!("all_to_all_v: `given` has {blocks} lengths, expected {ranks}, one for each rank"));
        }
        self.check_own("all_to_all_v", ("taken", taken), ("given", given[self.rank()]))?;
        planned(Signature::of::<T>(Kind::AllToAllV, 0), plans::all_to_all_v(self.rank(), given, taken), Nothing)
    }

    pub(super) fn of_neighbours<T: 'static, const D: usize>(
        &self,
        grid: &Grid<D>,
        data: usize,
        into: usize,
    ) -> Of<Nothing> {
        self.check_elements::<T>()?;
        let block = data / (2 * D).max(1);
        if (block * 2 * D, block * 2 * D, self.size()) != (data, into, grid.ranks()) {
            let (ranks, on_grid) = (self.size(), grid.ranks());
            let blocks = 2 * D;
            return self.refuse(format!(
                "neighbours on a grid of {on_grid} among {ranks} ranks: `data` has {data} elements and `into` {into}; \
                 expected {blocks} blocks of one length in both, and as many places in the grid as there are ranks"
            ));
        }
        let signature = Signature::of::<T>(Kind::Neighbours, block).on_grid(grid.number());
        planned(signature, plans::neighbours(self.rank(), grid, block), Nothing)
    }
}

/// Argument checks. A failed check makes this rank refuse its call, which the other ranks learn.
impl World {
    #[inline]
    pub(super) fn check_root<T: 'static>(&self, root: Rank) -> Result<(), Error> {
        self.check_elements::<T>()?;
        match root < self.size() {
            true => Ok(()),
            false => Err(self.group()?.refuse(Error::NoSuchRank { rank: root, ranks: self.size() })),
        }
    }

    #[inline]
    pub(super) fn check_elements<T: 'static>(&self) -> Result<(), Error> {
        match (size_of::<T>(), align_of::<T>()) {
            (0, _) => self.refuse("elements of 0 bytes are not supported".into()),
            (_, align) if align > ALIGNED => {
                self.refuse(format!("elements are aligned to {align} bytes; at most {ALIGNED} are supported"))
            }
            _ => Ok(()),
        }
    }

    #[inline]
    fn check_operation<T: Pod, R: Reduction<T>>(&self, op: &R) -> Result<(), Error> {
        self.check_elements::<T>()?;
        op.check().or_else(|error| Err(self.group()?.refuse(error)))
    }

    /// Checks that `elements` is one block of `block` elements per rank.
    fn check_blocks(&self, name: &str, elements: usize, block: usize) -> Result<(), Error> {
        match block.checked_mul(self.size()) {
            Some(expected) if expected == elements => Ok(()),
            expected => {
                let (ranks, expected) = (self.size(), expected.map_or("too many".into(), |many| many.to_string()));
                self.refuse(format!(
                    "{name}: the buffer of all blocks has {elements} elements, expected {expected}: blocks of {block} \
                     for each of {ranks} ranks"
                ))
            }
        }
    }

    /// Checks that `counts` has one length per rank and that they add up to `elements`.
    pub(super) fn check_counts(
        &self,
        name: &str,
        (argument, counts): (&str, &[usize]),
        (buffer, elements): (&str, usize),
    ) -> Result<(), Error> {
        let (lengths, ranks) = (counts.len(), self.size());
        if lengths != ranks {
            return self
                .refuse(format!("{name}: `{argument}` has {lengths} lengths, expected {ranks}, one for each rank"));
        }
        match total(counts) {
            Some(sum) if sum == elements => Ok(()),
            sum => {
                let sum = sum.map_or("more than there can be".into(), |sum| sum.to_string());
                self.refuse(format!("{name}: `{argument}` adds up to {sum} elements, and `{buffer}` has {elements}"))
            }
        }
    }

    /// Checks that this rank's own entry of `counts` equals its own buffer length.
    fn check_own(
        &self,
        name: &str,
        (argument, counts): (&str, &[usize]),
        (buffer, own): (&str, usize),
    ) -> Result<(), Error> {
        let rank = self.rank();
        let said = counts[rank];
        match said == own {
            true => Ok(()),
            false => self.refuse(format!(
                "{name}: `{argument}[{rank}]`, the block of this rank itself, is {said}, but `{buffer}` has {own}"
            )),
        }
    }

    /// Counts known at a rank that is not the root: its own length, 0 for all others.
    fn counts_of_one(&self, mine: usize) -> Vec<usize> {
        let mut counts = vec![0; self.size()];
        counts[self.rank()] = mine;
        counts
    }

    /// Allocates zeroed elements; refuses the call if memory is short or the number overflowed.
    pub(super) fn room<T: Pod>(&self, elements: Option<usize>) -> Result<Vec<T>, Error> {
        let made = elements.and_then(|elements| bytemuck::allocation::try_zeroed_slice_box(elements).ok());
        match made {
            Some(elements) => Ok(elements.into_vec()),
            None => self.refuse("cannot allocate memory for the blocks of all ranks".into()),
        }
    }

    /// Refuses a call with invalid arguments; the other ranks learn that this rank does not take part.
    #[cold]
    pub(super) fn refuse<R>(&self, why: String) -> Result<R, Error> {
        Err(self.group()?.refuse(Error::Misuse { why }))
    }
}

/// Sum of `counts`; `None` on overflow.
pub(super) fn total(counts: &[usize]) -> Option<usize> {
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count))
}
