//! Bootstrap: a process learns its rank and its job, and joins the job. The launcher gives each rank its number and a
//! way to pass a few bytes to all others. From these the ranks learn which of them share a host (`host.rs`), and then
//! join.

mod build;
mod error;
mod host;
mod key_value;
mod kind;
mod pmi;
mod pmix;
mod secret;
#[cfg(test)]
mod traffic;

pub use build::build_id;
pub use error::BootstrapError;
pub use host::Hosts;
pub use kind::Bootstrap;

use crate::descriptors::{self, TooFew};
use crate::process::{ProcessId, ancestors};
use crate::tcp::{Contact, Hub, HubAt, JoinError, Secret, Tcp};
use crate::variables::{RANK, SIZE};
use host::{Host, Neighbours};
use key_value::KeyValue;
use secret::Handed;
pub(crate) use secret::SecretPlace;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use transom_locks::Rank;
use transom_shm_loopback::{Invitation, Job, Loopback};
use transom_windows::{FabricError, OobExchange};

/// A job that this process has joined.
pub enum Joined {
    /// All ranks share memory.
    Here(Loopback),
    /// The ranks are on several hosts.
    Apart(Apart),
}

/// The state of a rank of a multi-host job before it has a provider between hosts.
pub struct Apart {
    /// The exchange of all ranks.
    pub tcp: Tcp,
    /// The ranks of this host as a job of its own, in the order of the whole job.
    pub local: Loopback,
    /// The host of each rank.
    pub hosts: Hosts,
}

/// Joins the job of which this process is a rank; collective. Returns `None` if the process is not a rank: it was
/// started without a launcher, or by a rank (directly or through other processes).
pub fn join() -> Result<Option<Joined>, BootstrapError> {
    let bootstrap = Bootstrap::detect()?;
    tracing::debug!(%bootstrap, "joining");
    match bootstrap {
        Bootstrap::Transom if std::env::var_os("TRANSOM_HUB").is_some() => join_by_hub(),
        Bootstrap::Transom => join_here(),
        Bootstrap::Pmix => once().and_then(|()| meet(Box::new(pmix::Pmix::begin()?))).map(Some),
        Bootstrap::Pmi => once().and_then(|()| meet(Box::new(pmi::Pmi::from_env()?))).map(Some),
        Bootstrap::None => {
            // srun without --mpi starts unconnected tasks. Task 0 warns for all of them.
            let is = |name, so: fn(&str) -> bool| std::env::var(name).is_ok_and(|value| so(&value));
            if is("SLURM_STEP_NUM_TASKS", |tasks| tasks != "1") && is("SLURM_PROCID", |task| task == "0") {
                // `eprintln!` would panic if stderr is closed; a failed warning must not end the process.
                let _ = writeln!(
                    std::io::stderr(),
                    "transom: srun started several tasks without PMI or PMIx, so each is a world of its own; for \
                     one job of them all: srun --mpi=pmix"
                );
            }
            Ok(None)
        }
    }
}

/// Joins as a rank of transom's launcher on this machine.
fn join_here() -> Result<Option<Joined>, BootstrapError> {
    let Some(invitation) = Invitation::from_env()? else {
        return Err(BootstrapError::Record {
            why: "TRANSOM_BOOTSTRAP=transom, but transom's launcher did not start this process; start it by `transom run`, \
                  or remove TRANSOM_BOOTSTRAP"
                .into(),
        });
    };
    let rank = invitation.rank();
    match invitation.joined_by()? {
        None => Ok(Some(Joined::Here(invitation.join()?))),
        Some(process) if process == std::process::id() => Err(joined_before()),
        Some(process) if ancestors().any(|ancestor| ancestor == process) => Ok(started_by_rank(rank, process)),
        Some(process) => Err(BootstrapError::Taken { rank, process: Some(process) }),
    }
}

/// Joins as a rank of a multi-host job of transom's launcher.
fn join_by_hub() -> Result<Option<Joined>, BootstrapError> {
    let incomplete = || {
        BootstrapError::Record {
        why: "TRANSOM_HUB is set, but not TRANSOM_RANK, TRANSOM_SIZE and TRANSOM_SECRET as a launcher sets them; to start \
              a job of its own, remove them all from the program's environment"
            .into(),
    }
    };
    let rank: Rank = RANK.get()?.ok_or_else(incomplete)?;
    let size = SIZE.get()?.filter(|&size| rank < size).ok_or_else(incomplete)?;
    let addresses = Contact::addresses_from_env()?.ok_or_else(incomplete)?;
    let via = Contact::via_from_env()?;
    not_too_many(size)?;
    let secret = match secret::take()?.ok_or_else(incomplete)? {
        Handed::Secret(secret) => secret,
        Handed::TakenBy(by) if by == std::process::id() => return Err(joined_before()),
        Handed::TakenBy(by) if ancestors().any(|ancestor| ancestor == by) => return Ok(started_by_rank(rank, by)),
        Handed::TakenBy(by) => return Err(BootstrapError::Taken { rank, process: Some(by) }),
    };
    let contact = Contact { via, addresses, secret };
    let host = Host::here();
    let process = |number| ProcessId::new(&host.identity, number);
    match Tcp::join(rank, size, process(std::process::id()), &contact, HubAt::Launcher) {
        Ok(tcp) => on_hosts(tcp, &host).map(Some),
        Err(JoinError::Fabric(error)) => Err(error.into()),
        Err(JoinError::Ended) => Err(ended_before(rank)),
        Err(JoinError::Taken(by)) if by == process(std::process::id()) => Err(joined_before()),
        Err(JoinError::Taken(by)) => match ancestors().find(|&ancestor| process(ancestor) == by) {
            Some(ancestor) => Ok(started_by_rank(rank, ancestor)),
            None => Err(BootstrapError::Taken { rank, process: None }),
        },
    }
}

