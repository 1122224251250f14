//! The provider: a remote operation is the origin's own load, store or instruction on the target's memory.

use crate::bell::{self, Patience};
use crate::cma::{self, CrossMemory};
use crate::control::Control;
use crate::copy;
use crate::cores;
use crate::memory::{Memory, View};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::SeqCst, fence};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transom_locks::{Awaited, Barrier, Rank};
use transom_windows::{Exchange, Fabric, FabricError, UserMemory};

/// A rank's handle on the fabric of its job: processes of one machine, threads of one process, or one rank alone.
/// When the last clone and window of a rank are gone, the rank has left the job; when that happens in a panic, or the
/// process ends without it, the rank died.
///
/// # Examples
/// ```
/// use transom_shm_loopback::Loopback;
/// use transom_windows::Exchange;
///
/// let mut ranks = Loopback::threads(2)?.into_iter();
/// let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
/// let other = std::thread::spawn(move || one.all_gather(b"one").unwrap());
/// assert_eq!(zero.all_gather(b"zero")?, [&b"zero"[..], b"one"]);
/// assert_eq!(other.join().unwrap(), [&b"zero"[..], b"one"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Loopback(Arc<Membership>);

/// One rank's membership of its job.
struct Membership {
    rank: Rank,
    control: Arc<Control>,
    exchange: Mutex<Barrier>,
    /// The blocks that ranks of this process registered, by tag.
    blocks: Arc<Blocks>,
    /// Teams split from this job.
    teams: Mutex<Vec<Weak<Membership>>>,
    /// How many regions this rank has.
    regions: AtomicUsize,
    /// Whether regions are memfds, for other processes to open.
    across_processes: bool,
}

type Blocks = Mutex<HashMap<u64, Weak<Memory>>>;

impl Membership {
    /// Who leaves in a panic, or with memory that may hold locks, has died.
    fn leave(&self) {
        if std::thread::panicking() || self.regions.load(SeqCst) > 0 {
            self.control.fail(self.rank);
        }
        self.control.leave(self.rank);
        tracing::debug!(rank = self.rank, "left the job");
    }

    fn leave_with_teams(&self) {
        self.leave();
        let teams = std::mem::take(&mut *self.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        teams.iter().filter_map(Weak::upgrade).for_each(|team| team.leave_with_teams());
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if !self.control.has_left(self.rank) {
            self.leave();
        }
    }
}

impl Loopback {
    /// A job of one rank, this thread.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory.
    pub fn alone() -> Result<Self, FabricError> {
        Ok(Self::threads(1)?.remove(0))
    }

    /// A job whose ranks are threads of this process: one handle for each, to be moved into its thread.
    ///
    /// # Errors
    /// [`FabricError::System`] if there is no memory.
    pub fn threads(ranks: usize) -> Result<Vec<Self>, FabricError> {
        let memory = Arc::new(Memory::heap(Control::bytes(ranks)?, fresh_tag())?);
        let control = Arc::new(Control::create(memory, ranks));
        control.set_patience(Patience::new(ranks, cores::usable()));
        let blocks = Arc::new(Blocks::default());
        (0..ranks).map(|rank| Self::member(rank, control.clone(), blocks.clone(), false)).collect()
    }

