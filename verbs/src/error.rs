//! Errors of the verbs provider.

use transom_launch::variables::VariableError;
use transom_windows::FabricError;

/// The reason why the verbs provider cannot be used.
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
    /// libibverbs is not installed, or is too old.
    #[error("libibverbs cannot be loaded ({why}); install it (package libibverbs1) with the provider of your adapter")]
    Library {
        /// The dynamic loader's error.
        why: String,
    },
    /// No RDMA device can be opened.
    #[error("this machine has no RDMA device that can be opened, which `ibv_devices` would list; TRANSOM_FABRIC=tcp needs none, and on Ethernet `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0` makes one{}", source.as_ref().map_or(String::new(), |source| format!(" ({source})")))]
    NoDevice {
        /// The system's error, if there is one.
        #[source]
        source: Option<std::io::Error>,
    },
    /// A requested device, port, GID or other resource does not exist or is not usable.
    #[error("{what}: {why}")]
    Unusable {
        /// The resource, with the variable that names it.
        what: String,
        /// The fault, and the alternatives.
        why: String,
    },
    /// A system call or verb failed.
    #[error("{what}: {source}")]
    System {
        /// The operation that failed.
        what: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A TRANSOM_ variable has an invalid value.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks could not exchange their addresses.
    #[error("the ranks cannot exchange their addresses: {0}")]
    OobExchange(#[from] FabricError),
    /// Another rank could not use its device.
    #[error("rank {rank} could not use its RDMA device; see the error of rank {rank}")]
    Peer {
        /// The other rank.
        rank: transom_locks::Rank,
    },
}

impl VerbsError {
    /// The system's error number, for a system error.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The error has the commands that make a device of an Ethernet port.
    #[test]
    fn missing_device_error_says_what_to_do() {
        let without = "this machine has no RDMA device that can be opened, which `ibv_devices` would list; TRANSOM_FABRIC=tcp needs \
                       none, and on Ethernet `modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0` makes one";
        assert_eq!(VerbsError::NoDevice { source: None }.to_string(), without);
        let source = std::io::Error::other("the reason");
        assert_eq!(VerbsError::NoDevice { source: Some(source) }.to_string(), format!("{without} (the reason)"));
    }
}
