//! The control block, which all ranks of a job share from the start. It records which ranks have joined, died or left,
//! and carries the first exchange.
//!
//! ```text
//!     words 0..8            ranks, failed (rank+1 of the first that died)
//!     then for each rank    header, barrier lines, a line {pid, status, inbox of messages}, a mailbox
//! ```
//! Every rank writes it, so values read from it are checked.

use crate::key::Key;
use crate::memory::{HEADER, MemoryBlock, View};
use crate::progress::Progress;
use crate::{copy, cores, system, words};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use transom_locks::{At, Awaited, Barrier, LockWord, Network, Rank};
use transom_windows::{FabricError, Wait, Wake};

const RANKS: usize = 0;
const FAILED: usize = 8;
const TOP: usize = 64;

/// Bytes of a message that one round of an exchange carries.
const MAILBOX: usize = 512;
/// Longest message of an exchange; a greater length is corrupt.
const LONGEST: u64 = 1 << 24;

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Nanoseconds for which the kernel does not reuse the number of an ended process.
const NUMBER_STAYS: u64 = 1_000_000;

/// Status of a rank: not joined yet, running, or left.
const JOINING: u64 = 0;
const RUNNING: u64 = 1;
const LEFT: u64 = 2;
/// Status of a rank that left before any death was recorded: no death made its process fail.
const LEFT_FIRST: u64 = 3;
/// In place of a descriptor: the rank has withdrawn its inbox.
const WITHDRAWN: u64 = u64::MAX;

/// One rank's (or the launcher's) view of the control block.
pub(crate) struct Control {
    top: View,
    blocks: Box<[View]>,
    /// True if ranks share cores; unset until every rank's cores are known.
    oversubscribed: OnceLock<bool>,
    /// One per rank; empty where ranks are threads. A team shares those of its job.
    processes: OnceLock<Box<[Arc<Process>]>>,
    /// The job that a team was made from, and the numbers of the team's ranks there.
    job: OnceLock<(Arc<Control>, Box<[Rank]>)>,
}

struct Process {
    /// The process's pidfd, readable once the process ends.
    fd: OwnedFd,
    opened: Instant,
    /// Time of the last check that found the process running, in nanoseconds after `opened`.
    there: AtomicU64,
}

/// Offset of a rank's line {pid, status, inbox} in its block, in bytes; the mailbox follows.
fn status_line(ranks: usize) -> usize {
    Barrier::words(ranks) * 8
}

fn block_bytes(ranks: usize) -> usize {
    status_line(ranks) + 64 + 8 + (MAILBOX - 8)
}

impl Control {
    /// The length of the control block of `ranks` ranks, if that is a valid number.
    pub fn bytes(ranks: usize) -> Result<usize, FabricError> {
        let most = LockWord::<16>::MAX_RANKS;
        match ranks {
            _ if ranks == 0 || ranks > most => Err(misuse(format!("a job has 1 to {most} ranks, not {ranks}"))),
            _ => Ok(TOP + ranks * (HEADER + block_bytes(ranks))),
        }
    }

    /// Creates a control block. Called by the process that starts the job.
    pub fn create(memory: Arc<MemoryBlock>, ranks: usize) -> Self {
        let control = Self::lay_out(memory, ranks);
        control.top_word(RANKS).store(ranks as u64, SeqCst);
        control
    }

    /// Opens a control block that another process created.
    pub fn open(memory: Arc<MemoryBlock>, ranks: usize) -> Result<Self, FabricError> {
        let control = Self::lay_out(memory, ranks);
        match control.top_word(RANKS).load(SeqCst) {
            found if found == ranks as u64 => Ok(control),
            found => Err(corrupt(format!("the control block is for {found} ranks, but {ranks} were announced"))),
        }
    }

    fn lay_out(memory: Arc<MemoryBlock>, ranks: usize) -> Self {
        let stride = HEADER + block_bytes(ranks);
        let block = |rank| View::nested(&memory, TOP + rank * stride, block_bytes(ranks));
        Control {
            top: View::whole(&memory),
            blocks: (0..ranks).map(block).collect(),
            oversubscribed: OnceLock::new(),
            processes: OnceLock::new(),
            job: OnceLock::new(),
        }
    }

    /// True if ranks of this job share cores. Until they have exchanged their cores, assumes that all have those of
    /// this rank.
    #[inline]
    pub fn is_oversubscribed(&self) -> bool {
        self.oversubscribed.get().copied().unwrap_or_else(|| self.ranks() > cores::usable())
    }

    pub fn set_oversubscribed(&self, oversubscribed: bool) {
        let _ = self.oversubscribed.set(oversubscribed);
    }

