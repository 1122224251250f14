//! Unreliable datagrams between ranks: of a fixed length, and [`Mailbox`], of any. What they say is for others to know.

mod mailbox;
mod windows;

pub(super) use mailbox::{Letter, Mailbox, ROOM};
pub(super) use windows::Windows;

use super::VerbsError;
use super::memory::{Slot, Slots};
use super::rail::Rail;
use super::sys::{Access, AddressHandle, Capacity, CompletionQueue, Datagrams, Domain, Path};
use super::wr::{Completions, Token};
use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Datagrams that can come before anybody looks, and as many can be on their way out.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;
/// The adapter puts where a datagram came from before it.
const ROUTE: usize = 40;
/// The longest.
const LONGEST: usize = 128 - ROUTE;

/// Takes and sends datagrams of `N` bytes.
pub(super) struct Post<const N: usize> {
    ways: Ways,
    queue: Datagrams,
    sent: Arc<CompletionQueue>,
    received: Arc<CompletionQueue>,
    /// After the queue, which may still write there.
    expected: Vec<Slot>,
    sending: Vec<Slot>,
    /// Sent so far, and how many of them are gone.
    posted: usize,
    gone: usize,
}

/// How peers are addressed, by their ranks.
struct Ways {
    handles: HashMap<usize, Handle>,
    domain: Arc<Domain>,
}

/// How a peer is addressed. With RoCE the system asks the network for it, and waits a second or more where nobody answers: who was
/// not found at once is sought by a thread of its own, so that other peers, and what is said by other rails, do not wait for that.
enum Handle {
    Fresh,
    Known(AddressHandle),
    NotFound,
    Sought(JoinHandle<Result<AddressHandle, VerbsError>>),
}

impl Ways {
    fn new(domain: &Arc<Domain>) -> Self {
        Ways { handles: HashMap::new(), domain: domain.clone() }
    }

    /// The way to a peer by that path. None while it is sought.
    fn to(&mut self, peer: usize, path: &Path) -> Result<Option<&AddressHandle>, VerbsError> {
        let Ways { handles, domain } = self;
        let handle = handles.entry(peer).or_insert(Handle::Fresh);
        if !matches!(handle, Handle::Known(_)) {
            *handle = std::mem::replace(handle, Handle::NotFound).next(domain, path)?;
        }
        Ok(if let Handle::Known(known) = handle { Some(known) } else { None })
    }
}

impl Handle {
    /// Finds out how the peer is addressed, or has it sought.
    fn next(self, domain: &Arc<Domain>, path: &Path) -> Result<Self, VerbsError> {
        match self {
            Handle::Fresh => AddressHandle::new(domain, path).map(Handle::Known),
            Handle::NotFound => {
                let (domain, path) = (domain.clone(), *path);
                let seek = std::thread::Builder::new().name("transom address".into());
                let sought = seek.spawn(move || AddressHandle::new(&domain, &path)).map(Handle::Sought);
                sought.map_err(|source| VerbsError::system("a thread that seeks a peer", source))
            }
            Handle::Sought(thread) if thread.is_finished() => {
                let lost = |_| VerbsError::system("seeking a peer", std::io::ErrorKind::Other.into());
                thread.join().map_err(lost).flatten().map(Handle::Known)
            }
            known_or_sought => Ok(known_or_sought),
        }
    }
}

/// Where a peer takes datagrams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipient {
    pub path: Path,
    pub queue_pair: u32,
    /// What they must bring.
    pub key: u32,
}

impl<const N: usize> Post<N> {
    /// Takes those that bring `key`.
    pub fn new(rail: &Rail, key: u32) -> Result<Self, VerbsError> {
        const { assert!(N <= LONGEST, "as long as a slot has room for") };
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
        let ways = Ways::new(&rail.domain);
        let post = Post { ways, queue, sent, received, expected, sending, posted: 0, gone: 0 };
        post.received.notify()?;
        for at in 0..post.expected.len() {
            post.expect(at).map_err(|source| VerbsError::system("a buffer for datagrams", source))?;
        }
        Ok(post)
    }

    /// The queue pair that takes them.
    pub fn number(&self) -> u32 {
        self.queue.number()
    }

    /// The queue whose channel becomes readable when a datagram comes, if [`receive`](Self::receive) has found none
    /// before.
    pub fn received(&self) -> Arc<CompletionQueue> {
        self.received.clone()
    }

    fn expect(&self, at: usize) -> std::io::Result<()> {
        let piece = self.expected[at].piece(ROUTE + N);
        // SAFETY: the slot is the adapter's until the datagram has come, and is kept as long as the queue.
        unsafe { self.queue.expect(&[(Token::new(0, at as u64), [piece])]) }
    }

    /// What has come.
    pub fn receive(&mut self) -> Vec<[u8; N]> {
        let mut datagrams = Vec::new();
        loop {
            let mut came = Vec::new();
            let polled = self.received.poll(&mut |completion| came.push(completion));
            if let Err(error) = polled {
                tracing::error!(%error, "datagrams cannot be received any more");
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
                    tracing::error!(%error, "a buffer for datagrams is lost");
                }
            }
            if let Err(error) = self.received.notify() {
                tracing::error!(%error, "datagrams are not told any more");
            }
        }
    }

    /// What could not be sent has ended the queue pair, as Soft-RoCE does where a link is down: it is opened again, and
    /// what came meanwhile is lost.
    fn open_again(&mut self) {
        let forgotten = || {
            for queue in [&self.sent, &self.received] {
                // Takes all that there is.
                let _ = queue.poll(&mut |_| ());
            }
        };
        let opened = self.queue.open_again(forgotten).and_then(|()| {
            (self.posted, self.gone) = (0, 0);
            let expected = (0..self.expected.len()).try_for_each(|at| self.expect(at));
            expected.map_err(|source| VerbsError::system("a buffer for datagrams", source))?;
            self.received.notify()
        });
        match opened {
            Ok(()) => tracing::debug!("datagrams can be sent again"),
            Err(error) => tracing::error!(%error, "peers cannot be asked for connections any more"),
        }
    }

    /// Sends one to `peer`, or loses it.
    pub fn send(&mut self, peer: usize, to: &Recipient, datagram: &[u8; N]) -> Result<(), VerbsError> {
        // The oldest have long gone; should they not have, this one counts as lost.
        let gone = &mut self.gone;
        let what = || format!("a datagram to rank {peer}");
        self.sent.poll(&mut |_| *gone += 1).map_err(|source| VerbsError::system(what(), source))?;
        if self.posted - self.gone == self.sending.len() {
            return Ok(());
        }
        let Some(handle) = self.ways.to(peer, &to.path)? else { return Ok(()) };
        let slot = &self.sending[self.posted % self.sending.len()];
        slot.write(datagram);
        // SAFETY: the slot is not used again before it was sent, and is kept as long as the queue.
        let sent = unsafe { self.queue.send(Token::new(0, 0), slot.piece(N), handle, to.queue_pair, to.key, None) };
        sent.map_err(|source| VerbsError::system(what(), source))?;
        self.posted += 1;
        Ok(())
    }
}
