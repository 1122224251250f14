//! Collectives: what all ranks of a world or team do together, straight through memory that they share, else by messages.
//! docs/COLLECTIVES.md begins with one line for each need.
//!
//! ```
//! use transom::Op;
//! transom::threads(4, |world| -> Result<(), transom::Error> {
//!     let mine = world.rank() as f64;
//!     let total = world.all_reduce_one(mine, Op::Sum)?;
//!     let largest = world.all_reduce_one(mine, Op::Max)?;
//!     assert_eq!((total, largest), (6.0, 3.0));
//!     Ok(())
//! })?.into_iter().collect::<Result<(), _>>()?;
//! # Ok::<(), transom::Error>(())
//! ```

mod blocks;
mod calls;
mod control;
mod described;
mod group;
mod history;
mod hosts;
mod in_scope;
mod memory;
mod neighbours;
mod persistent;
mod ragged;
mod reduction;
mod running;
mod sections;
mod signature;
mod sinks;
mod started;
mod straight;

pub use ragged::Ragged;
pub use reduction::{Commuting, MaxPlace, MinPlace, Ordered, Placed, Reduction};
pub use transom_collective::{Grid, Hosts, Order, Rules, RulesError, block};

use crate::lock::lock;
use crate::messages::{Error, Space, hold};
use crate::provider;
use crate::world::World;
use bytemuck::Pod;
use control::Control;
use described::{Described, What};
pub(crate) use group::Asked;
use group::{Group, Member, Turn};
use history::Made;
use memory::{Memory, ScratchPool};
use reduction::Fold;
use running::{Running, Turned};
use signature::Signature;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use straight::{Buffers, Stop};
use transom_collective::{Algorithm, Call, Plan, Shape, by_hosts, choose};
use transom_locks::Awaited;
use transom_shm_loopback::collective::Board;
use transom_shm_loopback::{Loopback, Meet};
use transom_windows::{Exchange as _, FabricError};

/// The collectives of a world: none until the first is called.
pub(crate) struct Collectives {
    member: OnceLock<Arc<Member>>,
    making: Mutex<()>,
    /// The same of all worlds of the job, as the next.
    control: Arc<Control>,
    scratch: Arc<ScratchPool>,
}

impl Collectives {
    /// Of a world that is made of nothing, or of another.
    pub fn new(of: Option<&Collectives>) -> Collectives {
        let (control, scratch) = of.map(|of| (of.control.clone(), of.scratch.clone())).unwrap_or_default();
        Collectives { member: OnceLock::new(), making: Mutex::new(()), control, scratch }
    }

    /// The world is dropped. If no collective was called, others may wait in one all the same.
    pub fn leave(&self, messages: &Space) {
        if self.member.get().is_none() && !messages.is_last() {
            self.control.leave(messages.context(), control::Left::default());
            // Without messages nobody can wait for this rank.
            let _ = messages.hub().and_then(|hub| self.control.listen(hub));
        }
    }
}

impl World {
    #[inline]
    fn group(&self) -> Result<&Arc<Member>, Error> {
        match self.collectives().member.get() {
            Some(member) => Ok(member),
            None => self.group_by(|| None),
        }
    }

    #[cold]
    #[inline(never)]
    fn group_by(&self, rules: impl FnOnce() -> Option<Rules>) -> Result<&Arc<Member>, Error> {
        let Collectives { member, making, control, scratch } = self.collectives();
        if let Some(member) = member.get() {
            return Ok(member);
        }
        let _making = lock(making);
        if let Some(member) = member.get() {
            return Ok(member);
        }
        let hosts = Some(self.hosts()).filter(|hosts| hosts.count() > 1);
        let shares_memory = self.memory_of_all().is_some();
        let comm = self.space().comm()?.clone();
        let made = Group::enter_by(control, scratch, comm, hosts, rules(), shares_memory)?;
        Ok(member.get_or_init(|| made))
    }

