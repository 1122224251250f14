//! The wire of `transom-channel` in shared memory.

use super::bytes::{Bytes, Kind, Part as Shared, Ring};
use super::inbox::{self, BESIDE, CELLS, Cell, Inbox, Own};
use super::joint;
use super::reading::{Read, Reading};
use super::wait::Waiter;
use crate::blocks::Forget;
use crate::event_count;
use crate::key::Key as BlockKey;
use crate::loopback::{Loopback, Membership};
use crate::memory::View;
use crate::progress::ProgressHook;
use crate::reach::{self, Reach};
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Release, SeqCst};
use std::time::Instant;
use transom_channel::Counters;
use transom_channel::wire::{Busy, Data, Event, Key, Lane, Part, Rail, RailKind, Rank, Request, Why, Wire};
use transom_windows::FabricError;

/// The shared-memory wire of one rank: its inbox and the memory of peers that it has mapped.
pub struct ShmWire {
    pub(super) job: Arc<Membership>,
    rails: [Rail; 1],
    pub(super) me: usize,
    pub(super) own: Inbox,
    _kept: Own,
    pub(super) peers: Vec<Peer>,
    /// Mapped receive memory of peers' pipes, by peer and key.
    pipes: HashMap<(usize, Key), View>,
    pub(super) events: VecDeque<Event<Bytes>>,
    /// Scratch list of filled cells: empty between polls, with capacity for all cells of the inbox.
    cells: Vec<Cell>,
    reading: Reading,
    /// Failed peers. Each is reported to the engine by the first poll that finds none of its cells in the inbox.
    pub(super) gone: Vec<(usize, Why)>,
    pub(super) closing: bool,
    began: Instant,
}

#[derive(Default)]
pub(super) struct Peer {
    pub inbox: Option<Inbox>,
    /// Key of the ring that the peer gave this rank, and its mapping; `None` inside if mapping failed.
    ring: Option<(Key, Option<View>)>,
    /// Number of cells that this rank has filled in the peer's inbox, modulo 2^32.
    filled: u32,
    reads: Option<bool>,
    /// `Event::Up` was reported.
    up: bool,
    /// The engine knows of the peer's loss, or has aborted the peer.
    pub over: bool,
    /// The peer is, or was, in `gone`.
    pub noticed: bool,
    /// The peer's process has ended, and its unfinished cells were reclaimed.
    pub reclaimed: bool,
}

impl ShmWire {
    /// Opens the wire of this rank and takes its inbox. Possible once per rank.
    ///
    /// # Safety
    /// The user of the wire keeps memory until its operation completes, as the engine of `transom-channel` does. Memory
    /// that is [registered](Wire::register) stays unmodified until it is released. The target of a read is not accessed
    /// until the read completes or its peer is aborted. The handles of both come from this wire, or refer to buffers of
    /// the program.
    ///
    /// # Errors
    /// [`FabricError::Misuse`] if the wire was opened before, or if `job` is a team.
    pub unsafe fn open(job: &Loopback) -> Result<ShmWire, FabricError> {
        let job = job.0.clone();
        let (me, ranks) = (job.rank, job.control.ranks());
        let own = job.inbox().take();
        let own = own.ok_or_else(|| FabricError::Misuse {
            why: format!("the inbox of rank {me} is open already, or it is a rank of a team, which has none"),
        })?;
        let rail = Rail {
            kind: RailKind::Memory,
            longest: inbox::LONGEST,
            mark_last: true,
            whole_word: true,
            immediate: false,
            write: false,
            read: true,
            bandwidth: 0,
        };
        Ok(ShmWire {
            rails: [rail],
            me,
            own: own.inbox.clone(),
            _kept: own,
            peers: (0..ranks).map(|_| Peer::default()).collect(),
            pipes: HashMap::new(),
            events: VecDeque::with_capacity(CELLS),
            cells: Vec::with_capacity(CELLS),
            reading: Reading::new(Reach::from(&*job)),
            gone: Vec::new(),
            closing: false,
            began: Instant::now(),
            job,
        })
    }

    /// The waiter of this rank's threads.
    pub fn waiter(&self) -> Waiter {
        Waiter::new(self.me, self.job.control.is_oversubscribed(), &self.own)
    }

