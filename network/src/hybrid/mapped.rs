//! Providers of which some memory is mapped in this process.

use transom_locks::Rank;
use transom_shm_loopback::{Loopback, Meet, View};
use transom_windows::{Delayed, Fabric, FabricError};

/// A provider that may map memory of ranks in this process. [`Direct`](crate::Direct) executes the operations on mapped memory, and
/// the provider those on other memory.
pub trait Mapped: Fabric {
    /// Returns the memory that the ranks of this host share.
    fn memory(&self) -> &Loopback;

    /// Returns the bytes of this rank's memory.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] if another provider made the region.
    fn view<'r>(&self, on: &'r Self::Region) -> Result<&'r View, FabricError>;

    /// Returns what is mapped here of memory that was attached to.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] if another provider attached to it.
    fn mapped(&self, at: &Self::Remote) -> Result<View, FabricError>;

    /// Returns whether every operation of every rank uses that memory, as [`Loopback`]'s do.
    fn only_memory(&self) -> bool {
        false
    }

    /// Returns whether all words of all ranks are mapped here. A rank then has the same number in the job and on the
    /// host.
    fn maps_all_words(&self) -> bool {
        self.only_memory()
    }

    /// Makes the provider of a team; see [`Loopback::team`].
    ///
    /// # Errors
    /// The errors of [`Loopback::team`].
    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError>;
}

impl Mapped for Loopback {
    fn memory(&self) -> &Loopback {
        self
    }

    fn view<'r>(&self, on: &'r Self::Region) -> Result<&'r View, FabricError> {
        Ok(on.view())
    }

    fn mapped(&self, at: &View) -> Result<View, FabricError> {
        Ok(at.clone())
    }

    fn only_memory(&self) -> bool {
        true
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        Loopback::team(self, members, meet)
    }
}

impl Mapped for Delayed<Loopback> {
    fn memory(&self) -> &Loopback {
        self.inner()
    }

    fn view<'r>(&self, on: &'r Self::Region) -> Result<&'r View, FabricError> {
        Ok(on.view())
    }

    /// Nothing: all operations are delayed.
    fn mapped(&self, _: &Self::Remote) -> Result<View, FabricError> {
        Ok(View::empty().clone())
    }

    fn team(&self, members: &[Rank], meet: &mut Meet<'_>) -> Result<Self, FabricError> {
        Self::new(self.inner().team(members, meet)?)
    }
}
