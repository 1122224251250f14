//! Starting a job of processes. One process creates the control block, and each rank opens it through
//! `/proc/<process>/fd/<descriptor>`. That process is the launcher, which passes an [`Invitation`] in the environment
//! of its ranks. If another launcher started the ranks, it is rank 0, which sends the others its [key](Job::key).

use crate::Loopback;
use crate::control::Control;
use crate::key::{Key, fresh_tag};
use crate::memory::MemoryBlock;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use transom_locks::Rank;
use transom_windows::FabricError;

/// A job, at the process that created it: a launcher, or rank 0. Ranks can join while it lives.
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

/// A process's rank and job, as passed by a launcher. The rank is below the size.
///
/// # Examples
/// ```
/// assert!(transom_shm_loopback::Invitation::VARIABLES.contains(&"TRANSOM_RANK"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    rank: Rank,
    size: usize,
    key: Key,
    /// The launcher's namespaces, if it passed them.
    namespaces: Option<[u64; 2]>,
}

/// The PID and user namespaces of this process, by kernel number: process numbers and permissions are valid within
/// these.
fn namespaces() -> Option<[u64; 2]> {
    let number = |name: &str| {
        let link = std::fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        link.to_str()?.split_once('[')?.1.strip_suffix(']')?.parse().ok()
    };
    Some([number("pid")?, number("user")?])
}

impl Job {
    /// Creates a job of `ranks` ranks, none of which has joined.
    ///
    /// # Errors
    /// [`FabricError::System`] if the system provides no memory or descriptor; [`FabricError::Misuse`] for an invalid
    /// number of ranks.
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::{Job, Loopback};
    /// use transom_windows::OobExchange;
    ///
    /// let job = Job::create(1)?;
    /// let fabric = Loopback::join(&job.key(), 0, &[std::process::id()])?; // rank 0 of a job of one rank
    /// assert_eq!(fabric.size(), 1);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn create(ranks: usize) -> Result<Self, FabricError> {
        let tag = fresh_tag();
        let (memory, fd) = MemoryBlock::create(Control::bytes(ranks)?, tag)?;
        Ok(Job { control: Control::create(Arc::new(memory), ranks), fd, tag })
    }

    /// The key by which processes of this machine [join](Loopback::join) the job while this `Job` lives.
    pub fn key(&self) -> Vec<u8> {
        self.own_key().to_bytes()
    }

    fn own_key(&self) -> Key {
        Key { tag: self.tag, pid: std::process::id(), fd: self.fd.as_raw_fd() as u32 }
    }

    /// The environment of a rank's process: [`Invitation::VARIABLES`]. The process may be started indirectly, e.g. by a
    /// shell, as long as it has the same user and is in the same container.
    pub fn environment(&self, rank: Rank) -> [(&'static str, String); 3] {
        let Key { tag, pid, fd } = self.own_key();
        let [name_of_rank, name_of_size, name_of_key] = Invitation::VARIABLES;
        let namespaces = namespaces().map_or(String::new(), |[pid, user]| format!(",{pid},{user}"));
        [
            (name_of_rank, rank.to_string()),
            (name_of_size, self.control.ranks().to_string()),
            (name_of_key, format!("{pid},{fd},{tag:x}{namespaces}")),
        ]
    }

    /// Records that a rank's process has ended: ranks that wait for it get an error within 0.1 s. The rank has died
    /// unless it had left, or ended well without ever joining.
    pub fn ended(&self, rank: Rank, well: bool) {
        if rank >= self.control.ranks() || self.control.has_left(rank) {
            return;
        }
        match well && !self.control.has_joined(rank) {
            true => self.control.leave(rank),
            false => self.control.fail(rank),
        }
    }

    /// Returns whether the rank left before any death was recorded: no death made its process fail.
    pub fn has_left_first(&self, rank: Rank) -> bool {
        rank < self.control.ranks() && self.control.has_left_first(rank)
    }

    /// The first rank that died, as far as the launcher or any rank has detected.
    pub fn first_death(&self) -> Option<Rank> {
        self.control.failed()
    }
}

