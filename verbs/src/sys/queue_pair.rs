//! Queue pairs: reliable connections, and unreliable datagrams.

use super::library::{done, post_recv, post_send};
use super::shared_queue::chained;
use super::{Access, AddressHandle, CompletionQueue, Domain, Path, SharedQueue, refused};
use crate::VerbsError;
use crate::wr::{Piece, Request, Token, Verb, WorkQueue};
use ibverbs_sys::*;
use rustix::io::Errno;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A queue pair. Destroyed when dropped; none of its requests is in flight afterwards.
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    depth: u32,
    inline: u32,
    fences: bool,
    domain: Arc<Domain>,
    /// Dropped after the queue pair.
    _completions: [Arc<CompletionQueue>; 2],
    _shared: Option<Arc<SharedQueue>>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above; a queue pair has its own locks.
unsafe impl Sync for QueuePair {}

/// Requested capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Requests in flight; fewer, for a reliable connection, if the device supports fewer.
    pub depth: u32,
    /// Posted receives.
    pub receives: u32,
    /// Inline bytes; fewer if the device supports fewer.
    pub inline: u32,
    /// Scatter entries per receive.
    pub scatter: u32,
}

/// Parameters of the local end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearEnd {
    pub port: u8,
    pub pkey_index: u16,
    pub psn: u32,
    /// Exponent of the timeout, which is 4.096 us times a power of two.
    pub timeout: u8,
    /// Number of retransmissions of a packet.
    pub retries: u8,
}

/// Parameters of the far end of a connection, as published by it or agreed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    pub path: Path,
    pub mtu: ibv_mtu,
    pub queue_pair: u32,
    pub psn: u32,
    /// Most reads and atomics that the far end may have in flight here.
    pub served: u8,
    /// Most reads and atomics that this rank may have in flight there.
    pub initiated: u8,
}

impl QueuePair {
    /// Creates an unconnected reliable queue pair. Requests and receives complete on separate queues; messages arrive
    /// at the shared queue, if there is one.
    pub fn reliable(
        domain: &Arc<Domain>,
        completions: [&Arc<CompletionQueue>; 2],
        shared: Option<&Arc<SharedQueue>>,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        Self::new(domain, completions.map(Arc::clone), shared, ibv_qp_type::IBV_QPT_RC, capacity)
    }

    /// Forbids fenced requests from now on: the poster must wait instead.
    pub fn leave_fences(&mut self) {
        self.fences = false;
    }

    fn new(
        domain: &Arc<Domain>,
        completions: [Arc<CompletionQueue>; 2],
        shared: Option<&Arc<SharedQueue>>,
        kind: ibv_qp_type::Type,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        // Senders of datagrams have memory for exactly this depth.
        let least = if kind == ibv_qp_type::IBV_QPT_RC { LEAST } else { capacity.depth };
        largest(capacity, least, |capacity| {
            let mut wanted = ibv_qp_init_attr {
                send_cq: completions[0].raw.as_ptr(),
                recv_cq: completions[1].raw.as_ptr(),
                srq: shared.map_or(null_mut(), |shared| shared.raw.as_ptr()),
                cap: ibv_qp_cap {
                    max_send_wr: capacity.depth,
                    max_recv_wr: capacity.receives,
                    max_send_sge: 1,
                    max_recv_sge: capacity.scatter,
                    max_inline_data: capacity.inline,
                },
                qp_type: kind,
                ..Default::default()
            };
            // SAFETY: the domain and the completion queues are alive.
            let raw = unsafe { (domain.library().ibv_create_qp)(domain.raw.as_ptr(), &mut wanted) };
            let what =
                || format!("creating a queue pair of depth {} on RDMA device {}", capacity.depth, domain.context.name);
            let raw = NonNull::new(raw).ok_or_else(|| refused(what()))?;
            let depth = wanted.cap.max_send_wr.min(capacity.depth);
            let inline = wanted.cap.max_inline_data.min(capacity.inline);
            let (domain, _shared, _completions) = (domain.clone(), shared.cloned(), completions.clone());
            Ok(QueuePair { raw, depth, inline, fences: true, domain, _completions, _shared })
        })
    }

