//! The provider: a remote operation is a request to the adapter, which executes it on the target's memory without the
//! target.

use super::VerbsError;
use super::bootstrap::{Bootstrap, Node};
use super::connect::Endpoint;
use super::counts::{QueuePairs, WorkRequests};
use super::deferred::{Deferred, Ledger};
use super::engine::{Lent, Place, Verb};
use super::member::{Member, Way};
use super::memory::{Buffer, Registered, Rights, Slot};
use super::settings::{NotifyBy, Settings};
use super::wait::{NAPS, is_crowded};
use std::sync::atomic::{
    AtomicU8,
    Ordering::{Relaxed, SeqCst},
    fence,
};
use std::sync::{Arc, Mutex};
use transom_locks::{Awaited, Rank};
use transom_shm_loopback::View;
use transom_windows::{Exchange, Fabric, FabricError, UserMemory, Wait, Wake};

/// A rank's handle on the fabric of its job, over InfiniBand or RoCE. Once the last clone and window of a rank are gone, the
/// rank has left the job.
///
/// # Examples
/// ```
/// use transom::verbs::{Node, Verbs, WorkRequests};
/// use transom::windows::{Fabric, Window};
/// let job = transom::shm_loopback::Loopback::alone()?;
/// match Verbs::new(std::sync::Arc::new(job.clone()), Node::all(job)) {
///     Ok(verbs) => {
///         let mut window = Window::<u64, _>::allocate(&verbs, 0, 10)?;
///         let before = verbs.work_requests_to_itself();
///         window.lock_exclusive(0)?.put(0, &[42])?;
///         let locked = verbs.work_requests_to_itself() - before;
///         assert_eq!((locked.compare_and_swaps, locked.writes), (2, 0)); // one's own data needs no adapter
///         assert_eq!(verbs.work_requests_to_others(), WorkRequests::default());
///         assert_eq!(verbs.queue_pairs().to_itself, 1);
///         assert!(verbs.registered_bytes() > 10 * size_of::<u64>());
///     }
///     Err(why) => println!("{why}"), // no adapter here
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Verbs(Arc<Member>);

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

impl Verbs {
    /// Collective: the ranks of `job` over this machine's RDMA device, as the TRANSOM_VERBS_ variables say.
    ///
    /// # Errors
    /// On all ranks if on one: see [`VerbsError`].
    pub fn new(job: Arc<dyn Bootstrap>, node: Node) -> Result<Self, VerbsError> {
        let settings = Settings::from_env();
        // The others wait for this rank's address: a variable that is wrong is told after they have been.
        let settings = match settings {
            Ok(settings) => settings,
            Err(error) => {
                job.all_gather(&[])?;
                return Err(error.into());
            }
        };
        let hybrid = settings.hybrid.unwrap_or(!node.is_all());
        let endpoint = Arc::new(Endpoint::new(&*job, settings)?);
        let peers = (0..job.size()).collect();
        Ok(Verbs(Arc::new(Member {
            endpoint,
            exchange: job,
            node,
            peers,
            hybrid,
            ledger: Ledger::default(),
            inherited: Mutex::default(),
            parent: None,
        })))
    }

    /// Collective: a team of the ranks that name the same colour, numbered by `key`, then by rank. It shares the queue
    /// pairs of the job.
    ///
    /// # Errors
    /// Those of the exchange.
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<Self>, FabricError> {
        let member = &*self.0;
        let team = member.exchange.team(colour, key)?;
        let memory = member.node.memory.split(colour, key)?;
        let (Some(team), Some(memory)) = (team, memory) else { return Ok(None) };
        let mine = [member.exchange.rank() as u64, memory.rank() as u64];
        let all = team.all_gather(mine.map(u64::to_le_bytes).as_flattened())?;
        let (mut peers, mut here) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
        for (rank, told) in all.iter().enumerate() {
            let (numbers, _) = told.as_chunks::<8>();
            let number = |at: usize| numbers.get(at).map(|number| u64::from_le_bytes(*number) as usize);
            let old = number(0).filter(|&old| old < member.peers.len());
            let old =
                old.ok_or_else(|| FabricError::Corrupt { why: format!("rank {rank} of a team names no rank") })?;
            peers.push(member.peers[old]);
            here.push(number(1).filter(|&on_node| member.node.here[old].is_some() && on_node < memory.size()));
        }
        let node = Node { memory, here: here.into() };
        Ok(Some(Verbs(Arc::new(Member {
            endpoint: member.endpoint.clone(),
            exchange: team,
            node,
            peers: peers.into(),
            hybrid: member.hybrid,
            ledger: Ledger::default(),
            inherited: Mutex::default(),
            parent: Some(self.0.clone()),
        }))))
    }

