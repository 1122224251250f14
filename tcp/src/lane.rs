//! The origin's end of a connection: requests to one peer, and their replies.
//!
//! Any thread posts, under the lane's lock. Replies come in the order of the requests, so each belongs to the oldest
//! [ticket](Ticket) without one. Among the threads that wait for replies, one sleeps in the kernel and receives for all,
//! and the others sleep on a condition variable.
//!
//! A thread that cannot send yet sleeps in the kernel without the lock; other threads post after it. It receives replies
//! meanwhile if no thread waits for one: otherwise two ranks that send to each other would wait for ever.
//!
//! Short puts stay in the queue until it is long, or any other request follows. After every other post the queue is
//! empty, so nothing depends on a later call of the program.

use crate::carrier::{Carrier, Received};
use crate::frame::{At, LONGEST, Refusal, Request};
use crate::replies::{Answer, Outcome, Slots};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use transom_launch::lock;
use transom_windows::{BoxBytes, FabricError};

/// Longest put that stays in the queue, and the length at which the queue is sent, in bytes.
const SHORT_PUT: usize = 1 << 10;
const LONG_QUEUE: usize = 16 << 10;
/// Interval between checks that the peer is alive.
const CHECK: Duration = Duration::from_millis(100);

/// The reason why an operation has no result.
#[derive(Debug)]
pub enum Halt {
    /// The target did not execute it.
    Refused(Refusal),
    /// The connection is broken.
    Broken(io::Error),
    /// The check for the peer failed.
    Gone(FabricError),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Halt::Broken(error)
    }
}

impl From<Refusal> for Halt {
    fn from(why: Refusal) -> Self {
        Halt::Refused(why)
    }
}

/// A request whose result has not been taken. Dropping it discards the result.
pub struct Ticket<C: Carrier> {
    lane: Arc<Lane<C>>,
    number: u64,
    taken: bool,
    /// When a caller that polls last checked the peer.
    checks: Checks,
}

/// The requests of this rank to one peer.
pub struct Lane<C> {
    state: Mutex<LaneState<C>>,
    /// Signalled when replies have arrived, or a thread that slept in the kernel has woken.
    arrived: Condvar,
    descriptor: Arc<OwnedFd>,
    /// Attempts to receive before a thread sleeps.
    looks: u32,
    /// Called between attempts: serves peers, whose requests would first wake the service thread.
    idle: Box<dyn Fn() + Send + Sync>,
}

struct LaneState<C> {
    carrier: C,
    slots: Slots,
    /// Ticket of a flush that no thread has taken yet.
    flush_ahead: Option<u64>,
    /// A thread sleeps in the kernel until bytes arrive. No other thread receives: bytes that another one took would not
    /// wake it.
    is_awaited: bool,
    /// A thread waits until its request is sent. No other thread posts.
    is_sending: bool,
    /// Number of threads on the condition variable.
    sleepers: usize,
    broken: Option<(io::ErrorKind, String)>,
}

/// Calls a check ten times per second.
struct Checks(Option<Instant>);

impl Checks {
    fn run(&mut self, check: &mut dyn FnMut() -> Result<(), FabricError>) -> Result<(), Halt> {
        let now = Instant::now();
        let due = now - *self.0.get_or_insert(now) >= CHECK;
        if !due {
            return Ok(());
        }
        self.0 = Some(now);
        check().map_err(Halt::Gone)
    }
}

