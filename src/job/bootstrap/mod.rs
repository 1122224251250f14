//! How a process learns which rank of which job it is, and joins it: whatever starts the ranks, it gives each its
//! number and a way to tell all others a few bytes. The rest follows from these.

mod host;
mod pmi;
mod pmix;

pub(crate) use host::{Host, Hosts, addresses};

use super::tcp::{Hub, HubOf, Secret, Tcp};
use super::variables::{self, VariableError};
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use transom_locks::Rank;
use transom_shm_loopback::{Invitation, Job, Loopback};
use transom_windows::{Exchange, FabricError};

/// What started this process, and so how it finds the other ranks. The first of these that is there holds, in this
/// order, unless TRANSOM_BOOTSTRAP names one.
///
/// Launchers other than transom's tell of no rank that ends before it joins: the others wait until the launcher ends
/// them, which it does at once if the rank failed. After joining, transom notices deaths by itself.
///
/// # Examples
/// ```
/// use transom::Bootstrap;
/// assert_eq!(Bootstrap::detect()?, Bootstrap::None); // an example is started by itself
/// assert_eq!("pmix".parse(), Ok(Bootstrap::Pmix));
/// # Ok::<(), transom::BootstrapError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bootstrap {
    /// `transom run`, [`start`](crate::start) or [`Launch`](crate::Launch): TRANSOM_RANK is set.
    Transom,
    /// `srun --mpi=pmix`, `prterun` or `mpirun` of Open MPI: PMIX_RANK and PMIX_NAMESPACE are set.
    Pmix,
    /// `mpiexec` of MPICH or `srun --mpi=pmi2`: PMI_FD, PMI_RANK and PMI_SIZE are set. Joining has this conversation and
    /// ends it, so the process cannot be a rank of MPICH too.
    Pmi,
    /// Nothing: a world of one.
    None,
}

impl Bootstrap {
    const NAMES: [(&'static str, Bootstrap); 4] = [
        ("transom", Bootstrap::Transom),
        ("pmix", Bootstrap::Pmix),
        ("pmi", Bootstrap::Pmi),
        ("none", Bootstrap::None),
    ];

    /// What started this process, as its environment tells.
    ///
    /// # Errors
    /// [`BootstrapError::Variable`] if TRANSOM_BOOTSTRAP is none of the names.
    pub fn detect() -> Result<Self, BootstrapError> {
        if let Some(forced) = variables::get("TRANSOM_BOOTSTRAP")? {
            return Ok(forced);
        }
        let set = |name: &&str| std::env::var_os(name).is_some();
        Ok(if Invitation::VARIABLES.iter().chain(&["TRANSOM_HUB"]).any(set) {
            Bootstrap::Transom
        } else if pmix::VARIABLES.iter().all(set) {
            Bootstrap::Pmix
        } else if pmi::VARIABLES.iter().all(set) {
            Bootstrap::Pmi
        } else {
            Bootstrap::None
        })
    }

    /// Whether this process can join what started it, as far as can be told without joining.
    ///
    /// # Errors
    /// [`BootstrapError::Library`] if it needs a library that is not there.
    ///
    /// # Examples
    /// ```
    /// transom::Bootstrap::None.check()?; // needs nothing
    /// # Ok::<(), transom::BootstrapError>(())
    /// ```
    pub fn check(self) -> Result<(), BootstrapError> {
        if self == Bootstrap::Pmix { pmix::load().map(drop) } else { Ok(()) }
    }
}

impl std::fmt::Display for Bootstrap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = Self::NAMES.iter().find(|(_, bootstrap)| bootstrap == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

impl FromStr for Bootstrap {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMES.iter().find(|(name, _)| *name == text);
        named.map(|(_, bootstrap)| *bootstrap).ok_or("nothing that starts jobs has this name")
    }
}

/// Why a process cannot find the other ranks of its job.
///
/// # Examples
/// ```
/// let error = transom::BootstrapError::Pmi { why: "PMI_RANK=4 is not below PMI_SIZE=4".into() };
/// assert_eq!(error.to_string(), "the launcher cannot be followed by PMI: PMI_RANK=4 is not below PMI_SIZE=4");
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum BootstrapError {
    /// A variable with a value that cannot be.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// PMIx refused.
    #[error("the launcher cannot be followed by PMIx: {call}: {why}; TRANSOM_BOOTSTRAP=none starts without it")]
    Pmix {
        /// What was asked.
        call: &'static str,
        /// What it said.
        why: String,
    },
    /// The launcher speaks PMIx, and its library is not there.
    #[error(
        "the launcher speaks PMIx, and its library cannot be used: {source}; install it (Debian: libpmix2), name its \
         folder in LD_LIBRARY_PATH, or start without it by TRANSOM_BOOTSTRAP=none"
    )]
    Library {
        /// What the system said.
        source: libloading::Error,
    },
    /// The conversation by PMI failed.
    #[error("the launcher cannot be followed by PMI: {why}")]
    Pmi {
        /// What was wrong.
        why: String,
    },
    /// What a rank, or the launcher, tells of itself makes no sense.
    #[error("{why}")]
    Record {
        /// What was found, and what to do.
        why: String,
    },
    /// The ranks cannot be joined.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// What was asked of it.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