    /// Moves the queue pair to INIT. Peers will have the access rights of each registration.
    pub fn initialise(&self, near: &NearEnd) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: near.port,
            pkey_index: near.pkey_index,
            qp_access_flags: Access::All.flags(self.domain.context.has_atomics()).0,
            ..Default::default()
        };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut to, what, "initialising")
    }

    /// Connects the queue pair: it receives and sends.
    pub fn connect(&self, near: &NearEnd, far: &FarEnd) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: far.mtu,
            dest_qp_num: far.queue_pair,
            rq_psn: far.psn,
            max_dest_rd_atomic: far.served,
            min_rnr_timer: 12,
            ah_attr: far.path.attributes(),
            ..Default::default()
        };
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_DEST_QPN
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut to, what, "connecting")?;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTS,
            timeout: near.timeout,
            retry_cnt: near.retries,
            rnr_retry: 7,
            sq_psn: near.psn,
            max_rd_atomic: far.initiated,
            ..Default::default()
        };
        let what = mask::IBV_QP_STATE
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut to, what, "connecting")
    }

    /// Moves the queue pair to ERROR: packets that arrive later are not executed.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut to, ibv_qp_attr_mask::IBV_QP_STATE, "ending")
    }

    /// Resets the queue pair, once the packet being processed is finished.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
        self.modify(&mut to, ibv_qp_attr_mask::IBV_QP_STATE, "resetting")
    }

    /// The PSN that the queue pair expects next.
    pub fn next_psn(&self) -> Result<u32, VerbsError> {
        let (mut attributes, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let what = (ibv_qp_attr_mask::IBV_QP_RQ_PSN | ibv_qp_attr_mask::IBV_QP_STATE).0 as i32;
        let query = self.domain.library().ibv_query_qp;
        // SAFETY: alive until dropped.
        let failed = unsafe { query(self.raw.as_ptr(), &mut attributes, what, &mut made) };
        done(failed).map_err(|source| self.failed("querying", source))?;
        Ok(attributes.rq_psn & 0xff_ffff)
    }

    /// Returns whether the device guarantees that the bytes of each write to this queue pair become visible in order, so
    /// that a reader may poll the last ones. Known only once the queue pair is ready to send. Two writes are unordered
    /// in any case.
    pub fn writes_in_order(&self) -> bool {
        let Some(query) = self.domain.library().ibv_query_qp_data_in_order else { return false };
        // Without flags the answer is 1 for the whole message, and else 0.
        // SAFETY: alive until dropped.
        unsafe { query(self.raw.as_ptr(), ibv_wr_opcode::IBV_WR_RDMA_WRITE, 0) == 1 }
    }

    fn failed(&self, doing: &str, source: io::Error) -> VerbsError {
        VerbsError::system(format!("{doing} a queue pair of RDMA device {}", self.domain.context.name), source)
    }

    fn modify(&self, to: &mut ibv_qp_attr, what: ibv_qp_attr_mask, doing: &str) -> Result<(), VerbsError> {
        // SAFETY: alive until dropped.
        let failed = unsafe { (self.domain.library().ibv_modify_qp)(self.raw.as_ptr(), to, what.0 as i32) };
        done(failed).map_err(|source| self.failed(doing, source))
    }
}

/// Smallest depth, the minimum of TRANSOM_VERBS_DEPTH.
const LEAST: u32 = 4;