    /// A rank's handle on the barrier of the exchange.
    pub fn barrier(&self) -> Barrier {
        Barrier::new(self.ranks(), 0)
    }

    pub fn ranks(&self) -> usize {
        self.blocks.len()
    }

    /// Records that `rank` has joined.
    pub fn enter(&self, rank: Rank) -> Result<(), FabricError> {
        let (pid, status) = (self.line(rank, 0), self.line(rank, 8));
        // The first process to write its number is the rank. The number is there before the status says so.
        if let Err(process) = pid.compare_exchange(0, u64::from(std::process::id()), SeqCst, SeqCst) {
            let why = format!("rank {rank} has joined this job before, as process {process}; each rank joins once");
            return Err(misuse(why));
        }
        if status.compare_exchange(JOINING, RUNNING, SeqCst, SeqCst).is_err() {
            return Err(misuse(format!("rank {rank} has ended, as its launcher reports; it can no longer join")));
        }
        Ok(())
    }

    /// Records that `rank` has joined, as a process with this number.
    #[cfg(all(test, not(feature = "loom")))]
    pub fn enter_as(&self, rank: Rank, process: u32) {
        self.line(rank, 0).store(u64::from(process), SeqCst);
        self.line(rank, 8).store(RUNNING, SeqCst);
    }

    /// The number of a rank's process, as written when it joined; 0 before.
    pub fn process(&self, rank: Rank) -> u64 {
        self.line(rank, 0).load(SeqCst)
    }

    /// Records that `rank` has left: it needs nothing of other ranks any more.
    pub fn leave(&self, rank: Rank) {
        let state = if self.failed().is_none() { LEFT_FIRST } else { LEFT };
        self.line(rank, 8).store(state, SeqCst);
    }

    /// Records that `rank` died. The rank recorded first is the one that every wait's error names.
    pub fn fail(&self, rank: Rank) {
        let _ = self.top_word(FAILED).compare_exchange(0, rank as u64 + 1, SeqCst, SeqCst);
    }

    /// Records that the process of `rank` has ended without leaving, here and in the job of this team. Every call that
    /// detects a death records it before it returns an error: the launcher takes the rank recorded first for the cause.
    fn note_death(&self, rank: Rank) {
        self.fail(rank);
        if let Some((job, members)) = self.job.get() {
            job.note_death(members[rank]);
        }
    }

    /// Publishes the inbox of `rank`: the block with this tag and descriptor.
    pub fn publish_inbox(&self, rank: Rank, tag: u64, fd: u32) {
        self.line(rank, 16).store(tag, SeqCst);
        self.line(rank, 24).store(u64::from(fd) + 1, SeqCst);
    }

    /// Records that `rank` sends and receives no messages any more, though it may still be in the job.
    pub fn withdraw_inbox(&self, rank: Rank) {
        self.line(rank, 24).store(WITHDRAWN, SeqCst);
    }

    /// Returns whether a rank sends and receives no messages any more.
    pub fn has_left_messages(&self, rank: Rank) -> bool {
        self.has_left(rank) || self.line(rank, 24).load(SeqCst) == WITHDRAWN
    }

    /// The inbox of `rank`, from its publication to its withdrawal.
    pub fn inbox(&self, rank: Rank) -> Option<Key> {
        let fd = u32::try_from(self.line(rank, 24).load(SeqCst).checked_sub(1)?).ok()?;
        Some(Key { tag: self.line(rank, 16).load(SeqCst), pid: u32::try_from(self.process(rank)).ok()?, fd })
    }

    /// The ranks that send no more messages, and whether each died. A detected death is recorded for all ranks.
    pub fn gone(&self, me: Rank) -> Vec<(Rank, bool)> {
        let dead = self.dead(me);
        let died = |rank| Some(rank) == dead || matches!(self.ended(rank), Err(FabricError::PeerDied { .. }));
        (0..self.ranks())
            .filter_map(|rank| match dead.is_some() && died(rank) {
                true => Some((rank, true)),
                false => self.has_left_messages(rank).then_some((rank, false)),
            })
            .collect()
    }

    /// Returns whether the rank has recorded that it left.
    pub fn has_left(&self, rank: Rank) -> bool {
        matches!(self.line(rank, 8).load(SeqCst), LEFT | LEFT_FIRST)
    }

    /// Returns whether the rank left before any death was recorded.
    pub fn has_left_first(&self, rank: Rank) -> bool {
        self.line(rank, 8).load(SeqCst) == LEFT_FIRST
    }