    /// How many queue pairs this rank has made so far, whoever asked for them.
    pub fn queue_pairs(&self) -> QueuePairs {
        let core = self.0.core();
        let engine = core.engine();
        let to_itself = usize::from(engine.peers[core.me].queue.is_some());
        QueuePairs { to_others: engine.made - to_itself, to_itself }
    }

    /// What this rank has posted so far to its queue pairs to others: each is one remote operation.
    pub fn work_requests_to_others(&self) -> WorkRequests {
        self.0.core().engine().to_others
    }

    /// What this rank has posted so far to its queue pair to itself: words of its own memory and, if data moves through
    /// shared memory, of its host's.
    pub fn work_requests_to_itself(&self) -> WorkRequests {
        self.0.core().engine().to_itself
    }

    /// Bytes of memory that this rank has registered with its adapter now: its windows, others' that share memory with it
    /// and it has attached, and what operations travel through.
    pub fn registered_bytes(&self) -> usize {
        self.0.core().device.registered.load(Relaxed)
    }

    /// Has what was done there told when it is complete, without waiting: for several flushes at once.
    pub(crate) fn start_flush(&self, at: &Remote) -> Result<(), FabricError> {
        self.ways(at).try_for_each(|way| self.0.start_flush(way))
    }

    /// The peer of a rank.
    fn way(&self, rank: Rank) -> Way {
        Way { rank, peer: self.0.peers[rank] }
    }

    /// The ways that requests on memory of that rank may go: on lent memory and on the words of a rank of this host they
    /// are not the same.
    fn ways(&self, at: &Remote) -> impl Iterator<Item = Way> + use<> {
        let other = Some(self.way(at.rank)).filter(|other| other.peer != at.way.peer);
        std::iter::once(at.way).chain(other)
    }

    fn attach_to(&self, rank: Rank, key: &[u8], bytes: usize, lent: bool) -> Result<Remote, FabricError> {
        let member = &*self.0;
        let bad = |why: String| FabricError::BadKey { rank, why, source: None };
        let parsed = key.split_last_chunk::<4>().and_then(|(rest, rkey)| Some((rest.split_last_chunk::<8>()?, rkey)));
        let Some(((shared, address), rkey)) = parsed else { return Err(bad(format!("a key of {} bytes", key.len()))) };
        let place = Place { address: u64::from_le_bytes(*address), key: u32::from_le_bytes(*rkey) };
        if place.address.checked_add(bytes as u64).is_none() {
            return Err(bad(format!("it names {bytes} bytes at {:#x}", place.address)));
        }
        let Some(&on_node) = member.node.here.get(rank) else { return Err(bad("no such rank".into())) };
        if lent != shared.is_empty() {
            return Err(bad("it leads to memory of another kind".into()));
        }
        let own = rank == member.exchange.rank();
        let through_memory = (own || member.hybrid) && !lent;
        let view = match on_node.filter(|_| through_memory) {
            Some(on_node) => Some(member.node.memory.attach(on_node, shared, bytes)?),
            None => None,
        };
        let apart = lent && !own && member.hybrid && on_node.is_some();
        let (way, address, member_of) = (self.way(rank), place.address, self.0.clone());
        let mut remote =
            Remote { rank, address, way, place, bytes, view, lent, apart, _registration: None, member: member_of };
        if bytes > 0 {
            member.ledger.count(rank, address, 1);
        }
        // A neighbour's words are reached by this rank's queue pair to itself: as many queue pairs as ranks on a host.
        if let Some(start) = remote.view.as_ref().filter(|_| !own && bytes > 0).and_then(View::start) {
            // SAFETY: mapped as long as the view, which goes after the registration.
            let here =
                unsafe { Registered::new(&member.core().device, start, bytes, Rights::Window) }.map_err(system)?;
            remote.place = Place { address: here.address, key: here.remote_key() };
            remote.way.peer = member.core().me;
            remote._registration = Some(here);
        }
        Ok(remote)
    }