    /// Makes all waits of this rank call `progress`.
    pub fn progress_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.job.progress.set(hook, Some(self.own.view.clone()), false);
    }

    /// Same as [`progress_in_waits`](Self::progress_in_waits), and also calls `progress` regularly while a thread
    /// sleeps, for transports that do not notify the event count.
    pub fn progress_often_in_waits(&self, hook: Arc<dyn ProgressHook>) {
        self.job.progress.set(hook, Some(self.own.view.clone()), true);
    }

    /// Maps a peer's inbox.
    fn reach(&mut self, rank: usize) -> Result<(), FabricError> {
        if self.peers[rank].inbox.is_some() {
            return Ok(());
        }
        let ranks = self.peers.len();
        let inbox = if rank == self.me {
            self.own.clone()
        } else {
            let key = self.job.control.inbox(rank).ok_or(FabricError::PeerLeft { rank })?;
            Inbox::new(self.job.attach(rank, key, inbox::len(ranks))?, ranks)
        };
        self.peers[rank].inbox = Some(inbox);
        Ok(())
    }

    fn is_up(&mut self, rank: usize) {
        if !std::mem::replace(&mut self.peers[rank].up, true) {
            self.events.push_back(Event::Up(Lane { peer: rank as Rank, rail: 0 }));
        }
    }

    pub(super) fn ring_for(&mut self, rank: usize) {
        if let Ok(()) = self.reach(rank)
            && let Some(inbox) = &self.peers[rank].inbox
        {
            event_count::notify(&inbox.view.header().event);
        }
    }

    fn give_cell(&mut self, number: u32) {
        for waiting in self.own.free(number, self.peers.len()) {
            self.ring_for(waiting);
        }
    }

    /// Handles completed reads, filled cells and lost peers.
    #[cold]
    #[inline(never)]
    fn collect(&mut self) {
        while let Some(read) = self.reading.ended() {
            self.has_read(read);
        }
        if let Some(reader) = joint::help(&self.reading.reach, &self.own) {
            self.events.push_back(Event::Worked);
            // The reader may wait for this chunk.
            if reader < self.peers.len() {
                self.ring_for(reader);
            }
        }
        let mut heard = Vec::new();
        let mut cells = std::mem::take(&mut self.cells);
        self.own.filled(self.peers.len(), &mut cells);
        for Cell { number, owner, length, .. } in cells.drain(..) {
            if !self.gone.is_empty() {
                heard.push(owner);
            }
            let slot = Bytes(Kind::Cell { number, at: self.own.bytes(number), inbox: Shared(self.own.view.clone()) });
            if self.peers[owner].over {
                drop(slot);
                self.give_cell(number);
            } else {
                // Maps the sender's inbox first, so that the first rendezvous message from it can be read as well.
                if !self.peers[owner].up && self.reach(owner).is_ok() {
                    self.is_up(owner);
                }
                let lane = Lane { peer: owner as Rank, rail: 0 };
                self.events.push_back(Event::Arrived { lane, slot, at: 0, length });
            }
        }
        self.cells = cells;
        // Cells of live peers must not delay the report of a death: they may arrive without end.
        for (rank, why) in std::mem::take(&mut self.gone) {
            match heard.contains(&rank) {
                true => self.gone.push((rank, why)),
                false => self.events.push_back(Event::Failed(Lane { peer: rank as Rank, rail: 0 }, why)),
            }
        }
    }

    fn has_read(&mut self, (owner, token, read): Read) {
        match read {
            // With a single rail, the engine does not use the duration.
            Ok(()) => self.events.push_back(Event::Done(token, 0)),
            Err(error) => self.unreachable(owner, &error),
        }
    }

    fn send(&mut self, to: usize, head: &[u8], body: Data<'_, Bytes>) -> Result<(), Busy> {
        let peer = &mut self.peers[to];
        let inbox = peer.inbox.as_ref().ok_or(Busy)?;
        let length = head.len() + body.length();
        let cell = inbox.claim(self.me).ok_or(Busy)?;
        let start = inbox.view.address(inbox.bytes(cell), length).filter(|_| length <= inbox::LONGEST);
        // SAFETY: `length` bytes of a cell that belongs to this rank until it is filled.
        unsafe { write(start.expect("the engine sends no longer packets"), head, body) };
        inbox.fill(cell, length, peer.filled);
        peer.filled = peer.filled.wrapping_add(1);
        event_count::notify(&inbox.view.header().event);
        Ok(())
    }

    #[inline(always)]
    fn put(
        &mut self,
        to: usize,
        key: Key,
        at: usize,
        head: &[u8],
        body: Data<'_, Bytes>,
        mark: Option<u64>,
    ) -> Result<(), Busy> {
        let peer = &mut self.peers[to];
        let ring = match &peer.ring {
            Some((known, ring)) if *known == key => ring.as_ref(),
            _ => match self.pipes.get(&(to, key)) {
                None => new_ring(&self.job, to, key, &mut peer.ring),
                pipe => pipe,
            },
        };
        let (Some(ring), Some(inbox)) = (ring, &peer.inbox) else { return Err(Busy) };
        let length = head.len() + body.length();
        // The engine computed the offset from the ring length that the peer reported, which may exceed the memory that
        // the peer gave.
        let marked = if mark.is_some() { 8 } else { 0 };
        let start = ring.address(at, length + marked).ok_or(Busy)?;
        let place = start.wrapping_add(length).cast::<u64>();
        if mark.is_some() && !place.is_aligned() {
            return Err(Busy);
        }
        // SAFETY: within shared memory, as checked above, which is accessed only by atomics and `copy`.
        unsafe { write(start, head, body) };
        let Some(mark) = mark else { return Ok(()) };
        // SAFETY: within the same memory, and aligned. Release: a receiver that sees the mark sees the bytes before it.
        unsafe { AtomicU64::from_ptr(place) }.store(mark, Release);
        event_count::notify(&inbox.view.header().event);
        Ok(())
    }
}

