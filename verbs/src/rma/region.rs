//! Memory of this rank, and the right to reach that of others.

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

/// No window without atomics: locks, barriers and signals are made of them.
const NO_ATOMICS: FabricError = FabricError::Unsupported {
    what: "the RDMA device of this rank executes no atomics, of which windows are made; `transom info` shows the device: \
           choose another by TRANSOM_VERBS_DEVICE",
};
/// An adapter could, where it is aligned, but whole words it may not have; and programs are to run alike everywhere.
const NO_LENT_ATOMICS: FabricError =
    FabricError::Unsupported { what: "memory that the program lent to the window (create) takes no atomics" };

/// Memory of this rank, registered with its adapter. Once it is dropped and no longer kept for others, accesses of others
/// are refused, and end their connection to this rank.
pub struct Region {
    /// By which operations of this rank find that its memory is registered: not once the program may have it back.
    known: Vec<Entry<Registered>>,
    /// With each rail. They go before the memory does.
    registrations: Vec<Arc<Registered>>,
    pub(super) region: transom_shm_loopback::Region,
    /// Where those who reach it by themselves count themselves.
    reached: Option<Slot>,
    /// What all ranks have made together with it.
    number: Option<u64>,
    member: Arc<Member>,
}

impl Region {
    /// All ranks have made one like this, and nobody else will reach it.
    pub(super) fn close(&mut self) {
        self.member.node.memory.close(&mut self.region);
        self.number.get_or_insert_with(|| self.member.remains.number(self.member.exchange.size()));
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.known.clear();
        // Of memory that was lent: either all have let go, or it is leaked.
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

/// The right to reach a region.
pub struct Remote {
    pub(super) rank: Rank,
    /// Where requests on it go, but on words that go another way.
    pub(super) way: Way,
    place: Place,
    /// By which further rails name it, and so that a lane can be by one of them.
    keys: Box<[u32]>,
    _twin: Option<Twin>,
    bytes: usize,
    /// A neighbour's protocol words, which this rank's adapter reaches by itself. Goes before the memory does.
    words: Option<Words>,
    /// The memory itself, if data is moved by this processor.
    pub(super) view: Option<View>,
    /// Of the program's own.
    lent: bool,
    /// Its rank's protocol words go another way, and what is put here must not be overtaken by them.
    pub(super) apart: bool,
    /// The word on which this rank has counted itself, if it reached the region by itself.
    counted: Option<Place>,
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
        let Some(count) = self.counted else { return };
        // Behind what was posted there. Nobody waits for it.
        if let Err(error) = self.member.start_atomic(self.way, Verb::Add(1_u64.wrapping_neg()), count) {
            tracing::debug!(rank = self.rank, %error, "a rank is not told that its memory is not needed any more");
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

    /// The same, for what may be divided.
    #[inline]
    pub(super) fn far(&self, offset: usize, len: usize) -> Result<Far<'_>, FabricError> {
        Ok(Far { way: self.way, place: self.place(offset, len)?, keys: &self.keys })
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
pub struct Pending(pub(super) UnderWay);

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
    /// Reached by this rank alone, and not by all together.
    pub alone: bool,
}

impl Verbs {
    pub(super) fn attach_to(&self, rank: Rank, key: &[u8], sought: Sought) -> Result<Remote, FabricError> {
        let Sought { bytes, words, lent, alone } = sought;
        let member = &*self.0;
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let parsed = Keys::from_bytes(key).and_then(|(keys, shared)| Some((keys.place(0)?, keys, shared)));
        let Some((place, keys, shared)) = parsed else { return Err(bad(format!("a key of {} bytes", key.len()))) };
        if place.address.checked_add(bytes as u64).is_none() {
            return Err(bad(format!("it names {bytes} bytes at {:#x}", place.address)));
        }
        if rank >= member.peers.len() {
            return Err(bad("no such rank".into()));
        }
        let on_node = member.node.here(rank);
        if lent != shared.is_empty() {
            return Err(bad("it leads to memory of another kind".into()));
        }
        let (shared, count) =
            if lent { (shared, None) } else { count_of(shared).ok_or_else(|| bad("a short key".into()))? };
        let (own, way) = (rank == member.exchange.rank(), member.way(rank));
        // Atomics of two adapters are not atomic towards each other: then all go to the owner's.
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
            // SAFETY: mapped as long as the view, which goes after the registration.
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
            // Words have the first rail alone.
            let access = if rail == 0 { access } else { Access::Bytes };
            // SAFETY: mapped or lent for longer than the registration, which the region drops first; accessed by copies and
            // atomics only.
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

/// The word on which those who reach a region count themselves, and what is before it in the key.
fn count_of(key: &[u8]) -> Option<(&[u8], Option<Place>)> {
    let (key, rkey) = key.split_last_chunk()?;
    let (key, address) = key.split_last_chunk()?;
    Some((key, Some(Place { address: u64::from_le_bytes(*address), key: u32::from_le_bytes(*rkey) })))
}

fn system(error: VerbsError) -> FabricError {
    match error {
        VerbsError::System { what, source } => FabricError::System { what, source },
        other => FabricError::System { what: "RDMA".into(), source: std::io::Error::other(other) },
    }
}