    /// Has the collectives of this world or team choose algorithms by these rules, in place of those of `TRANSOM_COLLECTIVES`. Before
    /// its first collective; all ranks give the same, or are told there.
    ///
    /// # Errors
    /// [`Error::Misuse`] if there were collectives, or rules, before; [`Error::Unavailable`] where there are no messages.
    ///
    /// # Examples
    /// ```
    /// use transom::{Op, collective::Rules};
    /// transom::threads(3, |world| -> Result<(), transom::Error> {
    ///     let rules: Rules = "all_reduce bytes>=65536 = ring".parse().expect("rules");
    ///     let team = world.split(Some(0), 0)?.expect("all are in it");
    ///     team.collectives_by(&rules)?;
    ///     assert_eq!(team.all_reduce_one(1, Op::Sum)?, 3);
    ///     Ok(())
    /// })?.into_iter().collect::<Result<(), _>>()?;
    /// # Ok::<(), transom::Error>(())
    /// ```
    pub fn collectives_by(&self, rules: &Rules) -> Result<(), Error> {
        let mut rules = Some(rules.clone());
        self.group_by(|| rules.take())?;
        match rules {
            None => Ok(()),
            Some(_) => {
                let why = "rules of collectives are given once, before the first: split a team for others";
                Err(Error::Misuse { why: why.into() })
            }
        }
    }

    /// What this rank does in a call of `len` elements of a rank, or of each block.
    fn plan<T>(&self, call: Call, len: usize) -> Result<Plan, Error> {
        let group = self.group()?;
        let shape = self.shape::<T>(group, len);
        Ok(choose::best(call, shape, group.rules()?).plan(call, shape))
    }