/// A job that this process has joined.
pub(crate) enum Joined {
    /// All ranks share memory.
    Here(Loopback),
    /// They are on several hosts.
    Apart(Apart),
}

/// What a rank of a job on several hosts has before it has a provider between them.
#[cfg_attr(not(feature = "verbs"), allow(dead_code, reason = "for the provider between hosts"))]
pub(crate) struct Apart {
    /// The exchange of all ranks.
    pub tcp: Tcp,
    /// The ranks of this host, in the order of the job, as a job of its own.
    pub local: Loopback,
    /// Who is where.
    pub hosts: Hosts,
}

/// What whatever starts ranks offers them: each may put values under keys, which all may get after a fence.
trait KeyValue {
    fn rank(&self) -> Rank;
    fn size(&self) -> usize;
    fn put(&mut self, key: &str, value: &[u8]) -> Result<(), BootstrapError>;
    /// Collective.
    fn fence(&mut self) -> Result<(), BootstrapError>;
    fn get(&mut self, rank: Rank, key: &str) -> Result<Vec<u8>, BootstrapError>;
    /// The last call: no more is needed of it.
    fn finish(self: Box<Self>) -> Result<(), BootstrapError>;
}

/// Joins the job that this process is a rank of; collective.
pub(crate) fn join() -> Result<Joined, BootstrapError> {
    let bootstrap = Bootstrap::detect()?;
    tracing::debug!(%bootstrap, "joining");
    match bootstrap {
        Bootstrap::Transom if std::env::var_os("TRANSOM_HUB").is_some() => {
            let (rank, size, addresses, secret) = hub_from_env()?;
            once()?;
            let tcp = Tcp::join(rank, size, &addresses, &secret, HubOf::Launcher)?;
            let records = tcp.all_gather(&Host::here().to_bytes())?;
            on_hosts(tcp, Hosts::from_records(&records)?)
        }
        Bootstrap::Transom => match Invitation::from_env()? {
            Some(invitation) => Ok(Joined::Here(invitation.join()?)),
            None => Err(BootstrapError::Record {
                why: "TRANSOM_BOOTSTRAP=transom, and no launcher of transom started this process".into(),
            }),
        },
        Bootstrap::Pmix => once().and_then(|()| meet(Box::new(pmix::Pmix::begin()?))),
        Bootstrap::Pmi => once().and_then(|()| meet(Box::new(pmi::Pmi::from_env()?))),
        Bootstrap::None => {
            // The mistake that srun makes easy.
            if std::env::var("SLURM_STEP_NUM_TASKS").is_ok_and(|tasks| tasks != "1") {
                tracing::warn!("srun started several tasks, but offers them no way to meet: use srun --mpi=pmix");
            }
            Ok(Joined::Here(Loopback::alone()?))
        }
    }
}

/// A rank joins once.
fn once() -> Result<(), BootstrapError> {
    static JOINED: AtomicBool = AtomicBool::new(false);
    if JOINED.swap(true, Ordering::SeqCst) {
        let why = "this process has joined its job before; each rank joins once".into();
        return Err(FabricError::Misuse { why }.into());
    }
    Ok(())
}

/// Brings ranks together that something else started.
fn meet(mut launcher: Box<dyn KeyValue>) -> Result<Joined, BootstrapError> {
    let (rank, size) = (launcher.rank(), launcher.size());
    tracing::debug!(rank, size, "started by another launcher");
    not_too_many(size)?;
    launcher.put("host", &Host::here().to_bytes())?;
    launcher.fence()?;
    let records = (0..size).map(|rank| launcher.get(rank, "host")).collect::<Result<Vec<_>, _>>()?;
    let hosts = Hosts::from_records(&records)?;
    if hosts.names.len() == 1 {
        let job = (rank == 0).then(|| Job::found(size)).transpose();
        // Who could not make it says so by an empty door.
        let key = job.as_ref().map_or(None, Option::as_ref).map(Job::key).unwrap_or_default();
        let key = from_rank_0(launcher, "key", &key)?;
        let _open = job?; // until all have come through
        let fabric = Loopback::join(&key, rank, &hosts.processes)?;
        return Ok(Joined::Here(fabric));
    }
    let hub = (rank == 0).then(|| found_hub(size)).transpose();
    let contact = hub.as_ref().map_or(None, Option::as_ref).map(|(_, contact)| contact.clone()).unwrap_or_default();
    let contact = from_rank_0(launcher, "hub", &contact)?;
    let hub = hub?.map(|(hub, _)| hub);
    let no_contact = || BootstrapError::Record { why: "rank 0 tells no way to it; its own error says why".into() };
    let (addresses, secret) = read_contact(&contact).ok_or_else(no_contact)?;
    let tcp = Tcp::join(rank, size, &addresses, &secret, HubOf::Rank0(hub))?;
    on_hosts(tcp, hosts)
}

