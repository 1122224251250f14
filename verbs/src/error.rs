//! Why a rank has no RDMA.

use transom_launch::variables::VariableError;
use transom_windows::FabricError;

/// Why the verbs provider cannot be used here.
///
/// # Examples
/// ```
/// match transom::verbs::probe() {
///     Ok(found) => println!("{found}"),
///     Err(why) => println!("ranks on several machines: no, {why}"),
/// }
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs is not installed, or too old.
    #[error("libibverbs cannot be loaded ({why}); install it (package libibverbs1) with the provider of your adapter")]
    Library {
        /// The loader's words.
        why: String,
    },
    /// No RDMA device.
    #[error("this machine has no RDMA device that can be opened; `ibv_devices` lists them{}", source.as_ref().map_or(String::new(), |source| format!(" ({source})")))]
    NoDevice {
        /// The system's words, if it had any.
        #[source]
        source: Option<std::io::Error>,
    },
    /// A device, port, GID or the like was asked for that is not there or not usable.
    #[error("{what}: {why}")]
    Unusable {
        /// Which, with the variable that names it.
        what: String,
        /// Why it is not, and what there is.
        why: String,
    },
    /// The system or the device refused.
    #[error("{what}: {source}")]
    System {
        /// What was asked of it.
        what: String,
        /// Its answer.
        #[source]
        source: std::io::Error,
    },
    /// A TRANSOM_ variable says what cannot be.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks could not tell each other their addresses.
    #[error("the ranks cannot tell each other their addresses: {0}")]
    Exchange(#[from] FabricError),
    /// Another rank could not use its device.
    #[error("rank {rank} could not use its RDMA device; it says why")]
    Peer {
        /// Which.
        rank: transom_locks::Rank,
    },
}

impl VerbsError {
    /// What the system said, if it was the system.
    pub(super) fn errno(&self) -> Option<rustix::io::Errno> {
        match self {
            VerbsError::System { source, .. } => rustix::io::Errno::from_io_error(source),
            _ => None,
        }
    }

    pub(super) fn system(what: impl Into<String>, source: std::io::Error) -> Self {
        VerbsError::System { what: what.into(), source }
    }

    pub(super) fn unusable(what: String, why: String) -> Self {
        VerbsError::Unusable { what, why }
    }
}

transom_windows::joins_error!(VerbsError);