/// The words that the owner [publishes](Wire::publish) beside a ring; `None` if the ring has no room for them.
fn beside(ring: &View) -> Option<[&AtomicU64; 2]> {
    let at = ring.len().checked_sub(BESIDE)?;
    Some([ring.word(at).ok()?, ring.word(at + 8).ok()?])
}

/// Maps the ring that a peer gave in place of the previous one.
#[cold]
fn new_ring<'a>(
    job: &Membership,
    peer: usize,
    key: Key,
    ring: &'a mut Option<(Key, Option<View>)>,
) -> Option<&'a View> {
    ring.insert((key, map_ring(job, peer, key))).1.as_ref()
}

/// Maps a ring of a peer. A ring that cannot be mapped is treated as full.
#[cold]
fn map_ring(job: &Membership, peer: usize, key: Key) -> Option<View> {
    let (fd, bytes) = ((key.address >> 32) as u32, key.address as u32 as usize);
    let key = BlockKey { tag: key.key, pid: u32::try_from(job.control.process(peer)).ok()?, fd };
    let mapped = job.attach(peer, key, bytes);
    mapped.inspect_err(|error| tracing::warn!(rank_of_host = peer, %error, "cannot map a peer's ring")).ok()
}

/// Writes a message.
///
/// # Safety
/// `to` must be valid for writes of the length of `head` and `body` in shared memory.
#[inline(always)]
unsafe fn write(to: *mut u8, head: &[u8], body: Data<'_, Bytes>) {
    // SAFETY: caller's contract.
    unsafe {
        match head.try_into() {
            Ok(head) => crate::copy::to_shared_32(to, head),
            Err(_) => crate::copy::to_shared(to, head),
        }
        let to = to.add(head.len());
        match body {
            Data::None => {}
            Data::Bytes(bytes) if bytes.len() == 8 => crate::copy::to_shared(to, &bytes[..8]),
            Data::Bytes(bytes) => crate::copy::to_shared(to, bytes),
            Data::Of(part) => part.memory.write_to(part.at, part.length, to),
        }
    }
}

impl Wire for ShmWire {
    type Memory = Bytes;

    fn rails(&self, near: bool) -> &[Rail] {
        if near { &self.rails } else { &[] }
    }

    fn connect(&mut self, lane: Lane) {
        let rank = lane.peer as usize;
        match self.reach(rank) {
            Ok(()) => self.is_up(rank),
            Err(error) => self.unreachable(rank, &error),
        }
    }

    fn abort_peer(&mut self, peer: Rank) {
        let rank = peer as usize;
        self.reading.end(|owner| owner == rank);
        let peer = &mut self.peers[rank];
        (peer.over, peer.ring) = (true, None);
        self.pipes.retain(|(owner, _), _| *owner != rank);
        self.gone.retain(|gone| gone.0 != rank);
        // Frees the cells of its undelivered messages.
        let is_of = |event: &Event<Bytes>| event.lane().is_some_and(|lane| lane.peer as usize == rank);
        let (of, rest): (VecDeque<_>, _) = std::mem::take(&mut self.events).into_iter().partition(is_of);
        self.events = rest;
        for event in of {
            if let Event::Arrived { slot, .. } = event {
                self.give(slot);
            }
        }
        self.reclaim(rank);
    }

