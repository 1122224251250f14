//! Connections on demand: whoever first needs a peer asks it by a datagram, and a thread of the peer answers, whatever
//! the program does meanwhile. Datagrams may be lost: a question is asked again until it is answered, and answering twice
//! does no harm.

use super::VerbsError;
use super::device::{Device, last_error};
use super::engine::{Engine, State};
use super::library::{self, req_notify_cq};
use super::memory::{Slot, Slots};
use super::queue::{CompletionQueue, QueuePair, RemoteEnd, initiator_depth, responder_resources};
use super::settings::Settings;
use ibverbs_sys::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use transom_locks::Rank;
use transom_windows::{Exchange, FabricError};

/// Messages that can come before the thread looks.
const MESSAGES: usize = 256;
/// The adapter puts where a datagram came from before it.
const ROUTE: usize = 40;
const MAGIC: u64 = u64::from_be_bytes(*b"transom\x01");

/// Where a rank can be asked for a connection, as it told all at the start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    gid: [u8; 16],
    lid: u16,
    mtu: u8,
    responder_resources: u8,
    initiator_depth: u8,
    /// Takes datagrams.
    queue_pair: u32,
    /// What they must bring.
    key: u32,
    /// Tells jobs apart.
    job: u64,
}

impl Address {
    fn to_bytes(self) -> Vec<u8> {
        let numbers = [self.mtu, self.responder_resources, self.initiator_depth];
        let (lid, pair, key, job) =
            (self.lid.to_le_bytes(), self.queue_pair.to_le_bytes(), self.key.to_le_bytes(), self.job);
        [&MAGIC.to_le_bytes()[..], &self.gid, &lid, &numbers, &pair, &key, &job.to_le_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (magic, bytes) = bytes.split_first_chunk()?;
        let (gid, bytes) = bytes.split_first_chunk()?;
        let (lid, bytes) = bytes.split_first_chunk()?;
        let ([mtu, responder_resources, initiator_depth], bytes) = bytes.split_first_chunk()?;
        let (pair, bytes) = bytes.split_first_chunk()?;
        let (key, bytes) = bytes.split_first_chunk()?;
        let address = Address {
            gid: *gid,
            lid: u16::from_le_bytes(*lid),
            mtu: *mtu,
            responder_resources: *responder_resources,
            initiator_depth: *initiator_depth,
            queue_pair: u32::from_le_bytes(*pair),
            key: u32::from_le_bytes(*key),
            job: u64::from_le_bytes(bytes.try_into().ok()?),
        };
        let sound = *magic == MAGIC.to_le_bytes() && (1..=5).contains(mtu) && address.queue_pair < 1 << 24;
        sound.then_some(address)
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

/// An endpoint: a device, the queue pairs of this rank, and the thread that answers. All that a rank's teams share.
pub(super) struct Endpoint {
    pub core: Arc<Core>,
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

/// What the thread shares with the rank.
pub(super) struct Core {
    pub me: Rank,
    addresses: Box<[Address]>,
    engine: Mutex<Engine>,
    pub settings: Settings,
    datagrams: Mutex<Datagrams>,
    /// Told when a connection came about.
    pub connected: Condvar,
    rejects: Mutex<Vec<Rank>>,
    pub device: Arc<Device>,
}

/// The order of fields is that in which they are to go.
struct Datagrams {
    routes: Vec<Option<Route>>,
    queue: QueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    channel: Channel,
    slots: Slots,
    sending: Vec<Slot>,
    under_way: usize,
}

impl Endpoint {
    /// Collective: opens the device and tells all others where this rank is.
    pub fn new(job: &dyn Exchange, settings: Settings) -> Result<Self, VerbsError> {
        let made = Self::prepare(&settings, job.rank(), job.size());
        let mine = made.as_ref().map_or(Vec::new(), |(_, _, _, address)| address.to_bytes());
        let theirs = job.all_gather(&mine)?;
        let (device, engine, datagrams, _) = made?;
        let mut addresses = Vec::with_capacity(theirs.len());
        for (rank, theirs) in theirs.iter().enumerate() {
            addresses.push(Address::from_bytes(theirs).ok_or(VerbsError::Peer { rank })?);
        }
        let (me, rejects, connected) = (job.rank(), Mutex::default(), Condvar::new());
        let core = Core {
            me,
            addresses: addresses.into(),
            engine: Mutex::new(engine),
            settings,
            datagrams: Mutex::new(datagrams),
            connected,
            rejects,
            device,
        };
        let core = Arc::new(core);
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| VerbsError::system("eventfd", errno.into()))?;
        let told = stop.try_clone().map_err(|source| VerbsError::system("a descriptor", source))?;
        let serving = core.clone();
        let thread = std::thread::Builder::new().name("transom verbs".into()).spawn(move || serving.serve(&told));
        let thread = thread.map_err(|source| VerbsError::system("a thread that answers peers", source))?;
        Ok(Endpoint { core, stop, thread: Some(thread) })
    }

    fn prepare(
        settings: &Settings,
        me: Rank,
        ranks: usize,
    ) -> Result<(Arc<Device>, Engine, Datagrams, Address), VerbsError> {
        let device = Arc::new(Device::open(settings)?);
        let engine = Engine::new(&device, settings, me, ranks)?;
        let key = random() as u32 & 0x7fff_ffff;
        let datagrams = Datagrams::new(&device, ranks, key)?;
        let address = Address {
            gid: device.gid,
            lid: device.lid,
            mtu: device.mtu as u8,
            responder_resources: responder_resources(&device.limits),
            initiator_depth: initiator_depth(&device.limits),
            queue_pair: datagrams.queue.number(),
            key,
            job: random(),
        };
        Ok((device, engine, datagrams, address))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Core {
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn datagrams(&self) -> MutexGuard<'_, Datagrams> {
        self.datagrams.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Asks a peer for a connection, or again; with itself a rank connects at once.
    pub fn ask(&self, peer: Rank) -> Result<(), VerbsError> {
        let mut engine = self.engine();
        let question = match engine.peers[peer].state {
            State::Ready => return Ok(()),
            _ if peer == self.me => {
                let queue_pair = engine.queue(peer)?.number();
                return self.connect(&mut engine, peer, queue_pair, 0, State::Ready);
            }
            State::Absent => {
                engine.queue(peer)?;
                engine.peers[peer].psn = random() as u32 & 0xff_ffff;
                engine.peers[peer].state = State::Requested;
                self.message(&engine, peer, Kind::Request)
            }
            State::Requested | State::Replied => self.message(&engine, peer, Kind::Request),
        };
        drop(engine);
        self.send(peer, question)
    }

    /// Whether a peer said that it has no queue pair.
    pub fn refused(&self, peer: Rank) -> bool {
        self.rejects.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(&peer)
    }

    fn message(&self, engine: &Engine, peer: Rank, what: Kind) -> Message {
        let of = &engine.peers[peer];
        let queue_pair = of.queue.as_ref().map_or(0, QueuePair::number);
        Message { job: self.addresses[peer].job, from: self.me as u32, what, queue_pair, psn: of.psn }
    }

    fn connect(
        &self,
        engine: &mut Engine,
        peer: Rank,
        dest_qpn: u32,
        remote_psn: u32,
        to: State,
    ) -> Result<(), VerbsError> {
        let address = &self.addresses[peer];
        let end = RemoteEnd {
            gid: address.gid,
            lid: address.lid,
            mtu: u32::from(address.mtu),
            queue_pair: dest_qpn,
            psn: remote_psn,
            responder_resources: address.responder_resources,
            initiator_depth: address.initiator_depth,
        };
        let psn = engine.peers[peer].psn;
        engine.queue(peer)?.connect(&end, psn, &self.settings)?;
        (engine.peers[peer].dest_qpn, engine.peers[peer].state) = (dest_qpn, to);
        tracing::debug!(rank = self.me, peer, "connected");
        Ok(())
    }

    /// The thread's work, until it is told to stop.
    fn serve(&self, stop: &OwnedFd) {
        let channel = self.datagrams().channel.fd();
        // SAFETY: the channel lives as long as `self`.
        let channel = unsafe { BorrowedFd::borrow_raw(channel) };
        loop {
            let messages = self.datagrams().receive(&self.device);
            for message in messages {
                self.take(message);
            }
            let mut waiting = [PollFd::new(&channel, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match poll(&mut waiting, None) {
                Ok(_) if !waiting[1].revents().is_empty() => return,
                Ok(_) => self.datagrams().channel.quiet(&self.device),
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(rank = self.me, %errno, "peers cannot be answered any more");
                    return;
                }
            }
        }
    }

    fn take(&self, message: Message) {
        let peer = message.from as usize;
        if peer >= self.addresses.len() || peer == self.me || message.job != self.addresses[self.me].job {
            return tracing::debug!(rank = self.me, ?message, "a datagram that is not for us");
        }
        let mut engine = self.engine();
        let (state, dest_qpn) = (engine.peers[peer].state, engine.peers[peer].dest_qpn);
        let answered = match (message.what, state) {
            (Kind::Reject, State::Requested | State::Absent) => {
                self.rejects.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(peer);
                Ok(None)
            }
            (Kind::Reply, State::Requested) => {
                self.connect(&mut engine, peer, message.queue_pair, message.psn, State::Ready).map(|()| None)
            }
            (Kind::Reply, State::Replied) if message.queue_pair == dest_qpn => {
                engine.peers[peer].state = State::Ready;
                Ok(None)
            }
            (Kind::Request, State::Absent | State::Requested) => {
                if state == State::Absent {
                    engine.peers[peer].psn = random() as u32 & 0xff_ffff;
                }
                let connected = self.connect(&mut engine, peer, message.queue_pair, message.psn, State::Replied);
                connected.map(|()| Some(self.message(&engine, peer, Kind::Reply)))
            }
            // The answer was lost.
            (Kind::Request, _) if message.queue_pair == dest_qpn => Ok(Some(self.message(&engine, peer, Kind::Reply))),
            _ => Ok(None),
        };
        let answer = answered.unwrap_or_else(|error| {
            tracing::error!(rank = self.me, peer, %error, "no connection");
            Some(Message { queue_pair: 0, ..self.message(&engine, peer, Kind::Reject) })
        });
        drop(engine);
        self.connected.notify_all();
        if let Some(Err(error)) = answer.map(|answer| self.send(peer, answer)) {
            tracing::error!(rank = self.me, peer, %error, "no answer sent");
        }
    }

    fn send(&self, peer: Rank, message: Message) -> Result<(), VerbsError> {
        let address = &self.addresses[peer];
        let route = self.device.route(address.gid, address.lid, self.settings.service_level);
        self.datagrams().send(&self.device, peer, route, address, message)
    }

    /// Waits a little for a connection to come about.
    pub fn await_connection(&self, peer: Rank, time: std::time::Duration) {
        let waiting = |engine: &mut Engine| engine.peers[peer].state != State::Ready;
        drop(self.connected.wait_timeout_while(self.engine(), time, waiting));
    }
}

impl Datagrams {
    fn new(device: &Arc<Device>, ranks: usize, key: u32) -> Result<Self, VerbsError> {
        let channel = Channel::new(device)?;
        let received = CompletionQueue::new(device, MESSAGES as u32, channel.raw.as_ptr())?;
        let sent = CompletionQueue::new(device, MESSAGES as u32, std::ptr::null_mut())?;
        let most = device.limits.max_qp_wr.clamp(1, MESSAGES as i32) as u32;
        let capacity = ibv_qp_cap {
            max_send_wr: 64.min(most),
            max_recv_wr: most,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let queue = QueuePair::new(device, &sent, &received, ibv_qp_type::IBV_QPT_UD, capacity)?;
        queue.open_datagrams(key)?;
        let mut slots = Slots::new(device, 128, most as usize + 64);
        let sending = (0..queue.depth.min(64)).map(|_| slots.take()).collect::<Result<_, _>>()?;
        let routes = (0..ranks).map(|_| None).collect();
        let datagrams = Datagrams { routes, queue, sent, received, channel, slots, sending, under_way: 0 };
        datagrams.notify(device)?;
        let mut datagrams = datagrams;
        for _ in 0..most {
            let slot = datagrams.slots.take()?;
            datagrams.expect(slot).map_err(|source| VerbsError::system("a buffer for datagrams", source))?;
        }
        Ok(datagrams)
    }

    fn notify(&self, device: &Device) -> Result<(), VerbsError> {
        // SAFETY: alive as long as `self`.
        let asked = unsafe { req_notify_cq(self.received.raw.as_ptr()) };
        asked.map_err(|source| VerbsError::system(format!("events of RDMA device {}", device.name), source))
    }

    /// Hands a buffer over for a datagram to come.
    fn expect(&self, slot: Slot) -> std::io::Result<()> {
        let mut piece = self.slots.piece(slot, ROUTE + MESSAGE);
        let next = std::ptr::null_mut();
        let mut request = ibv_recv_wr { wr_id: slot.number().into(), next, sg_list: &mut piece, num_sge: 1 };
        // SAFETY: the queue pair is alive, and the slot is the adapter's until the datagram has come.
        unsafe { library::post_recv(self.queue.raw.as_ptr(), &mut request) }
    }

    /// What has come, and asks to be told of what comes.
    fn receive(&mut self, device: &Device) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let mut came = Vec::new();
            self.received
                .poll(|completion| came.push((completion.wr_id(), completion.error().is_none(), completion.len())));
            if came.is_empty() {
                return messages;
            }
            for (slot, well, len) in came {
                let slot = Slot::numbered(slot as u32);
                let mut bytes = [0; ROUTE + MESSAGE];
                self.slots.read(slot, &mut bytes);
                let (_, message) = bytes.split_last_chunk().expect("as long as a message");
                messages.extend(Message::from_bytes(message).filter(|_| well && len == ROUTE + MESSAGE));
                if let Err(error) = self.expect(slot) {
                    tracing::error!(%error, "a buffer for datagrams is lost");
                }
            }
            let _ = self.notify(device);
        }
    }

    fn send(
        &mut self,
        device: &Arc<Device>,
        peer: Rank,
        mut route: ibv_ah_attr,
        to: &Address,
        message: Message,
    ) -> Result<(), VerbsError> {
        if self.routes[peer].is_none() {
            self.routes[peer] = Some(Route::new(device, &mut route)?);
        }
        let handle = self.routes[peer].as_ref().expect("just made").raw;
        // The oldest have long gone; should they not have, this one counts as lost.
        let mut gone = 0;
        self.sent.poll(|_| gone += 1);
        self.under_way -= gone;
        if self.under_way == self.sending.len() {
            return Ok(());
        }
        let slot = self.sending[0];
        self.sending.rotate_left(1);
        self.slots.write(slot, &message.to_bytes());
        let mut piece = self.slots.piece(slot, MESSAGE);
        let mut request = ibv_send_wr { sg_list: &mut piece, num_sge: 1, ..Default::default() };
        request.opcode = ibv_wr_opcode::IBV_WR_SEND;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.ud.ah = handle.as_ptr();
        request.wr.ud.remote_qpn = to.queue_pair;
        request.wr.ud.remote_qkey = to.key;
        // SAFETY: queue pair and route are alive; the slot is not used again before it was sent.
        let sent = unsafe { library::post_send(self.queue.raw.as_ptr(), &mut request) };
        sent.map_err(|source| VerbsError::system(format!("asking rank {peer} for a connection"), source))?;
        self.under_way += 1;
        Ok(())
    }
}

/// An address handle. Destroyed when dropped.
struct Route {
    raw: NonNull<ibv_ah>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Route {}

impl Route {
    fn new(device: &Arc<Device>, to: &mut ibv_ah_attr) -> Result<Self, VerbsError> {
        // SAFETY: the domain is alive.
        let raw = NonNull::new(unsafe { (device.library.ibv_create_ah)(device.domain.as_ptr(), to) });
        let raw =
            raw.ok_or_else(|| VerbsError::system(format!("a route from RDMA device {}", device.name), last_error()))?;
        Ok(Route { raw, device: device.clone() })
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once.
        unsafe { (self.device.library.ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}

/// What becomes readable when a datagram has come. Destroyed when dropped, after its queue.
struct Channel {
    raw: NonNull<ibv_comp_channel>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Channel {}

impl Channel {
    fn new(device: &Arc<Device>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (device.library.ibv_create_comp_channel)(device.context.as_ptr()) });
        let raw =
            raw.ok_or_else(|| VerbsError::system(format!("events of RDMA device {}", device.name), last_error()))?;
        Ok(Channel { raw, device: device.clone() })
    }

    fn fd(&self) -> i32 {
        // SAFETY: alive until dropped.
        unsafe { self.raw.as_ref() }.fd
    }

    /// Takes the event that made it readable.
    fn quiet(&self, device: &Device) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and has an event, so this does not wait; each event is acknowledged once.
        unsafe {
            if (device.library.ibv_get_cq_event)(self.raw.as_ptr(), &mut queue, &mut context) == 0 {
                (device.library.ibv_ack_cq_events)(queue, 1);
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once.
        unsafe { (self.device.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
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
