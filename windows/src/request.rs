//! Request forms of the operations: started now, waited for later. A request owns its buffer, so that it may be leaked or
//! dropped at any time; it borrows its target, so that it does not outlive its epoch.

use crate::core::Core;
use crate::target::Target;
use crate::{Atomic, Error, Fabric, FabricError, Op};
use bytemuck::Pod;
use bytemuck::allocation::{BoxBytes, try_from_box_bytes};
use transom_locks::Rank;

/// An operation under way, and the buffer it needs, which the provider has meanwhile if it is under way indeed. Dropped, it is not cancelled: a put is done as if it had been waited
/// for, and what a get reads is lost.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// let epoch = window.lock_all()?;
/// let target = epoch.target(0)?;
/// target.rput(0, vec![1, 2])?.wait()?; // the buffer is back
/// let get = target.rget(0, 2)?;
/// // ... compute ...
/// assert_eq!(get.wait()?, [1, 2]);
/// # Ok::<(), transom_windows::Error>(())
/// ```
#[must_use = "wait for it, or `drop` it: a put is done all the same, and what a get would give is lost"]
pub struct Request<'t, T: Pod, F: Fabric> {
    core: &'t Core<F>,
    rank: Rank,
    state: State<T, F>,
}

enum State<T: Pod, F: Fabric> {
    /// The buffer, as the operation left it.
    Done(Vec<T>),
    /// The provider has it.
    UnderWay(F::Moving),
}

impl<'t, T: Pod, F: Fabric> Request<'t, T, F> {
    /// Whether the operation is done, so that [`wait`](Self::wait) will return at once.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn test(&mut self) -> Result<bool, Error> {
        let State::UnderWay(moving) = &mut self.state else { return Ok(true) };
        let moved = self.core.data.fabric.has_moved(moving);
        if let Ok(false) = moved {
            self.core.data.fabric.looked_in_vain();
        }
        moved.map_err(|source| Error::Fabric { window: self.core.id, rank: self.rank, source })
    }

    /// Returns when the operation is done, with its buffer: what was read or fetched, or what a put or accumulate was
    /// given. A put is then visible at the target after a flush, as ever.
    ///
    /// # Errors
    /// [`Error::Fabric`].
    pub fn wait(self) -> Result<Vec<T>, Error> {
        let Request { core, rank, state } = self;
        match state {
            State::Done(buffer) => Ok(buffer),
            State::UnderWay(moving) => {
                let buffer = core.data.fabric.finish_moving(moving).and_then(|bytes| {
                    let other = |_| FabricError::Misuse { why: "a provider gave back another buffer".into() };
                    try_from_box_bytes::<[T]>(bytes).map_err(other)
                });
                buffer.map(Vec::from).map_err(|source| Error::Fabric { window: core.id, rank, source })
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
}

/// Requests that are waited for in the order in which they are done. Each has a number, in the order in which they were
/// added, that stays its own.
///
/// # Examples
/// ```
/// // In `transom`: `let mut window = world.allocate::<u64>(64)?;`
/// # let fabric = transom_shm_loopback::Loopback::alone()?;
/// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
/// use transom_windows::Requests;
/// window.local().write(0, &[1, 2, 3, 4])?;
/// let epoch = window.lock_all()?;
/// let target = epoch.target(0)?;
/// let mut gets: Requests<_, _> = [target.rget(0, 1)?, target.rget(2, 2)?].into_iter().collect();
/// assert_eq!(gets.push(target.rget(1, 1)?), 2);
/// let mut sums = [0; 3];
/// while let Some((number, elements)) = gets.wait_any()? {
///     sums[number] = elements.iter().sum();
/// }
/// assert_eq!(sums, [1, 3 + 4, 2]);
/// # Ok::<(), transom_windows::Error>(())
/// ```
pub struct Requests<'t, T: Pod, F: Fabric> {
    /// With their numbers, in no certain order.
    left: Vec<(usize, Request<'t, T, F>)>,
    /// How many were added.
    added: usize,
    /// Whom to ask first: the one after that which was asked last.
    next: usize,
}

impl<'t, T: Pod, F: Fabric> Requests<'t, T, F> {
    /// None yet.
    pub fn new() -> Self {
        Requests { left: Vec::new(), added: 0, next: 0 }
    }

    /// Adds a request, and returns its number: how many were added before.
    pub fn push(&mut self, request: Request<'t, T, F>) -> usize {
        self.left.push((self.added, request));
        self.added += 1;
        self.added - 1
    }

    /// How many are left.
    pub fn len(&self) -> usize {
        self.left.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// Takes out one that is done: its number, and its buffer. None if none that is left is done now.
    ///
    /// # Errors
    /// That of the one that is taken out.
    pub fn test_any(&mut self) -> Result<Option<(usize, Vec<T>)>, Error> {
        for _ in 0..self.left.len() {
            self.next = if self.next < self.left.len() { self.next } else { 0 };
            // An error ends a request as well as a buffer does.
            if self.left[self.next].1.test().unwrap_or(true) {
                let (number, request) = self.left.swap_remove(self.next);
                return Ok(Some((number, request.wait()?)));
            }
            self.next += 1;
        }
        Ok(None)
    }

    /// Waits until one is done, and takes it out: its number, and its buffer. None if none is left.
    ///
    /// # Errors
    /// That of the one that is taken out.
    pub fn wait_any(&mut self) -> Result<Option<(usize, Vec<T>)>, Error> {
        while !self.left.is_empty() {
            if let Some(done) = self.test_any()? {
                return Ok(Some(done));
            }
            std::thread::yield_now();
        }
        Ok(None)
    }
}

impl<T: Pod, F: Fabric> Default for Requests<'_, T, F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'t, T: Pod, F: Fabric> Extend<Request<'t, T, F>> for Requests<'t, T, F> {
    fn extend<I: IntoIterator<Item = Request<'t, T, F>>>(&mut self, requests: I) {
        for request in requests {
            self.push(request);
        }
    }
}

impl<'t, T: Pod, F: Fabric> FromIterator<Request<'t, T, F>> for Requests<'t, T, F> {
    fn from_iter<I: IntoIterator<Item = Request<'t, T, F>>>(requests: I) -> Self {
        let mut all = Requests::new();
        all.extend(requests);
        all
    }
}

