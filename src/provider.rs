//! Which provider the ranks of a job use. With one only, it is that one and nothing more; with several, each call looks
//! which it is.

#[cfg(not(feature = "verbs"))]
use crate::job::bootstrap::Apart;
use crate::job::variables::{VariableError, get};
use std::str::FromStr;
#[cfg(not(feature = "verbs"))]
use transom_shm_loopback::Loopback;

/// What TRANSOM_FABRIC asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    #[default]
    Auto,
    Shm,
    Verbs,
}

impl FromStr for Choice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text.trim() {
            "auto" => Ok(Choice::Auto),
            "shm" => Ok(Choice::Shm),
            "verbs" if cfg!(feature = "verbs") => Ok(Choice::Verbs),
            "verbs" => Err("this build has no verbs provider; build with the cargo feature `verbs`"),
            _ => Err("no such provider"),
        }
    }
}

impl Choice {
    pub fn from_env() -> Result<Self, VariableError> {
        Ok(get("TRANSOM_FABRIC")?.unwrap_or_default())
    }
}

/// Why the ranks of a job have no provider between them.
///
/// # Examples
/// ```
/// let error = transom::provider::ProviderError::Apart { hosts: "a (ranks 0), b (ranks 1)".into() };
/// assert!(error.to_string().contains("TRANSOM_FABRIC"));
/// ```
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ProviderError {
    /// A TRANSOM_ variable says what cannot be.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// The ranks are on several hosts, and there is no provider between them.
    #[error(
        "the ranks are on several hosts that share no memory: {hosts}; between hosts they need the provider verbs (the \
         cargo feature `verbs`, and TRANSOM_FABRIC not shm), or start them all on one"
    )]
    Apart {
        /// Who is where.
        hosts: String,
    },
    /// RDMA cannot be used.
    #[cfg(feature = "verbs")]
    #[error("cannot use RDMA: {0}")]
    Verbs(#[from] crate::verbs::VerbsError),
}

/// The provider of a [`World`](crate::World): shared memory.
#[cfg(not(feature = "verbs"))]
pub type Provider = Loopback;

#[cfg(not(feature = "verbs"))]
pub(crate) fn over_memory(job: Loopback) -> Result<Provider, ProviderError> {
    Choice::from_env()?;
    Ok(job)
}

/// What the ranks of several hosts use: nothing that this build has.
#[cfg(not(feature = "verbs"))]
pub(crate) fn over_hosts(apart: Apart) -> Result<Provider, ProviderError> {
    Choice::from_env()?;
    Err(ProviderError::Apart { hosts: apart.hosts.to_string() })
}

#[cfg(not(feature = "verbs"))]
pub(crate) fn threads(job: Loopback) -> Provider {
    job
}

#[cfg(feature = "verbs")]
pub use several::Provider;
#[cfg(feature = "verbs")]
pub(crate) use several::{over_hosts, over_memory, threads};

#[cfg(feature = "verbs")]
mod several {
    use super::{Choice, ProviderError};
    use crate::job::bootstrap::Apart;
    use crate::job::tcp::Tcp;
    use crate::verbs::{self, Bootstrap, Node, Verbs};
    use std::sync::Arc;
    use std::sync::atomic::AtomicU8;
    use transom_locks::{Awaited, Rank};
    use transom_shm_loopback::{self as shm, Loopback};
    use transom_windows::{Exchange, Fabric, FabricError, UserMemory};

    /// The provider of a [`World`](crate::World).
    #[derive(Clone)]
    #[non_exhaustive]
    pub enum Provider {
        /// Ranks on one machine.
        Loopback(Loopback),
        /// Ranks on several.
        Verbs(Verbs),
    }

    /// Collective: what the ranks of one machine use.
    pub(crate) fn over_memory(job: Loopback) -> Result<Provider, ProviderError> {
        match Choice::from_env()? {
            Choice::Auto | Choice::Shm => Ok(Provider::Loopback(job)),
            Choice::Verbs => Ok(Provider::Verbs(Verbs::new(Arc::new(job.clone()), Node::all(job))?)),
        }
    }

    /// Collective: what the ranks of several hosts use.
    pub(crate) fn over_hosts(apart: Apart) -> Result<Provider, ProviderError> {
        let Apart { tcp, local, hosts } = apart;
        if Choice::from_env()? == Choice::Shm {
            return Err(ProviderError::Apart { hosts: hosts.to_string() });
        }
        let neighbours = hosts.neighbours(tcp.rank());
        let here: Vec<_> = (0..tcp.size()).map(|rank| neighbours.iter().position(|&other| other == rank)).collect();
        Ok(Provider::Verbs(Verbs::new(Arc::new(tcp), Node::some(local, here))?))
    }

    pub(crate) fn threads(job: Loopback) -> Provider {
        Provider::Loopback(job)
    }