    fn take(&mut self, length: usize) -> Option<Bytes> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).ok()?;
        bytes.resize(length, 0_u8);
        Some(Bytes::owned(bytes.into_boxed_slice()))
    }

    fn ring(&mut self, _: Rank, length: usize) -> Option<(Bytes, Key)> {
        let length = length.checked_next_multiple_of(BESIDE)?.checked_add(BESIDE)?;
        let (memory, key, fd) = self.job.block(length).ok()?;
        let _listed = Forget { blocks: self.job.blocks.clone(), tag: key.tag };
        let length = u32::try_from(length).ok()?;
        let view = View::whole(&memory);
        let start = NonNull::new(view.address(0, view.len())?)?;
        let ring = Box::new(Ring { memory: Shared(view), _fd: fd, _listed });
        let bytes = Bytes(Kind::Ring { start, len: ring.memory.0.len(), ring });
        Some((bytes, Key { address: u64::from(key.fd) << 32 | u64::from(length), key: key.tag }))
    }

    fn publish(&mut self, peer: Rank, ring: &Bytes, words: [u64; 2]) -> bool {
        let Kind::Ring { ring, .. } = &ring.0 else { unreachable!("only rings have words") };
        // The second word is stored first, because readers load the first word first.
        for (place, word) in beside(&ring.memory.0).expect("a ring of this rank's").into_iter().zip(words).rev() {
            place.store(word, Release);
        }
        self.ring_for(peer as usize);
        true
    }

    fn published(&mut self, peer: Rank, key: Key) -> Option<[u64; 2]> {
        let known = &mut self.peers[peer as usize].ring;
        let ring = match known {
            Some((known, ring)) if *known == key => ring.as_ref(),
            _ => new_ring(&self.job, peer as usize, key, known),
        };
        Some(beside(ring?)?.map(|place| place.load(SeqCst)))
    }

    fn reaches(&mut self, lane: Lane, key: Key, length: usize) -> bool {
        let view = map_ring(&self.job, lane.peer as usize, key).filter(|view| view.len() >= length);
        let reached = view.is_some();
        self.pipes.extend(view.map(|view| ((lane.peer as usize, key), view)));
        reached
    }

    fn leave(&mut self, lane: Lane, key: Key) {
        self.pipes.remove(&(lane.peer as usize, key));
    }

    fn is_near(&self, _: Rank) -> bool {
        true
    }

    fn reads(&mut self, lane: Lane) -> bool {
        let rank = lane.peer as usize;
        let peer = &mut self.peers[rank];
        if peer.reads.is_none()
            && let Some(inbox) = &peer.inbox
        {
            let expected = self.job.control.inbox(rank).map_or(0, |key| key.tag);
            peer.reads = Some(self.reading.reach.try_out(rank, inbox.probe(), expected));
        }
        peer.reads == Some(true)
    }

    fn may_send_faster(&mut self, lane: Lane, offered: Key) -> bool {
        let attended = self.peers[lane.peer as usize].inbox.as_ref().is_some_and(Inbox::is_attended);
        attended && !self.reading.reach.is_mapped(lane.peer as usize, offered)
    }

    fn give(&mut self, memory: Bytes) {
        if let Kind::Cell { number, .. } = memory.0 {
            self.give_cell(number);
        }
    }

    fn register(&mut self, memory: &Bytes, _: Lane) -> Option<Key> {
        let start = memory.start()?;
        let key = self.reading.reach.lead_to(start.as_ptr().expose_provenance(), memory.len());
        self.reading.offered.push(key);
        Some(key)
    }

    fn release(&mut self, _: Lane, key: Key) {
        // The keys of rings are released here too, but are not in the list.
        if let Some(at) = self.reading.offered.iter().position(|offered| *offered == key) {
            self.reading.offered.swap_remove(at);
        }
        reach::withdraw(key);
    }

    #[inline(always)]
    fn post(&mut self, lane: Lane, request: Request<'_, Bytes>) -> Result<(), Busy> {
        let to = lane.peer as usize;
        match request {
            Request::Put { to: key, at, head, body, mark, immediate: None } => self.put(to, key, at, head, body, mark),
            Request::Send { head, body } => self.send(to, head, body),
            Request::Read { from, at, into, token } => {
                let inbox = self.peers[to].inbox.as_ref();
                if let Some(read) = self.reading.read((to, inbox, &self.own), (from, at), into, token) {
                    self.has_read(read);
                }
                Ok(())
            }
            Request::Put { .. } | Request::Write { .. } | Request::Piece { .. } => {
                unreachable!("this rail does not offer it")
            }
        }
    }

    fn read_now(&mut self, lane: Lane, from: Key, into: Part<'_, Bytes>, token: u64) -> Result<bool, Busy> {
        let to = lane.peer as usize;
        let inbox = self.peers[to].inbox.as_ref();
        match self.reading.read((to, inbox, &self.own), (from, 0), into, token) {
            Some((.., Ok(()))) => return Ok(true),
            Some(failed) => self.has_read(failed),
            None => {}
        }
        Ok(false)
    }

    #[inline]
    fn poll(&mut self) -> Option<Event<Bytes>> {
        if self.events.is_empty() {
            let nothing_open = self.gone.is_empty() && !self.reading.is_waiting();
            if nothing_open && !self.own.has_work() {
                return None;
            }
            self.collect();
        }
        self.events.pop_front()
    }

    fn count(&self, counters: &mut Counters) {
        counters.missed_wakes += event_count::missed();
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    #[inline(always)]
    fn prefetch_to_write(&self, peer: Rank, at: usize) {
        if let Some((_, Some(ring))) = &self.peers[peer as usize].ring {
            ring.prefetch::<true>(at);
        }
    }
}

