//! Memory of this rank, and the right to reach that of others.

use super::Verbs;
use super::member::{Member, Way};
use super::operations::Bringing;
use crate::verbs::VerbsError;
use crate::verbs::memory::{Deferred, Keys};
use crate::verbs::sys::{Access, Registered};
use crate::verbs::wr::Place;
use std::sync::Arc;
use transom_locks::Rank;
use transom_shm_loopback::View;
use transom_windows::{Fabric, FabricError};

/// The rail of this rank.
const RAIL: usize = 0;
/// No window without atomics: locks, barriers and signals are made of them.
const NO_ATOMICS: FabricError = FabricError::Unsupported {
    what: "the RDMA device of this rank executes no atomics, of which windows are made; `transom info` shows the device: \
           choose another by TRANSOM_VERBS_DEVICE",
};
/// An adapter could, where it is aligned, but whole words it may not have; and programs are to run alike everywhere.
const NO_LENT_ATOMICS: FabricError = FabricError::Unsupported {
    what: "memory that the program lent to the window (create) takes no atomics; allocate the window for that, or call its \
           bulk_accumulates",
};

/// Memory of this rank, registered with its adapter. Once it is dropped and no longer kept for others, accesses of others
/// are refused, and end their connection to this rank.
pub struct Region {
    /// Goes before the memory does.
    registration: Option<Registered>,
    pub(super) region: transom_shm_loopback::Region,
    member: Arc<Member>,
}

impl Drop for Region {
    fn drop(&mut self) {
        // Of memory that was lent: either all have let go, or it is leaked.
        if let Some(registration) = self.registration.take() {
            let (address, memory) = (registration.address, self.region.view().clone());
            self.member.ledger.keep(address, Deferred { _registration: registration, _memory: memory });
        }
    }
}

/// The right to reach a region.
pub struct Remote {
    pub(super) rank: Rank,
    /// Where its owner has it.
    address: u64,
    /// Where requests on it go, but on words that go another way.
    pub(super) way: Way,
    place: Place,
    bytes: usize,
    /// The memory itself, if data is moved by this processor.
    pub(super) view: Option<View>,
    /// Of the program's own.
    lent: bool,
    /// A neighbour's protocol words, which this rank's adapter reaches by itself.
    words: Option<Words>,
    /// Its rank's protocol words go another way, and what is put here must not be overtaken by them.
    pub(super) apart: bool,
    member: Arc<Member>,
}

/// The first words of a region of a neighbour, registered by this rank: as many queue pairs as ranks on a host then do for
/// the words of all.
struct Words {
    bytes: usize,
    registered: Registered,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.member.ledger.count(self.rank, self.address, -1);
        }
    }
}

impl Remote {
    /// Where bytes are that requests reach by [its way](Self::way).
    #[inline]
    pub(super) fn place(&self, offset: usize, len: usize) -> Result<Place, FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        Ok(Place { address: self.place.address + offset as u64, key: self.place.key })
    }

    /// Where a word is, if it is one, and the way there.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Result<(Way, Place), FabricError> {
        if self.lent {
            return Err(NO_LENT_ATOMICS);
        }
        let place = self.place(offset, 8)?;
        if !place.address.is_multiple_of(8) {
            return Err(FabricError::Misaligned { offset });
        }
        Ok(match &self.words {
            Some(Words { bytes, registered }) if offset + 8 <= *bytes => {
                let address = registered.address + offset as u64;
                (self.member.way_here(self.rank), Place { address, key: registered.remote_key() })
            }
            _ => (self.way, place),
        })
    }

    /// The ways that requests on memory of its rank may go: those on a neighbour's words another than those on its bytes.
    pub(super) fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let here = (self.apart || self.words.is_some()).then(|| self.member.way_here(self.rank));
        std::iter::once(self.way).chain(here)
    }

    /// What went another way to its rank than what is posted now is to be complete before.
    #[inline]
    pub(super) fn behind_other_way(&self, way: Way) -> Result<(), FabricError> {
        if self.words.is_none() {
            return Ok(());
        }
        self.ways().filter(|other| other.peer != way.peer).try_for_each(|other| self.member.order(other))
    }
}

