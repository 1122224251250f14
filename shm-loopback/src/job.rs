//! Starting a job of processes: the launcher makes the control block, each rank inherits its descriptor; or, where
//! something else starts the ranks, one of them makes it and the others open it.

use crate::Loopback;
use crate::control::Control;
use crate::key::{Key, fresh_tag};
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
        // Not close-on-exec: the ranks inherit it.
        Self::make(ranks, MemfdFlags::empty())
    }

    /// A job of so many ranks that are started already, by something else, and know a way to tell each other small
    /// things: its first rank calls this, and then all of them [`Loopback::join`] its [`key`](Self::key). Nobody
    /// inherits it.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Job, Loopback};
    /// use transom_windows::Exchange;
    ///
    /// let job = Job::found(1)?;
    /// let fabric = Loopback::join(&job.key(), 0, &[std::process::id()])?; // rank 0 of a job of one
    /// assert_eq!(fabric.size(), 1);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn found(ranks: usize) -> Result<Self, FabricError> {
        Self::make(ranks, MemfdFlags::CLOEXEC)
    }

    fn make(ranks: usize, flags: MemfdFlags) -> Result<Self, FabricError> {
        let tag = fresh_tag();
        let (memory, fd) = Memory::create(Control::bytes(ranks)?, tag, flags)?;
        Ok(Job { control: Control::create(Arc::new(memory), ranks), fd, tag })
    }

    /// The way into the job for processes of this machine, open while this `Job` lives.
    pub fn key(&self) -> Vec<u8> {
        Key { tag: self.tag, pid: std::process::id(), fd: self.fd.as_raw_fd() as u32 }.to_bytes()
    }

    /// The environment of a rank's process: [`Invitation::VARIABLES`].
    pub fn environment(&self, rank: Rank) -> [(&'static str, String); 3] {
        let key = format!("{},{:x}", self.fd.as_raw_fd(), self.tag);
        let values = [rank.to_string(), self.control.ranks().to_string(), key];
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
            let [rank, size, key] = &values;
            let text = |value: &Option<OsString>| value.as_ref()?.to_str().map(str::to_owned);
            let (rank, size) = (text(rank)?.parse().ok()?, text(size)?.parse().ok()?);
            let key = text(key)?;
            let (fd, tag) = key.split_once(',')?;
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
        Loopback::process(self.rank, Control::open(Arc::new(memory), self.size)?, None)
    }
}

impl Loopback {
    /// Joins a job through the [`key`](Job::key) of its first rank; collective. `processes` are those of all ranks.
    ///
    /// # Errors
    /// [`FabricError::BadKey`] if the key does not lead to the control block of such a job, e.g. because the ranks are
    /// in different containers or of different users; [`FabricError::Misuse`] if the rank has joined before;
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`].
    pub fn join(key: &[u8], rank: Rank, processes: &[u32]) -> Result<Self, FabricError> {
        let bad_key = |why, source| FabricError::BadKey { rank: 0, why, source };
        let Key { tag, pid, fd } =
            Key::from_bytes(key).ok_or_else(|| bad_key(format!("a key of {} bytes", key.len()), None))?;
        if processes.first() != Some(&pid) || rank >= processes.len() {
            let why = format!("a key to process {pid}, for rank {rank} of processes {processes:?}");
            return Err(bad_key(why, None));
        }
        let opened = Memory::open_of(pid, fd, Control::bytes(processes.len())?, tag);
        let memory = opened.map_err(|(why, source)| bad_key(why, source))?;
        Loopback::process(rank, Control::open(Arc::new(memory), processes.len())?, Some(processes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_door_is_checked() {
        let job = Job::found(2).unwrap();
        let (key, me) = (job.key(), std::process::id());
        let why = |key: &[u8], rank, processes: &[u32]| match Loopback::join(key, rank, processes) {
            Err(FabricError::BadKey { rank: 0, why, .. }) => why,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("joined"),
        };
        assert!(why(&[], 0, &[me, me]).contains("0 bytes"));
        assert!(why(&key[1..], 0, &[me, me]).contains("15 bytes"));
        assert!(why(&key, 2, &[me, me]).contains("rank 2"));
        assert!(why(&key, 0, &[me + 1, me]).contains("a key to process"));
        assert!(why(&key, 0, &[me, me, me]).contains("were announced")); // of another size
        let mut other = key.clone();
        other[0] ^= 1; // another tag
        assert!(why(&other, 0, &[me, me]).contains("was announced"));
        other = key.clone();
        other[12..].copy_from_slice(&u32::MAX.to_le_bytes()); // no such descriptor
        assert!(why(&other, 0, &[me, me]).contains("cannot open"));
        other[12..].copy_from_slice(&0_u32.to_le_bytes()); // something else
        assert!(!why(&other, 0, &[me, me]).is_empty());
    }

    #[test]
    fn a_rank_that_ended_before_joining_is_told() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let job = Job::found(2).unwrap();
        let joined = Loopback::join(&job.key(), 0, &[std::process::id(), pid]);
        assert!(matches!(joined, Err(FabricError::PeerDied { rank: 1 })), "{:?}", joined.err());
    }
}
