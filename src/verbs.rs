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

/// Names the rails that a job would use, as `TRANSOM_VERBS_DEVICE` does: DEVICE:PORT.
///
/// # Errors
/// [`VerbsError`], if no rail is usable.
///
/// # Examples
/// ```
/// for rail in transom::verbs::rails().unwrap_or_default() {
///     println!("TRANSOM_VERBS_DEVICE={rail}"); // mlx5_0:1
/// }
/// ```
pub fn rails() -> Result<Vec<String>, VerbsError> {
    transom_verbs::rails(&crate::messages::asked::configured())
}