    fn register_here(
        &self,
        region: transom_shm_loopback::Region,
        shared: &[u8],
    ) -> Result<(Region, Vec<u8>), FabricError> {
        let core = self.0.core();
        if !core.device.has_atomics() {
            return Err(NO_ATOMICS);
        }
        let (start, bytes) = (region.view().start(), region.view().bytes_here());
        // SAFETY: mapped or lent for longer than the registration, which the region drops first; accessed by copies and
        // atomics only.
        let register = |start| unsafe { Registered::new(&core.device, start, bytes, Rights::Window) };
        let registration = start.filter(|_| bytes > 0).map(register);
        let registration = registration.transpose().map_err(system)?;
        region.leave_atomics_to_adapter();
        let (address, key) = registration.as_ref().map_or((0, 0), |at| (at.address, at.remote_key()));
        let key = [shared, &address.to_le_bytes(), &key.to_le_bytes()].concat();
        Ok((Region { registration, region, member: self.0.clone() }, key))
    }

    /// Where a word is, if it is one.
    #[inline]
    fn word_at(&self, at: &Remote, offset: usize) -> Result<Place, FabricError> {
        if at.lent {
            return Err(NO_LENT_ATOMICS);
        }
        let place = at.place(offset, 8)?;
        if !place.address.is_multiple_of(8) {
            return Err(FabricError::Misaligned { offset });
        }
        Ok(place)
    }

    fn start_atomic(&self, at: &Remote, offset: usize, verb: Verb) -> Result<Pending, FabricError> {
        let place = self.word_at(at, offset)?;
        let (number, cell) = self.0.start_atomic(at.way, verb, place)?;
        Ok(Pending { way: at.way, number, cell: Some(cell), member: self.0.clone() })
    }

    /// Whether the memory is this rank's own: a post there has taken effect when the call returns.
    fn is_own(&self, at: &Remote) -> bool {
        at.way.rank == self.0.exchange.rank()
    }
}

fn system(error: VerbsError) -> FabricError {
    match error {
        VerbsError::System { what, source } => FabricError::System { what, source },
        other => FabricError::System { what: "RDMA".into(), source: std::io::Error::other(other) },
    }
}

impl Exchange for Verbs {
    fn rank(&self) -> Rank {
        self.0.exchange.rank()
    }

    fn size(&self) -> usize {
        self.0.exchange.size()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        let ledger = &self.0.ledger;
        let all = self.0.exchange.all_gather(&ledger.tell(mine))?;
        let message = |(rank, bytes): (Rank, &Vec<u8>)| {
            let message = ledger.hear(self.rank(), bytes);
            let why = || format!("rank {rank} sent {} bytes that are no message of this library", bytes.len());
            Ok(message.ok_or_else(|| FabricError::Corrupt { why: why() })?.to_vec())
        };
        let messages = all.iter().enumerate().map(message).collect::<Result<_, _>>()?;
        ledger.settle();
        Ok(messages)
    }

    /// Tells what was let go of, too.
    fn barrier(&self) -> Result<(), FabricError> {
        self.all_gather(&[]).map(drop)
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.0.exchange.check_peers(awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.0.exchange.lost()
    }

    fn fail(&self) {
        self.0.exchange.fail();
    }
}

/// Memory of this rank, registered with its adapter. Once it is dropped and no longer kept for others, accesses of others
/// are refused, and end their connection to this rank.
pub struct Region {
    /// Goes before the memory does.
    registration: Option<Registered>,
    region: transom_shm_loopback::Region,
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
    rank: Rank,
    /// Where its owner has it.
    address: u64,
    /// Where requests on it go: its rank, or this rank itself if the memory is shared.
    way: Way,
    place: Place,
    bytes: usize,
    /// The memory itself, if data is moved by this processor.
    view: Option<View>,
    /// Of the program's own.
    lent: bool,
    /// Requests on it go another way than those on the words of its rank.
    apart: bool,
    /// This rank's own registration of memory that another shares with it.
    _registration: Option<Registered>,
    member: Arc<Member>,
}

impl Drop for Remote {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.member.ledger.count(self.rank, self.address, -1);
        }
    }
}