    /// The first rank that died.
    pub fn failed(&self) -> Option<Rank> {
        // Any rank could have written this word.
        (self.top_word(FAILED).load(SeqCst) as Rank).checked_sub(1).filter(|rank| *rank < self.ranks())
    }

    /// The reason why a collective can no longer complete: a rank died or left.
    pub fn lost(&self, me: Rank) -> Option<FabricError> {
        let died = self.dead(me).map(|rank| FabricError::PeerDied { rank });
        let left = || (0..self.ranks()).find(|&rank| self.has_left(rank)).map(|rank| FabricError::PeerLeft { rank });
        died.or_else(left)
    }

    /// Returns whether the rank has ever joined.
    pub fn has_joined(&self, rank: Rank) -> bool {
        self.line(rank, 8).load(SeqCst) != JOINING
    }

    /// Starts to watch the processes of all ranks, so that this rank detects their ends by itself. Every rank has
    /// joined.
    pub fn watch(&self, me: Rank) -> Result<(), FabricError> {
        self.watch_processes(me, (0..self.ranks()).map(|rank| self.process(rank)))
    }

    /// [`watch`](Self::watch) for ranks whose process numbers are known from elsewhere.
    pub fn watch_processes(&self, me: Rank, numbers: impl Iterator<Item = u64>) -> Result<(), FabricError> {
        make_room(self.ranks() as u64);
        let mut processes = Vec::with_capacity(self.ranks());
        for (rank, number) in numbers.enumerate() {
            let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| {
                corrupt(format!("rank {rank} published {number} as its process number, which is not valid"))
            })?;
            let opened = Instant::now();
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(fd) => processes.push(Arc::new(Process { fd, opened, there: AtomicU64::new(0) })),
                Err(rustix::io::Errno::SRCH) => {
                    self.note_death(rank);
                    return Err(FabricError::PeerDied { rank });
                }
                Err(errno) => {
                    let advice = match errno {
                        rustix::io::Errno::MFILE => " (each rank takes a descriptor; raise the limit by `ulimit -n`)",
                        _ => "",
                    };
                    let what = format!("pidfd_open failed for process {number}, rank {rank}{advice}");
                    return Err(system(what, errno.into()));
                }
            }
        }
        tracing::debug!(rank = me, ranks = self.ranks(), "watching the processes of all ranks");
        let _ = self.processes.set(processes.into());
        Ok(())
    }

    /// [`watch`](Self::watch) for a team: takes these ranks' processes from a job that watches.
    pub fn watch_with(&self, job: &Arc<Control>, members: &[Rank]) {
        let _ = self.job.set((job.clone(), members.into()));
        if let Some(processes) = job.processes.get() {
            let _ = self.processes.set(members.iter().map(|&rank| processes[rank].clone()).collect());
        }
    }

    /// Checks that a wait for `awaited` can still end: no rank has died, and not every rank that could end it has left.
    pub fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError> {
        if let Some(first) = self.dead(me) {
            // The error names the awaited rank if it died, rather than the rank that died first.
            let rank = match awaited {
                Awaited::Rank(rank) | Awaited::Behind(rank) if self.has_died(rank) => rank,
                _ => first,
            };
            return Err(FabricError::PeerDied { rank });
        }
        let gone = awaited.gone(me, self.ranks(), |rank| self.has_left(rank));
        gone.map_or(Ok(()), |rank| Err(FabricError::PeerLeft { rank }))
    }

    /// Checks that the process of `rank` has not ended. Always succeeds for ranks that are threads.
    pub fn ended(&self, rank: Rank) -> Result<(), FabricError> {
        self.ends(rank, &NOW)
    }

    /// Runs `act`, which accesses the process of `rank` by its number, unless the process has ended. That is checked at
    /// most once per millisecond, since the check is a system call: the kernel reuses a number only after it has given
    /// out all others, which takes longer.
    pub fn reaching<R>(&self, rank: Rank, act: impl FnOnce() -> Result<R, FabricError>) -> Result<R, FabricError> {
        if let Some(process) = self.process_of(rank) {
            let now = process.opened.elapsed().as_nanos() as u64;
            if now.saturating_sub(process.there.load(Relaxed)) >= NUMBER_STAYS {
                self.ended(rank)?;
                process.there.store(now, Relaxed);
            }
        }
        act().map_err(|error| self.ended(rank).and_then(|()| self.has_main_thread(rank)).err().unwrap_or(error))
    }

    fn process_of(&self, rank: Rank) -> Option<&Process> {
        self.processes.get()?.get(rank).map(Arc::as_ref)
    }

    /// [`ended`](Self::ended) for a process whose memory cannot be accessed. An exiting process loses its memory some
    /// time before it has ended.
    pub fn ends_soon(&self, rank: Rank) -> Result<(), FabricError> {
        self.ends(rank, &SOON).and_then(|()| self.has_main_thread(rank))
    }

    /// Checks that the main thread of a rank's process has not ended while other threads run on: the kernel denies
    /// access to the memory and descriptors of such a process.
    fn has_main_thread(&self, rank: Rank) -> Result<(), FabricError> {
        let Some(_) = self.process_of(rank) else { return Ok(()) };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process(rank))).unwrap_or_default();
        // The program's name, which may contain any characters, is in brackets before the state.
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().chars().next());
        if state != Some(Some('Z')) || self.has_left(rank) {
            return Ok(());
        }
        tracing::warn!(
            rank,
            "the main thread of a rank has ended while its other threads run; its memory cannot be accessed"
        );
        self.note_death(rank);
        Err(FabricError::PeerDied { rank })
    }

    fn ends(&self, rank: Rank, within: &Timespec) -> Result<(), FabricError> {
        let Some(process) = self.process_of(rank) else { return Ok(()) };
        match poll(&mut [PollFd::new(&process.fd, PollFlags::IN)], Some(within)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(_) if self.has_left(rank) => Err(FabricError::PeerLeft { rank }),
            Ok(_) => {
                self.note_death(rank);
                Err(FabricError::PeerDied { rank })
            }
        }
    }

    fn has_died(&self, rank: Rank) -> bool {
        matches!(self.ended(rank), Err(FabricError::PeerDied { .. }))
    }

    /// The first rank that died. A detected death is recorded for all ranks.
    fn dead(&self, me: Rank) -> Option<Rank> {
        if let Some(rank) = self.failed() {
            return Some(rank);
        }
        let processes = self.processes.get()?;
        let mut polled: Vec<_> = processes.iter().map(|process| PollFd::new(&process.fd, PollFlags::IN)).collect();
        if poll(&mut polled, Some(&NOW)).unwrap_or(0) == 0 {
            return None;
        }
        let ended = |rank: &Rank| !polled[*rank].revents().is_empty() && !self.has_left(*rank);
        let rank = (0..self.ranks()).find(ended)?;
        tracing::warn!(rank = me, dead = rank, "a rank died; notifying the other ranks");
        self.note_death(rank);
        self.failed()
    }

    /// [`transom_windows::OobExchange::barrier`]. `barrier` is this rank's own, the same in every call.
    #[inline]
    pub fn sync(&self, me: Rank, barrier: &mut Barrier, progress: &Progress) -> Result<(), FabricError> {
        barrier.wait(&Rounds { control: self, me, progress }).map_err(|error| match error {
            transom_locks::Error::Network(error) => error,
            transom_locks::Error::GivenUp { rank } => self.lost(me).unwrap_or(FabricError::GivenUp { rank }),
            other => corrupt(other.to_string()),
        })
    }

    /// [`transom_windows::OobExchange::all_gather`], by mailboxes that are written between two barriers.
    pub fn all_gather(
        &self,
        me: Rank,
        barrier: &mut Barrier,
        progress: &Progress,
        mine: &[u8],
    ) -> Result<Vec<Vec<u8>>, FabricError> {
        let mut gathered = vec![Vec::new(); self.ranks()];
        let mut lens = vec![u64::MAX; self.ranks()];
        let mut sent = 0;
        while lens.iter().zip(&gathered).any(|(&len, got)| (got.len() as u64) < len) {
            let part = &mine[sent.min(mine.len())..mine.len().min(sent + MAILBOX - 8)];
            sent += part.len();
            self.mailbox(me).write(mine.len() as u64, part)?;
            self.sync(me, barrier, progress)?;
            let read = |(rank, (len, got)): (Rank, (&mut u64, &mut Vec<u8>))| {
                *len = self.mailbox(rank).read(got)?;
                Ok(())
            };
            let read: Result<(), _> = lens.iter_mut().zip(&mut gathered).enumerate().try_for_each(read);
            // Every rank reads the same and fails alike, but no rank may write again before all have read.
            self.sync(me, barrier, progress)?;
            read?;
        }
        Ok(gathered)
    }

    fn top_word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        self.top.word(offset).expect("the top has all words of its layout")
    }

    fn line(&self, rank: Rank, offset: usize) -> &std::sync::atomic::AtomicU64 {
        self.blocks[rank].word(status_line(self.ranks()) + offset).expect("each block has all words of its layout")
    }

    fn mailbox(&self, rank: Rank) -> Mailbox<'_> {
        Mailbox { block: &self.blocks[rank], rank, at: status_line(self.ranks()) + 64 }
    }
}