    /// Collective: a team of the ranks that name the same colour, numbered by `key`, then by rank; none for those that
    /// name no colour. It is a job of its own: it has its own collectives, memory and numbers, and errors count in these.
    ///
    /// # Errors
    /// Those of [`Fabric::allocate`] and [`Fabric::attach`], on all ranks of a team if on one.
    ///
    /// # Examples
    /// ```
    /// use transom_shm_loopback::Loopback;
    /// use transom_windows::Exchange;
    /// let ranks: Vec<_> = Loopback::threads(3)?.into_iter().map(|rank| std::thread::spawn(move || {
    ///     // Even ranks, the highest first; rank 1 stays out.
    ///     let colour = (rank.rank() % 2 == 0).then_some(7);
    ///     let team = rank.split(colour, 10 - rank.rank() as u64).unwrap();
    ///     team.map(|team| (team.rank(), team.size()))
    /// })).collect();
    /// let teams: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(teams, [Some((1, 2)), None, Some((0, 2))]);
    /// # Ok::<(), transom_windows::FabricError>(())
    /// ```
    pub fn split(&self, colour: Option<u64>, key: u64) -> Result<Option<Self>, FabricError> {
        let mine = [u64::from(colour.is_some()), colour.unwrap_or(0), key];
        let wishes = self.all_gather(mine.map(u64::to_le_bytes).as_flattened())?;
        let wish = |rank: Rank| {
            let (numbers, _) = wishes[rank].as_chunks::<8>();
            let number = |at: usize| numbers.get(at).map_or(0, |number| u64::from_le_bytes(*number));
            (number(0), number(1), number(2))
        };
        let same = |rank: &Rank| (wish(*rank).0, wish(*rank).1) == (mine[0], mine[1]);
        let mut members: Vec<Rank> = (0..self.size()).filter(same).collect();
        members.sort_by_key(|&rank| (wish(rank).2, rank));
        let made = self.make_team(colour.is_some() && members[0] == self.rank(), members.len());
        let keys = self.all_gather(made.as_ref().map_or(&[], |made| made.as_ref().map_or(&[], |(_, key)| key)))?;
        let joined = match (made, colour) {
            (Err(error), _) => Err(error),
            (Ok(_), None) => Ok(None),
            (Ok(block), Some(_)) => self.join_team(&members, &keys[members[0]]).map(|team| Some((team, block))),
        };
        // Everyone has written its process number, or could not.
        let failed = self.all_gather(&[u8::from(joined.is_err())])?;
        let joined = joined.and_then(|joined| match members.iter().find(|&&rank| failed[rank][..] != [0]) {
            Some(&rank) if colour.is_some() => Err(FabricError::GivenUp { rank }),
            _ => Ok(joined),
        });
        let watched = joined.and_then(|joined| match joined {
            Some((team, _)) if self.0.across_processes => team.0.control.watch(team.rank()).map(|()| Some(team)),
            joined => Ok(joined.map(|(team, _)| team)),
        });
        // Everyone watches, before anyone can leave, or some cannot.
        let blind = self.all_gather(&[u8::from(watched.is_err())])?;
        let team = watched?;
        match members.iter().find(|&&rank| blind[rank][..] != [0]) {
            Some(&rank) if team.is_some() => Err(FabricError::GivenUp { rank }),
            _ => {
                let teams = team.iter().map(|team| Arc::downgrade(&team.0));
                self.0.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).extend(teams);
                Ok(team)
            }
        }
    }

    /// The control block of a team, by the first of its members.
    fn make_team(&self, first: bool, size: usize) -> Result<Option<(Region, Vec<u8>)>, FabricError> {
        if !first {
            return Ok(None);
        }
        let (region, key) = self.allocate(Control::bytes(size)?)?;
        Control::create(region.view.memory().clone(), size);
        Ok(Some((region, key)))
    }

    fn join_team(&self, members: &[Rank], key: &[u8]) -> Result<Self, FabricError> {
        let view = self.attach(members[0], key, Control::bytes(members.len())?)?;
        let control = Control::open(view.memory().clone(), members.len())?;
        // Other teams use the same cores.
        control.set_patience(self.0.control.patience());
        let rank = members.iter().position(|&rank| rank == self.rank()).expect("a rank is of its own colour");
        Self::member(rank, Arc::new(control), self.0.blocks.clone(), self.0.across_processes)
    }

    /// Leaves the job and its teams now, whoever still holds clones: the others' collectives no longer wait for this
    /// rank, but fail. In a panic, or with windows that are still there, the rank has died.
    pub fn leave(&self) {
        self.0.leave_with_teams();
    }

    /// The first rank that died, as far as anybody knows.
    pub fn first_death(&self) -> Option<Rank> {
        self.0.control.failed()
    }

