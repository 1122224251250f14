//! Random bytes that nobody can foresee.

use std::io;

/// As many as the system gives at once, or an error.
pub(crate) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
