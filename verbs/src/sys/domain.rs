//! A protection domain, and registrations in it: what the adapter may reach by itself, and with which rights.

use super::library::Library;
use super::{Context, refused};
use crate::VerbsError;
use crate::wr::{Piece, Place};
use ibverbs_sys::*;
use rustix::process::{Resource, getrlimit};
use std::collections::HashMap;
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use transom_launch::lock;

/// A protection domain of an open device. Deallocated when dropped.
pub(crate) struct Domain {
    pub(super) raw: NonNull<ibv_pd>,
    pub context: Arc<Context>,
    registered: AtomicUsize,
    /// What peers may do atomics on: by its key, where it is, and how long.
    words: Mutex<HashMap<u32, (u64, usize)>>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above; what is made of it has locks of its own.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) });
        let raw = raw.ok_or_else(|| refused(format!("a protection domain of RDMA device {}", context.name)))?;
        Ok(Domain { raw, context, registered: AtomicUsize::new(0), words: Mutex::default() })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.context.library
    }

    /// Whether that is a word of what peers may do atomics on.
    pub fn has_word(&self, place: Place) -> bool {
        let words = lock(&self.words);
        let inside = |&(start, bytes): &(u64, usize)| {
            place.address.checked_sub(start).is_some_and(|at| at.checked_add(8).is_some_and(|end| end <= bytes as u64))
        };
        words.get(&place.key).is_some_and(inside) && place.address.is_multiple_of(8)
    }

    /// Bytes registered now.
    pub fn registered(&self) -> usize {
        self.registered.load(Relaxed)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: made by `new`, once; what was made of it is gone, since it keeps this.
        unsafe { (self.library().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// What peers may do with memory, no more than what is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Nothing, and this rank's own adapter only reads it.
    Source,
    /// Nothing: the adapter brings results of this rank's own operations there.
    Local,
    /// Bytes: read.
    Read,
    /// Bytes: read; this rank's own adapter brings what it reads there, too.
    Buffer,
    /// Bytes, without words: write and read.
    Bytes,
    /// Words alone: write and atomics.
    Words,
    /// Bytes and words.
    All,
}

impl Access {
    pub(super) fn flags(self) -> ibv_access_flags {
        use ibv_access_flags as flag;
        let (local, write) = (flag::IBV_ACCESS_LOCAL_WRITE, flag::IBV_ACCESS_REMOTE_WRITE);
        let (read, atomic) = (flag::IBV_ACCESS_REMOTE_READ, flag::IBV_ACCESS_REMOTE_ATOMIC);
        match self {
            Access::Source => flag(0),
            Access::Local => local,
            Access::Read => read,
            Access::Buffer => local | read,
            Access::Bytes => local | write | read,
            Access::Words => local | write | atomic,
            Access::All => local | write | read | atomic,
        }
    }
}

/// A registration. Taken back when dropped: whoever accesses the memory then is refused by the adapter.
pub(crate) struct Registered {
    region: NonNull<ibv_mr>,
    pub address: u64,
    readable: bool,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; nothing is changed through it.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The memory must stay where it is until this is dropped. While the adapter may access it, by the rights of peers or by a
    /// request of this rank, nobody must access it as if it were private.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let flags = access.flags().0 as i32;
        // SAFETY: the domain is alive; the memory by the caller's word.
        let region = unsafe { (domain.library().ibv_reg_mr)(domain.raw.as_ptr(), start.as_ptr().cast(), bytes, flags) };
        let region =
            NonNull::new(region).ok_or_else(|| unlocked(&domain.context, bytes, io::Error::last_os_error()))?;
        domain.registered.fetch_add(bytes, Relaxed);
        let address = start.as_ptr().expose_provenance() as u64;
        let readable = !matches!(access, Access::Source | Access::Local | Access::Words);
        let registered = Registered { region, address, readable, domain: domain.clone() };
        if matches!(access, Access::Words | Access::All) {
            let mut words = lock(&domain.words);
            words.insert(registered.remote_key(), (address, bytes));
        }
        Ok(registered)
    }

    /// Whether peers that are told of it may read it.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// What names it in requests of this rank.
    pub fn local_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.lkey
    }

    /// What names it in requests of peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.rkey
    }

    /// The memory at `offset`, as the adapter names it.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset, "a piece of what is registered");
        Piece { address: self.address + offset as u64, bytes: bytes as u32, key: self.local_key() }
    }

    pub fn bytes(&self) -> usize {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.length
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.domain.registered.fetch_sub(self.bytes(), Relaxed);
        // Before its key may be another's.
        lock(&self.domain.words).remove(&self.remote_key());
        // SAFETY: registered by `new`, once.
        unsafe { (self.domain.library().ibv_dereg_mr)(self.region.as_ptr()) };
    }
}

#[cold]
fn unlocked(context: &Context, bytes: usize, source: io::Error) -> VerbsError {
    let limit = getrlimit(Resource::Memlock).current;
    let what = match limit {
        Some(limit) if source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => format!(
            "registering {bytes} bytes with RDMA device {} failed: the limit of locked memory is {} KiB (`ulimit -l`); \
             raise it in /etc/security/limits.conf (memlock), or by LimitMEMLOCK= of the service",
            context.name,
            limit / 1024
        ),
        _ => format!("registering {bytes} bytes with RDMA device {} failed", context.name),
    };
    VerbsError::system(what, source)
}