    impl Bootstrap for Tcp {
        fn team(&self, colour: Option<u64>, key: u64) -> Result<Option<Arc<dyn Bootstrap>>, FabricError> {
            Ok(self.split(colour, key)?.map(|team| Arc::new(team) as _))
        }

        fn leave(&self) {
            Tcp::leave(self);
        }
    }

    impl Provider {
        /// Collective: see [`Loopback::split`].
        ///
        /// # Errors
        /// As there.
        pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<Self>, FabricError> {
            Ok(match self {
                Provider::Loopback(fabric) => fabric.split(colour, key)?.map(Provider::Loopback),
                Provider::Verbs(fabric) => fabric.split(colour, key)?.map(Provider::Verbs),
            })
        }
    }

    /// Memory of this rank.
    pub enum Region {
        /// For ranks on one machine.
        Loopback(shm::Region),
        /// For ranks on several.
        Verbs(verbs::Region),
    }

    /// The right to reach memory.
    pub enum Remote {
        /// Of ranks on one machine.
        Loopback(shm::View),
        /// Of ranks on several.
        Verbs(verbs::Remote),
    }

    /// An atomic under way.
    pub enum Pending {
        /// On one machine: its result.
        Loopback(u64),
        /// Over the network.
        Verbs(verbs::Pending),
    }

    /// A read under way.
    pub enum Reading {
        /// On one machine.
        Loopback(shm::Reading),
        /// Over the network.
        Verbs(verbs::Reading),
    }

    /// The same call on whichever it is.
    macro_rules! each {
        ($self:ident, $fabric:ident => $call:expr) => {
            match $self {
                Provider::Loopback($fabric) => $call,
                Provider::Verbs($fabric) => $call,
            }
        };
    }

    /// The same call, on whichever it is, with what it made before.
    macro_rules! both {
        ($self:ident, $made:expr, $kind:ident, $fabric:ident, $at:ident => $call:expr) => {
            match ($self, $made) {
                (Provider::Loopback($fabric), $kind::Loopback($at)) => $call,
                (Provider::Verbs($fabric), $kind::Verbs($at)) => $call,
                _ => Err(mixed()),
            }
        };
    }

    #[cold]
    fn mixed() -> FabricError {
        FabricError::Misuse { why: "memory of one provider was handed to another".into() }
    }

    impl Exchange for Provider {
        #[inline(always)]
        fn rank(&self) -> Rank {
            each!(self, fabric => fabric.rank())
        }

        #[inline(always)]
        fn size(&self) -> usize {
            each!(self, fabric => fabric.size())
        }

        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
            each!(self, fabric => fabric.all_gather(mine))
        }

        fn barrier(&self) -> Result<(), FabricError> {
            each!(self, fabric => fabric.barrier())
        }

        fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
            each!(self, fabric => fabric.check_peers(awaited))
        }

        fn lost(&self) -> Option<FabricError> {
            each!(self, fabric => fabric.lost())
        }

        fn fail(&self) {
            each!(self, fabric => fabric.fail());
        }
    }

    impl Fabric for Provider {
        type Region = Region;
        type Remote = Remote;
        type Pending = Pending;
        type Reading = Reading;

        fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
            Ok(match self {
                Provider::Loopback(fabric) => {
                    let (region, key) = fabric.allocate(bytes)?;
                    (Region::Loopback(region), key)
                }
                Provider::Verbs(fabric) => {
                    let (region, key) = fabric.allocate(bytes)?;
                    (Region::Verbs(region), key)
                }
            })
        }

        unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
            Ok(match self {
                Provider::Loopback(fabric) => {
                    // SAFETY: by the caller's word; so for the others.
                    let (region, key) = unsafe { fabric.register(memory) }?;
                    (Region::Loopback(region), key)
                }
                Provider::Verbs(fabric) => {
                    // SAFETY: as above.
                    let (region, key) = unsafe { fabric.register(memory) }?;
                    (Region::Verbs(region), key)
                }
            })
        }

        unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
            match self {
                // SAFETY: as above.
                Provider::Loopback(fabric) => {
                    unsafe { fabric.attach_user_memory(rank, key, bytes) }.map(Remote::Loopback)
                }
                // SAFETY: as above.
                Provider::Verbs(fabric) => unsafe { fabric.attach_user_memory(rank, key, bytes) }.map(Remote::Verbs),
            }
        }

        fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
            match self {
                Provider::Loopback(fabric) => fabric.attach(rank, key, bytes).map(Remote::Loopback),
                Provider::Verbs(fabric) => fabric.attach(rank, key, bytes).map(Remote::Verbs),
            }
        }

        fn is_shared(&self, at: &Remote) -> bool {
            match (self, at) {
                (Provider::Loopback(fabric), Remote::Loopback(at)) => fabric.is_shared(at),
                (Provider::Verbs(fabric), Remote::Verbs(at)) => fabric.is_shared(at),
                _ => false,
            }
        }

        #[inline(always)]
        fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
            both!(self, to, Remote, fabric, to => fabric.put(to, offset, source))
        }

        #[inline(always)]
        fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
            both!(self, from, Remote, fabric, from => fabric.get(from, offset, into))
        }

        fn start_get(&self, from: &Remote, offset: usize, len: usize) -> Result<Reading, FabricError> {
            match (self, from) {
                (Provider::Loopback(fabric), Remote::Loopback(from)) => {
                    fabric.start_get(from, offset, len).map(Reading::Loopback)
                }
                (Provider::Verbs(fabric), Remote::Verbs(from)) => {
                    fabric.start_get(from, offset, len).map(Reading::Verbs)
                }
                _ => Err(mixed()),
            }
        }

        fn arrived(&self, reading: &mut Reading) -> Result<bool, FabricError> {
            both!(self, reading, Reading, fabric, reading => fabric.arrived(reading))
        }

        fn finish_get(&self, reading: Reading, into: &mut [u8]) -> Result<(), FabricError> {
            both!(self, reading, Reading, fabric, reading => fabric.finish_get(reading, into))
        }

        #[inline(always)]
        fn start_cas(&self, at: &Remote, offset: usize, expected: u64, new: u64) -> Result<Pending, FabricError> {
            match (self, at) {
                (Provider::Loopback(fabric), Remote::Loopback(at)) => {
                    fabric.start_cas(at, offset, expected, new).map(Pending::Loopback)
                }
                (Provider::Verbs(fabric), Remote::Verbs(at)) => {
                    fabric.start_cas(at, offset, expected, new).map(Pending::Verbs)
                }
                _ => Err(mixed()),
            }
        }

        #[inline(always)]
        fn cas(&self, at: &Remote, offset: usize, expected: u64, new: u64) -> Result<u64, FabricError> {
            both!(self, at, Remote, fabric, at => fabric.cas(at, offset, expected, new))
        }

        #[inline(always)]
        fn start_add(&self, at: &Remote, offset: usize, delta: u64) -> Result<Pending, FabricError> {
            match (self, at) {
                (Provider::Loopback(fabric), Remote::Loopback(at)) => {
                    fabric.start_add(at, offset, delta).map(Pending::Loopback)
                }
                (Provider::Verbs(fabric), Remote::Verbs(at)) => fabric.start_add(at, offset, delta).map(Pending::Verbs),
                _ => Err(mixed()),
            }
        }

        #[inline(always)]
        fn finish(&self, pending: Pending) -> Result<u64, FabricError> {
            both!(self, pending, Pending, fabric, pending => fabric.finish(pending))
        }

        #[inline(always)]
        fn notify(&self, at: &Remote, offset: usize, value: u64) -> Result<(), FabricError> {
            both!(self, at, Remote, fabric, at => fabric.notify(at, offset, value))
        }

        #[inline(always)]
        fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
            both!(self, on, Region, fabric, on => fabric.word(on, offset))
        }

        #[inline(always)]
        fn wait<R>(
            &self,
            on: &Region,
            awaited: Awaited,
            look: impl FnMut() -> Result<Option<R>, FabricError>,
        ) -> Result<R, FabricError> {
            both!(self, on, Region, fabric, on => fabric.wait(on, awaited, look))
        }

        #[inline(always)]
        fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
            match (self, on) {
                (Provider::Loopback(fabric), Region::Loopback(on)) => fabric.own_bytes(on, offset, len),
                (Provider::Verbs(fabric), Region::Verbs(on)) => fabric.own_bytes(on, offset, len),
                _ => None,
            }
        }

        #[inline(always)]
        fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
            match (self, at) {
                (Provider::Loopback(fabric), Remote::Loopback(at)) => fabric.bytes(at, offset, len),
                (Provider::Verbs(fabric), Remote::Verbs(at)) => fabric.bytes(at, offset, len),
                _ => None,
            }
        }

        #[inline(always)]
        fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
            both!(self, from, Region, fabric, from => fabric.load(from, offset, into))
        }

        #[inline(always)]
        fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
            both!(self, to, Region, fabric, to => fabric.store(to, offset, source))
        }

        #[inline(always)]
        fn flush(&self, at: &Remote) -> Result<(), FabricError> {
            both!(self, at, Remote, fabric, at => fabric.flush(at))
        }

        #[inline(always)]
        fn order(&self, at: &Remote) -> Result<(), FabricError> {
            both!(self, at, Remote, fabric, at => fabric.order(at))
        }

        fn flush_all(&self, at: &[Remote]) -> Result<(), FabricError> {
            match self {
                // One fence does for all.
                Provider::Loopback(_) => at.first().map_or(Ok(()), |at| self.flush(at)),
                Provider::Verbs(fabric) => {
                    // All under way at once.
                    at.iter().try_for_each(|at| match at {
                        Remote::Verbs(at) => fabric.start_flush(at),
                        Remote::Loopback(_) => Err(mixed()),
                    })?;
                    at.iter().try_for_each(|at| self.flush(at))
                }
            }
        }
    }
}
