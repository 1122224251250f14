//! Unreliable datagrams between ranks: [`Post`] for a fixed length, and [`Mailbox`] for any length. Their contents
//! belong to the callers.

mod mailbox;
mod windows;

pub(super) use mailbox::{Letter, Mailbox};
pub(super) use windows::Windows;

use super::VerbsError;
use super::memory::{Slot, Slots};
use super::rail::{Health, Rail};
use super::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams, Domain, Path};
use super::wr::{Completions, Token};
use foldhash::fast::RandomState;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Receive buffers, and datagrams in flight.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;
/// Bytes of the GRH, which the adapter writes before each datagram.
const ROUTE: usize = 40;
/// Longest time for which the first request to a peer waits until its address is resolved. The address of a peer that
/// answers takes less, also on a busy machine. Messages do not wait: they are sent again at the next poll.
const FIRST_WAIT: Duration = Duration::from_millis(10);
/// Most threads that resolve addresses of a rail. Further peers wait until one has ended.
const THREADS: usize = 64;
/// An adapter that completes no send for this long, though some are in flight, has its queue pair reset. The datagrams in
/// flight are lost.
const SILENT: Duration = Duration::from_secs(5);
/// Largest payload, in bytes.
const LONGEST: usize = 128 - ROUTE;

/// Sends and receives datagrams of `N` bytes.
pub(super) struct Post<const N: usize> {
    ways: Ways,
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    received: Arc<CompletionQueue>,
    /// Declared after the queue, which may still write to these slots.
    expected: Vec<Slot>,
    sending: Vec<Slot>,
    /// Datagrams posted so far, and the number of them completed.
    posted: usize,
    gone: usize,
    silence: Silence,
}

/// The number of completions of a queue, and the time since which it is unchanged although sends are in flight.
#[derive(Default)]
struct Silence(Option<(usize, Instant)>);

impl Silence {
    /// Returns true if no send has completed for [`SILENT`], by the calls since then.
    fn lasts(&mut self, in_flight: bool, completed: usize) -> bool {
        match self.0 {
            Some((before, since)) if in_flight && before == completed => since.elapsed() > SILENT,
            _ => {
                self.0 = in_flight.then(|| (completed, Instant::now()));
                false
            }
        }
    }
}

/// Address handles of peers, by rank.
struct Ways {
    handles: HashMap<usize, Handle, RandomState>,
    /// The last handle of each peer that was given up. Datagrams that name it may be in flight.
    given_up: HashMap<usize, AddressHandle, RandomState>,
    domain: Arc<Domain>,
    health: Arc<Health>,
    /// Number of address changes before which the handles were created.
    changes: u32,
    first_wait: Duration,
    /// Each thread that resolves an address has a clone.
    threads: Arc<()>,
}

/// The address handle of a peer. With RoCE, creating one resolves the address, which takes a second or more if the peer
/// does not answer. A separate thread resolves it, so that other peers and relayed messages do not wait.
enum Handle {
    Fresh,
    Known(AddressHandle),
    NotFound,
    Sought { found: Receiver<Result<AddressHandle, VerbsError>>, is_first: bool },
}

impl Ways {
    fn new(rail: &Rail, first_wait: Duration) -> Self {
        let (domain, health, threads) = (rail.domain.clone(), rail.health.clone(), Arc::new(()));
        let (changes, handles, given_up) = (health.address_changes(), HashMap::default(), HashMap::default());
        Ways { handles, given_up, domain, health, changes, first_wait, threads }
    }

    /// The address handle of a peer at that path; `None` while it is being resolved.
    fn to(&mut self, peer: usize, path: &Path) -> Result<Option<&AddressHandle>, VerbsError> {
        let changes = self.health.address_changes();
        if changes != self.changes {
            self.changes = changes;
            let peers: Vec<_> = self.handles.keys().copied().collect();
            peers.into_iter().for_each(|peer| self.give_up(peer));
        }
        if !matches!(self.handles.get(&peer), Some(Handle::Known(_))) {
            let handle = self.handles.insert(peer, Handle::NotFound).unwrap_or(Handle::Fresh);
            let handle = handle.next(self, path)?;
            self.handles.insert(peer, handle);
        }
        Ok(if let Some(Handle::Known(known)) = self.handles.get(&peer) { Some(known) } else { None })
    }