    fn shape<'g, T>(&self, group: &'g Group, len: usize) -> Shape<'g> {
        let hosts = group.hosts.as_ref();
        Shape { rank: self.rank(), ranks: self.size(), len, element: size_of::<T>(), hosts }
    }

    /// What all ranks share: of a team whose ranks are all on one of several hosts, what those of that host do.
    fn memory_of_all(&self) -> Option<&Loopback> {
        let of_host = || provider::memory_of_host(self.provider()).filter(|memory| memory.size() == self.size());
        provider::shared_memory(self.provider()).or_else(of_host)
    }

    /// Makes a call, and returns when this rank has done its part.
    #[inline(always)]
    fn call<T: Pod, F: Fold>(&self, described: Described<F>, given: &[T], data: &mut [T]) -> Result<(), Error> {
        let Described { signature, what, fold } = described;
        let what = match what {
            What::Chosen(call, len) => {
                let group = self.group()?;
                if group.by_memory {
                    return self.straight(group, signature, call, buffers(given, data, &fold));
                }
                What::Chosen(call, len)
            }
            planned => planned,
        };
        self.call_by_rules(signature, what, given, data, fold)
    }

    #[inline(never)]
    fn call_by_rules<T: Pod, F: Fold>(
        &self,
        signature: Signature,
        what: What,
        given: &[T],
        data: &mut [T],
        fold: F,
    ) -> Result<(), Error> {
        if let What::Chosen(call, len) = what {
            let group = self.group()?;
            let shape = self.shape::<T>(group, len);
            if let Some(by) = by_memory(group.rules()?, call, shape) {
                if self.memory_of_all().is_some() {
                    return self.straight(group, signature, call, buffers(given, data, &fold));
                }
                if let Some(stages) = by_hosts(call, shape, by.between())
                    && let Some(host) = provider::memory_of_host(self.provider())
                {
                    return self.carry_by_hosts((stages, host), signature, given, data, fold);
                }
            }
        }
        self.carry(signature, what.plan::<T>(self)?, given, data, fold)
    }

    /// Makes a call through memory that all ranks share.
    #[inline(always)]
    fn straight<F: Fold>(
        &self,
        group: &Arc<Member>,
        call: Signature,
        what: Call,
        buffers: Buffers<'_, F>,
    ) -> Result<(), Error> {
        let mut turn = group.enter()?;
        let made = group.begin(&mut turn, call)?;
        let history = turn.history;
        let board = match &mut turn.board {
            Some(board) => board,
            None => self.open_board(group, &mut turn, made)?,
        };
        at_board(group, board, (made, history), what, buffers)
    }

    #[cold]
    #[inline(never)]
    fn open_board<'t>(&self, group: &Arc<Member>, turn: &'t mut Turn, made: Made) -> Result<&'t mut Board, Error> {
        // All ranks are here, and make the same call: so all of them open it.
        self.compare(group, made)?;
        let memory = self.memory_of_all().expect("that a call goes through");
        let board = self.meet(group, made, |meet| Board::open_by(memory, meet))?;
        Ok(group.open(turn, board))
    }

    /// Carries out a plan, and returns when this rank has done its part.
    fn carry<T: Pod, F: Fold>(
        &self,
        call: Signature,
        plan: Plan,
        given: &[T],
        data: &mut [T],
        fold: F,
    ) -> Result<(), Error> {
        let group = self.group()?;
        let scratch = group.take_scratch::<T>(plan.scratch).map_err(|error| group.refuse(error))?;
        let mut turn = group.enter()?;
        let made = group.begin(&mut turn, call)?;
        if cfg!(debug_assertions) {
            self.compare(group, made)?;
        }
        // SAFETY: `carry_out` returns when nothing of the memory is lent any more, in a panic too.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        let memory = Memory::new(given, data, size_of::<T>(), scratch);
        carry_out(group, made, &mut Running::new(group.clone(), made, plan, memory, fold))
    }

    /// All ranks tell all which call they make, before it: in debug builds, and where they make something together.
    fn compare(&self, group: &Arc<Member>, made: Made) -> Result<(), Error> {
        let all = self.exchange(group, made, made.to_bytes().to_vec())?;
        let calls: Vec<_> = all.as_chunks().0.iter().map(Made::from_bytes).collect();
        // The first that differs from the first, so that all ranks say the same.
        match calls.iter().position(|theirs| *theirs != calls[0]) {
            Some(rank) => {
                let error = Group::mismatch((0, calls[0]), (rank, calls[rank]));
                group.comm.hub.with(|core| group.fail(core, error.clone()))?;
                Err(error)
            }
            None => Ok(()),
        }
    }

    /// Calls `make`, whose rounds go by messages of this call: whoever waits in one is told of deaths, of ranks that have left the
    /// team, and of other failures, as in every collective.
    fn meet<R>(
        &self,
        group: &Arc<Member>,
        made: Made,
        make: impl FnOnce(&mut Meet<'_>) -> Result<R, FabricError>,
    ) -> Result<R, Error> {
        let mut failed = None;
        let result = make(&mut |mine| {
            self.gather_bytes(group, made, mine).map_err(|error| {
                let source = fabric_error(error.clone());
                failed = Some(error);
                source
            })
        });
        result.map_err(|error| failed.unwrap_or_else(|| error.into()))
    }

    /// What each rank passes, at all ranks.
    fn gather_bytes(&self, group: &Arc<Member>, made: Made, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        // Most messages are short, and take one round: their length, and behind it as many bytes.
        const SHORT: usize = 64;
        let slot = |len: usize| {
            let mut slot = (mine.len() as u32).to_le_bytes().to_vec();
            slot.extend(&mine[..mine.len().min(len - 4)]);
            slot.resize(len, 0);
            slot
        };
        let parse = |all: &[u8], len: usize| -> Vec<(usize, Vec<u8>)> {
            let slots = all.chunks(len).filter_map(|slot| slot.split_first_chunk());
            let said = |(said, bytes): (&[u8; 4], &[u8])| {
                let said = u32::from_le_bytes(*said) as usize;
                (said, bytes[..said.min(bytes.len())].to_vec())
            };
            slots.map(said).collect()
        };
        let mut said = parse(&self.exchange(group, made, slot(SHORT))?, SHORT);
        let longest = said.iter().map(|(len, _)| *len).max().unwrap_or(0) + 4;
        if longest > SHORT {
            said = parse(&self.exchange(group, made, slot(longest))?, longest);
        }
        Ok(said.into_iter().map(|(_, bytes)| bytes).collect())
    }

    /// As many bytes of each rank, at all ranks, side by side: as a part of a call that is begun, whichever call each rank makes.
    fn exchange(&self, group: &Arc<Member>, made: Made, mine: Vec<u8>) -> Result<Vec<u8>, Error> {
        let mut all = vec![0_u8; self.size() * mine.len()];
        let shape = Shape { rank: self.rank(), ranks: self.size(), len: mine.len(), element: 1, hosts: None };
        let plan = Algorithm::named("bruck").expect("it is there").plan(Call::AllGather, shape);
        let scratch = group.take_scratch::<u8>(plan.scratch).map_err(|error| group.stopped(Some(error)))?;
        // SAFETY: as in `carry`.
        let (given, data) = unsafe { (hold::lend(&mine[..]), hold::lend_mut(&mut all[..])) };
        let memory = Memory::new(given, data, 1, scratch);
        let mut running = Running::new(group.clone(), made, plan, memory, reduction::Nothing);
        // Whichever call they make.
        running.tag = Made { history: 0, ..made }.tag();
        carry_out(group, made, &mut running)?;
        Ok(all)
    }
}

