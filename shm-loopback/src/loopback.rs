//! A rank's membership of its job: ranks that are processes of one machine, or threads of one process.

use crate::asymmetric_fence;
use crate::blocks::{Blocks, Forget};
use crate::control::Control;
use crate::cores;
use crate::key::fresh_tag;
use crate::memory::{MemoryBlock, View};
use crate::messages::inbox::{self, Own};
use crate::progress::Progress;
use crate::reach::Reach;
use crate::{Region, words};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use transom_locks::{Awaited, Barrier, Rank};
use transom_windows::{FabricError, OobExchange, Wait};

/// A rank's handle on the fabric of its job: processes of one machine, threads of one process, or one rank alone. The
/// rank leaves the job when its last clone and window are dropped. If that happens in a panic, or if the process ends
/// without it, the rank has died.
///
/// # Examples
/// ```
/// use transom_shm_loopback::Loopback;
/// use transom_windows::OobExchange;
///
/// let mut ranks = Loopback::threads(2)?.into_iter();
/// let (zero, one) = (ranks.next().unwrap(), ranks.next().unwrap());
/// let other = std::thread::spawn(move || one.all_gather(b"one").unwrap());
/// assert_eq!(zero.all_gather(b"zero")?, [&b"zero"[..], b"one"]);
/// assert_eq!(other.join().unwrap(), [&b"zero"[..], b"one"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Loopback(pub(crate) Arc<Membership>);

/// One rank's membership of its job.
pub(crate) struct Membership {
    pub rank: Rank,
    pub control: Arc<Control>,
    exchange: Mutex<Barrier>,
    /// The blocks of memory known to this process.
    pub blocks: Arc<Blocks>,
    /// Teams split from this job.
    teams: Mutex<Vec<Weak<Membership>>>,
    /// The number of regions of this rank.
    pub regions: AtomicUsize,
    /// True if regions are memfds, which other processes can open.
    pub across_processes: bool,
    /// The message engine that this rank's waits run; its teams share it.
    pub progress: Arc<Progress>,
    /// The rank's inbox in its job, until its wire takes it. `None` for a team.
    pub inbox: Mutex<Option<Own>>,
}

impl Membership {
    /// Leaves the job. A rank that leaves in a panic, or with memory that may hold locks, has died.
    fn leave(&self) {
        if std::thread::panicking() || self.regions.load(SeqCst) > 0 {
            self.control.fail(self.rank);
        }
        self.control.leave(self.rank);
        tracing::debug!(rank = self.rank, "left the job");
    }

    pub fn teams(&self) -> MutexGuard<'_, Vec<Weak<Membership>>> {
        self.teams.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn inbox(&self) -> MutexGuard<'_, Option<Own>> {
        self.inbox.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn leave_with_teams(&self) {
        self.leave();
        let teams = std::mem::take(&mut *self.teams());
        teams.iter().filter_map(Weak::upgrade).for_each(|team| team.leave_with_teams());
    }

    /// Records that this rank died, in the job and in its teams.
    pub fn fail_with_teams(&self) {
        self.control.fail(self.rank);
        let teams = self.teams().clone();
        teams.iter().filter_map(Weak::upgrade).for_each(|team| team.fail_with_teams());
    }
}

