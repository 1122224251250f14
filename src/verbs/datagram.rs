//! Unreliable datagrams of one size between ranks: what connections are agreed upon with. They may be lost, and what was
//! sent may come late or twice.

use super::VerbsError;
use super::device::{Device, last_error};
use super::library::{self, req_notify_cq};
use super::memory::{Slot, Slots};
use super::queue::{CompletionQueue, QueuePair};
use ibverbs_sys::*;
use std::collections::{HashMap, hash_map::Entry};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use transom_locks::Rank;

/// Datagrams that can come before somebody looks.
const MESSAGES: usize = 256;
/// The adapter puts where a datagram came from before it.
const ROUTE: usize = 40;

/// Bytes of a slot; what a datagram and its route need at most.
const SLOT: usize = 128;

/// Where a rank takes datagrams, and what they must bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Destination {
    pub gid: [u8; 16],
    pub lid: u16,
    pub queue_pair: u32,
    pub key: u32,
}

/// Sends and receives datagrams of `N` bytes. The order of fields is that in which they are to go.
pub(super) struct Datagrams<const N: usize> {
    /// To ranks that something was sent to.
    routes: HashMap<Rank, Route>,
    queue: QueuePair,
    sent: CompletionQueue,
    received: CompletionQueue,
    channel: Channel,
    slots: Slots,
    sending: Vec<Slot>,
    under_way: usize,
    service_level: u8,
    device: Arc<Device>,
}

impl<const N: usize> Datagrams<N> {
    /// They must bring `key`.
    pub fn new(device: &Arc<Device>, service_level: u8, key: u32) -> Result<Self, VerbsError> {
        const { assert!(ROUTE + N <= SLOT) };
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
        let mut slots = Slots::new(device, SLOT, most as usize + 64);
        let sending = (0..queue.depth.min(64)).map(|_| slots.take()).collect::<Result<_, _>>()?;
        let (routes, device) = (HashMap::new(), device.clone());
        let mut datagrams =
            Datagrams { routes, queue, sent, received, channel, slots, sending, under_way: 0, service_level, device };
        datagrams.notify()?;
        for _ in 0..most {
            let slot = datagrams.slots.take()?;
            datagrams.expect(slot).map_err(|source| VerbsError::system("a buffer for datagrams", source))?;
        }
        Ok(datagrams)
    }

    /// The number by which others send here.
    pub fn queue_pair(&self) -> u32 {
        self.queue.number()
    }

    /// Becomes readable when datagrams come after [`receive`](Self::receive) gave none; [`quiet`](Self::quiet) then.
    pub fn readable(&self) -> BorrowedFd<'_> {
        self.channel.fd()
    }

    /// Takes the event that made it readable.
    pub fn quiet(&self) {
        self.channel.quiet();
    }

    /// Some of what has come, of at most as many datagrams as there are buffers; nothing only if nothing has.
    pub fn receive(&mut self) -> Vec<[u8; N]> {
        let (mut came, mut datagrams) = (Vec::new(), Vec::new());
        self.received
            .poll(|completion| came.push((completion.wr_id(), completion.error().is_none(), completion.len())));
        for &(slot, well, len) in &came {
            let slot = Slot::numbered(slot as u32);
            let mut bytes = [0; SLOT];
            self.slots.read(slot, &mut bytes);
            if well && len == ROUTE + N {
                datagrams.push(bytes[ROUTE..ROUTE + N].try_into().expect("of this length"));
            }
            if let Err(error) = self.expect(slot) {
                tracing::error!(%error, "a buffer for datagrams is lost");
            }
        }
        if let Some(Err(error)) = (!came.is_empty()).then(|| self.notify()) {
            tracing::error!(%error, "datagrams may not be noticed");
        }
        // Others may have come before the events were asked for.
        if !came.is_empty() && datagrams.is_empty() { self.receive() } else { datagrams }
    }

    /// Sends one, which may be lost.
    pub fn send(&mut self, rank: Rank, to: &Destination, datagram: &[u8; N]) -> Result<(), VerbsError> {
        let handle = match self.routes.entry(rank) {
            Entry::Occupied(route) => route.get().raw,
            Entry::Vacant(none) => {
                let mut attributes = self.device.route(to.gid, to.lid, self.service_level);
                none.insert(Route::new(&self.device, &mut attributes)?).raw
            }
        };
        // The oldest have long gone; should they not have, this one counts as lost.
        let mut gone = 0;
        self.sent.poll(|_| gone += 1);
        self.under_way -= gone;
        if self.under_way == self.sending.len() {
            return Ok(());
        }
        let slot = self.sending[0];
        self.sending.rotate_left(1);
        self.slots.write(slot, datagram);
        let mut piece = self.slots.piece(slot, N);
        let mut request = ibv_send_wr { sg_list: &mut piece, num_sge: 1, ..Default::default() };
        request.opcode = ibv_wr_opcode::IBV_WR_SEND;
        request.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        request.wr.ud.ah = handle.as_ptr();
        request.wr.ud.remote_qpn = to.queue_pair;
        request.wr.ud.remote_qkey = to.key;
        // SAFETY: queue pair and route are alive; the slot is not used again before it was sent.
        let sent = unsafe { library::post_send(self.queue.raw.as_ptr(), &mut request) };
        sent.map_err(|source| VerbsError::system(format!("a datagram to rank {rank}"), source))?;
        self.under_way += 1;
        Ok(())
    }

    fn notify(&self) -> Result<(), VerbsError> {
        // SAFETY: alive as long as `self`.
        let asked = unsafe { req_notify_cq(self.received.raw.as_ptr()) };
        asked.map_err(|source| VerbsError::system(format!("events of RDMA device {}", self.device.name), source))
    }

    /// Hands a buffer over for a datagram to come.
    fn expect(&self, slot: Slot) -> std::io::Result<()> {
        let mut piece = self.slots.piece(slot, ROUTE + N);
        let next = std::ptr::null_mut();
        let mut request = ibv_recv_wr { wr_id: slot.number().into(), next, sg_list: &mut piece, num_sge: 1 };
        // SAFETY: the queue pair is alive, and the slot is the adapter's until the datagram has come.
        unsafe { library::post_recv(self.queue.raw.as_ptr(), &mut request) }
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

    fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, and with it the descriptor, is alive until dropped.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }

    fn quiet(&self) {
        let (mut queue, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the channel is alive and has an event, so this does not wait; each event is acknowledged once.
        unsafe {
            if (self.device.library.ibv_get_cq_event)(self.raw.as_ptr(), &mut queue, &mut context) == 0 {
                (self.device.library.ibv_ack_cq_events)(queue, 1);
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