    /// A rank of a job of processes; collective. Who knows the processes before watches them from the start.
    pub(crate) fn process(rank: Rank, control: Control, processes: Option<&[u32]>) -> Result<Self, FabricError> {
        let member = Self::member(rank, Arc::new(control), Arc::default(), true)?;
        match processes {
            Some(processes) => member.0.control.watch_processes(rank, processes.iter().copied().map(u64::from))?,
            None => {
                member.barrier()?; // everyone has written its process number
                member.0.control.watch(rank)?;
            }
        }
        // Everyone watches, before anyone can leave.
        let cores = member.all_gather(&cores::mine())?;
        member.0.control.set_patience(Patience::new(member.size(), cores::of_all(&cores)));
        Ok(member)
    }

    /// The rank's place in the exchange, which its threads take in turn.
    fn exchange(&self) -> MutexGuard<'_, Barrier> {
        self.0.exchange.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn member(rank: Rank, control: Arc<Control>, blocks: Arc<Blocks>, processes: bool) -> Result<Self, FabricError> {
        control.enter(rank)?;
        Ok(Loopback(Arc::new(Membership {
            rank,
            exchange: Mutex::new(control.barrier()),
            control,
            blocks,
            teams: Mutex::default(),
            regions: AtomicUsize::new(0),
            across_processes: processes,
        })))
    }
}

impl Exchange for Loopback {
    fn rank(&self) -> Rank {
        self.0.rank
    }

    fn size(&self) -> usize {
        self.0.control.ranks()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.0.control.all_gather(self.0.rank, &mut self.exchange(), mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.0.control.sync(self.0.rank, &mut self.exchange())
    }

    fn check_peers(&self, awaited: Awaited) -> Result<(), FabricError> {
        self.0.control.check_peers(self.0.rank, awaited)
    }

    fn lost(&self) -> Option<FabricError> {
        self.0.control.lost(self.0.rank)
    }

    fn fail(&self) {
        self.0.control.fail(self.0.rank);
    }
}

/// Memory of this rank that others may reach by its key.
pub struct Region {
    view: View,
    tag: u64,
    owner: Arc<Membership>,
    /// Kept open for as long as the key is good.
    _fd: Option<OwnedFd>,
}

impl Region {
    /// The memory itself.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Says that from now on an adapter executes the atomics on this memory, at the bidding of whatever rank. In debug
    /// builds those of a processor are errors then ([`FabricError::Misuse`]).
    pub fn leave_atomics_to_adapter(&self) {
        if self.tag != 0 {
            self.view.header().adapter.store(1, SeqCst);
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.owner.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).remove(&self.tag);
        self.owner.regions.fetch_sub(1, SeqCst);
    }
}

/// What leads to a region: `{tag, pid, descriptor}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub tag: u64,
    pub pid: u32,
    pub fd: u32,
}

impl Key {
    pub fn to_bytes(self) -> Vec<u8> {
        [&self.tag.to_le_bytes()[..], &self.pid.to_le_bytes(), &self.fd.to_le_bytes()].concat()
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (tag, rest) = bytes.split_first_chunk()?;
        let (pid, rest) = rest.split_first_chunk()?;
        let fd = u32::from_le_bytes(rest.try_into().ok()?);
        Some(Key { tag: u64::from_le_bytes(*tag), pid: u32::from_le_bytes(*pid), fd })
    }
}

/// What leads to memory of a program's own: `{pid, address}`.
struct CmaKey {
    pid: u32,
    start: u64,
}

impl CmaKey {
    fn to_bytes(&self) -> Vec<u8> {
        [&self.pid.to_le_bytes()[..], &self.start.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (pid, rest) = bytes.split_first_chunk()?;
        let start = u64::from_le_bytes(rest.try_into().ok()?);
        Some(CmaKey { pid: u32::from_le_bytes(*pid), start })
    }
}

/// A read that is made when it is finished: copying takes this rank's processor, whenever it does it.
pub struct Reading {
    from: View,
    offset: usize,
}

impl Loopback {
    #[cold]
    #[inline(never)]
    fn put_cma(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.cma_alive(to, offset, source.len())?.write(offset, source)
    }

    #[cold]
    #[inline(never)]
    fn get_cma(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.cma_alive(from, offset, into.len())?.read(offset, into)
    }

