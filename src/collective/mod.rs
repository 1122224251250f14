//! Collectives: operations of all ranks of a world or team, through shared memory if the ranks share it, otherwise by
//! messages. docs/guide/collectives.md has a table of the calls.
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

pub(crate) mod asked;
mod blocks;
mod call_desc;
mod calls;
mod control;
mod discarded_receives;
mod group;
mod history;
mod hosts;
mod in_scope;
mod meet;
mod memory;
mod neighbours;
mod persistent;
mod ragged;
mod reduction;
mod running;
mod sections;
mod shm;
mod signature;
mod started;

pub use ragged::Ragged;
pub use reduction::{Commutative, MaxLoc, MinLoc, Ordered, Reduction, ValueLoc};
pub use transom_collective::{Grid, Hosts, Order, Rules, RulesError, block};

use crate::messages::{Error, Space, hold};
use crate::provider;
use crate::world::World;
use bytemuck::Pod;
use call_desc::{Described, PlanSource};
use control::{Control, Making};
use group::{Group, Member, Turn};
use history::CallId;
use memory::{CallBuffers, ScratchPool};
use reduction::Fold;
use running::{Progressed, Running};
use shm::{Buffers, Stop};
use signature::Signature;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use transom_collective::{Algorithm, Call, Plan, Shape, by_hosts, choose};
use transom_launch::lock;
use transom_locks::Awaited;
use transom_shm_loopback::collective::ShmCollective;

/// Collectives of a world; the group is created by the first call.
pub(crate) struct Collectives {
    member: OnceLock<Arc<Member>>,
    making: Mutex<()>,
    /// Shared by all worlds of the job at this rank, like `scratch`.
    control: Arc<Control>,
    scratch: Arc<ScratchPool>,
}

impl Collectives {
    /// Collectives of a new world; shares control and scratch memory with those of its parent, if any.
    pub fn new(of: Option<&Collectives>) -> Collectives {
        let (control, scratch) = of.map(|of| (of.control.clone(), of.scratch.clone())).unwrap_or_default();
        Collectives { member: OnceLock::new(), making: Mutex::new(()), control, scratch }
    }

    /// Marks this rank as creating the window or value `number` until the guard is dropped. `None` if messages are
    /// unavailable: then no rank can ask.
    pub fn making(&self, messages: &Space, number: u32) -> Option<Making> {
        self.control.making(messages.quiet_hub()?, (messages.context(), number)).ok()
    }

