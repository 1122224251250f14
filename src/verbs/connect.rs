//! Connections on demand: whoever first needs a peer asks it by a datagram, and a thread of the peer answers, whatever
//! the program does meanwhile. Datagrams may be lost: a question is asked again until it is answered, and answering twice
//! does no harm.

use super::VerbsError;
use super::datagram::{Post, Recipient};
use super::endpoint::Endpoints;
use super::memory::{Lent, Memory};
use super::rail::Rail;
use super::settings::Settings;
use super::sys::{FarEnd, QueuePair};
use super::wr::{Failure, Why, WorkQueue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use transom_locks::Rank;
use transom_windows::{Exchange, FabricError};

const MAGIC: u64 = u64::from_be_bytes(*b"transom\x02");

/// Where a rank can be asked for a connection, as it told all at the start. Kept of each rank: small.
#[derive(Clone, Copy, Debug)]
struct Address {
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    /// Reads and atomics that it has under way, and serves, at once.
    initiated: u8,
    served: u8,
    /// Its adapter is this rank's.
    same_adapter: bool,
    /// Takes datagrams.
    queue_pair: u32,
    /// What they must bring.
    key: u32,
}

/// What a rank tells of itself.
#[derive(Clone, Copy, Debug)]
struct Card {
    address: Address,
    link: u8,
    /// Names its adapter.
    adapter: u64,
    /// Tells jobs apart: that of rank 0 is the job's.
    job: u64,
}

impl Card {
    fn to_bytes(self) -> Vec<u8> {
        let Card { address, link, adapter, job } = self;
        let numbers = [address.mtu, address.initiated, address.served, link];
        let [pair, key] = [address.queue_pair, address.key].map(u32::to_le_bytes);
        let [magic, adapter, job] = [MAGIC, adapter, job].map(u64::to_le_bytes);
        [&magic[..], &address.gid, &address.lid.to_le_bytes(), &numbers, &pair, &key, &adapter, &job].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (magic, bytes) = bytes.split_first_chunk()?;
        let (gid, bytes) = bytes.split_first_chunk()?;
        let (lid, bytes) = bytes.split_first_chunk()?;
        let ([mtu, initiated, served, link], bytes) = bytes.split_first_chunk()?;
        let (pair, bytes) = bytes.split_first_chunk()?;
        let (key, bytes) = bytes.split_first_chunk()?;
        let (adapter, bytes) = bytes.split_first_chunk()?;
        let job = u64::from_le_bytes(bytes.try_into().ok()?);
        let (lid, queue_pair, key) = (u16::from_le_bytes(*lid), u32::from_le_bytes(*pair), u32::from_le_bytes(*key));
        let (mtu, initiated, served) = (*mtu, *initiated, *served);
        let address = Address { gid: *gid, lid, mtu, initiated, served, same_adapter: false, queue_pair, key };
        let sound = *magic == MAGIC.to_le_bytes() && (1..=5).contains(&mtu) && queue_pair < 1 << 24;
        sound.then_some(Card { address, link: *link, adapter: u64::from_le_bytes(*adapter), job })
    }
}

/// What one datagram says.
#[derive(Clone, Copy, Debug)]
struct Message {
    job: u64,
    from: u32,
    what: Kind,
    queue_pair: u32,
    psn: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Kind {
    Request = 1,
    Reply = 2,
    /// No queue pair can be had.
    Reject = 3,
}

const MESSAGE: usize = 32;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE] {
        let mut bytes = [0; MESSAGE];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.job.to_le_bytes());
        let numbers = [self.from, self.what as u32, self.queue_pair, self.psn];
        bytes[16..].copy_from_slice(numbers.map(u32::to_le_bytes).as_flattened());
        bytes
    }

    fn from_bytes(bytes: &[u8; MESSAGE]) -> Option<Self> {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let what = match number(20) {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Reject,
            _ => return None,
        };
        let message = Message { job: long(8), from: number(16), what, queue_pair: number(24), psn: number(28) };
        (long(0) == MAGIC && message.queue_pair < 1 << 24 && message.psn < 1 << 24).then_some(message)
    }
}

