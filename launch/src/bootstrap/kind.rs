//! Which launcher started a process.

use super::error::BootstrapError;
use super::{pmi, pmix};
use crate::variables::BOOTSTRAP;
use std::str::FromStr;
use transom_shm_loopback::Invitation;

/// What started this process, and so how it finds the other ranks: the first of these whose variables are set, unless
/// TRANSOM_BOOTSTRAP names one.
///
/// A program that a rank of transom's launcher starts inherits the variables, and is still no rank: it is a world of one,
/// or a launcher of its own if it calls `transom::start`. For a program that a rank of another launcher starts,
/// remove the variables below from its environment; else it tries to join as that rank.
///
/// Other launchers do not tell that a rank ended before it joined: the others wait until the launcher ends them, which it
/// does at once if the rank failed. After joining, transom notices deaths by itself.
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
    /// `mpiexec` of MPICH or `srun --mpi=pmi2`: PMI_FD, PMI_RANK and PMI_SIZE are set. Joining finishes the conversation by
    /// PMI, so the process cannot be a rank of MPICH too.
    Pmi,
    /// Nothing: the process is a world of one.
    None,
}

impl Bootstrap {
    const NAMES: [(&'static str, Bootstrap); 4] = [
        ("transom", Bootstrap::Transom),
        ("pmix", Bootstrap::Pmix),
        ("pmi", Bootstrap::Pmi),
        ("none", Bootstrap::None),
    ];

    /// What started this process, as far as its environment tells.
    ///
    /// # Errors
    /// [`BootstrapError::Variable`] if TRANSOM_BOOTSTRAP is none of the names.
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

    /// Whether this process can join what started it, as far as can be told without joining.
    ///
    /// # Errors
    /// [`BootstrapError::Library`] if it needs a library that is not there.
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
        named.map(|(_, bootstrap)| *bootstrap).ok_or("no launcher has this name")
    }
}