impl Remote {
    #[inline]
    fn place(&self, offset: usize, len: usize) -> Result<Place, FabricError> {
        if offset > self.bytes || len > self.bytes - offset {
            return Err(FabricError::OutOfBounds { offset, len, size: self.bytes });
        }
        Ok(Place { address: self.place.address + offset as u64, key: self.place.key })
    }
}

/// An atomic under way. Whoever drops it leaves the result to nobody.
pub struct Pending {
    way: Way,
    number: u64,
    cell: Option<Slot>,
    member: Arc<Member>,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(cell) = self.cell.take() {
            self.member.core().engine().abandon(self.way.peer, self.number, Lent::Cell(cell));
        }
    }
}

/// A read under way: requests up to that number bring it. Dropped, it leaves the bytes to nobody.
pub struct Reading {
    way: Way,
    number: u64,
    buffer: Option<Buffer>,
    len: usize,
    member: Arc<Member>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            self.member.core().engine().abandon(self.way.peer, self.number, Lent::Buffer(buffer));
        }
    }
}

/// Bytes of a read in one request.
const READ: usize = 1 << 20;

impl Fabric for Verbs {
    type Region = Region;
    type Remote = Remote;
    type Pending = Pending;
    type Reading = Reading;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        let (region, key) = self.0.node.memory.allocate(bytes)?;
        self.register_here(region, &key)
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        // SAFETY: by the caller's word.
        let (region, _) = unsafe { self.0.node.memory.register(memory) }?;
        // No way to it but the adapter's.
        self.register_here(region, &[])
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        self.attach_to(rank, key, bytes, false)
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<Remote, FabricError> {
        self.attach_to(rank, key, bytes, true)
    }

    fn is_shared(&self, at: &Remote) -> bool {
        at.view.is_some()
    }

    #[inline]
    fn put(&self, to: &Remote, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        match &to.view {
            Some(view) => self.0.node.memory.put(view, offset, source),
            None => {
                self.0.write(to.way, to.place(offset, source.len())?, source)?;
                // The words by which others hear of it go another way.
                if to.apart { self.0.order(to.way) } else { Ok(()) }
            }
        }
    }

