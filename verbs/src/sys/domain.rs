//! Protection domains and memory registrations: the memory that the adapter may access, and the access rights.

use super::library::Library;
use super::{Context, refused};
use crate::VerbsError;
use crate::wr::{Piece, RemoteAddress};
use ibverbs_sys::*;
use rustix::io::Errno;
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
    /// The rights as libibverbs numbers them, on a device with or without atomics.
    pub(super) fn flags(self, has_atomics: bool) -> ibv_access_flags {
        use ibv_access_flags as flag;
        let (local, write) = (flag::IBV_ACCESS_LOCAL_WRITE, flag::IBV_ACCESS_REMOTE_WRITE);
        let read = flag::IBV_ACCESS_REMOTE_READ;
        // A device without atomics refuses the right to use them.
        let atomic = if has_atomics { flag::IBV_ACCESS_REMOTE_ATOMIC } else { flag(0) };
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
        let flags = access.flags(domain.context.has_atomics()).0 as i32;
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
    // Huge pages need the variable only where libibverbs divides memory into pages itself.
    let needs_variable = context.library.keeps_pages_from_children() && std::env::var_os(HUGE_PAGES).is_none();
    let todo = todo(Errno::from_io_error(&source), getrlimit(Resource::Memlock).current, needs_variable);
    VerbsError::system(format!("registering {bytes} bytes with RDMA device {} failed{todo}", context.name), source)
}

/// Variable of libibverbs that makes it treat huge pages as such.
const HUGE_PAGES: &str = "RDMAV_HUGEPAGES_SAFE";

/// The probable cause of a failed registration, and what to do. `limit` is that of locked memory, in bytes.
fn todo(errno: Option<Errno>, limit: Option<u64>, needs_variable: bool) -> String {
    match (errno, limit) {
        (Some(Errno::NOMEM), Some(limit)) => format!(
            ": the limit of locked memory is {} KiB (`ulimit -l`); raise it in /etc/security/limits.conf (memlock), or by \
             LimitMEMLOCK= of the service",
            limit / 1024
        ),
        (Some(Errno::INVAL), _) if needs_variable => {
            format!(": if the memory consists of huge pages, set {HUGE_PAGES}=1, which this kernel (before 5.12) needs")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_registration_says_what_to_do() {
        let limit = todo(Some(Errno::NOMEM), Some(64 << 10), true);
        assert!(limit.contains("is 64 KiB (`ulimit -l`)"), "{limit}");
        let huge = todo(Some(Errno::INVAL), Some(64 << 10), true);
        assert!(huge.contains("set RDMAV_HUGEPAGES_SAFE=1"), "{huge}");
        for nothing in
            [(Some(Errno::INVAL), false), (Some(Errno::NOMEM), true), (Some(Errno::FAULT), true), (None, true)]
        {
            assert_eq!(todo(nothing.0, None, nothing.1), "");
        }
    }

    #[test]
    fn atomics_are_allowed_where_the_device_has_them() {
        use ibv_access_flags as flag;
        let atomic = |access: Access, has| access.flags(has).0 & flag::IBV_ACCESS_REMOTE_ATOMIC.0 != 0;
        for access in [Access::Words, Access::All] {
            assert_eq!([true, false].map(|has| atomic(access, has)), [true, false]);
            assert_eq!(access.flags(false).0, access.flags(true).0 & !flag::IBV_ACCESS_REMOTE_ATOMIC.0);
        }
        assert!(!atomic(Access::Bytes, true));
    }
}
