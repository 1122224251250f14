//! Protection domains and memory registrations: the memory that the adapter may access, and the access rights.

use super::library::Library;
use super::{Context, refused};
use crate::VerbsError;
use crate::wr::{Piece, RemoteAddress};
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
    /// Memory on which peers may execute atomics: address and length, by remote key.
    words: Mutex<HashMap<u32, (u64, usize)>>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above; its objects have their own locks.
unsafe impl Sync for Domain {}

impl Domain {
    pub fn new(context: Arc<Context>) -> Result<Self, VerbsError> {
        // SAFETY: the context is open.
        let raw = NonNull::new(unsafe { (context.library.ibv_alloc_pd)(context.raw.as_ptr()) });
        let raw =
            raw.ok_or_else(|| refused(format!("allocating a protection domain on RDMA device {}", context.name)))?;
        Ok(Domain { raw, context, registered: AtomicUsize::new(0), words: Mutex::default() })
    }

    pub(super) fn library(&self) -> &'static Library {
        self.context.library
    }

    /// Returns whether `place` is a word on which peers may execute atomics.
    pub fn has_word(&self, place: RemoteAddress) -> bool {
        let words = lock(&self.words);
        let inside = |&(start, bytes): &(u64, usize)| {
            place.address.checked_sub(start).is_some_and(|at| at.checked_add(8).is_some_and(|end| end <= bytes as u64))
        };
        words.get(&place.key).is_some_and(inside) && place.address.is_multiple_of(8)
    }

    /// Bytes currently registered.
    pub fn registered(&self) -> usize {
        self.registered.load(Relaxed)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: created by `new`; deallocated once, after its objects, which hold a reference.
        unsafe { (self.library().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Access rights, no wider than the use of the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Peers: none. This rank's adapter only reads.
    Source,
    /// Peers: none. The adapter writes results of this rank's operations.
    Local,
    /// Peers read.
    Read,
    /// Peers read; the adapter also writes results of this rank's reads.
    Buffer,
    /// Peers read and write, without atomics.
    Bytes,
    /// Peers write and execute atomics.
    Words,
    /// Peers read, write and execute atomics.
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

/// A memory registration. Deregistered when dropped; the adapter refuses later accesses.
pub(crate) struct Registered {
    region: NonNull<ibv_mr>,
    pub address: u64,
    readable: bool,
    domain: Arc<Domain>,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Registered {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers `bytes` bytes from `start` on.
    ///
    /// # Safety
    /// The memory must stay in place until this is dropped. While the adapter may access it, by peers' rights or by a
    /// request of this rank, no code may access it as private memory.
    pub unsafe fn new(
        domain: &Arc<Domain>,
        start: NonNull<u8>,
        bytes: usize,
        access: Access,
    ) -> Result<Self, VerbsError> {
        let flags = access.flags().0 as i32;
        // SAFETY: the domain is alive; the memory is valid by the caller's contract.
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

    /// Returns whether peers that know the key may read the memory.
    pub fn is_readable(&self) -> bool {
        self.readable
    }

    /// The key for requests of this rank.
    pub fn local_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.lkey
    }

    /// The key for requests of peers.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: alive until dropped.
        unsafe { self.region.as_ref() }.rkey
    }

    /// The memory at `offset`, with the local key.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset, "the piece lies within the registration");
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
        // Removed before the key can be reused.
        lock(&self.domain.words).remove(&self.remote_key());
        // SAFETY: registered by `new`; deregistered once.
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