/// What a rank has of its adapter, and the thread that answers. All that a rank's teams share.
pub(super) struct Service {
    pub core: Arc<Core>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares with the rank. The order of fields is that in which they are to go.
pub(super) struct Core {
    pub me: Rank,
    pub endpoints: Endpoints<QueuePair, Lent>,
    pub memory: Memory,
    /// Connections that are coming about; boxed, since most never do.
    links: Box<[Mutex<Option<Box<Connecting>>>]>,
    addresses: Box<[Address]>,
    job: u64,
    post: Mutex<Post<MESSAGE>>,
    /// Told when a connection came about.
    changed: (Mutex<()>, Condvar),
    refusals: Mutex<Vec<Rank>>,
    /// Queue pairs made so far.
    pub made: AtomicUsize,
    pub rail: Rail,
}

/// Bytes for each rank of the job that this one has nothing to do with.
const EACH: usize = size_of::<Address>() + 2 * size_of::<usize>() + size_of::<Mutex<Option<Box<Connecting>>>>();
const _: () = assert!(EACH <= 80, "10,000 ranks: less than a megabyte");

/// How far the connection to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has asked for it.
    Absent,
    /// This rank asked; the peer has not answered.
    Requested,
    /// The peer asked, and was answered. It may not have heard that yet.
    Replied,
    /// Both sides know.
    Ready,
}

/// A connection that is coming about, or has.
struct Connecting {
    state: State,
    /// Until it becomes the lane.
    queue: Option<QueuePair>,
    number: u32,
    /// The first packet number of this side.
    psn: u32,
    /// The far end's queue pair, once connected.
    dest_qpn: u32,
}

