//! Calls that fold the elements of all ranks, always in the order of ranks.

use super::block::{HALF_CARRIES, LINES_CARRY};
use super::board::ShmCollective;
use super::broken::Failure;
use super::fold::Fold;
use super::lines::{Lines, Says};
use super::path_tuner::Kind;
use transom_collective::Order;
use transom_locks::Rank;

/// Largest length, in bytes, up to which every rank folds all elements itself. An element is never cut.
pub(super) const WHOLE: usize = 8 << 10;

/// Returns the length in bytes up to which each of `ranks` ranks folds all elements itself. Each rank then reads the
/// elements of all. With shares each rank reads twice its share and the call has more rounds, which dominate where
/// ranks share cores. On 16 near cores, shares were faster from 3 KiB with 4 ranks, 1.2 KiB with 6, 200 bytes with 8,
/// and always with 12 and 16.
pub(super) fn whole(ranks: usize, oversubscribed: bool) -> usize {
    if oversubscribed { WHOLE } else { ((200 << 10) / ranks.saturating_pow(3)).clamp(64, WHOLE) }
}

/// A short buffer at the beginning of a cache line.
#[repr(align(64))]
struct Short([u8; HALF_CARRIES]);

impl ShmCollective {
    /// Folds the elements of all ranks, `element` bytes each, into `data`. All ranks receive the same bytes.
    ///
    /// `fold(into, with, order)` must do `into = into o with` or, for [`Order::Before`], `into = with o into`, for each
    /// of the elements that it is given, an equal number in both slices. The board folds in the order of ranks, `((0 o
    /// 1) o 2) o 3`, whatever the number of elements, so `o` need not commute. Each slice begins at a cache line, or is
    /// a part of `data` that begins at an element. `fold` must do the same at all ranks.
    ///
    /// # Errors
    /// See [`ShmCollective`]; [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if the length of `data` is
    /// no multiple of `element`.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut data = *b"abc";
    /// board.all_reduce(7, &mut data, 1, &mut |into, with, _| {
    ///     into.iter_mut().zip(with).for_each(|(into, with)| *into = *with.max(into));
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn all_reduce<F>(&mut self, call: u64, data: &mut [u8], element: usize, fold: &mut F) -> Result<(), Failure>
    where
        F: FnMut(&mut [u8], &[u8], Order) + ?Sized,
    {
        if data.len() > HALF_CARRIES || self.ranks() != 2 {
            return self.all_reduce_of_many(call, data, element, &mut |into, with, order| fold(into, with, order));
        }
        // Short data is folded here, where the compiler can inline the operation.
        let mut theirs = Short([0; HALF_CARRIES]);
        let theirs = &mut theirs.0[..data.len()];
        self.exchange(call, data, element, theirs)?;
        let order = if self.lines.me == 0 { Order::After } else { Order::Before };
        self.lines.fold(fold, data, theirs, order);
        Ok(())
    }

    fn all_reduce_of_many(
        &mut self,
        call: u64,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        self.lines.begin("all_reduce", call, Says::All(data.len()))?;
        self.reduce_to(None, data, element, fold)
    }

    /// Sends `data` to the other of two ranks, and receives its elements into `theirs`.
    fn exchange(&mut self, call: u64, data: &[u8], element: usize, theirs: &mut [u8]) -> Result<(), Failure> {
        self.lines.begin("all_reduce", call, Says::All(data.len()))?;
        self.must_be_elements(data, element)?;
        self.lines.exchange(data, theirs)
    }

