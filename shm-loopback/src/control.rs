//! The control block: what all ranks of a job share from the start. It tells who is there, who died or left, and
//! carries the first exchange.
//!
//! ```text
//!     words 0..8            ranks, failed (rank+1 of the first that died)
//!     then for each rank    header, barrier lines, a line {pid, status, inbox of messages}, a mailbox
//! ```
//! Written by every rank; whatever is read from it is checked.

use crate::key::Key;
use crate::memory::{HEADER, Memory, View};
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
/// The longest message of an exchange: a length beyond it is not ours.
const LONGEST: u64 = 1 << 24;

const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const SOON: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Nanoseconds in which the number of a process that has ended is not given to another.
const NUMBER_STAYS: u64 = 1_000_000;

/// A rank's status: not yet there, there, or gone after saying so.
const JOINING: u64 = 0;
const RUNNING: u64 = 1;
const LEFT: u64 = 2;
/// State of a rank that left before any death was recorded: no death made its process fail.
const LEFT_FIRST: u64 = 3;
/// In place of a descriptor: the rank has no inbox any more.
const WITHDRAWN: u64 = u64::MAX;

/// One rank's (or the launcher's) view of the control block.
pub(crate) struct Control {
    top: View,
    blocks: Box<[View]>,
    /// Whether ranks share cores, once it is known which cores each has.
    crowded: OnceLock<bool>,
    /// Those of the ranks; empty where ranks are threads. A team has those of its job.
    processes: OnceLock<Box<[Arc<Process>]>>,
    /// The job that a team was made of, and the numbers of the team's ranks there.
    job: OnceLock<(Arc<Control>, Box<[Rank]>)>,
}

struct Process {
    /// Becomes readable when it ends.
    fd: OwnedFd,
    opened: Instant,
    /// Nanoseconds after that at which it was there.
    there: AtomicU64,
}

/// A rank's line {pid, status} and mailbox, in bytes from the beginning of its block.
fn status_line(ranks: usize) -> usize {
    Barrier::words(ranks) * 8
}

fn block_bytes(ranks: usize) -> usize {
    status_line(ranks) + 64 + 8 + (MAILBOX - 8)
}

impl Control {
    /// Bytes of the control block of so many ranks, if there can be so many.
    pub fn bytes(ranks: usize) -> Result<usize, FabricError> {
        let most = LockWord::<16>::MAX_RANKS;
        match ranks {
            _ if ranks == 0 || ranks > most => Err(misuse(format!("a job has 1 to {most} ranks, not {ranks}"))),
            _ => Ok(TOP + ranks * (HEADER + block_bytes(ranks))),
        }
    }

    /// A new control block, by whoever starts the job.
    pub fn create(memory: Arc<Memory>, ranks: usize) -> Self {
        let control = Self::lay_out(memory, ranks);
        control.top_word(RANKS).store(ranks as u64, SeqCst);
        control
    }

    /// The control block that somebody else made.
    pub fn open(memory: Arc<Memory>, ranks: usize) -> Result<Self, FabricError> {
        let control = Self::lay_out(memory, ranks);
        match control.top_word(RANKS).load(SeqCst) {
            found if found == ranks as u64 => Ok(control),
            found => Err(corrupt(format!("the control block is for {found} ranks, {ranks} were announced"))),
        }
    }

    fn lay_out(memory: Arc<Memory>, ranks: usize) -> Self {
        let stride = HEADER + block_bytes(ranks);
        let block = |rank| View::nested(&memory, TOP + rank * stride, block_bytes(ranks));
        Control {
            top: View::whole(&memory),
            blocks: (0..ranks).map(block).collect(),
            crowded: OnceLock::new(),
            processes: OnceLock::new(),
            job: OnceLock::new(),
        }
    }

