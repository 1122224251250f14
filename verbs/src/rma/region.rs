//! Memory of this rank, and handles of peers' memory.

use super::Verbs;
use super::far::Far;
use super::member::{Kept, Member, Way};
use super::under_way::UnderWay;
use crate::VerbsError;
use crate::connect::{Core, Twin};
use crate::memory::{Deferred, Entry, Keys, Slot};
use crate::sys::{Access, Registered};
use crate::wr::{Place, Verb};
use std::sync::Arc;
use transom_locks::Rank;
use transom_shm_loopback::View;
use transom_windows::{Fabric, FabricError};

/// Windows need atomics: locks, barriers and signals are made of them.
const NO_ATOMICS: FabricError = FabricError::Unsupported {
    what: "the RDMA device of this rank has no atomics, which windows need; `transom info` shows the device: \
           select another by TRANSOM_VERBS_DEVICE",
};
/// An adapter could execute atomics on aligned words, but such memory may lack whole words. The restriction makes
/// programs behave alike everywhere.
const NO_LENT_ATOMICS: FabricError =
    FabricError::Unsupported { what: "atomics on memory that the program lent to the window (create)" };

/// Memory of this rank, registered with its adapter.
///
/// After it is dropped and no longer kept for peers, the adapter refuses their accesses, which ends their connections
/// to this rank.
pub struct Region {
    /// Table entries by which this rank's operations find the registration; dropped before the program may have the
    /// memory back.
    known: Vec<Entry<Registered>>,
    /// One registration per rail. Dropped before the memory.
    registrations: Vec<Arc<Registered>>,
    pub(super) region: transom_shm_loopback::Region,
    /// Word on which peers that attached the region individually count themselves.
    reached: Option<Slot>,
    /// Number of the object that all ranks made together.
    number: Option<u64>,
    member: Arc<Member>,
}

impl Region {
    /// Closes a region that all ranks have made: no further peer will attach it.
    pub(super) fn close(&mut self) {
        self.member.node.memory.close(&mut self.region);
        self.number.get_or_insert_with(|| self.member.remains.number(self.member.exchange.size()));
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.known.clear();
        // For lent memory, either all ranks have dropped it, or it is leaked.
        let (remains, reached) = (&self.member.remains, self.reached.take());
        let kept =
            |registrations| Deferred { _registrations: registrations, _memory: self.region.view().clone(), reached };
        let registrations = std::mem::take(&mut self.registrations);
        let kept = (!registrations.is_empty()).then(|| kept(registrations));
        match (self.number, kept) {
            (Some(number), kept) => remains.let_go(number, kept.map(|kept| Box::new(kept) as Kept)),
            (None, Some(kept)) => remains.detach(kept),
            (None, None) => {}
        }
    }
}

/// A handle of a region.
pub struct Remote {
    pub(super) rank: Rank,
    /// Way of requests on the region, except those on words that go another way.
    pub(super) way: Way,
    place: Place,
    /// Keys on the further rails, and their translation for failover.
    keys: Box<[u32]>,
    _twin: Option<Twin>,
    bytes: usize,
    /// Protocol words of a host neighbour, registered with this rank's adapter. Dropped before the memory.
    words: Option<Words>,
    /// The mapped memory, if this processor moves the data.
    pub(super) view: Option<View>,
    /// The program's own memory.
    lent: bool,
    /// Protocol words of its rank take another lane, which must not overtake puts to this region.
    pub(super) apart: bool,
    /// Word on which this rank has counted itself, if it attached the region individually.
    counted: Option<Place>,
    member: Arc<Member>,
}

