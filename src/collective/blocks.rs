//! Collectives with one block per rank: gather, scatter, all-gather and all-to-all, with equal or different block
//! lengths.

use super::Ragged;
use super::call_desc::total;
use crate::messages::Error;
use crate::world::World;
use std::ops::Range;
use transom_collective::{Rank, block};
use transom_windows::Element;

impl World {
    /// This rank's share of `len` items that are divided among all ranks as consecutive blocks, in rank order.
    ///
    /// The lengths of shares differ by at most one. [`block`](super::block) computes the share of any rank. Blocks of a
    /// [global array](crate::GlobalArray) are divided differently: see the array's layout.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     assert_eq!(world.share(10), [0..3, 3..6, 6..10][world.rank()]);
    ///     let squares: Vec<usize> = world.share(10).map(|i| i * i).collect();
    ///     assert_eq!(world.all_gather_v(&squares)?.into_elements(), [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn share(&self, len: usize) -> Range<usize> {
        block(len, self.size(), self.rank())
    }

    /// Collective: concatenates the elements of all ranks, the same number from each, in rank order at the root. The
    /// other ranks get `None`.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     if let Some(results) = world.gather(0, &[world.rank() * 10])? {
    ///         assert_eq!(results, [0, 10, 20]); // at rank 0
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn gather<T: Element>(&self, root: Rank, mine: &[T]) -> Result<Option<Vec<T>>, Error> {
        let here = root == self.rank();
        let mut all = if here { self.room(mine.len().checked_mul(self.size()))? } else { Vec::new() };
        self.gather_into(root, mine, &mut all)?;
        Ok(here.then_some(all))
    }

    /// [`gather`](Self::gather) into a buffer of the root; the buffers of the other ranks are ignored.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    pub fn gather_into<T: Element>(&self, root: Rank, mine: &[T], into: &mut [T]) -> Result<(), Error> {
        let into = if root == self.rank() { into } else { &mut [] };
        self.call(self.of_gather::<T>(root, mine.len(), into.len())?, mine, into)
    }

    /// [`gather`](Self::gather) with a different number of elements from each rank. An extra gather exchanges the
    /// lengths first; [`gather_v_into`](Self::gather_v_into) avoids it if the root knows them.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mine = vec![world.rank() as u8; world.rank()];
    ///     if let Some(all) = world.gather_v(1, &mine)? {
    ///         assert_eq!((&all[1], all.elements()), (&[1][..], &[1, 2, 2][..]));
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn gather_v<T: Element>(&self, root: Rank, mine: &[T]) -> Result<Option<Ragged<T>>, Error> {
        let counts = self.gather(root, &[mine.len() as u64])?.map_or_else(Vec::new, lengths);
        let here = root == self.rank();
        let mut all = if here { self.room(total(&counts))? } else { Vec::new() };
        self.gather_v_into(root, mine, &counts, &mut all)?;
        Ok(here.then(|| Ragged::new(all, &counts)))
    }

    /// [`gather_v`](Self::gather_v) with lengths that the root knows. `counts` and `into` of the other ranks are
    /// ignored.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut all = [0; 3];
    ///     world.gather_v_into(0, &vec![world.rank(); world.rank()], &[0, 1, 2], &mut all)?;
    ///     assert_eq!(all, if world.rank() == 0 { [1, 2, 2] } else { [0; 3] });
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn gather_v_into<T: Element>(
        &self,
        root: Rank,
        mine: &[T],
        counts: &[usize],
        into: &mut [T],
    ) -> Result<(), Error> {
        let into = if root == self.rank() { into } else { &mut [] };
        self.call(self.of_gather_v::<T>(root, mine.len(), counts, into.len())?, mine, into)
    }

    /// Collective: sends each rank its block of the root's elements. `data` of the other ranks is ignored.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let all = if world.rank() == 0 { vec![1, 2, 3, 4, 5, 6] } else { vec![] };
    ///     let mut mine = [0; 2];
    ///     world.scatter(0, &all, &mut mine)?;
    ///     assert_eq!(mine, [[1, 2], [3, 4], [5, 6]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scatter<T: Element>(&self, root: Rank, data: &[T], into: &mut [T]) -> Result<(), Error> {
        let data = if root == self.rank() { data } else { &[] };
        self.call(self.of_scatter::<T>(root, data.len(), into.len())?, data, into)
    }

    /// [`scatter`](Self::scatter) with blocks of different lengths; only the root passes `data`. An extra scatter sends
    /// the lengths first; [`scatter_v_into`](Self::scatter_v_into) avoids it if each rank knows its own.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Ragged;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let all = (world.rank() == 0).then(|| Ragged::from(vec![vec![1.5], vec![2.5, 3.5]]));
    ///     let mine = world.scatter_v(0, all.as_ref())?;
    ///     assert_eq!(mine, [&[1.5][..], &[2.5, 3.5]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scatter_v<T: Element>(&self, root: Rank, data: Option<&Ragged<T>>) -> Result<Vec<T>, Error> {
        self.check_root::<T>(root)?;
        let data = data.filter(|_| root == self.rank());
        let counts: Vec<u64> = data.map_or_else(Vec::new, |data| data.counts().map(|count| count as u64).collect());
        if root == self.rank() && counts.len() != self.size() {
            let (blocks, ranks) = (counts.len(), self.size());
            return self
                .refuse(format!("scatter_v: the root passed {blocks} blocks, expected {ranks}, one for each rank"));
        }
        let mut mine = [0_u64];
        self.scatter(root, &counts, &mut mine)?;
        let mut into = self.room(usize::try_from(mine[0]).ok())?;
        let given = data.map_or(&[][..], |data| data.elements());
        self.scatter_v_into(root, given, &lengths(counts), &mut into)?;
        Ok(into)
    }

    /// [`scatter_v`](Self::scatter_v) with known lengths: `into` of each rank is as long as its block. `data` and
    /// `counts` of ranks other than the root are ignored.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut mine = vec![0; world.rank()];
    ///     world.scatter_v_into(0, &[7, 8, 9], &[0, 1, 2], &mut mine)?;
    ///     assert_eq!(mine, [&[][..], &[7], &[8, 9]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn scatter_v_into<T: Element>(
        &self,
        root: Rank,
        data: &[T],
        counts: &[usize],
        into: &mut [T],
    ) -> Result<(), Error> {
        let data = if root == self.rank() { data } else { &[] };
        self.call(self.of_scatter_v::<T>(root, data.len(), counts, into.len())?, data, into)
    }

    /// Collective: concatenates the elements of all ranks, the same number from each, in rank order at every rank.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     assert_eq!(world.all_gather(&[world.rank(), 7])?, [0, 7, 1, 7, 2, 7]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_gather<T: Element>(&self, mine: &[T]) -> Result<Vec<T>, Error> {
        let mut all = self.room(mine.len().checked_mul(self.size()))?;
        self.all_gather_into(mine, &mut all)?;
        Ok(all)
    }

    /// [`all_gather`](Self::all_gather) into a buffer.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    pub fn all_gather_into<T: Element>(&self, mine: &[T], into: &mut [T]) -> Result<(), Error> {
        self.call(self.of_all_gather::<T>(mine.len(), into.len())?, mine, into)
    }

    /// [`all_gather`](Self::all_gather) with a different number of elements from each rank. An extra all-gather
    /// exchanges the lengths first; [`all_gather_v_into`](Self::all_gather_v_into) avoids it if all ranks know them.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let all = world.all_gather_v(&vec![world.rank() as u16; world.rank()])?;
    ///     assert_eq!((&all[0], &all[1], &all[2]), (&[][..], &[1][..], &[2, 2][..]));
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_gather_v<T: Element>(&self, mine: &[T]) -> Result<Ragged<T>, Error> {
        self.check_elements::<T>()?;
        let counts = lengths(self.all_gather(&[mine.len() as u64])?);
        let mut all = self.room(total(&counts))?;
        self.all_gather_v_into(mine, &counts, &mut all)?;
        Ok(Ragged::new(all, &counts))
    }

    /// [`all_gather_v`](Self::all_gather_v) with lengths that all ranks know.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    pub fn all_gather_v_into<T: Element>(&self, mine: &[T], counts: &[usize], into: &mut [T]) -> Result<(), Error> {
        self.call(self.of_all_gather_v::<T>(mine.len(), counts, into.len())?, mine, into)
    }

    /// Collective: sends a block to every rank and receives a block from every rank. Block `j` of rank `i` becomes
    /// block `i` of rank `j`.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mut got = [0; 4];
    ///     world.all_to_all(&[[0, 1, 2, 3], [4, 5, 6, 7]][world.rank()], &mut got)?;
    ///     assert_eq!(got, [[0, 1, 4, 5], [2, 3, 6, 7]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_to_all<T: Element>(&self, data: &[T], into: &mut [T]) -> Result<(), Error> {
        self.call(self.of_all_to_all::<T>(data.len(), into.len())?, data, into)
    }

    /// [`all_to_all`](Self::all_to_all) with blocks of different lengths. An extra all-to-all exchanges the lengths
    /// first; [`all_to_all_v_into`](Self::all_to_all_v_into) avoids it if each rank knows the lengths that it receives.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// Each rank sends its numbers to the rank that owns them:
    /// ```
    /// use transom::collective::Ragged;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let mine = [[3, 1, 8], [9, 2, 7]][world.rank()];
    ///     let (small, large) = mine.into_iter().partition(|number| *number < 5);
    ///     let got = world.all_to_all_v(&Ragged::from(vec![small, large]))?;
    ///     assert_eq!(got.elements(), [&[3, 1, 2][..], &[8, 9, 7]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_to_all_v<T: Element>(&self, to_each: &Ragged<T>) -> Result<Ragged<T>, Error> {
        self.check_elements::<T>()?;
        let given: Vec<u64> = to_each.counts().map(|count| count as u64).collect();
        if given.len() != self.size() {
            let (blocks, ranks) = (given.len(), self.size());
            return self.refuse(format!("all_to_all_v: {blocks} blocks, expected {ranks}, one for each rank"));
        }
        let mut got = vec![0_u64; self.size()];
        self.all_to_all(&given, &mut got)?;
        let (given, got) = (lengths(given), lengths(got));
        let mut all = self.room(total(&got))?;
        self.all_to_all_v_into(to_each.elements(), &given, &mut all, &got)?;
        Ok(Ragged::new(all, &got))
    }

    /// [`all_to_all_v`](Self::all_to_all_v) with known lengths. `given[i]` elements go to rank `i` and `taken[i]`
    /// elements come from rank `i`; both buffers hold their blocks side by side in rank order.
    ///
    /// # Errors
    /// Same as [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     // One element to oneself, two to the other.
    ///     let (data, mut got) = ([[0, 1, 2], [3, 4, 5]][world.rank()], [0; 3]);
    ///     let counts = [[1, 2], [2, 1]][world.rank()];
    ///     world.all_to_all_v_into(&data, &counts, &mut got, &counts)?;
    ///     assert_eq!(got, [[0, 3, 4], [1, 2, 5]][world.rank()]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_to_all_v_into<T: Element>(
        &self,
        data: &[T],
        given: &[usize],
        into: &mut [T],
        taken: &[usize],
    ) -> Result<(), Error> {
        self.check_counts("all_to_all_v", ("given", given), ("data", data.len()))?;
        self.call(self.of_all_to_all_v::<T>(given, taken, into.len())?, data, into)
    }
}

fn lengths(counts: Vec<u64>) -> Vec<usize> {
    counts.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect()
}
