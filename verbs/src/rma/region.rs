//! Memory of this rank, and handles of peers' memory.

use super::Verbs;
use super::far::Far;
use super::member::{Member, Retained, Way};
use super::under_way::UnderWay;
use crate::VerbsError;
use crate::connect::{Core, Twin};
use crate::memory::{Deferred, Entry, Keys, Slot};
use crate::sys::{Access, Registered};
use crate::wr::{RemoteAddress, Verb};
use std::sync::{Arc, OnceLock};
use transom_locks::Rank;
use transom_network::{Attach, MemoryKind};
use transom_shm_loopback::View;
use transom_windows::FabricError;

/// Windows need atomics: locks, barriers and signals are made of them.
const NO_ATOMICS: FabricError = FabricError::Unsupported {
    what: "the RDMA device of this rank has no atomics, which windows need; `transom info` shows the device: \
           select another by TRANSOM_VERBS_DEVICE",
};
/// An adapter could execute them on aligned words, but the memory need not have whole words, and programs are to run
/// alike everywhere.
const NO_LENT_ATOMICS: FabricError =
    FabricError::Unsupported { what: "atomics on memory that the program lent to the window (create)" };

/// Memory of this rank, registered with its adapter. Once it is dropped and no longer kept for peers, their accesses
/// are refused, and end their connection to this rank.
pub struct Region {
    /// Entries by which this rank's operations find the registrations. They end before the program may have the memory
    /// back.
    known: Vec<Entry<Registered>>,
    /// Registrations, one for each rail. They end before the memory does.
    registrations: Vec<Arc<Registered>>,
    memory: View,
    /// Word on which ranks that attached on their own count themselves.
    reached: Option<Slot>,
    /// Number of the collective call that made it.
    number: Option<u64>,
    member: Arc<Member>,
}

impl Region {
    /// All ranks have attached, and no other will.
    pub(super) fn close(&mut self) {
        self.number.get_or_insert_with(|| self.member.remains.number(self.member.exchange.size()));
    }

    /// Deregisters the memory; the adapter refuses later accesses.
    pub(super) fn withdraw(&mut self) {
        self.known.clear();
        self.registrations.clear();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.known.clear();
        // Memory that was lent: either all ranks have let go, or it is leaked.
        let (remains, reached) = (&self.member.remains, self.reached.take());
        let kept = |registrations| Deferred { _registrations: registrations, _memory: self.memory.clone(), reached };
        let registrations = std::mem::take(&mut self.registrations);
        let kept = (!registrations.is_empty()).then(|| kept(registrations));
        match (self.number, kept) {
            (Some(number), kept) => remains.let_go(number, kept.map(|kept| Box::new(kept) as Retained)),
            (None, Some(kept)) => self.member.detached.add(kept),
            (None, None) => {}
        }
    }
}

/// A handle of a region.
pub struct Remote {
    pub(super) rank: Rank,
    /// Way of requests on the region, except those on words that go another way.
    pub(super) way: Way,
    place: RemoteAddress,
    /// Keys on the further rails, and their translation for failover.
    keys: Box<[u32]>,
    _twin: Option<Twin>,
    bytes: usize,
    /// Protocol words of a host neighbour, which take the way through this rank's own adapter.
    words: Option<Words>,
    /// The memory itself, if it is this rank's own.
    pub(super) own: Option<View>,
    /// True for memory that the program lent to the window.
    lent: bool,
    /// Protocol words of its rank take another lane, which must not overtake puts to this region.
    pub(super) apart: bool,
    /// Word on which this rank has counted itself, if it attached the region individually.
    counted: Option<RemoteAddress>,
    member: Arc<Member>,
}

/// The first words of a host neighbour's region. A host needs only as many queue pairs as ranks for the words of all.
/// This rank registers them at the first request: few ranks use the words of all their neighbours.
struct Words {
    bytes: usize,
    /// Dropped before the memory. `None` if it cannot be registered: the words then take the way of the bytes.
    registered: OnceLock<Option<Registered>>,
    mapped: View,
}