/// Creates the deepest possible queue pair, and reduces the inline capacity as necessary. Devices report their real
/// limits only by refusing: mlx5 advertises four times the depth that a reliable connection can have.
fn largest<T>(
    wanted: Capacity,
    least: u32,
    mut make: impl FnMut(Capacity) -> Result<T, VerbsError>,
) -> Result<T, VerbsError> {
    let Capacity { mut depth, mut inline, .. } = wanted;
    loop {
        match make(Capacity { depth, inline, ..wanted }) {
            Err(_) if inline > 0 => inline /= 2,
            Err(error) if error.errno() == Some(Errno::INVAL) && depth > least => {
                (depth, inline) = ((depth / 2).max(least), wanted.inline);
            }
            made => return made,
        }
    }
}

fn sge(piece: Piece) -> ibv_sge {
    ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.key }
}

impl WorkQueue for QueuePair {
    fn number(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.raw.as_ref() }.qp_num
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn inline(&self) -> u32 {
        self.inline
    }

    #[inline]
    fn fences(&self) -> bool {
        self.fences
    }

    unsafe fn post(&self, request: &Request) -> io::Result<()> {
        let Request { token, verb, to, piece, signalled, fenced, inline } = *request;
        let mut sge = sge(piece);
        let mut raw = ibv_send_wr {
            wr_id: token.bits(),
            sg_list: &mut sge,
            num_sge: i32::from(piece.bytes > 0),
            ..Default::default()
        };
        for (flag, set) in [
            (ibv_send_flags::IBV_SEND_SIGNALED, signalled),
            (ibv_send_flags::IBV_SEND_FENCE, fenced),
            (ibv_send_flags::IBV_SEND_INLINE, inline),
        ] {
            raw.send_flags |= if set { flag.0 } else { 0 };
        }
        raw.wr.rdma.remote_addr = to.address;
        raw.wr.rdma.rkey = to.key;
        let atomic = |compare_add, swap| {
            let (remote_addr, rkey) = (to.address, to.key);
            ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey }
        };
        match verb {
            Verb::Write => raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            Verb::WriteAndTell(value) => {
                raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
                raw.__bindgen_anon_1.imm_data = value.to_be();
            }
            Verb::Send => raw.opcode = ibv_wr_opcode::IBV_WR_SEND,
            Verb::Read => raw.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ,
            Verb::CompareAndSwap { expected, new } => {
                raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
                raw.wr.atomic = atomic(expected, new);
            }
            Verb::Add(delta) => {
                raw.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD;
                raw.wr.atomic = atomic(delta, 0);
            }
        }
        // SAFETY: alive until dropped; the memory is valid by the caller's contract.
        unsafe { post_send(self.raw.as_ptr(), &mut raw) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: created by `new`; destroyed once.
        unsafe { (self.domain.library().ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

/// A queue pair of unreliable datagrams.
pub(crate) struct Datagrams {
    pair: QueuePair,
    near: NearEnd,
    key: u32,
}

impl Datagrams {
    /// Creates a queue pair that accepts datagrams with Q_Key `key`. Sends and receives complete on separate queues.
    pub fn new(
        domain: &Arc<Domain>,
        sent: &Arc<CompletionQueue>,
        received: &Arc<CompletionQueue>,
        capacity: Capacity,
        near: &NearEnd,
        key: u32,
    ) -> Result<Self, VerbsError> {
        let queues = [sent.clone(), received.clone()];
        let pair = QueuePair::new(domain, queues, None, ibv_qp_type::IBV_QPT_UD, capacity)?;
        let datagrams = Datagrams { pair, near: *near, key };
        datagrams.open()?;
        Ok(datagrams)
    }

    fn open(&self) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: self.near.port,
            pkey_index: self.near.pkey_index,
            qkey: self.key,
            ..Default::default()
        };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        self.pair.modify(&mut to, what, "initialising")?;
        to.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.pair.modify(&mut to, mask::IBV_QP_STATE, "opening")?;
        (to.qp_state, to.sq_psn) = (ibv_qp_state::IBV_QPS_RTS, self.near.psn);
        self.pair.modify(&mut to, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN, "opening")
    }

    /// Changes the Q_Key that datagrams must carry.
    pub fn take_only(&self, key: u32) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qkey: key, ..Default::default() };
        self.pair.modify(&mut to, ibv_qp_attr_mask::IBV_QP_QKEY, "changing the key of")
    }

