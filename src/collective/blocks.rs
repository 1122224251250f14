//! What is put together of a block of each rank, or taken apart into one for each.

use super::Ragged;
use super::reduction::Nothing;
use super::signature::{Kind, Signature};
use crate::messages::Error;
use crate::world::World;
use bytemuck::Pod;
use transom_collective::{Call, Rank, all_gather_v, all_to_all_v, gather_v, scatter_v};

impl World {
    /// Collective: the elements of all ranks, of each as many, side by side at the root; none elsewhere.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn gather<T: Pod>(&self, root: Rank, mine: &[T]) -> Result<Option<Vec<T>>, Error> {
        let here = root == self.rank();
        let mut all = if here { self.room(mine.len().checked_mul(self.size()))? } else { Vec::new() };
        self.gather_into(root, mine, &mut all)?;
        Ok(here.then_some(all))
    }

    /// [`gather`](Self::gather) into a buffer of the root's; that of the others is not looked at.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn gather_into<T: Pod>(&self, root: Rank, mine: &[T], into: &mut [T]) -> Result<(), Error> {
        self.check_root::<T>(root)?;
        let into = if root == self.rank() { into } else { &mut [] };
        if root == self.rank() {
            self.check_blocks("gather", into.len(), mine.len())?;
        }
        let what = Call::Gather { root };
        self.call(Signature::of(Kind::Gather, size_of::<T>(), mine.len()).root(root), what, mine, into, Nothing)
    }

    /// [`gather`](Self::gather) of as many elements of each rank as it has.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn gather_v<T: Pod>(&self, root: Rank, mine: &[T]) -> Result<Option<Ragged<T>>, Error> {
        self.check_root::<T>(root)?;
        let counts = self.gather(root, &[mine.len() as u64])?;
        // Others need to know their own alone.
        let counts = counts.map_or_else(|| vec![mine.len(); self.size()], lengths);
        let here = root == self.rank();
        let mut all = if here { self.room(total(&counts))? } else { Vec::new() };
        let plan = gather_v(self.rank(), root, &counts);
        self.carry(Signature::of(Kind::GatherV, size_of::<T>(), 0).root(root), plan, mine, &mut all, Nothing)?;
        Ok(here.then(|| Ragged::new(all, &counts)))
    }

    /// Collective: a block of the root's elements to each rank. Those that the others pass are not looked at.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn scatter<T: Pod>(&self, root: Rank, data: &[T], into: &mut [T]) -> Result<(), Error> {
        self.check_root::<T>(root)?;
        let data = if root == self.rank() { data } else { &[] };
        if root == self.rank() {
            self.check_blocks("scatter", data.len(), into.len())?;
        }
        let what = Call::Scatter { root };
        self.call(Signature::of(Kind::Scatter, size_of::<T>(), into.len()).root(root), what, data, into, Nothing)
    }

    /// [`scatter`](Self::scatter) of blocks of different lengths; the root alone passes them.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn scatter_v<T: Pod>(&self, root: Rank, data: Option<&Ragged<T>>) -> Result<Vec<T>, Error> {
        self.check_root::<T>(root)?;
        let data = data.filter(|_| root == self.rank());
        let counts: Vec<u64> = data.map_or_else(Vec::new, |data| data.counts().map(|count| count as u64).collect());
        if root == self.rank() && counts.len() != self.size() {
            let (blocks, ranks) = (counts.len(), self.size());
            return self.refuse(format!("scatter_v at its root needs a block for each of {ranks} ranks, not {blocks}"));
        }
        let mut mine = [0_u64];
        self.scatter(root, &counts, &mut mine)?;
        let mut into = self.room(usize::try_from(mine[0]).ok())?;
        let counts = if root == self.rank() { lengths(counts) } else { vec![into.len(); self.size()] };
        let plan = scatter_v(self.rank(), root, &counts);
        let given = data.map_or(&[][..], |data| data.elements());
        self.carry(Signature::of(Kind::ScatterV, size_of::<T>(), 0).root(root), plan, given, &mut into, Nothing)?;
        Ok(into)
    }

    /// Collective: the elements of all ranks, of each as many, side by side, at all.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     assert_eq!(world.all_gather(&[world.rank(), 7])?, [0, 7, 1, 7, 2, 7]);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_gather<T: Pod>(&self, mine: &[T]) -> Result<Vec<T>, Error> {
        let mut all = self.room(mine.len().checked_mul(self.size()))?;
        self.all_gather_into(mine, &mut all)?;
        Ok(all)
    }

    /// [`all_gather`](Self::all_gather) into a buffer.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_gather_into<T: Pod>(&self, mine: &[T], into: &mut [T]) -> Result<(), Error> {
        self.check_elements::<T>()?;
        self.check_blocks("all_gather", into.len(), mine.len())?;
        let what = Call::AllGather;
        self.call(Signature::of(Kind::AllGather, size_of::<T>(), mine.len()), what, mine, into, Nothing)
    }

    /// [`all_gather`](Self::all_gather) of as many elements of each rank as it has. Lengths are told first;
    /// [`all_gather_v_into`](Self::all_gather_v_into) takes them where they are known.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn all_gather_v<T: Pod>(&self, mine: &[T]) -> Result<Ragged<T>, Error> {
        self.check_elements::<T>()?;
        let counts = lengths(self.all_gather(&[mine.len() as u64])?);
        let mut all = self.room(total(&counts))?;
        self.all_gather_v_into(mine, &counts, &mut all)?;
        Ok(Ragged::new(all, &counts))
    }

    /// [`all_gather_v`](Self::all_gather_v) of lengths that all ranks know.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    pub fn all_gather_v_into<T: Pod>(&self, mine: &[T], counts: &[usize], into: &mut [T]) -> Result<(), Error> {
        self.check_elements::<T>()?;
        self.check_counts("all_gather_v", counts, into.len())?;
        if counts[self.rank()] != mine.len() {
            let (count, mine) = (counts[self.rank()], mine.len());
            return self.refuse(format!("all_gather_v was told of {count} elements of this rank, and given {mine}"));
        }
        let plan = all_gather_v(self.rank(), counts);
        self.carry(Signature::of(Kind::AllGatherV, size_of::<T>(), into.len()), plan, mine, into, Nothing)
    }

    /// Collective: each rank has a block for every rank, and gets one of every rank: block `j` of rank `i` becomes block `i` of rank
    /// `j`.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
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
    pub fn all_to_all<T: Pod>(&self, data: &[T], into: &mut [T]) -> Result<(), Error> {
        self.check_elements::<T>()?;
        let block = data.len() / self.size();
        self.check_blocks("all_to_all", data.len(), block)?;
        self.check_blocks("all_to_all", into.len(), block)?;
        let what = Call::AllToAll;
        self.call(Signature::of(Kind::AllToAll, size_of::<T>(), block), what, data, into, Nothing)
    }

    /// [`all_to_all`](Self::all_to_all) of blocks of different lengths. Lengths are told first.
    ///
    /// # Errors
    /// As [`broadcast`](Self::broadcast).
    ///
    /// # Examples
    /// Each rank sends its numbers to where they belong:
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
    pub fn all_to_all_v<T: Pod>(&self, to_each: &Ragged<T>) -> Result<Ragged<T>, Error> {
        self.check_elements::<T>()?;
        let given: Vec<u64> = to_each.counts().map(|count| count as u64).collect();
        if given.len() != self.size() {
            let (blocks, ranks) = (given.len(), self.size());
            return self.refuse(format!("all_to_all_v needs a block for each of {ranks} ranks, not {blocks}"));
        }
        let mut got = vec![0_u64; self.size()];
        self.all_to_all(&given, &mut got)?;
        let (given, got) = (lengths(given), lengths(got));
        let mut all = self.room(total(&got))?;
        let plan = all_to_all_v(self.rank(), &given, &got);
        self.carry(Signature::of(Kind::AllToAllV, size_of::<T>(), 0), plan, to_each.elements(), &mut all, Nothing)?;
        Ok(Ragged::new(all, &got))
    }

    /// That there are as many elements as blocks of this length.
    pub(super) fn check_blocks(&self, name: &str, elements: usize, block: usize) -> Result<(), Error> {
        match block.checked_mul(self.size()) {
            Some(expected) if expected == elements => Ok(()),
            _ => {
                let ranks = self.size();
                self.refuse(format!("{name} with blocks of {block} for {ranks} ranks was given {elements} elements"))
            }
        }
    }

    /// That there is a length for each rank, and as many elements.
    pub(super) fn check_counts(&self, name: &str, counts: &[usize], elements: usize) -> Result<(), Error> {
        if counts.len() == self.size() && total(counts) == Some(elements) {
            return Ok(());
        }
        let (lengths, ranks) = (counts.len(), self.size());
        self.refuse(format!(
            "{name} was given {lengths} lengths for {ranks} ranks, and {elements} elements of {:?}",
            total(counts)
        ))
    }

    /// Zeroed elements for what others have said to be so many.
    pub(super) fn room<T: Pod>(&self, elements: Option<usize>) -> Result<Vec<T>, Error> {
        let made = elements.and_then(|elements| bytemuck::allocation::try_zeroed_slice_box(elements).ok());
        match made {
            Some(elements) => Ok(elements.into_vec()),
            None => self.refuse("there is no memory for what all ranks have".into()),
        }
    }
}

fn lengths(counts: Vec<u64>) -> Vec<usize> {
    counts.into_iter().map(|count| usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

fn total(counts: &[usize]) -> Option<usize> {
    counts.iter().try_fold(0_usize, |sum, count| sum.checked_add(*count))
}
