//! What a program may assert about its own synchronisation (MPI-3.1 §11.5.5).

bitflags::bitflags! {
    /// What a program asserts when it synchronises, so that less need be done. Believed; in debug builds also checked,
    /// where that finds only what is wrong, but not all of it: an assertion that does not hold is [`Error::Assertion`].
    /// One that means nothing to the call is that error in every build.
    ///
    /// # Examples
    /// ```
    /// # let fabric = transom_shm_loopback::Loopback::alone()?;
    /// # let mut window = transom_windows::Window::<u64, _>::allocate(&fabric, 0, 64)?;
    /// use transom_windows::Assert;
    /// let epoch = window.fence_with(Assert::NOPRECEDE)?; // the first: nothing comes before
    /// epoch.target(0)?.put(0, &[1])?;
    /// window.fence_with(Assert::NOSUCCEED)?; // the last: nothing comes after
    /// assert!(window.fence_with(Assert::NOCHECK).is_err()); // a fence has nothing to check
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Assert: u8 {
        /// To a lock: nobody holds or asks for a lock that conflicts, so none is taken; saves all its remote
        /// operations. To `post` and `start`, both of them or neither: every `post` has been called before any `start`
        /// that matches it, so nothing is told and nothing awaited; saves the notifications.
        const NOCHECK = 1;
        /// To `fence` and `post`: this rank has not written to its own part since it last synchronised. Saves nothing
        /// where memory is coherent, as it is on all providers.
        const NOSTORE = 2;
        /// To `fence` and `post`: nobody puts to or accumulates in this rank's part, or stores to it by
        /// [`Local::of`](crate::Local::of), until its next fence, or the `wait` that ends the exposure. Saves nothing, as
        /// above.
        const NOPUT = 4;
        /// To `fence`: no rank has operated on the window since it last synchronised; saves the flush.
        const NOPRECEDE = 8;
        /// To `fence`: no rank operates on the window before it synchronises next. Saves nothing.
        const NOSUCCEED = 16;
    }
}

impl Assert {
    pub(crate) const FENCE: Assert =
        Assert::NOSTORE.union(Assert::NOPUT).union(Assert::NOPRECEDE).union(Assert::NOSUCCEED);
    pub(crate) const POST: Assert = Assert::NOCHECK.union(Assert::NOSTORE).union(Assert::NOPUT);
    pub(crate) const START: Assert = Assert::NOCHECK;
    pub(crate) const LOCK: Assert = Assert::NOCHECK;
}