    /// Whether ranks of this job share cores; until they have told each other which they have, as if all had those of
    /// this one.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.crowded.get().copied().unwrap_or_else(|| self.ranks() > cores::usable())
    }

    pub fn set_crowded(&self, crowded: bool) {
        let _ = self.crowded.set(crowded);
    }

    /// A rank's handle on the barrier of the exchange.
    pub fn barrier(&self) -> Barrier {
        Barrier::new(self.ranks(), 0)
    }

    pub fn ranks(&self) -> usize {
        self.blocks.len()
    }

    /// Says that `rank` is there.
    pub fn enter(&self, rank: Rank) -> Result<(), FabricError> {
        let (pid, status) = (self.line(rank, 0), self.line(rank, 8));
        // The first to write its process number is the rank. It is there before the status says so.
        if let Err(process) = pid.compare_exchange(0, u64::from(std::process::id()), SeqCst, SeqCst) {
            let why = format!("rank {rank} has joined this job before, as process {process}; each rank joins once");
            return Err(misuse(why));
        }
        if status.compare_exchange(JOINING, RUNNING, SeqCst, SeqCst).is_err() {
            return Err(misuse(format!("rank {rank} has ended, as its launcher sees it, and cannot join any more")));
        }
        Ok(())
    }

    /// That `rank` is there, as a process of this number.
    #[cfg(all(test, not(feature = "loom")))]
    pub fn enter_as(&self, rank: Rank, process: u32) {
        self.line(rank, 0).store(u64::from(process), SeqCst);
        self.line(rank, 8).store(RUNNING, SeqCst);
    }

    /// The number of a rank's process, as it wrote when it joined; 0 before.
    pub fn process(&self, rank: Rank) -> u64 {
        self.line(rank, 0).load(SeqCst)
    }

    /// Says that `rank` needs nothing of anybody any more.
    pub fn leave(&self, rank: Rank) {
        let state = if self.failed().is_none() { LEFT_FIRST } else { LEFT };
        self.line(rank, 8).store(state, SeqCst);
    }

    /// Says that `rank` died; the first to be said so is what everybody's waits end with.
    pub fn fail(&self, rank: Rank) {
        let _ = self.top_word(FAILED).compare_exchange(0, rank as u64 + 1, SeqCst, SeqCst);
    }

    /// Records that the process of `rank` has ended without leaving, here and in the job that this team was made of. Every call that
    /// finds out records it before it returns an error: the launcher takes the rank recorded first for the cause.
    fn note_death(&self, rank: Rank) {
        self.fail(rank);
        if let Some((job, members)) = self.job.get() {
            job.note_death(members[rank]);
        }
    }

    /// Tells the others where messages for `rank` go: the block of this tag and descriptor.
    pub fn publish_inbox(&self, rank: Rank, tag: u64, fd: u32) {
        self.line(rank, 16).store(tag, SeqCst);
        self.line(rank, 24).store(u64::from(fd) + 1, SeqCst);
    }

    /// Says that `rank` sends and receives no messages any more, though it may still be in the job.
    pub fn withdraw_inbox(&self, rank: Rank) {
        self.line(rank, 24).store(WITHDRAWN, SeqCst);
    }

    /// Whether a rank sends and receives no messages any more.
    pub fn has_left_messages(&self, rank: Rank) -> bool {
        self.has_left(rank) || self.line(rank, 24).load(SeqCst) == WITHDRAWN
    }

    /// Where messages for `rank` go, once it has said so and while they do.
    pub fn inbox(&self, rank: Rank) -> Option<Key> {
        let fd = u32::try_from(self.line(rank, 24).load(SeqCst).checked_sub(1)?).ok()?;
        Some(Key { tag: self.line(rank, 16).load(SeqCst), pid: u32::try_from(self.process(rank)).ok()?, fd })
    }

    /// All ranks that send no messages any more; of each whether it died. Noticing a death tells all others.
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

    /// Whether the rank has said that it left.
    pub fn has_left(&self, rank: Rank) -> bool {
        matches!(self.line(rank, 8).load(SeqCst), LEFT | LEFT_FIRST)
    }

    /// Returns whether the rank left before any death was recorded.
    pub fn has_left_first(&self, rank: Rank) -> bool {
        self.line(rank, 8).load(SeqCst) == LEFT_FIRST
    }

    /// The first rank that died.
    pub fn failed(&self) -> Option<Rank> {
        // Any rank could write that word.
        (self.top_word(FAILED).load(SeqCst) as Rank).checked_sub(1).filter(|rank| *rank < self.ranks())
    }

    /// Why a collective cannot be any more: a rank died, or left.
    pub fn lost(&self, me: Rank) -> Option<FabricError> {
        let died = self.dead(me).map(|rank| FabricError::PeerDied { rank });
        let left = || (0..self.ranks()).find(|&rank| self.has_left(rank)).map(|rank| FabricError::PeerLeft { rank });
        died.or_else(left)
    }

    /// Whether the rank was ever there.
    pub fn has_joined(&self, rank: Rank) -> bool {
        self.line(rank, 8).load(SeqCst) != JOINING
    }

    /// From here on notices by itself when the process of a rank ends; each has entered.
    pub fn watch(&self, me: Rank) -> Result<(), FabricError> {
        self.watch_processes(me, (0..self.ranks()).map(|rank| self.process(rank)))
    }

    /// As [`watch`](Self::watch), for ranks whose processes are known from elsewhere.
    pub fn watch_processes(&self, me: Rank, numbers: impl Iterator<Item = u64>) -> Result<(), FabricError> {
        make_room(self.ranks() as u64);
        let mut processes = Vec::with_capacity(self.ranks());
        for (rank, number) in numbers.enumerate() {
            let pid = i32::try_from(number).ok().and_then(Pid::from_raw);
            let pid = pid.ok_or_else(|| corrupt(format!("rank {rank} says that its process is {number}")))?;
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

    /// As [`watch`](Self::watch), for a team: of these ranks of a job that watches.
    pub fn watch_with(&self, job: &Arc<Control>, members: &[Rank]) {
        let _ = self.job.set((job.clone(), members.into()));
        if let Some(processes) = job.processes.get() {
            let _ = self.processes.set(members.iter().map(|&rank| processes[rank].clone()).collect());
        }
    }

    /// An error if a wait for `awaited` cannot end any more: a rank died, or all who could end it have left.
    pub fn check_peers(&self, me: Rank, awaited: Awaited) -> Result<(), FabricError> {
        if let Some(first) = self.dead(me) {
            // Whom one waits for is told of rather than who died first.
            let rank = match awaited {
                Awaited::Rank(rank) | Awaited::Behind(rank) if self.has_died(rank) => rank,
                _ => first,
            };
            return Err(FabricError::PeerDied { rank });
        }
        let gone = awaited.gone(me, self.ranks(), |rank| self.has_left(rank));
        gone.map_or(Ok(()), |rank| Err(FabricError::PeerLeft { rank }))
    }

    /// An error if the process of `rank` has ended. Of ranks that are threads none has.
    pub fn ended(&self, rank: Rank) -> Result<(), FabricError> {
        self.ends(rank, &NOW)
    }

    /// Does what reaches the process of `rank` by its number, unless it has ended. Whether it has is looked at once a millisecond at
    /// most, since it is a call of the kernel: the number is no other's so soon, as all others are given out before.
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

    /// As [`ended`](Self::ended), of a process whose memory cannot be reached. An ending process loses its memory a while before it
    /// has ended.
    pub fn ends_soon(&self, rank: Rank) -> Result<(), FabricError> {
        self.ends(rank, &SOON).and_then(|()| self.has_main_thread(rank))
    }

    /// An error if the main thread of a rank's process has ended and other threads run on: the kernel lets nobody reach the memory
    /// and descriptors of such a process.
    fn has_main_thread(&self, rank: Rank) -> Result<(), FabricError> {
        let Some(_) = self.process_of(rank) else { return Ok(()) };
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process(rank))).unwrap_or_default();
        // The program's name, which may hold anything, is in brackets before the state.
        let state = stat.rsplit_once(')').map(|(_, rest)| rest.trim_start().chars().next());
        if state != Some(Some('Z')) || self.has_left(rank) {
            return Ok(());
        }
        tracing::warn!(rank, "the main thread of a rank has ended while others go on: its memory cannot be reached");
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

    /// The first rank that died. Noticing it tells all others.
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
        tracing::warn!(rank = me, dead = rank, "a rank died; telling the others");
        self.note_death(rank);
        self.failed()
    }

    /// [`transom_windows::Exchange::barrier`]. `barrier` is the rank's own, the same at every call.
    #[inline]
    pub fn sync(&self, me: Rank, barrier: &mut Barrier, progress: &Progress) -> Result<(), FabricError> {
        barrier.wait(&Rounds { control: self, me, progress }).map_err(|error| match error {
            transom_locks::Error::Network(error) => error,
            transom_locks::Error::GivenUp { rank } => self.lost(me).unwrap_or(FabricError::GivenUp { rank }),
            other => corrupt(other.to_string()),
        })
    }

    /// [`transom_windows::Exchange::all_gather`]: mailboxes, written between two barriers.
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
            // Everybody reads the same and fails alike, but nobody may write anew before all have read.
            self.sync(me, barrier, progress)?;
            read?;
        }
        Ok(gathered)
    }

    fn top_word(&self, offset: usize) -> &std::sync::atomic::AtomicU64 {
        self.top.word(offset).expect("the top is laid out")
    }

    fn line(&self, rank: Rank, offset: usize) -> &std::sync::atomic::AtomicU64 {
        self.blocks[rank].word(status_line(self.ranks()) + offset).expect("blocks are laid out")
    }

    fn mailbox(&self, rank: Rank) -> Mailbox<'_> {
        Mailbox { block: &self.blocks[rank], rank, at: status_line(self.ranks()) + 64 }
    }
}