impl From<&Membership> for Reach {
    fn from(job: &Membership) -> Self {
        let Membership { rank, control, blocks, across_processes, .. } = job;
        Reach { rank: *rank, control: control.clone(), blocks: blocks.clone(), across_processes: *across_processes }
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
    /// Creates a job of one rank, this thread.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available.
    pub fn alone() -> Result<Self, FabricError> {
        Ok(Self::threads(1)?.remove(0))
    }

    /// Creates a job whose ranks are threads of this process: one handle for each, to be moved into its thread.
    ///
    /// # Errors
    /// [`FabricError::System`] if no memory is available.
    pub fn threads(ranks: usize) -> Result<Vec<Self>, FabricError> {
        let memory = Arc::new(MemoryBlock::heap(Control::bytes(ranks)?, fresh_tag())?);
        let control = Arc::new(Control::create(memory, ranks));
        control.set_oversubscribed(ranks > cores::usable());
        let blocks = Arc::new(Blocks::default());
        let member = |rank| Self::member(rank, control.clone(), blocks.clone(), false, Arc::default());
        let members: Vec<_> = (0..ranks).map(member).collect::<Result<_, _>>()?;
        members.iter().try_for_each(Self::open_inbox)?;
        Ok(members)
    }

    /// Leaves the job and its teams now, even if clones of the handle exist: collectives of the others no longer wait
    /// for this rank, but fail. In a panic, or with windows that still exist, the rank has died.
    pub fn leave(&self) {
        self.0.leave_with_teams();
    }

    /// Records that this rank died, in the job and in its teams, though it may still wait for the others: their waits
    /// end.
    pub fn fail_with_teams(&self) {
        self.0.fail_with_teams();
    }

    /// Makes the waits of this rank call `progress` from now on, now and then also while they sleep, for messages that
    /// do not arrive through shared memory.
    pub fn progress_in_waits(&self, hook: Arc<dyn crate::messages::ProgressHook>) {
        self.0.progress.set(hook, None, true);
    }

    /// [`Fabric::wait`](transom_windows::Fabric::wait), for a provider whose job also has ranks of other hosts. `check`
    /// tests whether the wait can still end, with the ranks of that job.
    pub fn wait_in_job<R>(
        &self,
        on: &Region,
        wait: Wait<'_>,
        mut look: impl FnMut() -> Result<Option<R>, FabricError>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<R, FabricError> {
        if let Some(found) = look()? {
            return Ok(found);
        }
        let Membership { control, progress, .. } = &*self.0;
        words::wait(on.view(), wait, control.is_oversubscribed(), progress, look, check)
    }

    /// Returns whether a rank has left the job.
    pub fn has_left(&self, rank: Rank) -> bool {
        rank < self.0.control.ranks() && self.0.control.has_left(rank)
    }

    /// The first rank that died, as far as any rank has recorded.
    pub fn first_death(&self) -> Option<Rank> {
        self.0.control.failed()
    }

    /// Joins a job of processes; collective. A caller that knows the process numbers passes them, and watches them from
    /// the start.
    pub(crate) fn process(rank: Rank, control: Control, processes: Option<&[u32]>) -> Result<Self, FabricError> {
        let member = Self::member(rank, Arc::new(control), Arc::default(), true, Arc::default())?;
        member.open_inbox()?;
        match processes {
            Some(processes) => member.0.control.watch_processes(rank, processes.iter().copied().map(u64::from))?,
            None => {
                member.barrier()?; // every rank has written its process number
                member.0.control.watch(rank)?;
            }
        }
        // Every rank watches before any can leave, and has an inbox before any can send.
        let cores = member.all_gather(&cores::mine())?;
        member.0.control.set_oversubscribed(member.size() > cores::of_all(&cores));
        Ok(member)
    }

    /// Creates the inbox; once per rank of a job.
    fn open_inbox(&self) -> Result<(), FabricError> {
        let job = &*self.0;
        let ranks = job.control.ranks();
        let (memory, key, fd) = job.block(inbox::len(ranks))?;
        let listed = Forget { blocks: job.blocks.clone(), tag: key.tag };
        *job.inbox() = Some(Own::new(View::whole(&memory), ranks, fd, listed));
        Reach::from(job).admit();
        job.control.publish_inbox(job.rank, key.tag, key.fd);
        Ok(())
    }

    /// The rank's state in the exchange, which its threads use one at a time.
    fn exchange(&self) -> MutexGuard<'_, Barrier> {
        self.0.exchange.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(crate) fn member(
        rank: Rank,
        control: Arc<Control>,
        blocks: Arc<Blocks>,
        processes: bool,
        progress: Arc<Progress>,
    ) -> Result<Self, FabricError> {
        asymmetric_fence::register();
        control.enter(rank)?;
        Ok(Loopback(Arc::new(Membership {
            rank,
            exchange: Mutex::new(control.barrier()),
            control,
            blocks,
            teams: Mutex::default(),
            regions: AtomicUsize::new(0),
            across_processes: processes,
            progress,
            inbox: Mutex::default(),
        })))
    }
}

impl OobExchange for Loopback {
    fn rank(&self) -> Rank {
        self.0.rank
    }

    fn size(&self) -> usize {
        self.0.control.ranks()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, FabricError> {
        self.0.control.all_gather(self.0.rank, &mut self.exchange(), &self.0.progress, mine)
    }

    fn barrier(&self) -> Result<(), FabricError> {
        self.0.control.sync(self.0.rank, &mut self.exchange(), &self.0.progress)
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