impl Invitation {
    /// The variables of an invitation: rank, size, and the key of the control block.
    pub const VARIABLES: [&'static str; 3] = ["TRANSOM_RANK", "TRANSOM_SIZE", "TRANSOM_SHM"];

    /// The invitation in this process's environment, if there is one.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] for a part of an invitation, or one that no launcher makes.
    ///
    /// # Examples
    /// ```
    /// assert_eq!(transom_shm_loopback::Invitation::from_env().unwrap(), None); // started by hand
    /// ```
    pub fn from_env() -> Result<Option<Self>, FabricError> {
        Self::parse(&Self::VARIABLES.map(std::env::var_os))
    }

    fn parse(values: &[Option<OsString>; 3]) -> Result<Option<Self>, FabricError> {
        if values.iter().all(Option::is_none) {
            return Ok(None);
        }
        let parsed = || {
            let text = |value: &Option<OsString>| value.as_ref()?.to_str().map(str::to_owned);
            let [rank, size, key] = values.each_ref().map(text);
            let (rank, size) = (rank?.parse().ok()?, size?.parse().ok()?);
            let key = key?;
            let mut parts = key.split(',');
            let (pid, fd) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let tag = u64::from_str_radix(parts.next()?, 16).ok()?;
            let namespaces = match (parts.next(), parts.next()) {
                (Some(pid), Some(user)) => Some([pid.parse().ok()?, user.parse().ok()?]),
                (None, _) => None,
                _ => return None,
            };
            let complete = parts.next().is_none() && rank < size;
            complete.then_some(Invitation { rank, size, key: Key { tag, pid, fd }, namespaces })
        };
        let why = || {
            let shown = Self::VARIABLES.iter().zip(values).map(|(name, value)| match value {
                Some(value) => format!("{name}={}", value.display()),
                None => format!("{name} is not set"),
            });
            let shown = shown.collect::<Vec<_>>().join(", ");
            format!("{shown}: a launcher sets all three consistently; {}", Self::advice())
        };
        parsed().map(Some).ok_or_else(|| FabricError::Misuse { why: why() })
    }

    /// The remedy for an unusable invitation.
    fn advice() -> String {
        let [rank, size, key] = Self::VARIABLES;
        format!("to start a job of its own, remove {rank}, {size} and {key} from the program's environment")
    }

    /// The rank that the process is to be.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks of the job.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The number of the process that has joined the job as this rank, if any. Processes that it starts inherit its
    /// environment, and so the invitation.
    ///
    /// # Errors
    /// The errors of [`join`](Self::join), if the control block cannot be opened.
    pub fn joined_by(&self) -> Result<Option<u32>, FabricError> {
        Ok(u32::try_from(self.open()?.process(self.rank)).ok().filter(|&process| process != 0))
    }

    /// Joins the job; collective.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] if the invitation does not lead to the control block of such a job, e.g. because its
    /// launcher has ended, or if the rank has joined before; [`FabricError::Corrupt`]; [`FabricError::PeerDied`],
    /// [`FabricError::PeerLeft`].
    pub fn join(self) -> Result<Loopback, FabricError> {
        Loopback::process(self.rank, self.open()?, None)
    }

    fn open(&self) -> Result<Control, FabricError> {
        let Key { tag, pid, fd } = self.key;
        let other = self.other_namespace();
        let refused = |why: String, source: Option<std::io::Error>| {
            let source = source.map_or(String::new(), |source| format!(" ({source})"));
            let cause = other.map_or("the launcher has ended, or this program runs as another user or in another container than the launcher".into(), |kind| {
                format!(
                    "this program is in another {kind} namespace than the launcher, and ranks of one machine share both: start the \
                     launcher inside the container too, or the containers with the {kind} namespace of the host"
                )
            });
            let why = format!(
                "rank {} cannot open the shared memory of its job, which its launcher (process {pid}) holds: {why}{source}; {cause}; {}",
                self.rank,
                Self::advice()
            );
            FabricError::Misuse { why }
        };
        // The process number identifies another process here, or none.
        if other == Some("PID") {
            return Err(refused("its process number is not valid in this namespace".into(), None));
        }
        let opened = MemoryBlock::open_of(pid, fd, Some(Control::bytes(self.size)?), tag);
        let memory = opened.map_err(|(why, source)| refused(why, source))?;
        Control::open(Arc::new(memory), self.size)
    }

    /// The kind of namespace, PID or user, that this process does not share with the launcher.
    fn other_namespace(&self) -> Option<&'static str> {
        let differing = self.namespaces?.into_iter().zip(namespaces()?).position(|(theirs, own)| theirs != own)?;
        Some(["PID", "user"][differing])
    }
}

