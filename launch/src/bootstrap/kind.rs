//! Detection of the launcher that started a process.

use super::error::BootstrapError;
use super::{pmi, pmix};
use crate::variables::BOOTSTRAP;
use std::str::FromStr;
use transom_shm_loopback::Invitation;

/// The launcher that started this process, which determines how it finds the other ranks. TRANSOM_BOOTSTRAP names one;
/// else the first variant whose variables are set is chosen.
///
/// A program that a rank of transom's launcher starts inherits the variables but is not a rank. It is a world of one,
/// or a launcher of its own if it calls `transom::start`. A program that a rank of another launcher starts would try to
/// join as that rank: remove the variables named below from its environment.
///
/// Other launchers do not report that a rank ended before it joined. The other ranks then wait until the launcher ends
/// them, which it does at once if the rank failed. After joining, transom detects deaths itself.
///
/// # Examples
/// ```
/// use transom::Bootstrap;
/// assert_eq!(Bootstrap::detect()?, Bootstrap::None); // an example is started by itself
/// assert_eq!("pmix".parse(), Ok(Bootstrap::Pmix));
/// # Ok::<(), transom::BootstrapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bootstrap {
    /// `transom run`, `transom::start` or [`Launch`](crate::launcher::Launch): TRANSOM_RANK is set.
    Transom,
    /// `srun --mpi=pmix`, `prterun` or `mpirun` of Open MPI: PMIX_RANK and PMIX_NAMESPACE are set.
    Pmix,
    /// `mpiexec` of MPICH or `srun --mpi=pmi2`: PMI_FD, PMI_RANK and PMI_SIZE are set. Joining ends the PMI session, so
    /// the process cannot also be an MPICH rank.
    Pmi,
    /// No launcher: the process is a world of one.
    None,
}

impl Bootstrap {
    const NAMES: [(&'static str, Bootstrap); 4] = [
        ("transom", Bootstrap::Transom),
        ("pmix", Bootstrap::Pmix),
        ("pmi", Bootstrap::Pmi),
        ("none", Bootstrap::None),
    ];

    /// Detects the launcher from this process's environment.
    ///
    /// # Errors
    /// [`BootstrapError::Variable`] if TRANSOM_BOOTSTRAP has an unknown value.
    pub fn detect() -> Result<Self, BootstrapError> {
        if let Some(named) = BOOTSTRAP.get()? {
            return Ok(named);
        }
        let set = |name: &&str| std::env::var_os(name).is_some();
        Ok(if Invitation::VARIABLES.iter().chain(&["TRANSOM_HUB"]).any(set) {
            Bootstrap::Transom
        } else if pmix::VARIABLES.iter().all(set) {
            Bootstrap::Pmix
        } else if pmi::VARIABLES.iter().all(set) {
            Bootstrap::Pmi
        } else {
            Bootstrap::None
        })
    }

    /// Checks that this process can use its launcher, without joining.
    ///
    /// # Errors
    /// [`BootstrapError::Library`] if the PMIx library is needed and cannot be loaded.
    ///
    /// # Examples
    /// ```
    /// transom::Bootstrap::None.check()?; // needs nothing
    /// # Ok::<(), transom::BootstrapError>(())
    /// ```
    pub fn check(self) -> Result<(), BootstrapError> {
        if self == Bootstrap::Pmix { pmix::load().map(drop) } else { Ok(()) }
    }
}

impl std::fmt::Display for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = Self::NAMES.iter().find(|(_, bootstrap)| bootstrap == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Bootstrap {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, bootstrap)| *bootstrap).ok_or("it is not the name of a launcher")
    }
}
