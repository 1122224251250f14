//! Request forms of the operations: started now, waited for later. A request owns its buffer, so that it may be leaked or
//! dropped at any time; it borrows its target, so that it does not outlive its epoch.

use crate::target::Target;
use crate::{Atomic, Error, Fabric, Op};
use bytemuck::Pod;

/// An operation under way, and the buffer it needs. Dropped, it is not cancelled: a put is done as if it had been waited
/// for, and what a get reads is lost.
///
/// # Examples
/// ```
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// use transom_windows::Request;
/// let epoch = window.lock_all()?;
/// let target = epoch.target(0)?;
/// target.rput(0, vec![1, 2, 3, 4])?.wait()?; // the buffer is back
/// let mut gets = vec![target.rget(0, 2)?, target.rget(2, 2)?];
/// // ... compute ...
/// while let Some((which, elements)) = Request::wait_any(&mut gets)? {
///     println!("{which} of those left: {elements:?}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "what a get reads is lost unless it is waited for"]
pub struct Request<'t, T: Pod, F: Fabric> {
    target: &'t Target<'t, T, F>,
    offset: usize,
    state: State<T, F>,
}

enum State<T, F: Fabric> {
    /// With the buffer as the operation leaves it.
    Done(Vec<T>),
    Reading(F::Reading, usize),
}

impl<'t, T: Pod, F: Fabric> Request<'t, T, F> {
    /// Whether the operation is done, so that [`wait`](Self::wait) will return at once.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn test(&mut self) -> Result<bool, Error> {
        match &mut self.state {
            State::Done(_) => Ok(true),
            State::Reading(reading, len) => {
                let arrived = self.target.core.data.fabric.arrived(reading);
                arrived.map_err(|error| self.target.error(error, self.offset, *len))
            }
        }
    }

    /// Returns when the operation is done, with its buffer: what was read or fetched, or what a put or accumulate was
    /// given. A put is then visible at the target after a flush, as ever.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn wait(self) -> Result<Vec<T>, Error> {
        match self.state {
            State::Done(buffer) => Ok(buffer),
            State::Reading(reading, len) => {
                let mut buffer = vec![T::zeroed(); len];
                let finished = self.target.core.data.fabric.finish_get(reading, bytemuck::cast_slice_mut(&mut buffer));
                finished.map_err(|error| self.target.error(error, self.offset, len))?;
                Ok(buffer)
            }
        }
    }

    /// Waits for them all; their buffers, in the same order.
    ///
    /// # Errors
    /// The first that any of them gives; all are waited for even so.
    pub fn wait_all(requests: impl IntoIterator<Item = Self>) -> Result<Vec<Vec<T>>, Error> {
        let waited: Vec<_> = requests.into_iter().map(Self::wait).collect();
        waited.into_iter().collect()
    }

    /// Waits until one of them is done, and takes it out: where it was, and its buffer. None if there is none left.
    ///
    /// # Errors
    /// That of the one that is taken out.
    pub fn wait_any(requests: &mut Vec<Self>) -> Result<Option<(usize, Vec<T>)>, Error> {
        while !requests.is_empty() {
            for which in 0..requests.len() {
                // An error ends the request as well as a buffer does.
                if requests[which].test().unwrap_or(true) {
                    return Ok(Some((which, requests.remove(which).wait()?)));
                }
            }
            std::thread::yield_now();
        }
        Ok(None)
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Starts a [`put`](Self::put) of a buffer that the request gives back.
    ///
    /// # Errors
    /// As `put`.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn rput(&self, offset: usize, source: Vec<T>) -> Result<Request<'_, T, F>, Error> {
        self.put(offset, &source)?;
        Ok(Request { target: self, offset, state: State::Done(source) })
    }

    /// Starts a [`get`](Self::get) of `len` elements.
    ///
    /// # Errors
    /// As `get`.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn rget(&self, offset: usize, len: usize) -> Result<Request<'_, T, F>, Error> {
        self.core.data.counters.gets.bump();
        let at = self.place(offset, len)?;
        let reading = self.core.data.fabric.start_get(self.remote, at, len * size_of::<T>());
        let reading = reading.map_err(|error| self.error(error, offset, len))?;
        Ok(Request { target: self, offset, state: State::Reading(reading, len) })
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Starts an [`accumulate`](Self::accumulate) of operands that the request gives back. It is done when this returns.
    ///
    /// # Errors
    /// As `accumulate`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::{Op, Request};
    /// let epoch = window.lock_shared(0)?;
    /// let adds = vec![epoch.raccumulate(0, Op::Sum, vec![1, 2])?, epoch.raccumulate(1, Op::Sum, vec![3, 4])?];
    /// assert_eq!(Request::wait_all(adds)?, [[1, 2], [3, 4]]);
    /// assert_eq!(epoch.rget(0, 3)?.wait()?, [1, 5, 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn raccumulate(&self, offset: usize, op: Op, operands: Vec<T>) -> Result<Request<'_, T, F>, Error>
    where
        T: Atomic,
    {
        self.accumulate(offset, op, &operands)?;
        Ok(Request { target: self, offset, state: State::Done(operands) })
    }

    /// Starts a [`get_accumulate`](Self::get_accumulate), whose request gives what the elements were. It is done when
    /// this returns.
    ///
    /// # Errors
    /// As `get_accumulate`.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Op;
    /// let epoch = window.lock_shared(0)?;
    /// epoch.put(0, &[7, 8])?;
    /// assert_eq!(epoch.rget_accumulate(0, Op::Sum, vec![10, 20])?.wait()?, [7, 8]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rget_accumulate(&self, offset: usize, op: Op, operands: Vec<T>) -> Result<Request<'_, T, F>, Error>
    where
        T: Atomic,
    {
        let mut results = vec![T::zeroed(); operands.len()];
        self.get_accumulate(offset, op, &operands, &mut results)?;
        Ok(Request { target: self, offset, state: State::Done(results) })
    }
}
