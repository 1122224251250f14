//! A program's assertions about its own synchronisation (MPI-3.1 §11.5.5).

bitflags::bitflags! {
    /// Assertions of a program at a synchronisation, which allow the library to do less. They are trusted. Debug builds
    /// check some of them: one that is found not to hold is [`Error::Assertion`]. One that the call does not accept is
    /// that error in every build.
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
        /// For a lock: no other rank holds or requests a conflicting lock, so none is taken; saves all its remote
        /// operations. For `post` and `start`, both or neither: every `post` is called before any matching `start`, so
        /// no rank notifies or waits; saves the notifications.
        const NOCHECK = 1;
        /// For `fence` and `post`: this rank has not written to its own part since its last synchronisation. Saves
        /// nothing where memory is coherent, as it is on all providers.
        const NOSTORE = 2;
        /// For `fence` and `post`: no rank puts to or accumulates in this rank's part, or stores to it by
        /// [`Local::of`](crate::Local::of), until its next fence, or the `wait` that ends the exposure. Saves nothing,
        /// as above.
        const NOPUT = 4;
        /// For `fence`: no rank has operated on the window since its last synchronisation; saves the flush.
        const NOPRECEDE = 8;
        /// For `fence`: no rank operates on the window before its next synchronisation. Saves nothing.
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