impl Words {
    fn new(mapped: &View, bytes: usize) -> Self {
        Words { bytes, registered: OnceLock::new(), mapped: mapped.clone() }
    }

    #[inline]
    fn registered(&self, member: &Member) -> Option<&Registered> {
        self.registered.get_or_init(|| self.register(member)).as_ref()
    }

    #[cold]
    fn register(&self, member: &Member) -> Option<Registered> {
        let start = self.mapped.start().expect("chosen for its address");
        // SAFETY: mapped as long as the view, which is dropped after the registration.
        let registered = unsafe { Registered::new(&member.core().rail.domain, start, self.bytes, Access::Words) };
        let warn = |error: &VerbsError| tracing::warn!(%error, "a host neighbour's words take a connection to it");
        registered.inspect_err(warn).ok()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let Some(count) = self.counted else { return };
        // Ordered after the requests posted there; its completion is not awaited.
        if let Err(error) = self.member.start_atomic(self.way, Verb::Add(1_u64.wrapping_neg()), count) {
            tracing::debug!(rank = self.rank, %error, "cannot notify a rank that its memory is not used any more");
        }
    }
}

impl Remote {
    /// The place of bytes for requests on [its way](Self::way).
    #[inline]
    pub(super) fn place(&self, offset: usize, len: usize) -> Result<RemoteAddress, FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        Ok(RemoteAddress { address: self.place.address + offset as u64, key: self.place.key })
    }

    /// The same for operations that may be divided.
    #[inline]
    pub(super) fn far(&self, offset: usize, len: usize) -> Result<Far<'_>, FabricError> {
        Ok(Far { way: self.way, place: self.place(offset, len)?, keys: &self.keys })
    }

    /// The place of a word, and the way there.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> Result<(Way, RemoteAddress), FabricError> {
        if self.lent {
            return Err(NO_LENT_ATOMICS);
        }
        let place = self.place(offset, 8)?;
        if !place.address.is_multiple_of(8) {
            return Err(FabricError::Misaligned { offset });
        }
        Ok(match &self.words {
            Some(words) if offset + 8 <= words.bytes => match words.registered(&self.member) {
                Some(registered) => {
                    let address = registered.address + offset as u64;
                    (self.member.way_here(self.rank), RemoteAddress { address, key: registered.remote_key() })
                }
                None => (self.way, place),
            },
            _ => (self.way, place),
        })
    }

    /// True if this rank may have posted requests on the words of a host neighbour that took another way.
    #[inline]
    fn uses_words(&self) -> bool {
        self.words.as_ref().is_some_and(|words| matches!(words.registered.get(), Some(Some(_))))
    }

    /// All ways of requests on the region: words of a host neighbour take another one than its bytes.
    pub(super) fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let here = (self.apart || self.uses_words()).then(|| self.member.way_here(self.rank));
        std::iter::once(self.way).chain(here)
    }

    /// Orders requests on the other ways to this rank before the next request on `way`.
    #[inline]
    pub(super) fn behind_other_way(&self, way: Way) -> Result<(), FabricError> {
        if !self.uses_words() {
            return Ok(());
        }
        self.ways().filter(|other| other.peer != way.peer).try_for_each(|other| self.member.order(other))
    }
}

/// An atomic in flight. Dropping it discards the result.
pub struct Pending(pub(super) UnderWay);

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Remote { rank, place, bytes, .. } = self;
        write!(f, "{bytes} bytes of rank {rank} at {:#x}", place.address)
    }
}