/// `{length of the whole message, the next part of it}`.
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

    /// Appends the part that lies here, and returns the length of the whole.
    fn read(&self, got: &mut Vec<u8>) -> Result<u64, FabricError> {
        let len = self.block.word(self.at)?.load(SeqCst);
        let Some(rest) = len.checked_sub(got.len() as u64).filter(|_| len <= LONGEST) else {
            let why = format!("rank {} announces {len} bytes to all; {LONGEST} can be exchanged at most", self.rank);
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

/// The words of the exchange's barrier.
struct Rounds<'c> {
    control: &'c Control,
    me: Rank,
    progress: &'c Progress,
}

impl Network for Rounds<'_> {
    type Error = FabricError;
    type Pending = u64;

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
        let call = &"a call of all ranks (making something together)";
        let wait = Wait { rank: self.me, call, awaited: on, deadline: None };
        let check = || self.control.check_peers(self.me, on);
        words::wait(view, wait, self.control.is_crowded(), self.progress, look, check)
    }
}

/// Sees to it that so many descriptors leave the program half of what this process may have, if that may be raised.
fn make_room(more: u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if let Some(limit) = current.filter(|&limit| more > limit / 2) {
        let raised = maximum.map_or(limit + more, |most| most.min(limit + more));
        // If that fails, what is opened says so.
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
    fn a_rank_that_is_not_there_has_not_failed() {
        let memory = Memory::heap(Control::bytes(2).unwrap(), 1).unwrap();
        let control = Control::create(Arc::new(memory), 2);
        for (said, failed) in [(0, None), (1, Some(0)), (2, Some(1)), (3, None), (u64::MAX, None)] {
            control.top_word(FAILED).store(said, SeqCst);
            assert_eq!(control.failed(), failed);
        }
    }

    /// Ranks meet before they know each other's cores, and that must not settle how they wait.
    #[test]
    fn who_has_waited_before_waits_as_is_found_later() {
        let memory = Memory::heap(Control::bytes(1).unwrap(), 1).unwrap();
        let control = Control::create(Arc::new(memory), 1);
        assert!(!control.is_crowded(), "a rank alone shares no core");
        control.set_crowded(true);
        assert!(control.is_crowded());
    }
}
