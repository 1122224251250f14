//! Registered memory that only this rank and the adapter access.

use super::Keys;
use crate::VerbsError;
use crate::sys::{Access, Domain, Registered};
use crate::wr::Piece;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Zeroed, registered memory of whole pages.
pub(crate) struct Buffer {
    /// Deregistered before the memory is freed.
    registered: ManuallyDrop<Registered>,
    /// Registrations with further rails.
    further: Vec<Registered>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: accessed by raw copies and atomics only, by the owner of the bytes in question.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub fn new(domain: &Arc<Domain>, bytes: usize, access: Access) -> Result<Self, VerbsError> {
        let none = || VerbsError::system("buffers", io::ErrorKind::OutOfMemory.into());
        let bytes = bytes.max(1).checked_next_multiple_of(4096).ok_or_else(none)?;
        let layout = Layout::from_size_align(bytes, 4096).map_err(|_| none())?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(none)?;
        // SAFETY: `drop` frees the memory after the registration; all accesses are raw copies.
        match unsafe { Registered::new(domain, start, layout.size(), access) } {
            Ok(registered) => {
                Ok(Buffer { registered: ManuallyDrop::new(registered), further: Vec::new(), start, layout })
            }
            Err(error) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// Registers the buffer with further rails, until one refuses.
    pub fn also<'d>(mut self, domains: impl Iterator<Item = &'d Arc<Domain>>, access: Access) -> Self {
        // SAFETY: as above.
        let register = |domain| unsafe { Registered::new(domain, self.start, self.layout.size(), access) };
        let further = domains.map(register);
        self.further = further.map_while(|registered| registered.inspect_err(not_registered).ok()).collect();
        self
    }

    /// The address and keys for peers.
    pub fn keys(&self) -> Keys {
        let further = self.further.iter().map(Registered::remote_key);
        let keys: Vec<u32> = std::iter::once(self.remote_key()).chain(further).collect();
        Keys::new(self.address(), &keys)
    }

    pub fn bytes(&self) -> usize {
        self.layout.size()
    }

    pub fn address(&self) -> u64 {
        self.registered.address
    }

    pub fn remote_key(&self) -> u32 {
        self.registered.remote_key()
    }

    /// The memory at `offset`, with the adapter's key.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        self.registered.piece(offset, bytes)
    }

    /// Copies bytes into the buffer.
    pub fn write(&self, offset: usize, source: &[u8]) {
        self.check(offset, source.len());
        // SAFETY: in bounds; the caller owns these bytes, and no request accesses them.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.add(offset).as_ptr(), source.len()) };
    }

    /// Copies bytes that the adapter has written out of the buffer.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // SAFETY: inside the buffer, as just checked, and the adapter has completed its write. The completion came from
        // a foreign function, which orders this read after it.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset).as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// The address of the byte at `offset`.
    pub fn start(&self, offset: usize) -> NonNull<u8> {
        self.check(offset, 0);
        // SAFETY: in bounds.
        unsafe { self.start.add(offset) }
    }

    /// A word that peers change.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "the offset is that of a word");
        // SAFETY: in bounds and aligned, valid as long as `self`; every access to such a word is atomic.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset, "the piece lies within the buffer");
    }
}

fn not_registered(error: &VerbsError) {
    tracing::warn!(%error, "a further rail cannot register memory of the library");
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.further.clear();
        // SAFETY: once each, in this order; the layout is that of the allocation.
        unsafe {
            ManuallyDrop::drop(&mut self.registered);
            dealloc(self.start.as_ptr(), self.layout);
        }
    }
}
