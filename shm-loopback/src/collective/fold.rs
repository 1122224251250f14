//! Folds of the elements of ranks, always in the order of ranks: `((0 o 1) o 2) o 3`.

use super::broken::Failure;
use super::lines::Lines;
use transom_collective::Order;
use transom_locks::Rank;

/// The caller's operation. It does `into = into o with`, or `into = with o into`, element by element.
pub(super) type Fold<'f> = &'f mut dyn FnMut(&mut [u8], &[u8], Order);

impl Lines {
    /// Folds the elements of ranks `0..first` in their order into `mine`, which takes part itself only if this rank is
    /// one of them. `take` fetches the elements of another rank. The two buffers each have room for `mine.len()` bytes.
    #[inline(always)]
    pub(super) fn fold_in_order<F>(
        &mut self,
        first: usize,
        mine: &mut [u8],
        (before, with): (&mut [u8], &mut [u8]),
        fold: &mut F,
        mut take: impl FnMut(&mut Self, Rank, &mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure>
    where
        F: FnMut(&mut [u8], &[u8], Order) + ?Sized,
    {
        let (me, before, with) = (self.me, &mut before[..mine.len()], &mut with[..mine.len()]);
        if me.min(first) > 0 {
            take(self, 0, before)?;
            for rank in 1..me.min(first) {
                take(self, rank, with)?;
                self.fold(fold, before, with, Order::After);
            }
            match me < first {
                true => self.fold(fold, mine, before, Order::Before),
                false => mine.copy_from_slice(before),
            }
        }
        for rank in me + 1..first {
            take(self, rank, with)?;
            self.fold(fold, mine, with, Order::After);
        }
        Ok(())
    }

    /// Folds the elements of all ranks in their order into `into`, which does not overlap `mine`.
    pub(super) fn fold_apart<F>(
        &mut self,
        mine: &[u8],
        into: &mut [u8],
        with: &mut [u8],
        fold: &mut F,
        mut take: impl FnMut(&mut Self, Rank, &mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure>
    where
        F: FnMut(&mut [u8], &[u8], Order) + ?Sized,
    {
        let with = &mut with[..into.len()];
        match self.me {
            0 => into.copy_from_slice(mine),
            _ => take(self, 0, into)?,
        }
        for rank in 1..self.block.ranks() {
            if rank == self.me {
                self.fold(fold, into, mine, Order::After);
            } else {
                take(self, rank, with)?;
                self.fold(fold, into, with, Order::After);
            }
        }
        Ok(())
    }
}