    /// [`all_reduce`](Self::all_reduce) to the root only. Other ranks' `data` is unchanged.
    ///
    /// # Errors
    /// Errors of `all_reduce`, and [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `root` is no rank
    /// of the board.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut data = *b"abc";
    /// board.reduce(8, 0, &mut data, 1, &mut |into, with, order| unreachable!("one rank folds nothing"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reduce(
        &mut self,
        call: u64,
        root: Rank,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        self.lines.begin("reduce", call, Says::Some(data.len()))?;
        self.must_be_rank(root)?;
        self.reduce_to(Some(root), data, element, fold)
    }

    /// Folds the elements of this rank and of all lower ranks into `data`. With `exclusive` it folds only those of
    /// lower ranks, and `data` of rank 0 is unchanged. `fold` is as for [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// Errors of `all_reduce`.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut data = *b"abc";
    /// board.scan(9, false, &mut data, 1, &mut |into, with, order| unreachable!("one rank folds nothing"))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(
        &mut self,
        call: u64,
        exclusive: bool,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        self.lines.begin("scan", call, Says::Some(data.len()))?;
        self.must_be_elements(data, element)?;
        let first = self.lines.me + usize::from(!exclusive);
        self.on_either_path(Kind::Scan, data.len(), |board, reach| match reach {
            Some(reach) => board.scan_directly(reach, first, data, element, fold),
            None => board.reduce_whole(first, board.lines.me + 1 < board.ranks(), data, element, fold),
        })
    }

    /// Folds block `r` of every rank's `given` into `into` of rank `r`. `given` has one block of `into.len()` bytes per
    /// rank. `fold` is as for [`all_reduce`](Self::all_reduce).
    ///
    /// # Errors
    /// Errors of `all_reduce`, and [`FabricError::Misuse`](transom_windows::FabricError::Misuse) if `given` is not one
    /// block of `into.len()` bytes per rank.
    ///
    /// # Examples
    /// ```
    /// # use transom_shm_loopback::{Loopback, collective::ShmCollective};
    /// # let mut board = ShmCollective::open(&Loopback::alone()?)?;
    /// let mut mine = [0; 3];
    /// board.reduce_scatter(10, b"abc", &mut mine, 1, &mut |into, with, order| unreachable!("one rank folds nothing"))?;
    /// assert_eq!(&mine, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reduce_scatter(
        &mut self,
        call: u64,
        given: &[u8],
        into: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        self.lines.begin("reduce_scatter", call, Says::All(given.len()))?;
        self.must_hold_blocks(given, into)?;
        self.must_be_elements(into, element)?;
        self.on_either_path(Kind::ReduceScatter, into.len(), |board, reach| match reach {
            Some(reach) => board.reduce_blocks_directly(reach, given, into, element, fold),
            None => board.reduce_blocks(given, into, element, fold),
        })
    }

    /// Reduces and scatters through cells, piece by piece.
    fn reduce_blocks(&mut self, given: &[u8], into: &mut [u8], element: usize, fold: Fold<'_>) -> Result<(), Failure> {
        let cell = self.lines.block.cell_bytes() / self.ranks();
        // An element longer than a rank's part of a cell comes in pieces, and is folded once it is complete.
        let most = if element > cell { element } else { cell / element * element };
        let mut begin = 0;
        loop {
            let part = begin..into.len().min(begin + most);
            self.collect_blocks(given, into.len(), part.clone(), cell)?;
            begin = part.end;
            self.fold_collected(self.ranks(), &mut into[part], fold);
            if begin == into.len() {
                return Ok(());
            }
        }
    }

    /// Posts `part` of every block except this rank's own. Collects `part` of this rank's block from every rank in the
    /// scratch memory.
    fn collect_blocks(
        &mut self,
        given: &[u8],
        len: usize,
        part: std::ops::Range<usize>,
        cell: usize,
    ) -> Result<(), Failure> {
        let (me, ranks, stride) = (self.lines.me, self.ranks(), Self::stride(part.len()));
        let blocks = self.scratch.bytes(ranks * stride);
        let mut begin = part.start;
        loop {
            let piece = begin..part.end.min(begin + cell);
            let of = |rank: Rank| &given[rank * len..][..len][piece.clone()];
            let others = self.lines.others().map(|rank| (rank * piece.len(), of(rank)));
            let round = self.lines.post_parts(piece.len() * ranks, others)?;
            for rank in 0..ranks {
                let into = &mut blocks[rank * stride..][piece.start - part.start..piece.end - part.start];
                if rank == me {
                    into.copy_from_slice(of(me));
                } else {
                    self.lines.take(rank, round, (piece.len() * ranks, me * piece.len()), into)?;
                }
            }
            begin = piece.end;
            if begin == part.end {
                return Ok(());
            }
        }
    }

    #[inline(always)]
    fn must_be_elements(&self, data: &[u8], element: usize) -> Result<(), Failure> {
        self.must(element > 0 && (data.len() == element || data.len().is_multiple_of(element)), || {
            format!("a buffer of {} bytes, expected a multiple of the element length, {element} bytes", data.len())
        })
    }

    #[inline(always)]
    fn reduce_to(
        &mut self,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        self.must_be_elements(data, element)?;
        if data.len() <= self.whole || element > self.lines.block.cell_bytes() / self.ranks() {
            let all = if root.is_none_or(|root| root == self.lines.me) { self.ranks() } else { 0 };
            return self.reduce_whole(all, root != Some(self.lines.me), data, element, fold);
        }
        let kind = if root.is_some() { Kind::Reduce } else { Kind::AllReduce };
        self.on_either_path(kind, data.len() / self.ranks(), |board, reach| match reach {
            Some(reach) => board.reduce_directly(reach, root, data, element, fold),
            None => board.reduce_shares(root, data, element, fold),
        })
    }

    /// Has every rank post all elements that another rank takes. `data` becomes the fold of the first `first` ranks'
    /// elements, or is unchanged if `first` is 0. `taken` is whether another rank takes this rank's elements.
    #[inline]
    fn reduce_whole(
        &mut self,
        first: usize,
        taken: bool,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        // Short elements are posted in any case, as that costs less than the choice.
        if data.len() <= LINES_CARRY {
            return self.reduce_piece(first, true, first == self.ranks(), data, fold);
        }
        if data.len() <= WHOLE {
            return self.reduce_piece(first, taken, first == self.ranks(), data, fold);
        }
        let most = (WHOLE / element * element).max(element);
        let mut met = first == self.ranks();
        for part in data.chunks_mut(most) {
            if part.len() <= self.lines.block.cell_bytes() {
                self.reduce_piece(first, taken, std::mem::replace(&mut met, true), part, &mut *fold)?;
            } else {
                self.collect(first, &mut met, part)?;
                self.fold_collected(first, part, &mut *fold);
            }
        }
        Ok(())
    }

    /// Does the same for data that fits into a cell, folding each rank's elements as they arrive. If `met`, this rank
    /// need not wait for the other ranks' rounds.
    #[inline(always)]
    fn reduce_piece(
        &mut self,
        first: usize,
        taken: bool,
        met: bool,
        part: &mut [u8],
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let len = part.len();
        let round = if taken { self.lines.post(part) } else { self.lines.post_parts(len, []) }?;
        if !met {
            self.meet(round)?;
        }
        let ShmCollective { lines, scratch, .. } = self;
        lines.fold_in_order(first, part, scratch.two(Self::stride(len)), fold, |lines, rank, into| {
            lines.take(rank, round, (len, 0), into)
        })?;
        if first == lines.block.ranks() {
            lines.all_seen(round);
        }
        Ok(())
    }

    /// Returns the distance between blocks of `len` bytes in the scratch memory.
    #[inline(always)]
    pub(super) fn stride(len: usize) -> usize {
        len.next_multiple_of(64)
    }

    /// Posts `part`, and collects those of the first `first` ranks in the scratch memory.
    #[inline]
    fn collect(&mut self, first: usize, met: &mut bool, part: &[u8]) -> Result<(), Failure> {
        let (me, cell, stride) = (self.lines.me, self.lines.block.cell_bytes(), Self::stride(part.len()));
        let blocks = self.scratch.bytes(first * stride);
        let mut begin = 0;
        while begin < part.len() {
            let end = part.len().min(begin + cell);
            let round = self.lines.post(&part[begin..end])?;
            if self.strict && !*met {
                self.lines.see_all(round)?;
                *met = true;
            }
            for rank in 0..first {
                let into = &mut blocks[rank * stride..][begin..end];
                if rank == me {
                    into.copy_from_slice(&part[begin..end]);
                } else {
                    self.lines.take(rank, round, (end - begin, 0), into)?;
                }
            }
            begin = end;
        }
        Ok(())
    }

    #[inline]
    fn fold_collected(&mut self, first: usize, part: &mut [u8], fold: Fold<'_>) {
        let stride = Self::stride(part.len());
        if first == 0 || part.is_empty() {
            return;
        }
        let (into, rest) = self.scratch.bytes(first * stride).split_at_mut(stride);
        let into = &mut into[..part.len()];
        for with in rest.chunks(stride) {
            self.lines.fold(fold, into, &with[..part.len()], Order::After);
        }
        part.copy_from_slice(into);
    }

    /// Reduces by shares: every rank folds its share of the elements. In each step every rank posts its elements of the
    /// other ranks' shares, then the fold of its own share. The elements of the next step are posted in advance.
    fn reduce_shares(
        &mut self,
        root: Option<Rank>,
        data: &mut [u8],
        element: usize,
        fold: Fold<'_>,
    ) -> Result<(), Failure> {
        let me = self.lines.me;
        let shares = Shares::of(data.len(), element, self.ranks(), self.lines.block.cell_bytes());
        let mut given = shares.post(self, 0, data)?;
        if root.is_some_and(|root| root != me) {
            self.meet(given)?;
        }
        let mut folded = 0;
        for step in 0..shares.steps {
            let next = if step + 1 < shares.steps { shares.post(self, step + 1, data)? } else { given };
            if step > 0 {
                shares.keep(self, root, step - 1, folded, data)?;
            }
            folded = shares.fold(self, root, step, given, data, &mut *fold)?;
            given = next;
        }
        shares.keep(self, root, shares.steps - 1, folded, data)
    }
}

