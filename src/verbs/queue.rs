//! Completion queues and queue pairs.

use super::VerbsError;
use super::device::{Device, last_error};
use super::library::{self, done};
use super::memory::window_flags;
use super::settings::Settings;
use ibverbs_sys::*;
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion queue. Destroyed when dropped; queue pairs must be gone by then.
pub(super) struct CompletionQueue {
    pub raw: NonNull<ibv_cq>,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; a completion queue has a lock of its own.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub fn new(device: &Arc<Device>, entries: u32, channel: *mut ibv_comp_channel) -> Result<Self, VerbsError> {
        // SAFETY: the context is open, and the channel, if there is one, is of it.
        let raw = unsafe {
            let context = device.context.as_ptr();
            (device.library.ibv_create_cq)(context, entries as i32, null_mut(), channel, 0)
        };
        let what = || format!("a completion queue of {entries} entries on RDMA device {}", device.name);
        let raw = NonNull::new(raw).ok_or_else(|| VerbsError::system(what(), last_error()))?;
        Ok(CompletionQueue { raw, device: device.clone() })
    }

    /// Calls `each` for what has completed.
    pub fn poll(&self, mut each: impl FnMut(&ibv_wc)) {
        loop {
            let mut completions = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
            // SAFETY: alive until dropped. A queue that cannot be polled shows nothing, and waits end by other means.
            let polled = unsafe { library::poll_cq(self.raw.as_ptr(), &mut completions) }.unwrap_or(0);
            for completion in &completions[..polled] {
                // SAFETY: so many were written.
                each(unsafe { completion.assume_init_ref() });
            }
            if polled < completions.len() {
                return;
            }
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once.
        unsafe { (self.device.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A queue pair. Destroyed when dropped: then nothing of it is under way any more.
pub(super) struct QueuePair {
    pub raw: NonNull<ibv_qp>,
    pub depth: u32,
    pub inline: u32,
    device: Arc<Device>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

/// Where the other end of a reliable connection is.
#[derive(Clone, Copy, Debug)]
pub(super) struct RemoteEnd {
    pub gid: [u8; 16],
    pub lid: u16,
    pub mtu: ibv_mtu,
    pub queue_pair: u32,
    pub psn: u32,
    /// Reads and atomics that it serves at once.
    pub responder_resources: u8,
    /// Reads and atomics that it has under way at once.
    pub initiator_depth: u8,
}

impl QueuePair {
    /// A queue pair of that kind, not yet connected.
    pub fn new(
        device: &Arc<Device>,
        send: &CompletionQueue,
        receive: &CompletionQueue,
        kind: ibv_qp_type::Type,
        capacity: ibv_qp_cap,
    ) -> Result<Self, VerbsError> {
        let mut smaller = capacity;
        loop {
            let mut wanted = ibv_qp_init_attr {
                send_cq: send.raw.as_ptr(),
                recv_cq: receive.raw.as_ptr(),
                cap: smaller,
                qp_type: kind,
                ..Default::default()
            };
            // SAFETY: the domain and the completion queues are alive.
            let raw = unsafe { (device.library.ibv_create_qp)(device.domain.as_ptr(), &mut wanted) };
            if let Some(raw) = NonNull::new(raw) {
                let depth = wanted.cap.max_send_wr.min(capacity.max_send_wr);
                let inline = wanted.cap.max_inline_data.min(capacity.max_inline_data);
                return Ok(QueuePair { raw, depth, inline, device: device.clone() });
            }
            let source = last_error();
            // What a device does not have inline it says only by refusing.
            if smaller.max_inline_data == 0 {
                let what = format!("a queue pair of depth {} on RDMA device {}", smaller.max_send_wr, device.name);
                return Err(VerbsError::system(what, source));
            }
            smaller.max_inline_data /= 2;
        }
    }

    pub fn number(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.raw.as_ref() }.qp_num
    }

    /// Ready to be connected; peers may do on registered windows what their keys allow.
    pub fn initialise(&self) -> Result<(), VerbsError> {
        let mut to =
            ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num: self.device.port, ..Default::default() };
        to.qp_access_flags = window_flags().0;
        use ibv_qp_attr_mask as mask;
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut to, what, "initialising")
    }

    /// Connects it: it can be written to from the far end, and sends from packet number `first` on.
    pub fn connect(&self, remote: &RemoteEnd, psn: u32, settings: &Settings) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let limits = &self.device.limits;
        let mut to = ibv_qp_attr {
            qp_state: ibv_qp_state::IBV_QPS_RTR,
            path_mtu: remote.mtu.min(self.device.mtu),
            dest_qp_num: remote.queue_pair,
            rq_psn: remote.psn,
            max_dest_rd_atomic: responder_resources(limits).min(remote.initiator_depth),
            min_rnr_timer: 12,
            ah_attr: self.device.route(remote.gid, remote.lid, settings.service_level),
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
            timeout: settings.timeout_exponent(),
            retry_cnt: 7,
            rnr_retry: 7,
            sq_psn: psn,
            max_rd_atomic: initiator_depth(limits).min(remote.responder_resources),
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

    /// Ready for datagrams that bring `key`.
    pub fn open_datagrams(&self, key: u32) -> Result<(), VerbsError> {
        use ibv_qp_attr_mask as mask;
        let port_num = self.device.port;
        let mut to = ibv_qp_attr { qp_state: ibv_qp_state::IBV_QPS_INIT, port_num, qkey: key, ..Default::default() };
        let what = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_QKEY;
        self.modify(&mut to, what, "initialising")?;
        to.qp_state = ibv_qp_state::IBV_QPS_RTR;
        self.modify(&mut to, mask::IBV_QP_STATE, "opening")?;
        to.qp_state = ibv_qp_state::IBV_QPS_RTS;
        self.modify(&mut to, mask::IBV_QP_STATE | mask::IBV_QP_SQ_PSN, "opening")
    }

    fn modify(&self, to: &mut ibv_qp_attr, what: ibv_qp_attr_mask, doing: &str) -> Result<(), VerbsError> {
        // SAFETY: alive until dropped.
        let failed = unsafe { (self.device.library.ibv_modify_qp)(self.raw.as_ptr(), to, what.0 as i32) };
        done(failed).map_err(|source| {
            VerbsError::system(format!("{doing} a queue pair of RDMA device {}", self.device.name), source)
        })
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once.
        unsafe { (self.device.library.ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

/// Reads and atomics that a device has under way, or serves, at once for one queue pair.
pub(super) fn initiator_depth(limits: &ibv_device_attr) -> u8 {
    limits.max_qp_init_rd_atom.clamp(1, 16) as u8
}

pub(super) fn responder_resources(limits: &ibv_device_attr) -> u8 {
    limits.max_qp_rd_atom.clamp(1, 16) as u8
}
