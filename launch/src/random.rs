//! Cryptographically secure random bytes.

use std::io;

/// Returns `N` cryptographically secure random bytes.
///
/// # Errors
/// The operating system's error.
///
/// # Examples
/// ```
/// assert_ne!(transom_launch::random::<16>()?, transom_launch::random::<16>()?);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