/// A mailbox: the length of the whole message, and the next part of it.
struct Mailbox<'c> {
    block: &'c View,
    rank: Rank,
    at: usize,
}

impl Mailbox<'_> {
    fn write(&self, len: u64, part: &[u8]) -> Result<(), FabricError> {
        self.block.word(self.at)?.store(len, SeqCst);
        let to = self.block.bytes(self.at + 8, part.len())?;
        // SAFETY: inside the block, as just checked; mailboxes are only accessed by `copy`.
        unsafe { copy::to_shared(to, part) };
        Ok(())
    }

    /// Appends the part in this mailbox, and returns the length of the whole message.
    fn read(&self, got: &mut Vec<u8>) -> Result<u64, FabricError> {
        let len = self.block.word(self.at)?.load(SeqCst);
        let Some(rest) = len.checked_sub(got.len() as u64).filter(|_| len <= LONGEST) else {
            let why =
                format!("rank {} passed {len} bytes to an all_gather; at most {LONGEST} can be exchanged", self.rank);
            return Err(misuse(why));
        };
        let begin = got.len();
        got.resize(begin + (rest as usize).min(MAILBOX - 8), 0);
        let from = self.block.bytes(self.at + 8, got.len() - begin)?;
        // SAFETY: as in `write`.
        unsafe { copy::from_shared(from, &mut got[begin..]) };
        Ok(len)
    }
}

