//! The provider for ranks on one machine, and the reference provider. Ranks are processes that map each other's memory,
//! or threads of one process. A remote put, get or atomic is the origin's own copy or instruction on the target's
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
#![doc(html_root_url = "https://docs.rs/transom-shm-loopback/0.1.0")]

mod asymmetric_fence;
mod biased;
mod blocks;
mod buffer;
mod cma;
pub mod collective;
mod control;
mod copy;
mod cores;
mod event_count;
mod exports;
mod fabric;
mod job;
mod key;
mod loopback;
mod memory;
pub mod messages;
mod progress;
mod reach;
mod relay;
mod team;
mod words;

pub use biased::{Biased, Held};
pub use fabric::Region;
pub use job::{Invitation, Job};
pub use loopback::Loopback;
pub use memory::{View, Word};
pub use relay::Relay;
pub use team::Meet;

/// The error of a failed system call, with the limit that was reached, if that is the reason.
fn system(what: String, source: std::io::Error) -> transom_windows::FabricError {
    let limit = limit(&source).map_or(String::new(), |limit| format!(" ({limit})"));
    transom_windows::FabricError::System { what: format!("{what}{limit}"), source }
}

/// The system limit that this error reports as reached, and how to raise it.
fn limit(error: &std::io::Error) -> Option<String> {
    use rustix::io::Errno;
    use rustix::process::{Resource, getrlimit};
    let most = |of| getrlimit(of).current.map_or("unlimited".into(), |most| most.to_string());
    match Errno::from_io_error(error)? {
        Errno::MFILE => {
            Some(format!("this process may open {} files at once: raise `ulimit -n`", most(Resource::Nofile)))
        }
        Errno::FBIG => Some(format!(
            "shared memory counts as a file, and files of this process may have {} bytes (RLIMIT_FSIZE): raise `ulimit -f` before \
             the job starts",
            most(Resource::Fsize)
        )),
        Errno::NFILE => Some("this machine has reached its limit of open files: raise `fs.file-max`".into()),
        Errno::NOMEM if getrlimit(Resource::As).current.is_some() => {
            Some(format!("this process may map {} bytes in all (RLIMIT_AS): raise `ulimit -v`", most(Resource::As)))
        }
        // The error concerns memory that is mapped, but not touched yet.
        Errno::NOMEM => Some(
            "no memory, or too many mappings: `sysctl vm.max_map_count` is the limit of a process, and each window, \
             mutex or array takes one mapping for each rank"
                .into(),
        ),
        _ => None,
    }
}