    /// Resets the queue pair out of the error state. Posted requests and receives are dropped; `forgotten` must drain
    /// the completion queues.
    pub fn open_again(&self, forgotten: impl FnOnce()) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
        self.pair.modify(&mut to, ibv_qp_attr_mask::IBV_QP_STATE, "resetting")?;
        forgotten();
        self.open()
    }

    pub fn number(&self) -> u32 {
        self.pair.number()
    }

    pub fn depth(&self) -> u32 {
        self.pair.depth
    }

    /// Posts receives of several pieces each. If one is refused, the later ones are not posted.
    ///
    /// # Safety
    /// The memory of each receive must stay registered and unused until a datagram has arrived in it or the queue is
    /// destroyed.
    pub unsafe fn expect<const N: usize>(&self, buffers: &[(Token, [Piece; N])]) -> io::Result<()> {
        // SAFETY: alive until dropped; the memory is valid by the caller's contract.
        chained(buffers, |chain| unsafe { post_recv(self.pair.raw.as_ptr(), chain) })
    }

    /// Sends a datagram to a queue pair with that Q_Key, optionally with an immediate value.
    ///
    /// # Safety
    /// The piece must stay registered until the send is complete or the queue is destroyed.
    pub unsafe fn send(
        &self,
        token: Token,
        piece: Piece,
        to: &AddressHandle,
        queue_pair: u32,
        key: u32,
        value: Option<u32>,
    ) -> io::Result<()> {
        let mut sge = sge(piece);
        let mut raw = ibv_send_wr { wr_id: token.bits(), sg_list: &mut sge, num_sge: 1, ..Default::default() };
        raw.opcode = ibv_wr_opcode::IBV_WR_SEND;
        if let Some(value) = value {
            raw.opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
            raw.__bindgen_anon_1.imm_data = value.to_be();
        }
        raw.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        raw.wr.ud.ah = to.raw.as_ptr();
        raw.wr.ud.remote_qpn = queue_pair;
        raw.wr.ud.remote_qkey = key;
        // SAFETY: alive until dropped, like the address handle during the call; the memory is valid by the caller's
        // contract.
        unsafe { post_send(self.pair.raw.as_ptr(), &mut raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(errno: Errno) -> VerbsError {
        VerbsError::system("creating a queue pair", errno.into())
    }

    /// Depth and inline bytes that result on a simulated device with `units` units per queue pair. Each request takes
    /// four units, and one more per 16 inline bytes.
    fn made(units: u32, depth: u32, least: u32) -> Option<(u32, u32)> {
        let wanted = Capacity { depth, receives: 1, inline: 128, scatter: 1 };
        largest(wanted, least, |Capacity { depth, inline, .. }| match depth * (4 + inline / 16) <= units {
            true => Ok((depth, inline)),
            false => Err(refusal(Errno::INVAL)),
        })
        .ok()
    }

    #[test]
    fn refused_queue_pair_is_made_smaller() {
        assert_eq!(made(32_768, 128, 4), Some((128, 128)));
        assert_eq!(made(32_768, 8192, 4), Some((8192, 8)), "as deep as requested");
        assert_eq!(made(32_768, 32_768, 4), Some((8192, 8)), "a device may advertise four times its limit");
        assert_eq!(made(20, 100, 4), Some((4, 16)), "the smallest queue pair");
        assert_eq!(made(15, 100, 4), None);
        assert_eq!(made(32_768, 32_768, 32_768), None, "the smallest allowed depth is refused");
        let (mut tries, wanted) = (0, Capacity { depth: 128, receives: 1, inline: 0, scatter: 1 });
        let refused = largest(wanted, 4, |_| {
            tries += 1;
            Err::<(), _>(refusal(Errno::NOMEM))
        });
        assert!(refused.is_err() && tries == 1, "a temporary lack of memory does not reduce the depth");
    }
}
