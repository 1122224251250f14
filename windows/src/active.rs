//! Active synchronisation of a window: post, start, complete, wait; fence.

use crate::epoch::{AccessEpoch, FenceEpoch};
use crate::{Assert, Error, Fabric, Window};
use bytemuck::Pod;
use std::marker::PhantomData;
use transom_locks::{Awaited, Rank};

impl<T: Pod, F: Fabric> Window<T, F> {
    /// Opens an exposure epoch: the ranks of `origins` may access this rank's part in the access epochs that their
    /// [`start`](Self::start) opens. Does not wait. 1 notification per origin.
    ///
    /// # Errors
    /// [`Error::Sync`] if an exposure epoch is open, or `origins` names a rank twice or a rank that does not exist.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// window.post(&[0])?; // this rank is its own neighbour here
    /// let epoch = window.start(&[0])?;
    /// epoch.target(0)?.put(5, &[6])?;
    /// epoch.complete()?;
    /// window.wait()?; // all origins have completed
    /// assert_eq!(window.local().get(5)?, 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post(&mut self, origins: &[Rank]) -> Result<(), Error> {
        self.post_with(origins, Assert::empty())
    }

    /// [`post`](Self::post), with assertions.
    ///
    /// # Errors
    /// The errors of `post`; [`Error::Assertion`], after which nothing is posted.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Assert;
    /// window.post_with(&[0], Assert::NOCHECK | Assert::NOSTORE)?;
    /// // ... a barrier: every rank has posted ...
    /// let epoch = window.start_with(&[0], Assert::NOCHECK)?; // so this needs no check
    /// epoch.complete()?;
    /// window.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn post_with(&mut self, origins: &[Rank], asserted: Assert) -> Result<(), Error> {
        let core = &self.core;
        core.allowed("post", asserted, Assert::POST)?;
        if cfg!(debug_assertions) {
            core.check_past("post", asserted)?;
            core.check_noput("post")?;
            core.checks.synchronised(&core.data.counters);
            if asserted.contains(Assert::NOPUT) {
                core.promise_noput()?;
            }
        }
        let unchecked = asserted.contains(Assert::NOCHECK) && !cfg!(debug_assertions);
        let posted = match unchecked {
            true => self.pscw.post_unseen(origins),
            false => self.pscw.post(&core.data, origins),
        };
        posted.map_err(|source| core.sync_error("post", source))?;
        if asserted.contains(Assert::NOCHECK) && !unchecked {
            // The origins' starts check for these posts without waiting.
            let flushed = |&rank: &Rank| match core.data.fabric.flush(&core.data.remotes[rank]) {
                Ok(()) => Ok(()),
                Err(source) => Err(Error::Fabric { window: core.id, rank, source }),
            };
            origins.iter().try_for_each(flushed)?;
        }
        Ok(())
    }

    /// Opens an access epoch to `targets`, once each of them has posted to this rank. No remote operation.
    ///
    /// # Errors
    /// [`Error::Sync`] as for [`post`](Self::post), or if a target died or left.
    ///
    /// # Examples
    /// See [`post`](Self::post).
    pub fn start(&mut self, targets: &[Rank]) -> Result<AccessEpoch<'_, T, F>, Error> {
        self.start_with(targets, Assert::empty())
    }

    /// [`start`](Self::start), with assertions.
    ///
    /// # Errors
    /// The errors of `start`; [`Error::Assertion`].
    ///
    /// # Examples
    /// See [`post_with`](Self::post_with).
    pub fn start_with(&mut self, targets: &[Rank], asserted: Assert) -> Result<AccessEpoch<'_, T, F>, Error> {
        let core = &self.core;
        core.allowed("start", asserted, Assert::START)?;
        core.checks.synchronised(&core.data.counters);
        let started = match asserted.contains(Assert::NOCHECK) {
            true if cfg!(debug_assertions) => match self.pscw.posted(&core.data, targets) {
                Ok(false) => return Err(core.wrong("start", Assert::NOCHECK, "a target has not posted yet")),
                asked => asked.and_then(|_| self.pscw.start(&core.data, targets)),
            },
            true => self.pscw.start_unseen(targets),
            false => self.pscw.start(&core.data, targets),
        };
        started.map_err(|source| core.sync_error("start", source))?;
        Ok(AccessEpoch::new(core, &mut self.pscw))
    }

    /// Ends the exposure epoch once every origin has completed: their puts have arrived. No remote operation.
    ///
    /// # Errors
    /// [`Error::Sync`] if no exposure epoch is open, or an origin died or left.
    ///
    /// # Examples
    /// See [`post`](Self::post).
    pub fn wait(&mut self) -> Result<(), Error> {
        self.pscw.wait(&self.core.data).map_err(|source| self.core.sync_error("wait", source))?;
        self.waited("wait")
    }

    /// Updates the debug checks after an exposure epoch.
    fn waited(&self, call: &'static str) -> Result<(), Error> {
        let kept = if cfg!(debug_assertions) { self.core.check_noput(call) } else { Ok(()) };
        self.core.checks.synchronised(&self.core.data.counters);
        kept
    }

    /// [`wait`](Self::wait) if every origin has completed; otherwise returns false, and the epoch stays open.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// window.post(&[0])?;
    /// assert!(!window.test()?);
    /// window.start(&[0])?.complete()?;
    /// assert!(window.test()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn test(&mut self) -> Result<bool, Error> {
        let mut tested = self.pscw.test(&self.core.data);
        if let Ok(false) = tested {
            // An origin that has completed may have left.
            let missing = |rank: &&Rank| !self.pscw.has_completed(&self.core.data, **rank).unwrap_or(false);
            let mut missing = self.pscw.origins().unwrap_or_default().iter().filter(missing);
            let alive = |fabric: &F| missing.try_for_each(|&rank| fabric.check_peers(Awaited::Rank(rank)));
            if let Err(lost) = self.core.data.check_seldom(alive) {
                // The lost origin may have completed just before.
                tested = self.pscw.test(&self.core.data);
                tested = tested.and_then(|all| if all { Ok(true) } else { Err(lost.into()) });
            }
        }
        match tested {
            Ok(true) => self.waited("test").map(|()| true),
            Ok(false) => Ok(false),
            Err(source) => Err(self.core.sync_error("test", source)),
        }
    }

    /// Collective: ends the epoch of the last fence, if any, and opens the next. Puts of any rank before the fence are
    /// visible everywhere after it. ceil(log2 ranks) notifications.
    ///
    /// # Errors
    /// [`Error::Sync`] if a rank died or left, since it can no longer call.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// let epoch = window.fence()?;
    /// epoch.target(0)?.put(0, &[5])?;
    /// window.fence()?; // ends that epoch, everywhere
    /// assert_eq!(window.local().get(0)?, 5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fence(&mut self) -> Result<FenceEpoch<'_, T, F>, Error> {
        self.fence_with(Assert::empty())
    }

    /// [`fence`](Self::fence), with assertions.
    ///
    /// # Errors
    /// The errors of `fence`; [`Error::Assertion`], after every rank has called.
    ///
    /// # Examples
    /// See [`Assert`].
    #[inline]
    pub fn fence_with(&mut self, asserted: Assert) -> Result<FenceEpoch<'_, T, F>, Error> {
        let core = &self.core;
        let asserts = core.allowed("fence", asserted, Assert::FENCE).and_then(|()| match cfg!(debug_assertions) {
            true => core.check_past("fence", asserted).and_then(|()| core.check_noput("fence")),
            false => Ok(()),
        });
        let orders = core.gates.epoch_ends(&core.data) && !asserted.contains(Assert::NOPRECEDE);
        let unordered = if orders { core.order_all().err().map(Box::new) } else { None };
        // Runs even after an error: the other ranks wait in the barrier for this rank. No error is returned before.
        let waited = self.barrier.wait(&core.data).err().map(|source| Box::new(core.sync_error("fence", source)));
        if let Some(error) = unordered.or(waited) {
            return Err(*error);
        }
        core.data.counters.fences.bump();
        core.checks.synchronised(&core.data.counters);
        asserts?;
        if cfg!(debug_assertions) && asserted.contains(Assert::NOPUT) {
            core.promise_noput()?;
        }
        Ok(FenceEpoch { core, asserted, element: PhantomData })
    }
}