/// The first words of a host neighbour's region, registered by this rank. A host therefore needs only as many queue
/// pairs as ranks for the words of all.
struct Words {
    bytes: usize,
    registered: Registered,
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
    pub(super) fn place(&self, offset: usize, len: usize) -> Result<Place, FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        Ok(Place { address: self.place.address + offset as u64, key: self.place.key })
    }

    /// The same for operations that may be divided.
    #[inline]
    pub(super) fn far(&self, offset: usize, len: usize) -> Result<Far<'_>, FabricError> {
        Ok(Far { way: self.way, place: self.place(offset, len)?, keys: &self.keys })
    }

    /// The place of a word, and the way there.
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

    /// All ways of requests on the region: words of a host neighbour take another one than its bytes.
    pub(super) fn ways(&self) -> impl Iterator<Item = Way> + use<> {
        let here = (self.apart || self.words.is_some()).then(|| self.member.way_here(self.rank));
        std::iter::once(self.way).chain(here)
    }

    /// Orders requests on the other ways to this rank before the next request on `way`.
    #[inline]
    pub(super) fn behind_other_way(&self, way: Way) -> Result<(), FabricError> {
        if self.words.is_none() {
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

/// Properties of a region to attach.
pub(super) struct Sought {
    pub bytes: usize,
    /// Number of protocol words at its start.
    pub words: usize,
    /// The program's own memory.
    pub lent: bool,
    /// Attached by this rank individually, not by all ranks together.
    pub alone: bool,
}

impl Verbs {
    pub(super) fn attach_to(&self, rank: Rank, key: &[u8], sought: Sought) -> Result<Remote, FabricError> {
        let Sought { bytes, words, lent, alone } = sought;
        let member = &*self.0;
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let parsed = Keys::from_bytes(key).and_then(|(keys, shared)| Some((keys.place(0)?, keys, shared)));
        let Some((place, keys, shared)) = parsed else {
            return Err(bad(format!("the key of {} bytes is malformed", key.len())));
        };
        if place.address.checked_add(bytes as u64).is_none() {
            return Err(bad(format!("the key names {bytes} bytes at {:#x}, beyond the address space", place.address)));
        }
        if rank >= member.peers.len() {
            return Err(bad("no such rank".into()));
        }
        let on_node = member.node.here(rank);
        if lent != shared.is_empty() {
            return Err(bad("the key leads to memory of another kind".into()));
        }
        let (shared, count) =
            if lent { (shared, None) } else { count_of(shared).ok_or_else(|| bad("the key is too short".into()))? };
        let (own, way) = (rank == member.exchange.rank(), member.way(rank));
        // Atomics of two adapters are not atomic with respect to each other; with different adapters all use the
        // owner's.
        let neighbour = member.hybrid && !own && on_node.is_some() && member.core().shares_adapter(way.peer);
        let view = match on_node.filter(|_| (own || member.hybrid) && !lent) {
            Some(on_node) => Some(member.node.memory.attach(on_node, shared, bytes)?),
            None => None,
        };
        let further = (1..member.service.cores().count()).map_while(|rail| Some(keys.place(rail)?.key));
        let keys: Box<[u32]> = further.collect();
        let _twin = if own { None } else { member.core().twins.know(way.peer, place, bytes, &keys) };
        let words = words.min(bytes);
        let register = |start| {
            // SAFETY: mapped as long as the view, which is dropped after the registration.
            let registered = unsafe { Registered::new(&member.core().rail.domain, start, words, Access::Words) };
            registered.map(|registered| Words { bytes: words, registered }).map_err(system)
        };
        let start = view.as_ref().and_then(View::start).filter(|_| neighbour && words > 0);
        let words = start.map(register).transpose()?;
        let counted = count.filter(|_| alone && bytes > 0);
        let apart = lent && neighbour;
        let mut remote = Remote {
            rank,
            way,
            place,
            keys,
            _twin,
            bytes,
            words,
            view,
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
        self.0.service.cores().for_each(Core::has_window);
        let (start, bytes) = (region.view().start(), region.view().len());
        let (mut registrations, mut known) = (Vec::new(), Vec::new());
        for (rail, core) in self.0.service.cores().enumerate() {
            let Some(start) = start.filter(|_| bytes > 0) else { break };
            // Only the first rail executes atomics.
            let access = if rail == 0 { access } else { Access::Bytes };
            // SAFETY: mapped or lent for longer than the registration, which the region drops first; accessed by copies
            // and atomics only.
            match unsafe { Registered::new(&core.rail.domain, start, bytes, access) } {
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
        region.leave_atomics_to_adapter();
        let memory = &self.0.core().memory;
        let reached = (!shared.is_empty()).then(|| memory.counts.take()).transpose().map_err(system)?;
        let count = reached.as_ref().map_or(Vec::new(), |count| {
            let Place { address, key } = count.place();
            [&address.to_le_bytes()[..], &key.to_le_bytes()].concat()
        });
        let key = Keys::of(&registrations).to_bytes(&[shared, &count].concat());
        Ok((Region { known, registrations, region, reached, number: None, member: self.0.clone() }, key))
    }
}

/// Splits a key into the part before and the word on which users of the region count themselves.
fn count_of(key: &[u8]) -> Option<(&[u8], Option<Place>)> {
    let (key, rkey) = key.split_last_chunk()?;
    let (key, address) = key.split_last_chunk()?;
    Some((key, Some(Place { address: u64::from_le_bytes(*address), key: u32::from_le_bytes(*rkey) })))
}

fn system(error: VerbsError) -> FabricError {
    match error {
        VerbsError::System { what, source } => FabricError::System { what, source },
        other => FabricError::System { what: "using the RDMA device".into(), source: std::io::Error::other(other) },
    }
}