/// Division of a reduction into steps. In each step each rank folds a piece of `piece` bytes.
#[derive(Clone, Copy)]
struct Shares {
    len: usize,
    piece: usize,
    ranks: usize,
    steps: usize,
}

impl Shares {
    /// Chooses the fewest steps whose data fits into a cell, about equal.
    fn of(len: usize, element: usize, ranks: usize, cell: usize) -> Self {
        let elements = len / element;
        let most = (cell / ranks / element).max(1) * ranks;
        let steps = elements.div_ceil(most);
        let piece = elements.div_ceil(steps * ranks) * element;
        Shares { len, piece, ranks, steps: len.div_ceil(piece * ranks) }
    }

    /// Returns the range of the piece of `rank` in `step`.
    #[inline(always)]
    fn part(self, step: usize, rank: Rank) -> std::ops::Range<usize> {
        let begin = self.len.min((step * self.ranks + rank) * self.piece);
        begin..self.len.min(begin + self.piece)
    }

    /// Posts the elements of all other ranks' pieces, at their offsets in the step.
    fn post(self, board: &mut ShmCollective, step: usize, data: &[u8]) -> Result<u64, Failure> {
        let (before, after) = (self.part(step, 0).start, self.part(step, self.ranks - 1).end);
        let mine = self.part(step, board.lines.me);
        let parts = [(0, &data[before..mine.start]), (mine.end - before, &data[mine.end..after])];
        board.lines.post_parts(self.piece * self.ranks, parts)
    }

