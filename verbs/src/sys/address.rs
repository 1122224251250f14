//! Paths to peers, for queue pairs and for datagrams.

use super::{Domain, refused};
use crate::VerbsError;
use ibverbs_sys::*;
use std::ptr::NonNull;
use std::sync::Arc;

/// The path from a port of this rank to a peer's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// This rank's port.
    pub port: u8,
    /// The peer's LID, its address within an InfiniBand subnet.
    pub lid: u16,
    pub service_level: u8,
    /// The GRH, with the peer's GID; `None` if the LID suffices.
    pub global: Option<GlobalPath>,
}

/// Fields of a packet's GRH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GlobalPath {
    pub gid: [u8; 16],
    /// Index of this rank's own GID.
    pub source: u8,
    pub traffic_class: u8,
}

/// Hop limit.
const HOPS: u8 = 64;

impl Path {
    pub(super) fn attributes(&self) -> ibv_ah_attr {
        let mut to = ibv_ah_attr { dlid: self.lid, sl: self.service_level, port_num: self.port, ..Default::default() };
        if let Some(global) = self.global {
            to.is_global = 1;
            to.grh.dgid.raw = global.gid;
            to.grh.sgid_index = global.source;
            to.grh.hop_limit = HOPS;
            to.grh.traffic_class = global.traffic_class;
        }
        to
    }
}

/// An address handle for datagrams. Destroyed when dropped.
pub(crate) struct AddressHandle {
    pub(super) raw: NonNull<ibv_ah>,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    pub fn new(domain: &Arc<Domain>, path: &Path) -> Result<Self, VerbsError> {
        let mut to = path.attributes();
        // SAFETY: the domain is alive.
        let raw = NonNull::new(unsafe { (domain.library().ibv_create_ah)(domain.raw.as_ptr(), &mut to) });
        let raw =
            raw.ok_or_else(|| refused(format!("creating an address handle on RDMA device {}", domain.context.name)))?;
        Ok(AddressHandle { raw, domain: domain.clone() })
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: created by `new`; destroyed once.
        unsafe { (self.domain.library().ibv_destroy_ah)(self.raw.as_ptr()) };
    }
}