    /// Resolves an address by another thread, or by this one if the system refuses a thread.
    fn resolve(&self, path: &Path) -> Receiver<Result<AddressHandle, VerbsError>> {
        let (result, found) = mpsc::sync_channel(1);
        let (domain, to, counted, refused) = (self.domain.clone(), *path, self.threads.clone(), result.clone());
        let resolve = move || {
            // The receiver is gone if the peer's address changed, or the job ended.
            let _ = result.send(AddressHandle::new(&domain, &to));
            drop(counted);
        };
        if let Err(error) = std::thread::Builder::new().name("transom address".into()).spawn(resolve) {
            tracing::debug!(%error, "no thread to resolve an address");
            let _ = refused.send(AddressHandle::new(&self.domain, path));
        }
        found
    }

    /// Returns true while a thread makes the first attempt to resolve the address of a peer.
    fn is_first(&self, peer: usize) -> bool {
        matches!(self.handles.get(&peer), Some(Handle::Sought { is_first: true, .. }))
    }

    /// Gives up the address handle of a peer, which may lead to an address that the peer no longer has.
    fn give_up(&mut self, peer: usize) {
        if let Some(Handle::Known(old)) = self.handles.insert(peer, Handle::NotFound) {
            self.given_up.insert(peer, old);
        }
    }
}

impl Handle {
    /// Resolves the address, or starts a thread that does.
    fn next(self, of: &Ways, path: &Path) -> Result<Self, VerbsError> {
        let (found, is_first, wait) = match self {
            Handle::Known(_) => return Ok(self),
            // Without a GRH there is nothing to resolve.
            Handle::Fresh | Handle::NotFound if path.global.is_none() => {
                return AddressHandle::new(&of.domain, path).map(Handle::Known);
            }
            Handle::Fresh | Handle::NotFound if Arc::strong_count(&of.threads) > THREADS => {
                tracing::debug!("no further thread resolves an address now");
                return Ok(self);
            }
            Handle::Fresh => (of.resolve(path), true, of.first_wait),
            Handle::NotFound => (of.resolve(path), false, Duration::ZERO),
            Handle::Sought { found, is_first } => (found, is_first, Duration::ZERO),
        };
        match found.recv_timeout(wait) {
            Ok(found) => found.map(Handle::Known),
            Err(RecvTimeoutError::Timeout) => Ok(Handle::Sought { found, is_first }),
            Err(RecvTimeoutError::Disconnected) => {
                Err(VerbsError::system("resolving the address of a peer", std::io::ErrorKind::Other.into()))
            }
        }
    }
}

/// Datagram address of a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient {
    pub path: Path,
    pub queue_pair: u32,
    /// Q_Key that datagrams must carry.
    pub key: u32,
}

impl<const N: usize> Post<N> {
    /// Opens a queue pair that accepts datagrams with Q_Key `key`.
    pub fn new(rail: &Rail, key: u32) -> Result<Self, VerbsError> {
        const { assert!(N <= LONGEST, "a datagram fits into a slot") };
        let context = rail.context();
        let most = context.limits.max_qp_wr.max(1) as u32;
        let (receives, depth) = (RECEIVES.min(most), SENDS.min(most));
        let received = Arc::new(CompletionQueue::with_channel(context, receives)?);
        let sent = Arc::new(CompletionQueue::new(context, depth)?);
        let capacity = Capacity { depth, receives, inline: 0, scatter: 1 };
        let queue = Datagrams::new(&rail.domain, &sent, &received, capacity, &rail.near_end(0), key)?;
        let slots = Slots::new(&rail.domain, Access::Local, ROUTE + LONGEST, (receives + depth) as usize);
        let take = |count: u32| (0..count).map(|_| slots.take()).collect::<Result<Vec<_>, _>>();
        let (expected, sending) = (take(receives)?, take(queue.depth().min(depth))?);
        let ways = Ways::new(rail, FIRST_WAIT);
        let post =
            Post { ways, queue, sent, received, expected, sending, posted: 0, gone: 0, silence: Silence::default() };
        post.received.notify()?;
        for at in 0..post.expected.len() {
            post.expect(at).map_err(|source| VerbsError::system("posting a receive for datagrams", source))?;
        }
        Ok(post)
    }