/// Sleeps until bytes have arrived, or the descriptor accepts bytes if `to_send`, for [`CHECK`] at most.
fn sleep(descriptor: &OwnedFd, to_send: bool) {
    let wanted = if to_send { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    poll_for(descriptor, wanted, CHECK);
}

/// Returns whether the descriptor is ready within a time.
fn poll_for(descriptor: &OwnedFd, wanted: PollFlags, within: Duration) -> bool {
    let within = Timespec { tv_sec: 0, tv_nsec: within.as_nanos() as _ };
    // An error is found by the next receive.
    poll(&mut [PollFd::new(descriptor, wanted)], Some(&within)).is_ok_and(|ready| ready > 0)
}

impl<C: Carrier> LaneState<C> {
    fn works(&self) -> io::Result<()> {
        match &self.broken {
            Some((kind, why)) => Err(io::Error::new(*kind, why.clone())),
            None => Ok(()),
        }
    }

    /// The flush that was started ahead, if it covers all requests.
    fn take_flush_ahead(&mut self) -> Option<u64> {
        let number = self.flush_ahead.take()?;
        if self.slots.slot(number).posted == self.slots.posted {
            return Some(number);
        }
        self.slots.discard(number);
        None
    }

    /// Receives the replies that have arrived; returns whether there were any.
    fn receive(&mut self) -> io::Result<bool> {
        self.works()?;
        let LaneState { carrier, slots, .. } = self;
        let mut some = false;
        let mut receive = || {
            let mut received = Received::Part;
            loop {
                if let Some(place) = slots.place()? {
                    match carrier.rest(place)? {
                        0 => return Ok(()),
                        bytes => slots.placed(bytes)?,
                    }
                } else if let Some(bytes) = carrier.data()? {
                    slots.begin(bytes)?;
                } else if !carrier.take(&mut |frame, _| slots.answer(frame))? {
                    if received != Received::Part {
                        return Ok(());
                    }
                    received = carrier.receive()?;
                    continue;
                }
                some = true;
            }
        };
        let received = receive();
        self.note(received).map(|()| some)
    }

    fn note<R>(&mut self, result: io::Result<R>) -> io::Result<R> {
        if let Err(error) = &result {
            self.broken.get_or_insert_with(|| (error.kind(), error.to_string()));
        }
        result
    }
}

impl<C: Carrier> Lane<C> {
    /// A lane over a connection. `looks`: attempts to receive a reply before a thread sleeps. `idle` is called between them.
    pub fn new(carrier: C, looks: u32, idle: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        let descriptor = carrier.descriptor().clone();
        let slots = Slots::default();
        let (flush_ahead, broken) = Default::default();
        let (is_awaited, is_sending, sleepers) = Default::default();
        let state = LaneState { carrier, slots, flush_ahead, is_awaited, is_sending, sleepers, broken };
        Arc::new(Lane { state: Mutex::new(state), arrived: Condvar::new(), descriptor, looks, idle: Box::new(idle) })
    }

    fn lock(&self) -> MutexGuard<'_, LaneState<C>> {
        lock(&self.state)
    }

    /// Locks the lane for a post, once no other thread waits to send.
    fn lock_to_post(&self) -> MutexGuard<'_, LaneState<C>> {
        let mut state = self.lock();
        while state.is_sending {
            state = self.sleep_until_signalled(state);
        }
        state
    }

    /// Sleeps until another thread has received or sent, for [`CHECK`] at most.
    fn sleep_until_signalled<'l>(&self, mut state: MutexGuard<'l, LaneState<C>>) -> MutexGuard<'l, LaneState<C>> {
        state.sleepers += 1;
        let waited = self.arrived.wait_timeout(state, CHECK);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.sleepers -= 1;
        state
    }

    fn signal(&self, state: &LaneState<C>) {
        if state.sleepers > 0 {
            self.arrived.notify_all();
        }
    }

    /// Posts a request without a reply. The bytes may be reused on return.
    pub fn post(&self, request: &Request<'_>, mut check: impl FnMut() -> Result<(), FabricError>) -> Result<(), Halt> {
        self.send(self.lock_to_post(), request, &mut check).map(drop)
    }

    /// Writes bytes of any length.
    pub fn put(&self, at: At, data: &[u8], mut check: impl FnMut() -> Result<(), FabricError>) -> Result<(), Halt> {
        let mut state = self.lock_to_post();
        for (number, data) in data.chunks(LONGEST).enumerate() {
            let at = At { offset: at.offset + (number * LONGEST) as u64, ..at };
            state = self.send(state, &Request::Put { at, data }, &mut check)?;
        }
        Ok(())
    }

    /// Starts a read of as many bytes as `into` has.
    pub fn start_get(
        self: &Arc<Self>,
        at: At,
        into: BoxBytes,
        mut check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<Ticket<C>, Halt> {
        let mut state = self.lock_to_post();
        state.works()?;
        let bytes = into.len();
        // Pushed first, because replies may arrive while the last requests wait to be sent.
        let number = state.slots.push(Answer::Data { into, answered: 0, refused: None });
        let ticket = Ticket { lane: self.clone(), number, taken: false, checks: Checks(None) };
        let requests = bytes.div_ceil(LONGEST).max(1);
        state.slots.slot(number).posted = state.slots.posted + requests as u64;
        for part in 0..requests {
            let done = part * LONGEST;
            let at = At { offset: at.offset + done as u64, ..at };
            state = self.send(state, &Request::Get { at, len: LONGEST.min(bytes - done) }, &mut check)?;
        }
        Ok(ticket)
    }

    /// Starts an atomic: a request whose reply is a word.
    pub fn start_atomic(
        self: &Arc<Self>,
        request: &Request<'_>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<Ticket<C>, Halt> {
        self.start(Answer::Word, request, check)
    }

    /// Starts a flush; `None` if all requests have been executed already.
    pub fn start_flush(
        self: &Arc<Self>,
        check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<Option<Ticket<C>>, Halt> {
        let mut state = self.lock();
        let ahead = state.take_flush_ahead();
        if ahead.is_none() && state.slots.executed == state.slots.posted {
            return state.slots.refused.take().map_or(Ok(None), |why| Err(Halt::Refused(why)));
        }
        drop(state);
        match ahead {
            Some(number) => Ok(Some(Ticket { lane: self.clone(), number, taken: false, checks: Checks(None) })),
            None => self.start(Answer::Flushed, &Request::Flush, check).map(Some),
        }
    }

    /// Starts a flush that a later [`start_flush`](Self::start_flush) takes, unless another request comes between.
    pub fn flush_ahead(self: &Arc<Self>, check: impl FnMut() -> Result<(), FabricError>) -> Result<(), Halt> {
        if let Some(mut flush) = self.start_flush(check)? {
            let mut state = self.lock();
            if let Some(earlier) = state.flush_ahead.replace(flush.number) {
                state.slots.discard(earlier);
            }
            flush.taken = true;
            drop(state);
        }
        Ok(())
    }

    /// Waits for a flush, and reports a put before it that was not executed.
    pub fn finish_flush(&self, flush: Ticket<C>, check: impl FnMut() -> Result<(), FabricError>) -> Result<(), Halt> {
        flush.wait(check)?;
        self.lock().slots.refused.take().map_or(Ok(()), |why| Err(Halt::Refused(why)))
    }

    /// Number of requests posted.
    #[cfg(test)]
    pub fn posted(&self) -> u64 {
        self.lock().slots.posted
    }

    /// Number of requests whose results are kept.
    #[cfg(test)]
    pub fn kept(&self) -> usize {
        self.lock().slots.len()
    }

    /// Returns whether requests may not have been executed yet.
    pub fn is_busy(&self) -> bool {
        let state = self.lock();
        state.broken.is_none() && state.slots.executed != state.slots.posted
    }

    fn start(
        self: &Arc<Self>,
        answer: Answer,
        request: &Request<'_>,
        mut check: impl FnMut() -> Result<(), FabricError>,
    ) -> Result<Ticket<C>, Halt> {
        let mut state = self.lock_to_post();
        state.works()?;
        let number = state.slots.push(answer);
        let ticket = Ticket { lane: self.clone(), number, taken: false, checks: Checks(None) };
        state.slots.slot(number).posted = state.slots.posted + 1;
        drop(self.send(state, request, &mut check)?);
        Ok(ticket)
    }

    /// Sends a request. Unless it is a short put, the queue is empty on return. The lane may be unlocked meanwhile.
    fn send<'l>(
        &'l self,
        mut state: MutexGuard<'l, LaneState<C>>,
        request: &Request<'_>,
        check: &mut dyn FnMut() -> Result<(), FabricError>,
    ) -> Result<MutexGuard<'l, LaneState<C>>, Halt> {
        state.works()?;
        state.slots.posted += 1;
        let (head, data) = request.encode();
        if let Request::Put { data, .. } = request
            && data.len() <= SHORT_PUT
        {
            state.carrier.outgoing().queue(head.bytes(), data);
            if state.carrier.outgoing().len() < LONG_QUEUE {
                return Ok(state);
            }
            let pushed = state.carrier.push();
            state.note(pushed)?;
        } else {
            let sent = state.carrier.send(&[head.bytes(), data]);
            state.note(sent)?;
        }
        if state.carrier.outgoing().is_empty() { Ok(state) } else { self.finish_send(state, check) }
    }

    /// Waits until the queue is sent.
    #[cold]
    fn finish_send<'l>(
        &'l self,
        mut state: MutexGuard<'l, LaneState<C>>,
        check: &mut dyn FnMut() -> Result<(), FabricError>,
    ) -> Result<MutexGuard<'l, LaneState<C>>, Halt> {
        let mut checks = Checks(None);
        let mut step = |state: &mut LaneState<C>| {
            let pushed = state.carrier.push();
            state.note(pushed)?;
            if let Err(gone) = checks.run(check) {
                // A frame may have been sent in part.
                let why = io::Error::new(io::ErrorKind::BrokenPipe, "an earlier request was abandoned");
                let _ = state.note::<()>(Err(why));
                return Err(gone);
            }
            Ok(state.carrier.outgoing().is_empty())
        };
        state.is_sending = true;
        let ended = loop {
            drop(state);
            sleep(&self.descriptor, true);
            state = self.lock();
            if !state.is_awaited {
                match state.receive() {
                    Ok(true) => self.signal(&state),
                    Ok(false) => {}
                    Err(error) => break Err(error.into()),
                }
            } else if poll_for(&self.descriptor, PollFlags::IN, Duration::ZERO) {
                // The thread that awaits the bytes wakes, and signals once it has received them.
                state = self.sleep_until_signalled(state);
            }
            match step(&mut state) {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(halt) => break Err(halt),
            }
        };
        state.is_sending = false;
        self.signal(&state);
        ended.map(|()| state)
    }
}