impl Loopback {
    /// Joins a job through the [`key`](Job::key) of rank 0; collective. `processes` has the process numbers of all
    /// ranks.
    ///
    /// # Errors
    /// [`FabricError::BadKey`] if the key does not lead to the control block of such a job, e.g. because the ranks are
    /// in different containers or of different users. [`FabricError::Misuse`] if the rank has joined before.
    /// [`FabricError::PeerDied`], [`FabricError::PeerLeft`].
    pub fn join(key: &[u8], rank: Rank, processes: &[u32]) -> Result<Self, FabricError> {
        let bad_key = |why, source| FabricError::BadKey { rank: 0, why, source };
        let Key { tag, pid, fd } =
            Key::from_bytes(key).ok_or_else(|| bad_key(format!("a key of {} bytes", key.len()), None))?;
        if processes.first() != Some(&pid) || rank >= processes.len() {
            let why = format!(
                "a key to process {pid} for rank {rank}, expected the first of processes {processes:?} and one of their ranks"
            );
            return Err(bad_key(why, None));
        }
        let opened = MemoryBlock::open_of(pid, fd, Some(Control::bytes(processes.len())?), tag);
        let memory = opened.map_err(|(why, source)| bad_key(why, source))?;
        Loopback::process(rank, Control::open(Arc::new(memory), processes.len())?, Some(processes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_job_key_is_refused() {
        let job = Job::create(2).unwrap();
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
        assert!(why(&other, 0, &[me, me]).contains("not memory of this library"));
    }

    #[test]
    fn rank_that_ended_before_joining_is_reported() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let job = Job::create(2).unwrap();
        let joined = Loopback::join(&job.key(), 0, &[std::process::id(), pid]);
        assert!(matches!(joined, Err(FabricError::PeerDied { rank: 1 })), "{:?}", joined.err());
    }

    #[test]
    fn wrong_invitation_is_refused() {
        let parse = |values: [&str; 3]| Invitation::parse(&values.map(|value| Some(value.into())));
        let whole = parse(["1", "2", "17,5,1f"]).unwrap().unwrap();
        assert_eq!(whole, Invitation { rank: 1, size: 2, key: Key { tag: 0x1f, pid: 17, fd: 5 }, namespaces: None });
        let whole = parse(["1", "2", "17,5,1f,7,8"]).unwrap().unwrap();
        assert_eq!(whole.namespaces, Some([7, 8]));
        assert_eq!(Invitation::parse(&[None, None, None]).unwrap(), None);
        for wrong in [
            ["2", "2", "17,5,1f"], // a rank beyond the size
            ["0", "0", "17,5,1f"],
            ["-1", "2", "17,5,1f"],
            ["0", "2", "5,1f"],
            ["0", "2", "17,5,1f,3"],
            ["0", "2", "17,-5,1f"],
            ["0", "2", "17,5,x"],
        ] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(
                error.contains(&format!("TRANSOM_SHM={}", wrong[2])) && error.contains("remove TRANSOM_RANK"),
                "{error}"
            );
        }
        let part = Invitation::parse(&[Some("0".into()), Some("1".into()), None]).unwrap_err().to_string();
        assert!(part.contains("TRANSOM_SHM is not set"), "{part}");
    }

    #[test]
    fn invitation_opens_its_job_or_fails() {
        let job = Job::create(1).unwrap();
        let values = job.environment(0).map(|(_, value)| Some(value.into()));
        let invitation = Invitation::parse(&values).unwrap().unwrap();
        assert_eq!(invitation.joined_by().unwrap(), None);
        let joined = invitation.join().unwrap();
        assert_eq!(invitation.joined_by().unwrap(), Some(std::process::id()));
        let twice = invitation.join().map(drop).unwrap_err().to_string();
        assert!(twice.contains("has joined this job before"), "{twice}");
        drop(joined);
        assert_eq!(invitation.joined_by().unwrap(), Some(std::process::id()), "a rank that has left has joined before");
        let other = Invitation { key: Key { tag: invitation.key.tag ^ 1, ..invitation.key }, ..invitation };
        drop(job);
        for gone in [invitation, other] {
            let error = gone.join().map(drop).unwrap_err().to_string();
            assert!(error.contains("the launcher has ended") && error.contains("remove TRANSOM_RANK"), "{error}");
        }
    }

    #[test]
    fn rank_that_ended_cannot_join_later() {
        let job = Job::create(1).unwrap();
        job.ended(7, true); // no such rank
        job.ended(0, true);
        let late = Loopback::join(&job.key(), 0, &[std::process::id()]).map(drop).unwrap_err().to_string();
        assert!(late.contains("rank 0 has ended"), "{late}");
        assert_eq!(job.first_death(), None);
    }
}
