//! The provider for ranks on one machine, and the reference provider: processes that map each other's memory, or
//! threads of one process. A remote put, get or atomic is the origin's own copy or instruction on the target's
//! memory, so the target may sleep.
//!
//! ```
//! use transom_shm_loopback::Loopback;
//! use transom_windows::{Error, Window};
//!
//! let mut window = Window::<u64, _>::allocate(&Loopback::alone()?, 0, 8)?;
//! window.lock_exclusive(0)?.put(0, &[42])?;
//! assert_eq!(window.local().get(0)?, 42);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bell;
mod cma;
mod control;
mod copy;
mod cores;
mod fabric;
mod job;
mod memory;

pub use fabric::{Loopback, Reading, Region};
pub use job::{Invitation, Job};
pub use memory::View;

/// An error of the system, with what was asked of it.
fn system(what: String, source: std::io::Error) -> transom_windows::FabricError {
    transom_windows::FabricError::System { what, source }
}