/// The network of the exchange's barrier.
struct Rounds<'c> {
    control: &'c Control,
    me: Rank,
    progress: &'c Progress,
}

impl Network for Rounds<'_> {
    type Error = FabricError;
    type Pending = u64;
    type Found = std::convert::Infallible;

    fn rank(&self) -> Rank {
        self.me
    }

    fn ranks(&self) -> usize {
        self.control.ranks()
    }

    fn cas(&self, at: At, expected: u64, new: u64, wake: Wake) -> Result<u64, FabricError> {
        words::cas(&self.control.blocks[at.rank], at.word * 8, expected, new, wake)
    }

    fn start_add(&self, at: At, delta: u64, wake: Wake) -> Result<u64, FabricError> {
        words::add(&self.control.blocks[at.rank], at.word * 8, delta, wake)
    }

    fn finish(&self, pending: u64) -> Result<u64, FabricError> {
        Ok(pending)
    }

    fn notify(&self, at: At, value: u64, wake: Wake) -> Result<(), FabricError> {
        words::notify(&self.control.blocks[at.rank], at.word * 8, value, wake)
    }

    fn wait(&self, word: usize, on: Awaited, until: impl Fn(u64) -> bool) -> Result<u64, FabricError> {
        let view = &self.control.blocks[self.me];
        let word = view.word(word * 8)?;
        let look = || Ok(Some(word.load(SeqCst)).filter(|&value| until(value)));
        let call = &"a collective call (creating a window, value or team)";
        let wait = Wait { rank: self.me, call, awaited: on, deadline: None };
        let check = || self.control.check_peers(self.me, on);
        words::wait(view, wait, self.control.is_oversubscribed(), self.progress, look, check)
    }
}

/// Raises the limit of open descriptors, if allowed, so that `more` of them leave the program half of it.
fn make_room(more: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(limit) = current.filter(|&limit| more > limit / 2) {
        let raised = maximum.map_or(limit + more, |most| most.min(limit + more));
        // If this fails, the opening that exceeds the limit returns the error.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    }
}

fn corrupt(why: String) -> FabricError {
    FabricError::Corrupt { why }
}

fn misuse(why: String) -> FabricError {
    FabricError::Misuse { why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_that_has_not_joined_has_not_failed() {
        let memory = MemoryBlock::heap(Control::bytes(2).unwrap(), 1).unwrap();
        let control = Control::create(Arc::new(memory), 2);
        for (said, failed) in [(0, None), (1, Some(0)), (2, Some(1)), (3, None), (u64::MAX, None)] {
            control.top_word(FAILED).store(said, SeqCst);
            assert_eq!(control.failed(), failed);
        }
    }

    /// Ranks meet before they know each other's cores; that must not fix how they wait.
    #[test]
    fn cached_core_count_follows_the_exchange() {
        let memory = MemoryBlock::heap(Control::bytes(1).unwrap(), 1).unwrap();
        let control = Control::create(Arc::new(memory), 1);
        assert!(!control.is_oversubscribed(), "a rank alone shares no core");
        control.set_oversubscribed(true);
        assert!(control.is_oversubscribed());
    }
}
