//! The name of a value behind a lock in errors, and the description of a failed call on it.

use crate::FabricError;
use std::fmt;
use transom_locks::{Error, Rank};

/// The name of a mutex or rw_lock in errors.
///
/// # Examples
/// ```
/// use transom_windows::{Error, GlobalMutex};
/// # let fabric = transom_shm_loopback::Loopback::alone().expect("one rank");
/// let cells = GlobalMutex::many(&fabric, 5, 10, |_| 0_u64)?;
/// let _guard = cells[2].lock()?;
/// let Err(Error::Value { value, .. }) = cells[2].lock() else { panic!("locked twice") };
/// assert_eq!((value.id, value.index, value.home), (7, Some(2), 0));
/// assert_eq!(value.to_string(), "mutex 2 of array 5 at rank 0"); // `cells[2]`, the array's first has number 5
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueName {
    /// `mutex` or `rw_lock`.
    pub what: &'static str,
    /// The value's number, counted together with the windows. An array has the number of its first value.
    pub id: u32,
    /// The value's index in its array; `None` for a single value.
    pub index: Option<usize>,
    /// The rank whose memory holds the value.
    pub home: Rank,
}

impl fmt::Display for ValueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ValueName { what, id, index, home } = self;
        match index {
            Some(index) => write!(f, "{what} {index} of array {} at rank {home}", id.wrapping_sub(*index as u32)),
            None => write!(f, "{what} {id} at rank {home}"),
        }
    }
}

/// The description of a lock error in terms of the calling thread; the lock itself knows only ranks.
pub(crate) fn why(source: &Error<FabricError>) -> String {
    match source {
        Error::AlreadyLocked { .. } => {
            "this thread has locked it already: drop that guard first (one that was leaked keeps it locked)".into()
        }
        Error::Broken { .. } => "an earlier call on it failed midway; this rank cannot use it again".into(),
        source => source.to_string(),
    }
}
