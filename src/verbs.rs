//! The provider for ranks on several machines: InfiniBand and RoCE, by libibverbs. Behind the cargo feature `verbs`;
//! building it needs cmake, pkg-config, libclang and the headers of libibverbs. The crate `transom-verbs` has its
//! documentation.

pub use transom_verbs::*;

/// Opens the rails that a job would use, and describes them in one line.
///
/// # Errors
/// [`VerbsError`], if no rail is usable.
///
/// # Examples
/// See [`VerbsError`].
pub fn probe() -> Result<String, VerbsError> {
    transom_verbs::probe(&crate::messages::asked::configured())
}