impl Verbs {
    pub(super) fn attach_to(&self, region: Attach<'_>) -> Result<Remote, FabricError> {
        let Attach { rank, key, bytes, words, kind, together, near, view } = region;
        let (member, lent) = (&*self.0, kind == MemoryKind::User);
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let parsed = Keys::from_bytes(key).and_then(|(keys, count)| Some((keys.place(0)?, keys, count)));
        let Some((place, keys, count)) = parsed else { return Err(bad(format!("a key of {} bytes", key.len()))) };
        if place.address.checked_add(bytes as u64).is_none() {
            return Err(bad(format!("the key names {bytes} bytes at {:#x}, beyond the address space", place.address)));
        }
        if lent != count.is_empty() {
            return Err(bad("it names memory of another kind".into()));
        }
        let count = if lent { None } else { Some(place_of(count).ok_or_else(|| bad("a short key".into()))?) };
        let (own, way) = (rank == member.exchange.rank(), member.way(rank));
        // Atomics of two adapters are not atomic towards each other: with another adapter all go to the home rank's.
        let neighbour = near && !own && member.core().shares_adapter(way.peer);
        let further = (1..member.service.cores().count()).map_while(|rail| Some(keys.place(rail)?.key));
        let keys: Box<[u32]> = further.collect();
        let _twin = if own { None } else { member.core().twins.know(way.peer, place, bytes, &keys) };
        let mapped = view.filter(|_| neighbour && words > 0);
        let words = mapped.filter(|mapped| mapped.start().is_some()).map(|mapped| Words::new(mapped, words));
        let counted = count.filter(|_| !together && bytes > 0);
        let apart = lent && neighbour;
        let mut remote = Remote {
            rank,
            way,
            place,
            keys,
            _twin,
            bytes,
            words,
            own: view.filter(|_| own).cloned(),
            lent,
            apart,
            counted: None,
            member: self.0.clone(),
        };
        if let Some(count) = counted {
            self.0.start_atomic(way, Verb::Add(1), count)?.word()?;
            remote.counted = counted;
        }
        Ok(remote)
    }

    pub(super) fn register_here(&self, memory: &View, kind: MemoryKind) -> Result<(Region, Vec<u8>), FabricError> {
        let member = &self.0;
        member.detached.sweep();
        if !member.core().rail.has_atomics() {
            return Err(NO_ATOMICS);
        }
        member.service.cores().for_each(Core::has_window);
        let (mut registrations, mut known) = (Vec::new(), Vec::new());
        for (rail, core) in member.service.cores().enumerate() {
            let Some(start) = memory.start().filter(|_| memory.len() > 0) else { break };
            // Words use the first rail alone.
            let access = if rail == 0 && kind == MemoryKind::Allocated { Access::All } else { Access::Bytes };
            // SAFETY: mapped or lent for longer than the registration, which the region drops first; accessed by copies
            // and atomics only.
            match unsafe { Registered::new(&core.rail.domain, start, memory.len(), access) } {
                Ok(registered) => {
                    let registered = Arc::new(registered);
                    known.push(core.memory.know(&registered));
                    registrations.push(registered);
                }
                Err(error) if rail == 0 => return Err(system(error)),
                Err(error) => {
                    core.memory.refused(error);
                    break;
                }
            }
        }
        let counts = &member.core().memory.counts;
        let reached = (kind == MemoryKind::Allocated).then(|| counts.take()).transpose().map_err(system)?;
        let count = reached.as_ref().map_or(Vec::new(), |count| {
            let RemoteAddress { address, key } = count.place();
            [&address.to_le_bytes()[..], &key.to_le_bytes()].concat()
        });
        let key = Keys::of(&registrations).to_bytes(&count);
        let (memory, member) = (memory.clone(), member.clone());
        Ok((Region { known, registrations, memory, reached, number: None, member }, key))
    }
}

/// The place that a key names of the word on which ranks that attach on their own count themselves.
fn place_of(count: &[u8]) -> Option<RemoteAddress> {
    let (address, key) = count.split_first_chunk()?;
    Some(RemoteAddress { address: u64::from_le_bytes(*address), key: u32::from_le_bytes(key.try_into().ok()?) })
}

fn system(error: VerbsError) -> FabricError {
    match error {
        VerbsError::System { what, source } => FabricError::System { what, source },
        other => FabricError::System { what: "using the RDMA device".into(), source: std::io::Error::other(other) },
    }
}
