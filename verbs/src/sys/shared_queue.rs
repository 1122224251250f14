//! A shared receive queue: receive buffers for all queue pairs that were created with it.

use super::library::post_srq_recv;
use super::{Domain, refused};
use crate::VerbsError;
use crate::wr::{Piece, Token};
use ibverbs_sys::*;
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// A shared receive queue. Destroyed when dropped.
pub(crate) struct SharedQueue {
    pub(super) raw: NonNull<ibv_srq>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for SharedQueue {}
// SAFETY: as above; it has its own lock.
unsafe impl Sync for SharedQueue {}

/// Receives per chain.
const AT_ONCE: usize = 16;

impl SharedQueue {
    /// A queue of at most `depth` receives.
    pub fn new(domain: &Arc<Domain>, depth: u32) -> Result<Self, VerbsError> {
        let attr = ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut wanted = ibv_srq_init_attr { srq_context: null_mut(), attr };
        // SAFETY: the domain is alive.
        let raw = NonNull::new(unsafe { (domain.library().ibv_create_srq)(domain.raw.as_ptr(), &mut wanted) });
        let what =
            || format!("creating a shared receive queue of {depth} buffers on RDMA device {}", domain.context.name);
        Ok(SharedQueue { raw: raw.ok_or_else(|| refused(what()))?, domain: domain.clone() })
    }

    /// Posts receives. If one is refused, the later ones are not posted.
    ///
    /// # Safety
    /// The memory of each receive must stay registered and unused until its completion was reported, or until the queue
    /// and all its queue pairs are destroyed.
    pub unsafe fn post(&self, buffers: &[(Token, [Piece; 1])]) -> io::Result<()> {
        // SAFETY: alive until dropped; the memory is valid by the caller's contract.
        chained(buffers, |chain| unsafe { post_srq_recv(self.raw.as_ptr(), chain) })
    }
}

/// Posts receives in chains.
pub(super) fn chained<const N: usize>(
    buffers: &[(Token, [Piece; N])],
    mut post: impl FnMut(&mut ibv_recv_wr) -> io::Result<()>,
) -> io::Result<()> {
    for some in buffers.chunks(AT_ONCE) {
        let mut pieces = [const { [const { ibv_sge { addr: 0, length: 0, lkey: 0 } }; N] }; AT_ONCE];
        let mut chain =
            [const { ibv_recv_wr { wr_id: 0, next: null_mut(), sg_list: null_mut(), num_sge: 1 } }; AT_ONCE];
        // Built from the end, because each entry points to the next.
        let mut next = null_mut();
        for (at, (token, of)) in some.iter().enumerate().rev() {
            pieces[at] = of.map(|piece| ibv_sge { addr: piece.address, length: piece.bytes, lkey: piece.key });
            let (sg_list, num_sge) = (pieces[at].as_mut_ptr(), N as i32);
            chain[at] = ibv_recv_wr { wr_id: token.bits(), next, sg_list, num_sge };
            next = &mut chain[at];
        }
        post(&mut chain[0])?;
    }
    Ok(())
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        // SAFETY: created by `new`; destroyed once, after its queue pairs, which hold a reference.
        unsafe { (self.domain.library().ibv_destroy_srq)(self.raw.as_ptr()) };
    }
}