fn not_too_many(size: usize) -> Result<(), BootstrapError> {
    let most = transom_locks::LockWord::<16>::MAX_RANKS;
    let why = || format!("a job has at most {most} ranks, and the launcher says {size}; start fewer");
    if size > most { Err(BootstrapError::Record { why: why() }) } else { Ok(()) }
}

/// What rank 0 puts, for all; and the end of the conversation with the launcher.
fn from_rank_0(mut launcher: Box<dyn KeyValue>, key: &str, value: &[u8]) -> Result<Vec<u8>, BootstrapError> {
    if launcher.rank() == 0 {
        launcher.put(key, value)?;
    }
    launcher.fence()?;
    let value = launcher.get(0, key)?;
    // Nobody is gone before all have it.
    launcher.fence()?;
    launcher.finish()?;
    Ok(value)
}

/// The ranks of each host become a job of that host.
fn on_hosts(tcp: Tcp, hosts: Hosts) -> Result<Joined, BootstrapError> {
    let neighbours = hosts.neighbours(tcp.rank());
    let processes: Vec<u32> = neighbours.iter().map(|&rank| hosts.processes[rank]).collect();
    let me = neighbours.iter().position(|&rank| rank == tcp.rank()).expect("a rank is on its own host");
    let job = if me == 0 { Job::found(neighbours.len()).map(Some) } else { Ok(None) };
    let keys = tcp.all_gather(&job.as_ref().map_or(None, Option::as_ref).map(Job::key).unwrap_or_default())?;
    let _open = job?;
    let local = Loopback::join(&keys[neighbours[0]], me, &processes)?;
    tracing::debug!(rank = tcp.rank(), hosts = hosts.names.len(), neighbours = neighbours.len(), "joined");
    // What ranks of one host tell each other needs no hub.
    Ok(if hosts.names.len() == 1 { Joined::Here(local) } else { Joined::Apart(Apart { tcp, local, hosts }) })
}

/// The hub of a job whose ranks something else started, at rank 0; and what leads there: secret, port, addresses.
fn found_hub(size: usize) -> Result<(Hub, Vec<u8>), BootstrapError> {
    let failed = |source| BootstrapError::System { what: "making the middle of the job", source };
    let secret = Secret::fresh().map_err(failed)?;
    let hub = Hub::start(size, secret.clone()).map_err(failed)?;
    let mut contact = secret.as_bytes().to_vec();
    // Values are short with some launchers.
    for address in addresses(hub.port()).iter().take(8) {
        let text = address.to_string();
        contact.push(text.len() as u8);
        contact.extend_from_slice(text.as_bytes());
    }
    Ok((hub, contact))
}

fn read_contact(contact: &[u8]) -> Option<(Vec<SocketAddr>, Secret)> {
    let (secret, mut rest) = contact.split_at_checked(32)?;
    let mut addresses = Vec::new();
    while let Some((&len, more)) = rest.split_first() {
        let (text, more) = more.split_at_checked(len.into())?;
        addresses.push(std::str::from_utf8(text).ok()?.parse().ok()?);
        rest = more;
    }
    Some((addresses, Secret::from_bytes(secret)?))
}

/// What the launcher of a job on several hosts tells each rank.
fn hub_from_env() -> Result<(Rank, usize, Vec<SocketAddr>, Secret), BootstrapError> {
    let incomplete = || {
        BootstrapError::Record {
        why: "TRANSOM_HUB is set, but not TRANSOM_RANK, TRANSOM_SIZE and TRANSOM_SECRET as the launcher sets them; unset \
              them all to start a job of one's own"
            .into(),
    }
    };
    let rank = variables::get("TRANSOM_RANK")?.ok_or_else(incomplete)?;
    let size = variables::get("TRANSOM_SIZE")?.filter(|&size| rank < size).ok_or_else(incomplete)?;
    not_too_many(size)?;
    let Addresses(addresses) = variables::get("TRANSOM_HUB")?.ok_or_else(incomplete)?;
    let secret = std::env::var("TRANSOM_SECRET").ok();
    let secret = secret.and_then(|secret| Secret::from_bytes(&from_hex(&secret)?)).ok_or_else(incomplete)?;
    Ok((rank, size, addresses, secret))
}

struct Addresses(Vec<SocketAddr>);

impl FromStr for Addresses {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Addresses)
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect();
    if rest.is_empty() { bytes } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_tell_is_checked() {
        assert_eq!(from_hex(&to_hex(&[0, 1, 255])).unwrap(), [0, 1, 255]);
        assert!(from_hex("0").is_none() && from_hex("0g").is_none() && from_hex("+1").is_none());
        assert!(read_contact(&[]).is_none() && read_contact(&[0; 31]).is_none());
        assert!(read_contact(&[[0; 32].as_slice(), &[200, 1]].concat()).is_none());
        assert!(read_contact(&[[0; 32].as_slice(), b"\x03abc"].concat()).is_none());
        let (addresses, secret) = read_contact(&[[7; 32].as_slice(), b"\x091.2.3.4:5"].concat()).unwrap();
        assert_eq!((addresses, secret.as_bytes()), (vec!["1.2.3.4:5".parse().unwrap()], &[7; 32][..]));
    }
}