    /// Called when the world is dropped. Other ranks may wait in a collective even if this rank never called one.
    pub fn leave(&self, messages: &Space) {
        if self.member.get().is_none() && !messages.is_last() {
            self.control.leave(messages.context(), control::Left::default());
            // If messages are unavailable, no rank can wait for this one.
            let _ = messages.progress_engine().and_then(|progress_engine| self.control.listen(progress_engine));
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
        let shares_memory = self.shares_memory();
        let comm = self.space().comm()?.clone();
        let made = Group::enter_by(control, scratch, comm, hosts, rules(), shares_memory)?;
        Ok(member.get_or_init(|| made))
    }

    /// Sets the rules by which the collectives of this world or team choose algorithms, in place of
    /// `TRANSOM_COLLECTIVES`.
    ///
    /// Must precede the first collective, including [`split`](Self::split). All ranks must set the same rules;
    /// otherwise the first collective reports the difference.
    ///
    /// # Errors
    /// [`Error::Misuse`] if a collective or other rules came before; [`Error::Unavailable`] if messages are
    /// unavailable.
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
                let why = "rules are set once, before the first collective of a team: split a team to use other rules";
                Err(Error::Misuse { why: why.into() })
            }
        }
    }

    /// The plan of this rank for a call of `len` elements (of each rank or each block).
    fn plan<T>(&self, call: Call, len: usize) -> Result<Plan, Error> {
        let group = self.group()?;
        let shape = self.shape::<T>(group, len);
        Ok(choose::best(call, shape, group.rules()?).plan(call, shape))
    }

    fn shape<'g, T>(&self, group: &'g Group, len: usize) -> Shape<'g> {
        let hosts = group.hosts.as_ref();
        Shape { rank: self.rank(), ranks: self.size(), len, element: size_of::<T>(), hosts }
    }

    /// True if all ranks share memory.
    fn shares_memory(&self) -> bool {
        let job = self.provider();
        let on_one_host = || provider::memory_of_host(job).is_some() && self.hosts().count() == 1;
        provider::shared_memory(job).is_some() || on_one_host()
    }

    /// Makes a call and returns when this rank has done its part.
    #[inline(always)]
    fn call<T: Pod, F: Fold>(&self, described: Described<F>, given: &[T], data: &mut [T]) -> Result<(), Error> {
        let Described { signature, what, fold } = described;
        let what = match what {
            PlanSource::Chosen(call, len) => {
                let group = self.group()?;
                if group.by_memory {
                    return self.straight(group, signature, call, buffers(given, data, &fold));
                }
                PlanSource::Chosen(call, len)
            }
            planned => planned,
        };
        self.call_by_rules(signature, what, given, data, fold)
    }

    #[inline(never)]
    fn call_by_rules<T: Pod, F: Fold>(
        &self,
        signature: Signature,
        what: PlanSource,
        given: &[T],
        data: &mut [T],
        fold: F,
    ) -> Result<(), Error> {
        if let PlanSource::Chosen(call, len) = what {
            let group = self.group()?;
            let shape = self.shape::<T>(group, len);
            if let Some(by) = by_memory(group.rules()?, call, shape) {
                if group.shares_memory {
                    return self.straight(group, signature, call, buffers(given, data, &fold));
                }
                if let Some(stages) = by_hosts(call, shape, by.between())
                    && provider::memory_of_host(self.provider()).is_some()
                {
                    return self.carry_by_hosts((stages, None), signature, given, data, fold);
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
    fn open_board<'t>(
        &self,
        group: &Arc<Member>,
        turn: &'t mut Turn,
        made: CallId,
    ) -> Result<&'t mut ShmCollective, Error> {
        // The comparison makes sure that all ranks make the same call, so all of them open the board.
        self.compare(group, made)?;
        let fabric = self.make_fabric(group, made)?;
        // If all ranks of a team are on one of several hosts, the board uses the shared memory of that host.
        let memory = provider::shared_memory(fabric).or_else(|| provider::memory_of_host(fabric));
        let memory = memory.expect("calls on a board need shared memory");
        let board = self.meet(group, made, |meet| ShmCollective::open_by(memory, meet))?;
        Ok(group.open(turn, board))
    }

    /// Executes a plan and returns when this rank has done its part.
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
        // SAFETY: `carry_out` returns, also by a panic, only when no part of the memory is lent.
        let (given, data) = unsafe { (hold::lend(given), hold::lend_mut(data)) };
        let memory = CallBuffers::new(given, data, size_of::<T>(), scratch);
        carry_out(group, made, &mut Running::new(group.clone(), made, plan, memory, fold))
    }
}

/// The shared-memory algorithm for this call, if the rules select one or allow no other algorithm; otherwise `None`.
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

/// Makes a call, or one stage of it, on the board. `history` hashes all calls including this one.
#[inline(always)]
fn at_board<F: Fold>(
    group: &Group,
    board: &mut ShmCollective,
    (made, history): (CallId, u64),
    what: Call,
    buffers: Buffers<'_, F>,
) -> Result<(), Error> {
    group.waiting.store(made.number.wrapping_add(1), Relaxed);
    let done = shm::call(board, what, history, buffers);
    group.waiting.store(0, Relaxed);
    done.map_err(|stop| stopped_at_board(group, made, stop))
}

#[cold]
#[inline(never)]
fn stopped_at_board(group: &Group, made: CallId, stop: Stop) -> Error {
    match stop {
        Stop::Failed(failure) => {
            group.stopped(shm::error(failure, made, group.comm.rank(), |rank| group.on_board(rank)))
        }
        Stop::Panicked(panic) => {
            group.stopped(Some(Error::OperatorPanicked { rank: group.comm.rank() }));
            resume_unwind(panic)
        }
    }
}

/// Text of a waiting call for reports of long waits. Includes the awaited rank once that rank was asked.
struct Waits<'g>(&'g Group, CallId);

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

fn carry_out<F: Fold>(group: &Group, made: CallId, running: &mut Running<F>) -> Result<(), Error> {
    let (call, mut panic) = (Waits(group, made), None);
    loop {
        let turned = group.comm.progress_engine.wait(&call, Awaited::Anyone, |core| match running.progress(core) {
            Progressed::Waiting => None,
            turned => Some(turned),
        });
        match turned {
            Ok(Progressed::Arrived) => {
                running.fold_round();
                // Fails only if this rank has left and its engine is closed: then nothing uses the memory any more.
                panic = group.comm.progress_engine.with(|core| running.panicked(core))?.or(panic);
            }
            Ok(Progressed::Waiting) => {}
            Ok(Progressed::Done) => return Ok(()),
            Ok(Progressed::Failed(error)) | Err(error) => match panic {
                Some(panic) => resume_unwind(panic),
                None => return Err(error),
            },
        }
    }
}