/// An atomic under way. Whoever drops it leaves the result to nobody.
pub struct Pending(pub(super) Bringing);

/// A read under way. Dropped, it leaves the bytes to nobody.
pub struct Reading {
    pub(super) bringing: Bringing,
    pub(super) len: usize,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Remote { rank, place, bytes, .. } = self;
        write!(f, "{bytes} bytes of rank {rank} at {:#x}", place.address)
    }
}

/// What is known of a region that is to be reached.
pub(super) struct Sought {
    pub bytes: usize,
    /// How many of the first are words of protocols.
    pub words: usize,
    /// Memory of the program's own.
    pub lent: bool,
}

impl Verbs {
    pub(super) fn attach_to(&self, rank: Rank, key: &[u8], sought: Sought) -> Result<Remote, FabricError> {
        let Sought { bytes, words, lent } = sought;
        let member = &*self.0;
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let parsed = Keys::from_bytes(key).and_then(|(keys, shared)| Some((keys.place(RAIL)?, shared)));
        let Some((place, shared)) = parsed else { return Err(bad(format!("a key of {} bytes", key.len()))) };
        if place.address.checked_add(bytes as u64).is_none() {
            return Err(bad(format!("it names {bytes} bytes at {:#x}", place.address)));
        }
        let Some(&on_node) = member.node.here.get(rank) else { return Err(bad("no such rank".into())) };
        if lent != shared.is_empty() {
            return Err(bad("it leads to memory of another kind".into()));
        }
        let (own, way) = (rank == member.exchange.rank(), member.way(rank));
        // Atomics of two adapters are not atomic towards each other: then all go to the owner's.
        let neighbour = member.hybrid && !own && on_node.is_some() && member.core().shares_adapter(way.peer);
        let view = match on_node.filter(|_| (own || member.hybrid) && !lent) {
            Some(on_node) => Some(member.node.memory.attach(on_node, shared, bytes)?),
            None => None,
        };
        let words = words.min(bytes);
        let register = |start| {
            // SAFETY: mapped as long as the view, which goes after the registration.
            let registered = unsafe { Registered::new(&member.core().rail.domain, start, words, Access::Words) };
            registered.map(|registered| Words { bytes: words, registered }).map_err(system)
        };
        let start = view.as_ref().and_then(View::start).filter(|_| neighbour && words > 0);
        let words = start.map(register).transpose()?;
        if bytes > 0 {
            member.ledger.count(rank, place.address, 1);
        }
        let (address, apart, member) = (place.address, lent && neighbour, self.0.clone());
        Ok(Remote { rank, address, way, place, bytes, words, view, lent, apart, member })
    }

    pub(super) fn register_here(
        &self,
        region: transom_shm_loopback::Region,
        shared: &[u8],
        access: Access,
    ) -> Result<(Region, Vec<u8>), FabricError> {
        let rail = &self.0.core().rail;
        if !rail.has_atomics() {
            return Err(NO_ATOMICS);
        }
        let (start, bytes) = (region.view().start(), region.view().bytes_here());
        // SAFETY: mapped or lent for longer than the registration, which the region drops first; accessed by copies and
        // atomics only.
        let register = |start| unsafe { Registered::new(&rail.domain, start, bytes, access) };
        let registration = start.filter(|_| bytes > 0).map(register);
        let registration = registration.transpose().map_err(system)?;
        region.leave_atomics_to_adapter();
        let key = Keys::of(registration.as_ref()).to_bytes(shared);
        Ok((Region { registration, region, member: self.0.clone() }, key))
    }
}

fn system(error: VerbsError) -> FabricError {
    match error {
        VerbsError::System { what, source } => FabricError::System { what, source },
        other => FabricError::System { what: "RDMA".into(), source: std::io::Error::other(other) },
    }
}