impl Service {
    /// Collective: opens the device and tells all others where this rank is.
    pub fn new(job: &dyn Exchange, settings: &Settings) -> Result<Self, VerbsError> {
        let made = Self::prepare(settings, job.rank());
        let mine = made.as_ref().map_or(Vec::new(), |(_, _, card)| card.to_bytes());
        let theirs = job.all_gather(&mine)?;
        let (rail, post, mine) = made?;
        let mut addresses = Vec::with_capacity(theirs.len());
        let mut of_job = mine.job;
        for (rank, theirs) in theirs.iter().enumerate() {
            let card = Card::from_bytes(theirs).ok_or(VerbsError::Peer { rank })?;
            if card.link != mine.link {
                let what = format!("the RDMA device of rank {rank} and {} of rank {}", rail.name(), job.rank());
                let why = "one is InfiniBand, RoCE v1 or RoCE v2, and the other is not; choose by TRANSOM_VERBS_DEVICE \
                           or TRANSOM_VERBS_GID";
                return Err(VerbsError::unusable(what, why.into()));
            }
            of_job = if rank == 0 { card.job } else { of_job };
            addresses.push(Address { same_adapter: card.adapter == mine.adapter, ..card.address });
        }
        let core = Arc::new(Core {
            me: job.rank(),
            endpoints: Endpoints::new(job.rank(), addresses.len()),
            memory: Memory::new(&rail.domain),
            links: addresses.iter().map(|_| Mutex::default()).collect(),
            addresses: addresses.into(),
            job: of_job,
            post: Mutex::new(post),
            changed: Default::default(),
            refusals: Mutex::default(),
            made: AtomicUsize::new(0),
            rail,
        });
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| VerbsError::system("eventfd", errno.into()))?;
        let told = stop.try_clone().map_err(|source| VerbsError::system("a descriptor", source))?;
        let serving = core.clone();
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || serving.serve(&told));
        let thread = thread.map_err(|source| VerbsError::system("a thread that answers peers", source))?;
        Ok(Service { core, stop, thread: Some(thread) })
    }

    fn prepare(settings: &Settings, me: Rank) -> Result<(Rail, Post<MESSAGE>, Card), VerbsError> {
        let rail = Rail::open(settings)?;
        let key = random() as u32 & 0x7fff_ffff;
        let post = Post::new(&rail, key)?;
        let [initiated, served] = rail.initiated_and_served();
        let (gid, lid, mtu, queue_pair) = (rail.gid(), rail.lid(), rail.mtu() as u8, post.number());
        let address = Address { gid, lid, mtu, initiated, served, same_adapter: true, queue_pair, key };
        tracing::debug!(rank = me, ?address, "where this rank is");
        let card = Card { address, link: rail.link() as u8, adapter: rail.adapter(), job: random() };
        Ok((rail, post, card))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Core {
    /// Whether a rank's adapter is this rank's, so that the atomics of both are atomic towards each other.
    pub fn shares_adapter(&self, peer: usize) -> bool {
        self.addresses[peer].same_adapter
    }

    fn link(&self, peer: Rank) -> MutexGuard<'_, Option<Box<Connecting>>> {
        self.links[peer].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks a peer for a connection, or again; with itself a rank connects at once.
    pub fn ask(&self, peer: Rank) -> Result<(), VerbsError> {
        let mut link = self.link(peer);
        let connecting = self.begin(&mut link)?;
        match connecting.state {
            State::Ready => return Ok(()),
            _ if peer == self.me => {
                let number = connecting.number;
                return self.connect(connecting, peer, number, connecting.psn, State::Ready);
            }
            State::Absent => connecting.state = State::Requested,
            State::Requested | State::Replied => {}
        }
        let question = self.message(connecting, Kind::Request);
        drop(link);
        self.send(peer, question)
    }

    /// A connection that has a queue pair at least.
    fn begin<'l>(&self, link: &'l mut Option<Box<Connecting>>) -> Result<&'l mut Connecting, VerbsError> {
        if link.is_none() {
            let queue = self.rail.queue_pair()?;
            self.made.fetch_add(1, Relaxed);
            let (number, psn) = (queue.number(), random() as u32 & 0xff_ffff);
            tracing::debug!(number, depth = queue.depth(), inline = queue.inline(), "queue pair made");
            let connecting = Connecting { state: State::Absent, queue: Some(queue), number, psn, dest_qpn: 0 };
            *link = Some(Box::new(connecting));
        }
        Ok(link.as_mut().expect("just made"))
    }

    /// Whether a peer said that it has no queue pair.
    pub fn refused(&self, peer: Rank) -> bool {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).contains(&peer)
    }

    fn message(&self, connecting: &Connecting, what: Kind) -> Message {
        let Connecting { number: queue_pair, psn, .. } = *connecting;
        Message { job: self.job, from: self.me as u32, what, queue_pair, psn }
    }

    fn connect(
        &self,
        connecting: &mut Connecting,
        peer: Rank,
        dest_qpn: u32,
        remote_psn: u32,
        to: State,
    ) -> Result<(), VerbsError> {
        let address = &self.addresses[peer];
        let [initiated, served] = self.rail.initiated_and_served();
        let far = FarEnd {
            path: self.rail.path(address.gid, address.lid),
            mtu: u32::from(address.mtu).min(self.rail.mtu()),
            queue_pair: dest_qpn,
            psn: remote_psn,
            served: served.min(address.initiated),
            initiated: initiated.min(address.served),
        };
        let queue = connecting.queue.as_ref().expect("until it is the lane");
        queue.connect(&self.rail.near_end(connecting.psn), &far)?;
        connecting.dest_qpn = dest_qpn;
        tracing::debug!(rank = self.me, peer, "connected");
        self.is(connecting, peer, to);
        Ok(())
    }

    /// Takes note of how far a connection is; once both sides know of it, it is the lane.
    fn is(&self, connecting: &mut Connecting, peer: Rank, state: State) {
        connecting.state = state;
        if let Some(queue) = connecting.queue.take_if(|_| state == State::Ready) {
            self.endpoints.add(peer, queue);
        }
    }

    /// The thread's work, until it is told to stop.
    fn serve(&self, stop: &OwnedFd) {
        let (post, context) = (|| self.post.lock().unwrap_or_else(PoisonError::into_inner), self.rail.context());
        let received = post().received();
        let channel = received.channel().expect("datagrams are told");
        loop {
            let messages = post().receive();
            for message in messages.iter().filter_map(Message::from_bytes) {
                self.take(message);
            }
            let mut waiting = [
                PollFd::new(channel, PollFlags::IN),
                PollFd::new(stop, PollFlags::IN),
                PollFd::new(&**context, PollFlags::IN),
            ];
            match poll(&mut waiting, None) {
                Ok(_) if !waiting[1].revents().is_empty() => return,
                Ok(_) => {
                    let came = [0, 2].map(|at| waiting[at].revents().contains(PollFlags::IN));
                    if came[0] {
                        channel.quiet();
                    }
                    if came[1] {
                        self.heed();
                    } else if !waiting[2].revents().is_empty() {
                        return tracing::error!(rank = self.me, "the RDMA device says nothing more");
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(rank = self.me, %errno, "peers cannot be answered any more");
                    return;
                }
            }
        }
    }

    /// Takes what the device said unasked.
    fn heed(&self) {
        let event = match self.rail.context().event() {
            Ok(event) => event,
            Err(error) => return tracing::warn!(rank = self.me, %error, "an event of the RDMA device is lost"),
        };
        tracing::debug!(rank = self.me, ?event, "the RDMA device says");
        if let Some(failed) = self.rail.health.note(event, self.rail.port()) {
            let lane = self.endpoints.all().find(|(_, lane)| lane.queue_pair() == failed);
            lane.into_iter().for_each(|(_, lane)| lane.give_up(Failure::known(Why::Ended)));
        }
    }

    fn take(&self, message: Message) {
        let peer = message.from as usize;
        if peer >= self.addresses.len() || peer == self.me || message.job != self.job {
            return tracing::debug!(rank = self.me, ?message, "a datagram that is not for us");
        }
        let answer = self.answer(peer, message).unwrap_or_else(|error| {
            tracing::error!(rank = self.me, peer, %error, "no connection");
            Some(Message { job: self.job, from: self.me as u32, what: Kind::Reject, queue_pair: 0, psn: 0 })
        });
        let (changing, changed) = &self.changed;
        // Whoever waits has looked, or will.
        drop(changing.lock().unwrap_or_else(PoisonError::into_inner));
        changed.notify_all();
        if let Some(Err(error)) = answer.map(|answer| self.send(peer, answer)) {
            tracing::error!(rank = self.me, peer, %error, "no answer sent");
        }
    }

    fn answer(&self, peer: Rank, message: Message) -> Result<Option<Message>, VerbsError> {
        let mut link = self.link(peer);
        let (state, dest_qpn) = link.as_ref().map_or((State::Absent, 0), |link| (link.state, link.dest_qpn));
        match (message.what, state) {
            (Kind::Reject, State::Requested | State::Absent) => {
                self.refusals.lock().unwrap_or_else(PoisonError::into_inner).push(peer);
            }
            (Kind::Reply, State::Requested) => {
                let connecting = self.begin(&mut link)?;
                self.connect(connecting, peer, message.queue_pair, message.psn, State::Ready)?;
            }
            (Kind::Reply, State::Replied) if message.queue_pair == dest_qpn => {
                let connecting = self.begin(&mut link)?;
                self.is(connecting, peer, State::Ready);
            }
            (Kind::Request, State::Absent | State::Requested) => {
                let connecting = self.begin(&mut link)?;
                self.connect(connecting, peer, message.queue_pair, message.psn, State::Replied)?;
                return Ok(Some(self.message(connecting, Kind::Reply)));
            }
            // The answer was lost.
            (Kind::Request, _) if message.queue_pair == dest_qpn => {
                let connecting = self.begin(&mut link)?;
                return Ok(Some(self.message(connecting, Kind::Reply)));
            }
            _ => {}
        }
        Ok(None)
    }

    fn send(&self, peer: Rank, message: Message) -> Result<(), VerbsError> {
        let Address { gid, lid, queue_pair, key, .. } = self.addresses[peer];
        let to = Recipient { path: self.rail.path(gid, lid), queue_pair, key };
        self.post.lock().unwrap_or_else(PoisonError::into_inner).send(peer, &to, &message.to_bytes())
    }

    /// Waits a little for a connection to come about.
    pub fn await_connection(&self, peer: Rank, time: Duration) {
        let (changing, changed) = &self.changed;
        let waiting = |_: &mut ()| self.endpoints.lane(peer).is_none();
        let changing = changing.lock().unwrap_or_else(PoisonError::into_inner);
        drop(changed.wait_timeout_while(changing, time, waiting));
    }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}

/// What a rank is told whose own device failed after all were connected.
pub(super) fn refused(rank: Rank, source: VerbsError) -> FabricError {
    FabricError::System { what: format!("no connection to rank {rank}"), source: std::io::Error::other(source) }
}