    /// The memory that a view without bytes leads to, of a process that is still there: another may have its number
    /// later.
    fn cma_alive<'v>(&self, view: &'v View, offset: usize, len: usize) -> Result<&'v CrossMemory, FabricError> {
        let cross = view.cross().ok_or(FabricError::OutOfBounds { offset, len, size: view.len() })?;
        self.0.control.ended(cross.rank)?;
        Ok(cross)
    }
}

/// A number that no other block has.
pub(crate) fn fresh_tag() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

impl Fabric for Loopback {
    type Region = Region;
    type Remote = View;
    type Pending = u64;
    type Reading = Reading;

    fn allocate(&self, bytes: usize) -> Result<(Region, Vec<u8>), FabricError> {
        let tag = fresh_tag();
        let (memory, fd) = if self.0.across_processes {
            let (memory, fd) = Memory::create(bytes, tag)?;
            (memory, Some(fd))
        } else {
            (Memory::heap(bytes, tag)?, None)
        };
        let memory = Arc::new(memory);
        let owner = self.0.clone();
        owner.regions.fetch_add(1, SeqCst);
        owner.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(tag, Arc::downgrade(&memory));
        let number = fd.as_ref().map_or(0, |fd| fd.as_raw_fd() as u32);
        let key = Key { tag, pid: std::process::id(), fd: number }.to_bytes();
        Ok((Region { view: View::whole(&memory), tag, owner, _fd: fd }, key))
    }

    unsafe fn register(&self, memory: &UserMemory) -> Result<(Region, Vec<u8>), FabricError> {
        if self.0.across_processes && self.size() > 1 {
            cma::admit();
        }
        let key = CmaKey { pid: std::process::id(), start: memory.start().as_ptr().expose_provenance() as u64 };
        self.0.regions.fetch_add(1, SeqCst);
        Ok((Region { view: View::own(memory), tag: 0, owner: self.0.clone(), _fd: None }, key.to_bytes()))
    }

    unsafe fn attach_user_memory(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        let bad_key = |why| FabricError::BadKey { rank, why, source: None };
        let key = CmaKey::from_bytes(key).ok_or_else(|| bad_key(format!("a key of {} bytes", key.len())))?;
        let CmaKey { pid, start } = key;
        if rank >= self.size() || self.0.control.process(rank) != u64::from(pid) {
            return Err(bad_key(format!("it names memory of process {pid}, which is not that rank's")));
        }
        if i32::try_from(pid).is_err() || pid == 0 || start.checked_add(bytes as u64).is_none() {
            return Err(bad_key(format!("it names {bytes} bytes at {start:#x} of process {pid}")));
        }
        Ok(View::whole(&Arc::new(Memory::cross_process(CrossMemory { rank, pid, start, bytes }))))
    }

    fn attach(&self, rank: Rank, key: &[u8], bytes: usize) -> Result<View, FabricError> {
        let bad_key = |why, source| FabricError::BadKey { rank, why, source };
        let key = Key::from_bytes(key).ok_or_else(|| bad_key(format!("a key of {} bytes", key.len()), None))?;
        let here = self.0.blocks.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get(&key.tag).cloned();
        let memory = match here.and_then(|memory| memory.upgrade()) {
            Some(memory) if memory.len() == bytes => memory,
            Some(memory) => return Err(bad_key(format!("it has {} bytes, not {bytes}", memory.len()), None)),
            None if self.0.across_processes => {
                let opened = Memory::open_of(key.pid, key.fd, bytes, key.tag);
                Arc::new(opened.map_err(|(why, source)| bad_key(why, source))?)
            }
            None => return Err(bad_key("it is no longer registered".into(), None)),
        };
        Ok(View::whole(&memory))
    }

    #[inline(always)]
    fn put(&self, to: &View, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        let Some(shared) = to.address(offset, source.len()) else { return self.put_cma(to, offset, source) };
        // SAFETY: inside the view, as just checked; views are accessed by atomics and `copy` alone.
        unsafe { copy::to_shared(shared, source) };
        Ok(())
    }

    #[inline(always)]
    fn get(&self, from: &View, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        let Some(shared) = from.address(offset, into.len()) else { return self.get_cma(from, offset, into) };
        // SAFETY: as for `put`.
        unsafe { copy::from_shared(shared, into) };
        Ok(())
    }