/// The same to who makes memory or a team.
pub(crate) fn fabric_error(error: Error) -> FabricError {
    match error {
        Error::PeerDied { rank } => FabricError::PeerDied { rank },
        Error::PeerLeft { rank } => FabricError::PeerLeft { rank },
        Error::Mismatch { .. } | Error::Misuse { .. } => FabricError::Misuse { why: error.to_string() },
        error => FabricError::System { what: "meeting by messages".into(), source: std::io::Error::other(error) },
    }
}

/// How a call goes through the memory that ranks share, where it can: if that is asked for, or nothing else that can do it.
#[inline]
fn by_memory(rules: &Rules, call: Call, shape: Shape<'_>) -> Option<Algorithm> {
    if rules.is_empty() {
        return Some(Algorithm::BOARD);
    }
    let is_memory = |algorithm: &Algorithm| ["board", "leaders"].contains(&algorithm.name());
    let mut able = rules.of(call, shape).filter(|algorithm| is_memory(algorithm) || algorithm.can(call, shape));
    match able.next() {
        Some(algorithm) => Some(algorithm).filter(is_memory),
        None => Some(Algorithm::BOARD),
    }
}

#[inline(always)]
fn buffers<'b, T: Pod, F>(given: &'b [T], data: &'b mut [T], fold: &'b F) -> Buffers<'b, F> {
    let (given, data) = (bytemuck::cast_slice(given), bytemuck::cast_slice_mut(data));
    Buffers { given, data, element: size_of::<T>(), fold }
}

/// Makes a call, or a part of it, through the memory that these ranks share. `history` is that of all calls with this one.
#[inline(always)]
fn at_board<F: Fold>(
    group: &Group,
    board: &mut Board,
    (made, history): (Made, u64),
    what: Call,
    buffers: Buffers<'_, F>,
) -> Result<(), Error> {
    group.waiting.store(made.number.wrapping_add(1), Relaxed);
    let done = straight::call(board, what, history, buffers);
    group.waiting.store(0, Relaxed);
    done.map_err(|stop| stopped_at_board(group, made, stop))
}

#[cold]
#[inline(never)]
fn stopped_at_board(group: &Group, made: Made, stop: Stop) -> Error {
    match stop {
        Stop::Failed(failure) => {
            group.stopped(straight::error(failure, made, group.comm.rank(), |rank| group.on_board(rank)))
        }
        Stop::Panicked(panic) => {
            group.stopped(Some(Error::OperatorPanicked { rank: group.comm.rank() }));
            resume_unwind(panic)
        }
    }
}

/// A call that waits, as reports of long waits name it: for whom it waits is known once that rank has been asked.
struct Waits<'g>(&'g Group, Made);

impl fmt::Display for Waits<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waits(group, made) = self;
        write!(f, "{}", made.call)?;
        match group.awaited(made.number) {
            Some(rank) => write!(f, " for rank {rank}"),
            None => Ok(()),
        }
    }
}

fn carry_out<F: Fold>(group: &Group, made: Made, running: &mut Running<F>) -> Result<(), Error> {
    let (call, mut panic) = (Waits(group, made), None);
    loop {
        let turned = group.comm.hub.wait(&call, Awaited::Anyone, |core| match running.turn(core) {
            Turned::Waiting => None,
            turned => Some(turned),
        });
        match turned {
            Ok(Turned::Arrived) => {
                running.fold_round();
                // If the rank has left, its memory is nobody's any more.
                panic = group.comm.hub.with(|core| running.panicked(core))?.or(panic);
            }
            Ok(Turned::Waiting) => {}
            Ok(Turned::Done) => return Ok(()),
            Ok(Turned::Failed(error)) | Err(error) => match panic {
                Some(panic) => resume_unwind(panic),
                None => return Err(error),
            },
        }
    }
}
