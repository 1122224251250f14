//! The provider for ranks on several machines: InfiniBand and RoCE, by libibverbs. Behind the cargo feature `verbs`;
//! building it needs cmake, pkg-config, libclang and the headers of libibverbs. The crate `transom-verbs` has its documentation.

pub use transom_verbs::*;

use crate::messages::asked::MESSAGES;
use transom_channel::{Changes, Config};

/// Opens the rails that a job would use, and describes them in a line.
///
/// # Errors
/// Why there is none: [`VerbsError`].
///
/// # Examples
/// See [`VerbsError`].
pub fn probe() -> Result<String, VerbsError> {
    transom_verbs::probe(&messages())
}

/// Reads the settings of messages that adapters need. An invalid value counts as none here: the first message reports it.
pub(crate) fn messages() -> Config {
    let changes = MESSAGES.get::<Changes>().ok().flatten();
    changes.map_or(Config::default(), |changes| changes.of(Config::default()))
}