    #[inline]
    fn get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        match &from.view {
            Some(view) => self.0.node.memory.get(view, offset, into),
            None => self.0.read(from.way, from.place(offset, into.len())?, into),
        }
    }

    fn start_get(&self, from: &Remote, offset: usize, into: &mut [u8]) -> Result<Option<Reading>, FabricError> {
        let len = into.len();
        let place = from.place(offset, len)?;
        if let Some(view) = &from.view {
            // Copying takes this rank's processor, whenever it does it.
            return self.0.node.memory.get(view, offset, into).map(|()| None);
        }
        let (member, way) = (&self.0, from.way);
        let buffer = Buffer::new(&member.core().device, len).map_err(system)?;
        let mut number = 0;
        for at in (0..len).step_by(READ) {
            let piece = buffer.piece(at, (len - at).min(READ));
            let from = Place { address: place.address + at as u64, key: place.key };
            let posted =
                member.post(way, false, |engine| Ok(engine.post_signalled(way.peer, Verb::Read, from, piece)?));
            number = match posted {
                Ok(number) => number,
                Err(error) => {
                    member.core().engine().abandon(way.peer, number, Lent::Buffer(buffer));
                    return Err(error);
                }
            };
        }
        Ok(Some(Reading { way, number, buffer: Some(buffer), len, member: member.clone() }))
    }

    fn arrived(&self, reading: &mut Reading) -> Result<bool, FabricError> {
        let Reading { way, number, member, .. } = reading;
        let arrived = {
            let mut engine = member.core().engine();
            engine.progress();
            let of = &engine.peers[way.peer];
            of.completed >= *number && of.failure.is_none()
        };
        if !arrived && member.core().engine().peers[way.peer].failure.is_some() {
            member.complete(*way, *number)?;
        }
        Ok(arrived)
    }

    fn finish_get(&self, mut reading: Reading, into: &mut [u8]) -> Result<(), FabricError> {
        if into.len() != reading.len {
            let why = format!("a read of {} bytes into {}", reading.len, into.len());
            return Err(FabricError::Misuse { why });
        }
        reading.member.complete(reading.way, reading.number)?;
        if let Some(buffer) = &mut reading.buffer {
            buffer.read(0, into);
        }
        Ok(())
    }

    // Adapters wake nobody: who waits looks now and then.
    fn start_cas(&self, at: &Remote, offset: usize, expected: u64, new: u64, _: Wake) -> Result<Pending, FabricError> {
        self.start_atomic(at, offset, Verb::CompareAndSwap { expected, new })
    }

    fn start_add(&self, at: &Remote, offset: usize, delta: u64, _: Wake) -> Result<Pending, FabricError> {
        self.start_atomic(at, offset, Verb::Add(delta))
    }

    fn finish(&self, mut pending: Pending) -> Result<u64, FabricError> {
        let cell = pending.cell.take().expect("a ticket is used once");
        self.0.finish_atomic(pending.way, pending.number, cell)
    }

    fn notify(&self, at: &Remote, offset: usize, value: u64) -> Result<(), FabricError> {
        let place = self.word_at(at, offset)?;
        // A write may come between the two halves of an adapter's own atomic: words that others add to are one's own.
        if self.is_own(at) {
            let guess = match &at.view {
                Some(view) => {
                    let mut word = [0; 8];
                    self.0.node.memory.get(view, offset, &mut word)?;
                    u64::from_ne_bytes(word)
                }
                None => 0,
            };
            return self.0.swap(at.way, place, value, guess);
        }
        match self.0.core().device.notify_by {
            NotifyBy::Atomic => self.0.swap(at.way, place, value, 0),
            NotifyBy::Write => self.0.write(at.way, place, &value.to_ne_bytes()),
        }
    }

    #[inline]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        self.0.node.memory.word(&on.region, offset)
    }

    fn wait<R>(
        &self,
        _: &Region,
        wait: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        let member = &*self.0;
        if let Some(found) = look()? {
            return Ok(found);
        }
        let (mut nap, check) = (NAPS[0], || {
            member.unheard()?;
            member.exchange.check_peers(wait.awaited)
        });
        // Nothing wakes a rank whose memory an adapter changes.
        wait.until(is_crowded(member.node.ranks()), look, check, |look| {
            std::thread::sleep(nap);
            nap = (nap * 2).min(NAPS[1]);
            look()
        })
    }

    #[inline]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.0.node.memory.own_bytes(&on.region, offset, len)
    }

    #[inline]
    fn bytes<'r>(&self, at: &'r Remote, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        self.0.node.memory.bytes(at.view.as_ref()?, offset, len)
    }

    #[inline]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.0.node.memory.load(&from.region, offset, into)
    }

    #[inline]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.0.node.memory.store(&to.region, offset, source)
    }

    fn flush(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        self.ways(at).try_for_each(|way| self.0.flush(way))
    }

    fn flush_all(&self, at: &[Remote]) -> Result<(), FabricError> {
        fence(SeqCst);
        at.iter().flat_map(|remote| self.ways(remote)).try_for_each(|way| self.0.start_flush(way))?;
        at.iter().flat_map(|remote| self.ways(remote)).try_for_each(|way| self.0.flush(way))
    }

    /// Nothing is waited for here: a later verb to the same peer comes after by itself, one to another waits. What goes
    /// another way than the words was ordered when it was put.
    fn order(&self, at: &Remote) -> Result<(), FabricError> {
        fence(SeqCst);
        self.0.order(at.way)
    }
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Remote { rank, place, bytes, .. } = self;
        write!(f, "{bytes} bytes of rank {rank} at {:#x}", place.address)
    }
}