impl<C: Carrier> Ticket<C> {
    /// Receives the replies that have arrived; returns whether the result is there.
    /// `check` is called ten times per second.
    pub fn is_done(&mut self, mut check: impl FnMut() -> Result<(), FabricError>) -> Result<bool, Halt> {
        let mut state = self.lane.lock();
        let done = |state: &mut LaneState<C>| state.slots.is_done(self.number);
        if !done(&mut state) && !state.is_awaited && state.receive()? {
            self.lane.signal(&state);
        }
        let is_done = done(&mut state);
        drop(state);
        if !is_done {
            self.checks.run(&mut check)?;
        }
        Ok(is_done)
    }

    /// Waits for the result. `check` is called ten times per second.
    pub fn wait(mut self, mut check: impl FnMut() -> Result<(), FabricError>) -> Result<Outcome, Halt> {
        let (lane, number) = (self.lane.clone(), self.number);
        let mut state = lane.lock();
        let (mut looks, mut checks) = (0, Checks(None));
        loop {
            if let Some(result) = state.slots.take(number) {
                self.taken = true;
                return result.map_err(Halt::Refused);
            }
            if !state.is_awaited {
                let received = state.receive();
                if received.as_ref().map_or(true, |some| *some) {
                    lane.signal(&state);
                    // A result that came before the connection ended counts.
                    if received.is_err() && !state.slots.is_done(number) {
                        received?;
                    }
                    continue;
                }
            }
            looks += 1;
            if looks <= lane.looks && !state.is_awaited {
                drop(state);
                (lane.idle)();
                state = lane.lock();
                continue;
            }
            if state.is_awaited {
                state = lane.sleep_until_signalled(state);
            } else {
                state.is_awaited = true;
                drop(state);
                sleep(&lane.descriptor, false);
                state = lane.lock();
                state.is_awaited = false;
                debug_assert!(!state.slots.is_done(number), "another thread has received the reply");
                // Another thread may have to sleep in the kernel now.
                lane.signal(&state);
            }
            checks.run(&mut check)?;
        }
    }
}

impl<C: Carrier> Drop for Ticket<C> {
    fn drop(&mut self) {
        if !self.taken {
            self.lane.lock().slots.discard(self.number);
        }
    }
}
