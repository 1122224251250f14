//! Ghost cells: a copy of a rank's block of an array, surrounded by a margin of its neighbours' elements.

use super::GlobalArray;
use super::layout::Layout;
use super::odometer::Odometer;
use crate::array_error::{ArrayError, MOST};
use crate::{Error, Fabric};
use bytemuck::Pod;
use std::ops::Range;

/// A rank's block of an array, surrounded by the neighbours' elements up to some width: *ghost cells*. The cells lie
/// row by row in the rank's own memory, and can be used as a plain slice. [`exchange`](Self::exchange) updates the
/// ghost cells.
///
/// Cells outside the array belong to the program: they are initially zero, and no call here changes them.
///
/// # Examples
/// ```
/// use transom::{Distribution, GlobalArray};
/// transom::threads(4, |world| -> Result<(), transom::Error> {
///     let mut line: GlobalArray<u64> = world.array([100], Distribution::Block)?;
///     let mut halo = line.halo([1])?;
///     for _ in 0..10 {
///         halo.exchange(&mut line)?;
///         let cells = halo.cells_mut();
///         let next: Vec<u64> = cells.windows(3).map(|three| three[0] + three[2] + 1).collect();
///         cells[1..=next.len()].copy_from_slice(&next);
///     }
///     halo.store(&line)?; // for readers of the array itself
///     let epoch = line.fence()?;
///     assert_eq!(epoch.get_one(24)?, epoch.get_one(75)?, "it is the same from both ends");
///     Ok(())
/// })?.into_iter().collect::<Result<(), _>>()?;
/// # Ok::<(), transom::Error>(())
/// ```
pub struct Halo<T, const D: usize> {
    /// The [serial](crate::segment::Segment::serial) of the array's memory.
    of: u64,
    layout: Layout<D>,
    /// This rank's position in the grid.
    at: [usize; D],
    own: [Range<usize>; D],
    width: [usize; D],
    cells: Vec<T>,
    /// A packed patch on its way to or from the array.
    packed: Vec<T>,
}

impl<T: Pod, F: Fabric, const D: usize> GlobalArray<T, F, D> {
    /// Copies this rank's block, with `width` ghost cells on either side in each dimension, initially zero. The width
    /// may exceed a neighbour's block; the cells then come from several ranks. Not collective.
    ///
    /// # Errors
    /// [`ArrayError::SeveralTiles`]; [`ArrayError::Halo`] if there would be too many cells; [`Error::Fabric`].
    ///
    /// # Examples
    /// See [`Halo`].
    pub fn halo(&self, width: [usize; D]) -> Result<Halo<T, D>, Error> {
        let (array, layout) = (self.window().id(), *self.layout());
        let wrong = |why| Error::from(ArrayError::Halo { array, why });
        let own = self.own()?;
        let at = layout.coordinates(self.window().rank()).expect("an array has the ranks of its window");
        let mut len = 1usize;
        for (own, width) in own.iter().zip(width) {
            let side = width.checked_mul(2).and_then(|width| width.checked_add(own.len()));
            len = side
                .and_then(|side| len.checked_mul(side))
                .filter(|&len| len < MOST)
                .ok_or_else(|| wrong("it would have too many cells"))?;
        }
        let of = self.window().core.data.serial;
        let cells =
            bytemuck::allocation::try_zeroed_vec(len).map_err(|()| wrong("no memory is available for its cells"))?;
        let mut halo = Halo { of, layout, at, own, width, cells, packed: Vec::new() };
        if !halo.owns_nothing() {
            let mine = halo.own.clone();
            let packed = halo.unpacked(&mine);
            self.local().get(mine.clone(), packed)?;
            halo.unpack(&mine);
        }
        Ok(halo)
    }
}

impl<T: Pod, const D: usize> Halo<T, D> {
    /// The cells, row by row, with [`shape`](Self::shape) cells along each dimension. A rank that owns nothing has
    /// ghost cells too, of the elements around the place where its own would be.
    pub fn cells(&self) -> &[T] {
        &self.cells
    }

    /// The cells, for writing. Changes of ghost cells last until the next [`exchange`](Self::exchange).
    pub fn cells_mut(&mut self) -> &mut [T] {
        &mut self.cells
    }

    /// The number of cells along each dimension: those that this rank owns, and twice the width.
    pub fn shape(&self) -> [usize; D] {
        std::array::from_fn(|d| self.own[d].len() + 2 * self.width[d])
    }

    /// The elements of the array that this rank owns; see [`Layout::own`]. The first of them is the cell at `width`
    /// along each dimension.
    pub fn own(&self) -> [Range<usize>; D] {
        self.own.clone()
    }

