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

/// A queue pair. Destroyed when dropped: then nothing of it is under way any more.
pub(crate) struct QueuePair {
    raw: NonNull<ibv_qp>,
    depth: u32,
    inline: u32,
    fences: bool,
    domain: Arc<Domain>,
    /// Go after it.
    _completions: [Arc<CompletionQueue>; 2],
    _shared: Option<Arc<SharedQueue>>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above; a queue pair has locks of its own.
unsafe impl Sync for QueuePair {}

/// How much a queue pair is to hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Capacity {
    /// Requests under way; less, of a reliable connection, if the device has less.
    pub depth: u32,
    /// Buffers for messages to come.
    pub receives: u32,
    /// Bytes that a request takes along, less if the device has less.
    pub inline: u32,
    /// Pieces of memory that one message comes to, one after the other.
    pub scatter: u32,
}

/// This end of a connection, as it is to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearEnd {
    pub port: u8,
    pub pkey_index: u16,
    pub psn: u32,
    /// The exponent of the timeout, which is 4.096 us times a power of two.
    pub timeout: u8,
    /// How often a packet is sent again.
    pub retries: u8,
}

/// The other end of a connection, as it told, and what both agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarEnd {
    pub path: Path,
    pub mtu: ibv_mtu,
    pub queue_pair: u32,
    pub psn: u32,
    /// Reads and atomics that it may have under way here at once.
    pub served: u8,
    /// Reads and atomics that this rank may have under way there at once.
    pub initiated: u8,
}

impl QueuePair {
    /// A reliable connection, not yet connected. What was posted and what was received complete apart; messages come to the
    /// shared queue, or to none.
    pub fn reliable(
        domain: &Arc<Domain>,
        completions: [&Arc<CompletionQueue>; 2],
        shared: Option<&Arc<SharedQueue>>,
        capacity: Capacity,
    ) -> Result<Self, VerbsError> {
        Self::new(domain, completions.map(Arc::clone), shared, ibv_qp_type::IBV_QPT_RC, capacity)
    }

    /// From now on it is given no fenced requests: who posts has them wait.
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
        // Who sends datagrams has memory for so many.
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
            let what = || format!("a queue pair of depth {} on RDMA device {}", capacity.depth, domain.context.name);
            let raw = NonNull::new(raw).ok_or_else(|| refused(what()))?;
            let depth = wanted.cap.max_send_wr.min(capacity.depth);
            let inline = wanted.cap.max_inline_data.min(capacity.inline);
            let (domain, _shared, _completions) = (domain.clone(), shared.cloned(), completions.clone());
            Ok(QueuePair { raw, depth, inline, fences: true, domain, _completions, _shared })
        })
    }

    /// Ready to be connected; the peer may do on registered memory what that allows.
    pub fn initialise(&self, near: &NearEnd) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_INIT,
            port_num: near.port,
            pkey_index: near.pkey_index,
            qp_access_flags: Access::All.flags().0,
            ..Default::default()
        };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut to, what, "initialising")
    }

    /// Connects it: it can be written to from the far end, and sends.
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

    /// Ends it: nothing that comes later is executed.
    pub fn fail(&self) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_ERR, ..Default::default() };
        self.modify(&mut to, ibv_qp_attr_mask::IBV_QP_STATE, "ending")
    }

    /// Has it forget what it was doing, once it does nothing any more.
    pub fn reset(&self) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_RESET, ..Default::default() };
        self.modify(&mut to, ibv_qp_attr_mask::IBV_QP_STATE, "resetting")
    }

    /// The number of the packet that it expects next.
    pub fn next_psn(&self) -> Result<u32, VerbsError> {
        let (mut attributes, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let what = (ibv_qp_attr_mask::IBV_QP_RQ_PSN | ibv_qp_attr_mask::IBV_QP_STATE).0 as i32;
        let query = self.domain.library().ibv_query_qp;
        // SAFETY: alive until dropped.
        let failed = unsafe { query(self.raw.as_ptr(), &mut attributes, what, &mut made) };
        done(failed).map_err(|source| self.failed("asking", source))?;
        Ok(attributes.rq_psn & 0xff_ffff)
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

/// As few requests may be under way, as TRANSOM_VERBS_DEPTH has it.
const LEAST: u32 = 4;

/// The deepest that can be made, and what that takes along at most. What a device does not have it says only by refusing: mlx5 tells a
/// depth that is four times what a reliable connection can have.
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
        // SAFETY: alive until dropped; the memory by the caller's word.
        unsafe { post_send(self.raw.as_ptr(), &mut raw) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once.
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
    /// One that takes datagrams that bring `key`. What was sent and what was received complete apart.
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

    /// From now on it takes those that bring this key.
    pub fn take_only(&self, key: u32) -> Result<(), VerbsError> {
        let mut to = ibv_qp_attr { qkey: key, ..Default::default() };
        self.pair.modify(&mut to, ibv_qp_attr_mask::IBV_QP_QKEY, "changing the key of")
    }

    /// Takes it out of the state that an error has left it in: what was handed over is forgotten, which `forgotten` is to
    /// take from the completion queues.
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

    /// Hands buffers over for datagrams to come, each of several pieces; those of the rest are not if one is refused.
    ///
    /// # Safety
    /// Each must stay registered, and nobody use it, until a datagram has come to it or the queue is gone.
    pub unsafe fn expect<const N: usize>(&self, buffers: &[(Token, [Piece; N])]) -> io::Result<()> {
        // SAFETY: alive until dropped; the memory by the caller's word.
        chained(buffers, |chain| unsafe { post_recv(self.pair.raw.as_ptr(), chain) })
    }

    /// Sends a datagram to that queue pair, which takes those that bring `key`; with a value beside it, if there is one.
    ///
    /// # Safety
    /// The piece must stay registered until it is sent or the queue is gone.
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
        // SAFETY: alive until dropped, and so is the address handle now; the memory by the caller's word.
        unsafe { post_send(self.pair.raw.as_ptr(), &mut raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(errno: Errno) -> VerbsError {
        VerbsError::system("a queue pair", errno.into())
    }

    /// Depth and inline bytes, by a device with that many units for a queue pair: each request takes four, and one more for 16 bytes that
    /// it takes along.
    fn made(units: u32, depth: u32, least: u32) -> Option<(u32, u32)> {
        let wanted = Capacity { depth, receives: 1, inline: 128, scatter: 1 };
        largest(wanted, least, |Capacity { depth, inline, .. }| match depth * (4 + inline / 16) <= units {
            true => Ok((depth, inline)),
            false => Err(refusal(Errno::INVAL)),
        })
        .ok()
    }

    #[test]
    fn a_queue_pair_takes_less_along_or_is_shorter_where_the_device_refuses() {
        assert_eq!(made(32_768, 128, 4), Some((128, 128)));
        assert_eq!(made(32_768, 8192, 4), Some((8192, 8)), "as deep as was asked for");
        assert_eq!(made(32_768, 32_768, 4), Some((8192, 8)), "a device may say that it has four times what it has");
        assert_eq!(made(20, 100, 4), Some((4, 16)), "the least");
        assert_eq!(made(15, 100, 4), None);
        assert_eq!(made(32_768, 32_768, 32_768), None, "or as deep as it must be");
        let (mut tries, wanted) = (0, Capacity { depth: 128, receives: 1, inline: 0, scatter: 1 });
        let refused = largest(wanted, 4, |_| {
            tries += 1;
            Err::<(), _>(refusal(Errno::NOMEM))
        });
        assert!(refused.is_err() && tries == 1, "memory that there is not now is no reason");
    }
}