    /// Folds this rank's piece, and posts it.
    fn fold(
        self,
        board: &mut ShmCollective,
        root: Option<Rank>,
        step: usize,
        given: u64,
        data: &mut [u8],
        fold: Fold<'_>,
    ) -> Result<u64, Failure> {
        let ShmCollective { lines, scratch, .. } = board;
        let (me, part) = (lines.me, self.part(step, lines.me));
        let stride = ShmCollective::stride(self.piece);
        let (apart, rest) = scratch.bytes(3 * stride).split_at_mut(stride);
        let (apart, rest) = (&mut apart[..part.len()], rest.split_at_mut(stride));
        let take = |lines: &mut Lines, rank, into: &mut [u8]| {
            lines.take(rank, given, (self.piece * self.ranks, me * self.piece), into)
        };
        // In a reduction to a root, the data of all other ranks must stay unchanged.
        let mine = if root.is_none_or(|root| root == me) {
            lines.fold_in_order(self.ranks, &mut data[part.clone()], rest, fold, take)?;
            &data[part]
        } else {
            lines.fold_apart(&data[part], apart, rest.0, fold, take)?;
            &*apart
        };
        // No other rank reads the root's own piece.
        lines.post(if root == Some(me) { &[] } else { mine })
    }

    /// Reads the pieces that the other ranks have folded.
    fn keep(
        self,
        board: &mut ShmCollective,
        root: Option<Rank>,
        step: usize,
        folded: u64,
        data: &mut [u8],
    ) -> Result<(), Failure> {
        if root.is_some_and(|root| root != board.lines.me) {
            return Ok(());
        }
        for rank in board.lines.others() {
            let part = self.part(step, rank);
            board.lines.take(rank, folded, (part.len(), 0), &mut data[part])?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn whole_fold_limit_falls_with_ranks() {
        let alone = [1, 2, 3, 4, 6, 8, 16, 1000].map(|ranks| whole(ranks, false));
        assert_eq!(alone, [8192, 8192, 7585, 3200, 948, 400, 64, 64]);
        assert_eq!(whole(16, true), 8192, "more rounds cost more where ranks share cores");
    }
}