impl Drop for ShmWire {
    fn drop(&mut self) {
        self.reading.end(|_| true);
        self.own.close();
        // Windows may keep the rank in its job after its messages have ended; peers must still not wait for its
        // messages. A death is recorded before the withdrawal, because it takes precedence.
        if std::thread::panicking() {
            self.job.fail_with_teams();
        }
        self.job.control.withdraw_inbox(self.me);
    }
}

#[cfg(all(test, not(miri), not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::event_count::EventCount;

    /// If a sender read a newer acknowledgement with an older count of free slots, it would find its ring full and take
    /// a slower path.
    #[test]
    fn published_second_word_is_never_older_than_first() {
        const TIMES: u64 = 200_000;
        let ranks = Loopback::threads(2).unwrap();
        // SAFETY: nothing is registered or read.
        let [mut owner, mut sender] = [&ranks[0], &ranks[1]].map(|rank| unsafe { ShmWire::open(rank) }.unwrap());
        let (ring, key) = owner.ring(1, 4096).unwrap();
        let owner = std::thread::spawn(move || {
            (1..=TIMES).for_each(|time| assert!(owner.publish(1, &ring, [time, time])));
            (owner, ring)
        });
        let mut last = 0;
        while last < TIMES {
            let [first, second] = sender.published(0, key).unwrap();
            assert!(second >= first && first >= last, "read words {first} and {second} after {last}");
            last = first;
        }
        drop(owner.join().unwrap());
    }

    /// A reader that waits for the owner's last chunk is parked on the event count of its own inbox.
    #[test]
    fn owner_that_copied_a_chunk_wakes_the_reader() {
        const LENGTH: usize = 1_000_000;
        let ranks = Loopback::threads(2).unwrap();
        // SAFETY: as above.
        let [reader, mut owner] = [&ranks[0], &ranks[1]].map(|rank| unsafe { ShmWire::open(rank) }.unwrap());
        let (source, mut target) = (vec![7_u8; LENGTH], vec![0_u8; LENGTH]);
        let places = [source.as_ptr().expose_provenance(), target.as_mut_ptr().expose_provenance()];
        let [from, to] = places.map(|start| owner.reading.reach.lead_to(start, LENGTH));
        owner.own.desk().ask(0, joint::Move { from, at: 0, length: LENGTH, to }).expect("the descriptor was free");
        let event = &reader.own.view.header().event;
        event.count(1); // as a sleeper does
        while owner.own.has_work() {
            let before = event.epoch();
            assert!(matches!(owner.poll(), Some(Event::Worked)));
            assert_ne!(event.epoch(), before);
        }
        event.count(-1);
        [from, to].into_iter().for_each(reach::withdraw);
        assert!(source == target);
    }
}
