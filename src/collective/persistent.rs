//! Persistent collectives: started repeatedly on the same buffers, with a plan that is computed once.

use super::Reduction;
use super::call_desc::{Described, Of};
use super::reduction::Fold;
use super::started::start_plan;
use crate::messages::hold::Parts;
use crate::messages::request::Request;
use crate::messages::{Error, Persistent};
use crate::world::World;
use bytemuck::Pod;
use transom_collective::{Grid, Rank};
use transom_windows::{Element, Section};

/// Constructors of persistent collectives. They send nothing and are not collective; each start of the result is. All
/// ranks must start it at the same position in their sequence of collective calls.
impl World {
    /// Creates a persistent barrier.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut step = world.barrier_init()?;
    ///     for _ in 0..3 {
    ///         let there = step.start()?;
    ///         // ... compute ...
    ///         there.wait()?;
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn barrier_init(&self) -> Result<Persistent<()>, Error> {
        self.persistent(self.of_barrier(), Vec::new(), None)
    }

    /// Creates a persistent [`broadcast`](Self::broadcast) of one buffer.
    ///
    /// # Errors
    /// [`Error::NoSuchRank`], [`Error::Misuse`], [`Error::Unavailable`]; waiting for a started call reports the other
    /// errors.
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut settings = world.broadcast_init(0, vec![0.0; 4])?;
    ///     for step in 1..5 {
    ///         if world.rank() == 0 {
    ///             settings.buffer()?.fill(step as f64);
    ///         }
    ///         settings.start()?.wait()?;
    ///         assert_eq!(settings.buffer()?[3], step as f64);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn broadcast_init<T: Element>(&self, root: Rank, data: Vec<T>) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_broadcast::<T>(root, data.len()), data, None)
    }

    /// Creates a persistent [`reduce`](Self::reduce), in place.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_reduce_init`](Self::all_reduce_init).
    pub fn reduce_init<T: Element, R: Reduction<T> + Clone + 'static>(
        &self,
        root: Rank,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_reduce::<T, R>(root, data.len(), op), data, None)
    }

    /// Creates a persistent [`all_reduce`](Self::all_reduce), in place.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// ```
    /// use transom::Op;
    /// transom::threads(4, |world| -> Result<(), transom::Error> {
    ///     let mut residual = world.all_reduce_init(vec![0.0; 2], Op::Max)?;
    ///     for step in 0..3 {
    ///         residual.buffer()?.copy_from_slice(&[world.rank() as f64, step as f64]);
    ///         let coming = residual.start()?;
    ///         // ... compute ...
    ///         coming.wait()?;
    ///         assert_eq!(residual.buffer()?, [3.0, step as f64]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_reduce_init<T: Element, R: Reduction<T> + Clone + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_all_reduce::<T, R>(data.len(), op), data, None)
    }

    /// Creates a persistent [`scan`](Self::scan), in place.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_reduce_init`](Self::all_reduce_init).
    pub fn scan_init<T: Element, R: Reduction<T> + Clone + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_scan::<T, R>(false, data.len(), op), data, None)
    }

    /// Creates a persistent [`exscan`](Self::exscan), in place.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_reduce_init`](Self::all_reduce_init).
    pub fn exscan_init<T: Element, R: Reduction<T> + Clone + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_scan::<T, R>(true, data.len(), op), data, None)
    }

    /// Creates a persistent [`reduce_scatter`](Self::reduce_scatter) from the blocks in [`buffer`](Persistent::buffer)
    /// into [`result`](Persistent::result).
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_gather_init`](Self::all_gather_init).
    pub fn reduce_scatter_init<T: Element, R: Reduction<T> + Clone + 'static>(
        &self,
        data: Vec<T>,
        op: R,
    ) -> Result<Persistent<T>, Error> {
        let len = data.len() / self.size();
        self.persistent(self.of_reduce_scatter::<T, R>(data.len(), len, op), data, Some(len))
    }

    /// Creates a persistent [`gather`](Self::gather) from [`buffer`](Persistent::buffer) into the root's
    /// [`result`](Persistent::result).
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_gather_init`](Self::all_gather_init).
    pub fn gather_init<T: Element>(&self, root: Rank, mine: Vec<T>) -> Result<Persistent<T>, Error> {
        let all = if root == self.rank() { mine.len().saturating_mul(self.size()) } else { 0 };
        self.persistent(self.of_gather::<T>(root, mine.len(), all), mine, Some(all))
    }

    /// Creates a persistent [`scatter`](Self::scatter) from the root's [`buffer`](Persistent::buffer) into
    /// [`result`](Persistent::result), of `len` elements.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_gather_init`](Self::all_gather_init).
    pub fn scatter_init<T: Element>(&self, root: Rank, data: Vec<T>, len: usize) -> Result<Persistent<T>, Error> {
        self.persistent(self.of_scatter::<T>(root, data.len(), len), data, Some(len))
    }

    /// Creates a persistent [`all_gather`](Self::all_gather) from [`buffer`](Persistent::buffer) into
    /// [`result`](Persistent::result).
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// ```
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let mut all = world.all_gather_init(vec![0; 2])?;
    ///     for step in 0..3 {
    ///         all.buffer()?.copy_from_slice(&[world.rank(), step]);
    ///         all.start()?.wait()?;
    ///         assert_eq!(all.result()?, [0, step, 1, step, 2, step]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_gather_init<T: Element>(&self, mine: Vec<T>) -> Result<Persistent<T>, Error> {
        let all = mine.len().saturating_mul(self.size());
        self.persistent(self.of_all_gather::<T>(mine.len(), all), mine, Some(all))
    }

    /// Creates a persistent [`all_to_all`](Self::all_to_all) from the blocks in [`buffer`](Persistent::buffer) into
    /// [`result`](Persistent::result).
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// See [`all_gather_init`](Self::all_gather_init).
    pub fn all_to_all_init<T: Element>(&self, data: Vec<T>) -> Result<Persistent<T>, Error> {
        let len = data.len();
        self.persistent(self.of_all_to_all::<T>(len, len), data, Some(len))
    }

    /// Creates a persistent [`all_to_all_sections`](Self::all_to_all_sections) from sections of
    /// [`buffer`](Persistent::buffer) into sections of [`result`](Persistent::result). Other elements of the result are
    /// unchanged. The lists of sections are copied.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// ```
    /// use transom::Section;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     // The first row goes to rank 0, the second to rank 1; they come as columns.
    ///     let rows = [0, 2].map(|offset| Section::Contiguous { offset, len: 2 });
    ///     let columns = [0, 1].map(|offset| Section::Strided { offset, count: 2, block: 1, stride: 2 });
    ///     let mut turned = world.all_to_all_sections_init(vec![0; 4], &rows, vec![0; 4], &columns)?;
    ///     for step in 0..3 {
    ///         let mine = 10 * world.rank() + step;
    ///         turned.buffer()?.copy_from_slice(&[mine, mine + 1, mine, mine + 1]);
    ///         turned.start()?.wait()?;
    ///         assert_eq!(turned.result()?, [step, 10 + step, step + 1, 11 + step]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn all_to_all_sections_init<T: Element>(
        &self,
        data: Vec<T>,
        given: &[Section<'_>],
        into: Vec<T>,
        taken: &[Section<'_>],
    ) -> Result<Persistent<T>, Error> {
        let of = self.of_all_to_all_sections::<T>(data.len(), given, into.len(), taken);
        self.persistent_into(of?.owned(), data, Some(into))
    }

    /// Creates a persistent [`neighbours`](Self::neighbours) exchange from [`buffer`](Persistent::buffer) into
    /// [`result`](Persistent::result). Result blocks of missing neighbours at open edges are unchanged.
    ///
    /// # Errors
    /// Same as [`broadcast_init`](Self::broadcast_init).
    ///
    /// # Examples
    /// ```
    /// use transom::collective::Grid;
    /// transom::threads(2, |world| -> Result<(), transom::Error> {
    ///     let row = Grid::new([2], [false]).expect("a row");
    ///     let mut ghosts = world.neighbours_init(&row, vec![0.0; 2])?;
    ///     ghosts.result()?.fill(-1.0);
    ///     for step in 0..3 {
    ///         ghosts.buffer()?.fill(step as f64);
    ///         ghosts.start()?.wait()?;
    ///         assert_eq!(ghosts.result()?, [[-1.0, step as f64], [step as f64, -1.0]][world.rank()]);
    ///     }
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn neighbours_init<T: Element, const D: usize>(
        &self,
        grid: &Grid<D>,
        data: Vec<T>,
    ) -> Result<Persistent<T>, Error> {
        let len = data.len();
        self.persistent(self.of_neighbours::<T, D>(grid, len, len), data, Some(len))
    }

    /// Creates a persistent call, in place or into a result buffer of `into` elements.
    fn persistent<T: Pod, F: Fold + Clone + 'static>(
        &self,
        of: Of<F>,
        elements: Vec<T>,
        into: Option<usize>,
    ) -> Result<Persistent<T>, Error> {
        let (described, into) = (of?, into.map(|len| self.room(Some(len))).transpose()?);
        self.persistent_into(described, elements, into)
    }

    /// Creates a persistent call, in place or into the elements of `into`.
    fn persistent_into<T: Pod, F: Fold + Clone + 'static>(
        &self,
        Described { signature, what, fold }: Described<F>,
        mut elements: Vec<T>,
        into: Option<Vec<T>>,
    ) -> Result<Persistent<T>, Error> {
        let (group, plan, given) = (self.group()?.clone(), what.plan::<T>(self)?, elements.len());
        let is_in_place = into.is_none();
        elements.append(&mut into.unwrap_or_default());
        Ok(Persistent::new(elements, (!is_in_place).then_some(given), move |buffer| {
            let (read, written) = match is_in_place {
                true => (0..0, 0..given),
                false => (0..given, given..buffer.len()),
            };
            // SAFETY: `Persistent` grants no access to the buffer until all parts are dropped. The written part does
            // not overlap the read part.
            let (given, data) = unsafe { (buffer.part(read, false), buffer.part(written, true)) };
            let described = Described { signature, what: plan.clone(), fold: fold.clone() };
            let under = start_plan::<T, F>(&group, None, described, given.hold(), data.hold())?;
            Ok(Request::under_way(under, |_, _| Some(())))
        }))
    }
}