    fn start_get(&self, from: &View, offset: usize, len: usize) -> Result<Reading, FabricError> {
        match from.cross().map_or(from.len(), |cross| cross.bytes) {
            size if offset <= size && len <= size - offset => Ok(Reading { from: from.clone(), offset }),
            size => Err(FabricError::OutOfBounds { offset, len, size }),
        }
    }

    fn arrived(&self, _: &mut Reading) -> Result<bool, FabricError> {
        Ok(true)
    }

    fn finish_get(&self, reading: Reading, into: &mut [u8]) -> Result<(), FabricError> {
        self.get(&reading.from, reading.offset, into)
    }

    fn is_shared(&self, at: &View) -> bool {
        at.cross().is_none()
    }

    #[inline(always)]
    fn start_cas(&self, at: &View, offset: usize, expected: u64, new: u64) -> Result<u64, FabricError> {
        cas(at, offset, expected, new)
    }

    #[inline(always)]
    fn start_add(&self, at: &View, offset: usize, delta: u64) -> Result<u64, FabricError> {
        add(at, offset, delta)
    }

    #[inline(always)]
    fn finish(&self, pending: u64) -> Result<u64, FabricError> {
        Ok(pending)
    }

    #[inline(always)]
    fn notify(&self, at: &View, offset: usize, value: u64) -> Result<(), FabricError> {
        notify(at, offset, value)
    }

    #[inline(always)]
    fn word(&self, on: &Region, offset: usize) -> Result<u64, FabricError> {
        Ok(on.view.word(offset)?.load(SeqCst))
    }

    #[inline(always)]
    fn wait<R>(
        &self,
        on: &Region,
        awaited: Awaited,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
    ) -> Result<R, FabricError> {
        // Most often it is there.
        if let Some(found) = look()? {
            return Ok(found);
        }
        bell::wait(on.view.header(), self.0.control.patience(), look, || {
            self.0.control.check_peers(self.0.rank, awaited)
        })
    }

    #[inline(always)]
    fn own_bytes<'r>(&self, on: &'r Region, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        on.view.atomics(offset, len)
    }

    #[inline(always)]
    fn bytes<'r>(&self, at: &'r View, offset: usize, len: usize) -> Option<&'r [AtomicU8]> {
        at.atomics(offset, len)
    }

    #[inline(always)]
    fn load(&self, from: &Region, offset: usize, into: &mut [u8]) -> Result<(), FabricError> {
        self.get(&from.view, offset, into)
    }

    #[inline(always)]
    fn store(&self, to: &Region, offset: usize, source: &[u8]) -> Result<(), FabricError> {
        self.put(&to.view, offset, source)
    }

    /// Stores become visible by themselves, in order; the fence waits until they have.
    #[inline(always)]
    fn flush(&self, _: &View) -> Result<(), FabricError> {
        fence(SeqCst);
        Ok(())
    }

    #[inline(always)]
    fn flush_all(&self, _: &[View]) -> Result<(), FabricError> {
        fence(SeqCst);
        Ok(())
    }

    /// Every verb is at least a release operation: nothing is left to do.
    #[inline(always)]
    fn order(&self, _: &View) -> Result<(), FabricError> {
        Ok(())
    }
}

#[inline(always)]
pub(crate) fn cas(at: &View, offset: usize, expected: u64, new: u64) -> Result<u64, FabricError> {
    let found = match at.own_word(offset)?.compare_exchange(expected, new, SeqCst, SeqCst) {
        Ok(found) => {
            bell::ring(at.header());
            found
        }
        Err(found) => found,
    };
    Ok(found)
}

#[inline(always)]
pub(crate) fn add(at: &View, offset: usize, delta: u64) -> Result<u64, FabricError> {
    let found = at.own_word(offset)?.fetch_add(delta, SeqCst);
    bell::ring(at.header());
    Ok(found)
}

#[inline(always)]
pub(crate) fn notify(at: &View, offset: usize, value: u64) -> Result<(), FabricError> {
    at.own_word(offset)?.store(value, SeqCst);
    bell::ring(at.header());
    Ok(())
}