/// Returns `None`: the process that joined is the rank, and this process is its descendant, which inherited the rank's
/// environment.
fn started_by_rank(rank: Rank, process: u32) -> Option<Joined> {
    tracing::info!(rank, process, "started by a rank; this process is not a rank itself");
    None
}

fn joined_before() -> BootstrapError {
    FabricError::Misuse { why: "this process has joined its job before; each rank joins once".into() }.into()
}

fn ended_before(rank: Rank) -> BootstrapError {
    let why = format!("rank {rank} cannot join: its launcher has already recorded its end");
    FabricError::Misuse { why }.into()
}

/// Fails if this process joined before: PMI and PMIx launchers do not detect a second join.
fn once() -> Result<(), BootstrapError> {
    static JOINED: AtomicBool = AtomicBool::new(false);
    if JOINED.swap(true, Ordering::SeqCst) { Err(joined_before()) } else { Ok(()) }
}

/// Joins ranks that another launcher started.
fn meet(launcher: Box<dyn KeyValue>) -> Result<Joined, BootstrapError> {
    let (rank, size) = (launcher.rank(), launcher.size());
    tracing::debug!(rank, size, "started by another launcher");
    not_too_many(size)?;
    // Every rank gets one value, that of rank 0. One value from each peer would cost the launcher n * n values.
    let hub = (rank == 0).then(|| start_hub(size)).transpose();
    // If rank 0 could not start the hub, it puts an empty contact, so that the other ranks fail instead of waiting.
    let contact = hub.as_ref().map_or(None, Option::as_ref).map(|(_, contact)| contact.to_bytes()).unwrap_or_default();
    let contact = from_rank_0(launcher, "hub", &contact)?;
    let hub = hub?.map(|(hub, _)| hub);
    let no_contact =
        || BootstrapError::Record { why: "rank 0 could not start the hub of the job; see the error of rank 0".into() };
    let contact = Contact::from_bytes(&contact).ok_or_else(no_contact)?;
    let host = Host::here();
    let process = ProcessId::new(&host.identity, std::process::id());
    match Tcp::join(rank, size, process, &contact, HubAt::Rank0(hub)) {
        Ok(tcp) => on_hosts(tcp, &host),
        Err(JoinError::Fabric(error)) => Err(error.into()),
        Err(JoinError::Ended) => Err(ended_before(rank)),
        Err(JoinError::Taken(_)) => Err(BootstrapError::Taken { rank, process: None }),
    }
}

fn not_too_many(size: usize) -> Result<(), BootstrapError> {
    let most = transom_locks::LockWord::<16>::MAX_RANKS;
    let why = || format!("the launcher reports {size} ranks, but a job has at most {most}; start fewer");
    if size > most { Err(BootstrapError::Record { why: why() }) } else { Ok(()) }
}

/// Distributes the value of rank 0 to all ranks, then disconnects from the launcher.
fn from_rank_0(mut launcher: Box<dyn KeyValue>, key: &str, value: &[u8]) -> Result<Vec<u8>, BootstrapError> {
    if launcher.rank() == 0 {
        launcher.put(key, value)?;
    }
    launcher.fence()?;
    let value = launcher.get(0, key)?;
    // All ranks must have the value before any rank disconnects.
    launcher.fence()?;
    launcher.finish()?;
    Ok(value)
}

/// Makes one shared-memory job of the ranks of each host.
fn on_hosts(tcp: Tcp, host: &Host) -> Result<Joined, BootstrapError> {
    // The ranks of a host meet before all ranks do, so that each host gets the table of all ranks once.
    tcp.tell_host(&host.identity);
    let neighbours = Neighbours::from_records(tcp.rank(), &tcp.all_gather_on_host(&host.place(tcp.rank()))?)?;
    let job = if neighbours.me == 0 { Job::create(neighbours.ranks.len()).map(Some) } else { Ok(None) };
    let key = job.as_ref().map_or(None, Option::as_ref).map(Job::key).unwrap_or_default();
    let key = tcp.all_gather_on_host(&key)?.into_iter().next().unwrap_or_default();
    let _open = job?;
    let local = Loopback::join(&key, neighbours.me, &neighbours.processes)?;
    tcp.pass_on_through(&local, neighbours.ranks[0])?;
    let hosts = Hosts::from_records(&tcp.all_gather(&host.to_bytes())?)?;
    tracing::debug!(rank = tcp.rank(), hosts = hosts.names.len(), neighbours = local.size(), "joined");
    // Ranks on one host exchange through shared memory and need no hub.
    Ok(if hosts.names.len() == 1 { Joined::Here(local) } else { Joined::Apart(Apart { tcp, local, hosts }) })
}

/// Starts the hub at rank 0, for a job that another launcher started.
fn start_hub(size: usize) -> Result<(Hub, Contact), BootstrapError> {
    let failed = |source| BootstrapError::System { what: "starting the hub of the job", source };
    descriptors::make_room(Hub::descriptors(size)).map_err(|TooFew { need, limit }| BootstrapError::Record {
        why: format!(
            "the hub of the job at rank 0 needs {need} open files, but the limit is {limit}; raise it (`ulimit -n \
             {need}` before the launcher), or start fewer ranks"
        ),
    })?;
    let secret = Secret::fresh().map_err(failed)?;
    let hub = Hub::start(size, secret.clone()).map_err(failed)?;
    let contact = Contact::of(&hub, secret);
    Ok((hub, contact))
}