    /// The number of the queue pair.
    pub fn number(&self) -> u32 {
        self.queue.number()
    }

    /// The completion queue of receives. Its channel becomes readable when a datagram arrives, provided that
    /// [`receive`](Self::receive) found none before.
    pub fn received(&self) -> Arc<CompletionQueue> {
        self.received.clone()
    }

    fn expect(&self, at: usize) -> std::io::Result<()> {
        let piece = self.expected[at].piece(ROUTE + N);
        // SAFETY: the slot belongs to the adapter until a datagram has arrived, and lives as long as the queue.
        unsafe { self.queue.expect(&[(Token::new(0, at as u64), [piece])]) }
    }

    /// Takes the datagrams that have arrived.
    pub fn receive(&mut self) -> Vec<[u8; N]> {
        let mut datagrams = Vec::new();
        loop {
            let mut came = Vec::new();
            let polled = self.received.poll(&mut |completion| came.push(completion));
            if let Err(error) = polled {
                tracing::error!(%error, "cannot poll for datagrams");
            }
            if came.is_empty() {
                return datagrams;
            }
            if came.iter().any(|completion| completion.result.is_err()) {
                self.open_again();
                return datagrams;
            }
            for completion in came {
                let at = completion.token.request() as usize;
                let mut bytes = [0; ROUTE + LONGEST];
                let bytes = &mut bytes[..ROUTE + N];
                self.expected[at].read(bytes);
                if completion.result.is_ok() && completion.bytes == ROUTE + N {
                    datagrams.extend(bytes.last_chunk::<N>());
                }
                if let Err(error) = self.expect(at) {
                    tracing::error!(%error, "cannot repost a receive for datagrams");
                }
            }
            if let Err(error) = self.received.notify() {
                tracing::error!(%error, "cannot request notification of datagrams");
            }
        }
    }

    /// Reopens the queue pair after a failed send put it into the error state, as Soft-RoCE does while a link is down.
    /// Datagrams that arrived meanwhile are lost.
    fn open_again(&mut self) {
        let forgotten = || {
            for queue in [&self.sent, &self.received] {
                // Drains the completion queue.
                let _ = queue.poll(&mut |_| ());
            }
        };
        let opened = self.queue.open_again(forgotten).and_then(|()| {
            (self.posted, self.gone, self.silence) = (0, 0, Silence::default());
            let expected = (0..self.expected.len()).try_for_each(|at| self.expect(at));
            expected.map_err(|source| VerbsError::system("posting a receive for datagrams", source))?;
            self.received.notify()
        });
        match opened {
            Ok(()) => tracing::debug!("datagrams can be sent again"),
            Err(error) => {
                tracing::error!(%error, "the queue pair for connection datagrams is lost; no new connections are possible")
            }
        }
    }

    /// Resolves the address of a peer again, because it does not answer.
    pub fn resolve_again(&mut self, peer: usize) {
        self.ways.give_up(peer);
    }

    /// Sends a datagram to `peer`; it may be lost.
    pub fn send(&mut self, peer: usize, to: &Recipient, datagram: &[u8; N]) -> Result<(), VerbsError> {
        // If the oldest slot is still in flight, this datagram counts as lost.
        let gone = &mut self.gone;
        let what = || format!("a datagram to rank {peer}");
        self.sent.poll(&mut |_| *gone += 1).map_err(|source| VerbsError::system(what(), source))?;
        if self.silence.lasts(self.posted > self.gone, self.gone) {
            tracing::warn!("the adapter has completed no datagram for {SILENT:?}");
            self.open_again();
        }
        if self.posted - self.gone == self.sending.len() {
            return Ok(());
        }
        let Some(handle) = self.ways.to(peer, &to.path)? else { return Ok(()) };
        let slot = &self.sending[self.posted % self.sending.len()];
        slot.write(datagram);
        // SAFETY: the slot is not reused before the send has completed, and lives as long as the queue.
        let sent = unsafe { self.queue.send(Token::new(0, 0), slot.piece(N), handle, to.queue_pair, to.key, None) };
        sent.map_err(|source| VerbsError::system(what(), source))?;
        self.posted += 1;
        Ok(())
    }
}
