//! Completion queues, and the channels by which they wake a thread.

use super::library::{poll_cq, req_notify_cq};
use super::{Context, refused};
use crate::VerbsError;
use crate::wr::{Completion, Completions, Failure, Token, Why};
use ibverbs_sys::*;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A completion queue. Destroyed when dropped.
pub(crate) struct CompletionQueue {
    pub(super) raw: NonNull<ibv_cq>,
    context: Arc<Context>,
    /// Dropped after the queue.
    channel: Option<Channel>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; a completion queue has its own lock.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Self, VerbsError> {
        Self::with(context, entries, None)
    }

    /// A queue with a channel that becomes readable at a completion, if [requested](Self::notify).
    pub fn with_channel(context: &Arc<Context>, entries: u32) -> Result<Self, VerbsError> {
        Self::with(context, entries, Some(Channel::new(context)?))
    }

    fn with(context: &Arc<Context>, entries: u32, channel: Option<Channel>) -> Result<Self, VerbsError> {
        let told = channel.as_ref().map_or(null_mut(), |channel| channel.raw.as_ptr());
        // SAFETY: the context is open, and the channel, if any, belongs to it.
        let raw = unsafe {
            let create = context.library.ibv_create_cq;
            create(context.raw.as_ptr(), entries as i32, null_mut(), told, context.vector as i32)
        };
        let what = || format!("creating a completion queue of {entries} entries on RDMA device {}", context.name);
        let raw = NonNull::new(raw).ok_or_else(|| refused(what()))?;
        Ok(CompletionQueue { raw, context: context.clone(), channel })
    }

    pub fn channel(&self) -> Option<&Channel> {
        self.channel.as_ref()
    }

    /// Requests an event in the channel for the next completion.
    pub fn notify(&self) -> Result<(), VerbsError> {
        // SAFETY: alive until dropped.
        let asked = unsafe { req_notify_cq(self.raw.as_ptr()) };
        asked.map_err(|source| {
            VerbsError::system(format!("requesting completion events of RDMA device {}", self.context.name), source)
        })
    }
}

impl Completions for CompletionQueue {
    fn poll(&self, each: &mut dyn FnMut(Completion)) -> io::Result<()> {
        loop {
            let mut completions = [const { MaybeUninit::<ibv_wc>::uninit() }; 16];
            // SAFETY: alive until dropped.
            let polled = unsafe { poll_cq(self.raw.as_ptr(), &mut completions) };
            let polled = polled.map_err(|error| io::Error::other(format!("poll_cq returned {error}")))?;
            for completion in &completions[..polled] {
                // SAFETY: `polled` entries were written.
                each(told(unsafe { completion.assume_init_ref() }));
            }
            if polled < completions.len() {
                return Ok(());
            }
        }
    }
}

fn told(completion: &ibv_wc) -> Completion {
    use ibv_wc_status as status;
    let failure = |(code, vendor)| Failure {
        why: match code {
            status::IBV_WC_REM_ACCESS_ERR | status::IBV_WC_REM_INV_REQ_ERR | status::IBV_WC_REM_OP_ERR => Why::Refused,
            status::IBV_WC_RETRY_EXC_ERR | status::IBV_WC_RNR_RETRY_EXC_ERR => Why::Silence,
            // LOC_QP_OP_ERR is Soft-RoCE's status without a route to the peer.
            status::IBV_WC_WR_FLUSH_ERR | status::IBV_WC_LOC_QP_OP_ERR => Why::Ended,
            _ => Why::Adapter,
        },
        status: code,
        vendor,
    };
    Completion {
        token: Token::from_bits(completion.wr_id()),
        queue_pair: completion.qp_num,
        bytes: completion.len(),
        value: completion.imm_data().map(u32::from_be),
        result: completion.error().map_or(Ok(()), |error| Err(failure(error))),
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by `new`; destroyed once, after its queue pairs, which hold a reference.
        unsafe { (self.context.library.ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}

/// A completion channel, which becomes readable at a completion. Destroyed when dropped.
pub(crate) struct Channel {
    raw: NonNull<ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    fn new(context: &Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.library.ibv_create_comp_channel)(context.raw.as_ptr()) });
        let raw =
            raw.ok_or_else(|| refused(format!("creating a completion channel on RDMA device {}", context.name)))?;
        Ok(Channel { raw, context: context.clone() })
    }

    /// Takes the event that made the channel readable.
    pub fn quiet(&self) {
        let (mut queue, mut context) = (null_mut(), null_mut());
        // SAFETY: the channel is alive and has an event, so this does not block; each event is acknowledged once.
        unsafe {
            if (self.context.library.ibv_get_cq_event)(self.raw.as_ptr(), &mut queue, &mut context) == 0 {
                (self.context.library.ibv_ack_cq_events)(queue, 1);
            }
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel and its descriptor live until dropped.
        unsafe { BorrowedFd::borrow_raw(self.raw.as_ref().fd) }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: created by `new`; destroyed once.
        unsafe { (self.context.library.ibv_destroy_comp_channel)(self.raw.as_ptr()) };
    }
}
