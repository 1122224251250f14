//! Starting a job of processes: the launcher makes the control block, each rank inherits its descriptor.

use crate::Loopback;
use crate::control::Control;
use crate::fabric::fresh_tag;
use crate::memory::Memory;
use crate::system;
use rustix::fs::MemfdFlags;
use rustix::io::FdFlags;
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use transom_locks::Rank;
use transom_windows::FabricError;

/// A job as its launcher sees it. Processes that the launcher starts while it lives inherit its descriptor.
///
/// # Examples
/// ```
/// let job = transom_shm_loopback::Job::create(4)?;
/// let command = std::process::Command::new("./program").envs(job.environment(2)); // rank 2
/// # Ok::<(), transom_windows::FabricError>(())
/// ```
pub struct Job {
    control: Control,
    fd: OwnedFd,
    tag: u64,
}

/// What tells a process which rank of which job it is.
///
/// # Examples
/// ```
/// assert!(transom_shm_loopback::Invitation::VARIABLES.contains(&"TRANSOM_RANK"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// The rank that the process is to be.
    pub rank: Rank,
    /// How many ranks the job has.
    pub size: usize,
    fd: i32,
    tag: u64,
}

impl Job {
    /// A job of so many ranks, none of them started.
    ///
    /// # Errors
    /// [`FabricError::System`] if the system gives no memory or descriptor.
    pub fn create(ranks: usize) -> Result<Self, FabricError> {
        let tag = fresh_tag();
        // Not close-on-exec: the ranks inherit it.
        let (memory, fd) = Memory::create(Control::bytes(ranks)?, tag, MemfdFlags::empty())?;
        Ok(Job { control: Control::create(Arc::new(memory), ranks), fd, tag })
    }

    /// The environment of a rank's process: [`Invitation::VARIABLES`].
    pub fn environment(&self, rank: Rank) -> [(&'static str, String); 3] {
        let door = format!("{},{:x}", self.fd.as_raw_fd(), self.tag);
        let values = [rank.to_string(), self.control.ranks().to_string(), door];
        let mut values = values.into_iter();
        Invitation::VARIABLES.map(|name| (name, values.next().expect("as many as names")))
    }

    /// To be called when a rank's process has ended: ranks that wait for it are told within 0.1 s. It has died unless
    /// it said that it left, or ended well without ever joining.
    pub fn ended(&self, rank: Rank, well: bool) {
        if self.control.has_left(rank) {
            return;
        }
        match well && !self.control.has_joined(rank) {
            true => self.control.leave(rank),
            false => self.control.fail(rank),
        }
    }
}

impl Invitation {
    /// The variables that carry it: rank, size, and the way to the control block.
    pub const VARIABLES: [&'static str; 3] = ["TRANSOM_RANK", "TRANSOM_SIZE", "TRANSOM_SHM"];

    /// The invitation in this process's environment, if there is one.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] if there is a part of one, or one that cannot be.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_shm_loopback::Invitation::from_env().unwrap(), None); // started by hand
    /// ```
    pub fn from_env() -> Result<Option<Self>, FabricError> {
        let values = Self::VARIABLES.map(std::env::var_os);
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        let parsed = || {
            let [rank, size, door] = &values;
            let text = |value: &Option<OsString>| value.as_ref()?.to_str().map(str::to_owned);
            let (rank, size) = (text(rank)?.parse().ok()?, text(size)?.parse().ok()?);
            let door = text(door)?;
            let (fd, tag) = door.split_once(',')?;
            let (fd, tag) = (fd.parse().ok()?, u64::from_str_radix(tag, 16).ok()?);
            (rank < size && fd >= 0).then_some(Invitation { rank, size, fd, tag })
        };
        let why = || {
            let shown = Self::VARIABLES.iter().zip(&values).map(|(name, value)| match value {
                Some(value) => format!("{name}={}", value.display()),
                None => format!("{name} not set"),
            });
            let shown = shown.collect::<Vec<_>>().join(", ");
            format!("{shown}: only a launcher sets these, and sets them all; unset them to start a job of one's own")
        };
        parsed().map(Some).ok_or_else(|| FabricError::Misuse { why: why() })
    }

    /// Joins the job; collective.
    ///
    /// # Errors
    /// [`FabricError::Corrupt`] if the descriptor is not the control block of such a job, [`FabricError::Misuse`] if
    /// the rank has joined before; [`FabricError::PeerDied`], [`FabricError::PeerLeft`].
    pub fn join(self) -> Result<Loopback, FabricError> {
        // A copy: the number comes from outside and may belong to somebody.
        let unusable = |errno: rustix::io::Errno| {
            system(format!("descriptor {} of the job cannot be used", self.fd), errno.into())
        };
        // SAFETY: the launcher left it open for this process and nobody here knows of it to close it; of a number that
        // is not open, the first call says so. It is not -1, as `from_env` checked.
        let theirs = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let fd = rustix::io::fcntl_dupfd_cloexec(theirs, 0).map_err(unusable)?;
        let opened = Memory::open(fd.as_fd(), Control::bytes(self.size)?, self.tag);
        let memory = opened.map_err(|why| FabricError::Corrupt { why: format!("descriptor {}: {why}", self.fd) })?;
        // It is ours: programs that this one starts need not inherit it.
        let _ = rustix::io::fcntl_setfd(theirs, FdFlags::CLOEXEC);
        Loopback::process(self.rank, Control::open(Arc::new(memory), self.size)?)
    }
}