impl<T: Pod, F: Fabric> Target<'_, T, F> {
    /// Starts a [`put`](Self::put) of a buffer that the request gives back. Over a network a large one is not copied, and this
    /// does not wait; capacity that it has beyond its elements is lost there.
    ///
    /// # Errors
    /// As `put`.
    ///
    /// # Examples
    /// See [`Request`].
    pub fn rput(&self, offset: usize, source: Vec<T>) -> Result<Request<'_, T, F>, Error> {
        let fabric = &self.core.data.fabric;
        if fabric.is_shared(self.remote) {
            self.put(offset, &source)?;
            return Ok(self.request(State::Done(source)));
        }
        self.core.data.counters.puts.bump();
        let (at, len) = (self.place(offset, source.len())?, source.len());
        let moving = fabric.start_put(self.remote, at, BoxBytes::from(source.into_boxed_slice()));
        Ok(self.request(State::UnderWay(moving.map_err(|error| self.error(error, offset, len))?)))
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
        let (fabric, failed) = (&self.core.data.fabric, |error| self.error(error, offset, len));
        let mut buffer = bytemuck::zeroed_vec(len);
        if fabric.is_shared(self.remote) {
            // Copying takes this rank's processor, whenever it does it.
            fabric.get(self.remote, at, bytemuck::cast_slice_mut(&mut buffer)).map_err(failed)?;
            return Ok(self.request(State::Done(buffer)));
        }
        let moving = fabric.start_get(self.remote, at, BoxBytes::from(buffer.into_boxed_slice()));
        Ok(self.request(State::UnderWay(moving.map_err(failed)?)))
    }

    fn request(&self, state: State<T, F>) -> Request<'_, T, F> {
        Request { core: self.core, rank: self.rank(), state }
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
        Ok(self.request(State::Done(operands)))
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
        Ok(self.request(State::Done(results)))
    }
}