    /// Collective: sends the neighbours their ghost cells, and updates this rank's, corners included, from any owners.
    /// All ranks must have halos of the same width. They see each other's elements as of the call.
    ///
    /// The array itself receives only the elements that are ghost cells of other ranks; [`store`](Self::store) writes
    /// all. Costs 2 fences, and for each side with a neighbour a put of a patch to this rank's own part and a get of a
    /// patch. A side without a neighbour costs nothing.
    ///
    /// # Errors
    /// [`ArrayError::Halo`] if the halo belongs to another array; [`Error::Fabric`], [`Error::Sync`] as for
    /// [`GlobalArray::fence`].
    pub fn exchange<F: Fabric>(&mut self, array: &mut GlobalArray<T, F, D>) -> Result<(), Error> {
        self.check(array)?;
        for side in self.borders() {
            self.pack(&side);
            array.local().put(side.clone(), &self.packed)?;
        }
        let epoch = array.fence()?;
        let got = self.ghosts().try_for_each(|side| {
            epoch.get(side.clone(), self.unpacked(&side))?;
            self.unpack(&side);
            Ok(())
        });
        // No rank changes elements that others may still be reading.
        let fenced = array.fence();
        got.and(fenced.map(drop))
    }

    /// Writes this rank's own elements to the array; other ranks see them after a synchronisation. Not collective, and
    /// no remote operation.
    ///
    /// # Errors
    /// [`ArrayError::Halo`] if the halo belongs to another array.
    pub fn store<F: Fabric>(&mut self, array: &GlobalArray<T, F, D>) -> Result<(), Error> {
        self.check(array)?;
        if self.owns_nothing() {
            return Ok(());
        }
        let mine = self.own();
        self.pack(&mine);
        array.local().put(mine, &self.packed)
    }

    fn check<F: Fabric>(&self, array: &GlobalArray<T, F, D>) -> Result<(), Error> {
        if (array.window().core.data.serial, array.layout()) == (self.of, &self.layout) {
            return Ok(());
        }
        Err(ArrayError::Halo { array: array.window().id(), why: "the halo belongs to another array" }.into())
    }

    fn owns_nothing(&self) -> bool {
        self.own.iter().any(Range::is_empty)
    }

    /// Own elements that are ghost cells of other ranks. Such a rank is adjacent to this one in the grid.
    fn borders(&self) -> impl Iterator<Item = [Range<usize>; D]> + use<T, D> {
        let (own, width, at, grid) = (self.own(), self.width, self.at, self.layout.grid());
        let sides = (0..D).flat_map(move |d| {
            let Range { start, end } = own[d];
            let low = if at[d] > 0 { end.min(start + width[d]) } else { start };
            let high = if at[d] + 1 < grid[d] { start.max(end.saturating_sub(width[d])) } else { end };
            // A narrow block is on both sides.
            [start..low, high.max(low)..end].map(|range| with(&own, d, range))
        });
        sides.filter(|side| !side.iter().any(Range::is_empty))
    }

    /// Elements of the array that are ghost cells here: both sides along each dimension. A side extends over the ghost
    /// cells of the dimensions before it, which adds the corners.
    fn ghosts(&self) -> impl Iterator<Item = [Range<usize>; D]> + use<T, D> {
        let (own, width, shape) = (self.own(), self.width, self.layout.shape());
        let low: [usize; D] = std::array::from_fn(|d| own[d].start.saturating_sub(width[d]));
        let high: [usize; D] = std::array::from_fn(|d| shape[d].min(own[d].end.saturating_add(width[d])));
        let sides = (0..D).flat_map(move |d| {
            let across = std::array::from_fn(|e| if e < d { low[e]..high[e] } else { own[e].clone() });
            [low[d]..own[d].start, own[d].end..high[d]].map(|range| with(&across, d, range))
        });
        sides.filter(|side| !side.iter().any(Range::is_empty))
    }

    /// The rows of cells of a patch, in order.
    fn rows(&self, patch: &[Range<usize>; D]) -> impl Iterator<Item = Range<usize>> + use<T, D> {
        let (own, width, shape, row) = (self.own(), self.width, self.shape(), patch[D - 1].len());
        let first = std::array::from_fn(|d| patch[d].start);
        let end = std::array::from_fn(|d| if d < D - 1 { patch[d].end } else { patch[d].start + 1 });
        Odometer::new(first, [1; D], end).map(move |index| {
            let cell = (0..D).fold(0, |cell, d| cell * shape[d] + index[d] + width[d] - own[d].start);
            cell..cell + row
        })
    }

    fn pack(&mut self, patch: &[Range<usize>; D]) {
        let (rows, mut packed) = (self.rows(patch), std::mem::take(&mut self.packed));
        packed.clear();
        rows.for_each(|row| packed.extend_from_slice(&self.cells[row]));
        self.packed = packed;
    }

    /// The packing buffer, resized for a patch.
    fn unpacked(&mut self, patch: &[Range<usize>; D]) -> &mut [T] {
        let len = patch.iter().map(Range::len).product();
        self.packed.resize(len, T::zeroed());
        &mut self.packed
    }

    fn unpack(&mut self, patch: &[Range<usize>; D]) {
        let mut from = 0;
        for row in self.rows(patch) {
            let len = row.len();
            self.cells[row].copy_from_slice(&self.packed[from..][..len]);
            from += len;
        }
    }
}

/// The ranges, with another range in dimension `d`.
fn with<const D: usize>(ranges: &[Range<usize>; D], d: usize, range: Range<usize>) -> [Range<usize>; D] {
    std::array::from_fn(|e| if e == d { range.clone() } else { ranges[e].clone() })
}
