//! Memory of this rank alone and the adapter.

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

/// Zeroed, registered memory, of whole pages.
pub(crate) struct Buffer {
    /// Taken back before the memory is freed.
    registered: ManuallyDrop<Registered>,
    /// With further rails.
    further: Vec<Registered>,
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: reached by raw copies and atomics only, by whoever was given the bytes.
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
        // SAFETY: freed by `drop`, after the registration; accessed by raw copies.
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

    /// Registers it with further rails, too, as far as they do.
    pub fn also<'d>(mut self, domains: impl Iterator<Item = &'d Arc<Domain>>, access: Access) -> Self {
        // SAFETY: as above.
        let register = |domain| unsafe { Registered::new(domain, self.start, self.layout.size(), access) };
        let further = domains.map(register);
        self.further = further.map_while(|registered| registered.inspect_err(not_registered).ok()).collect();
        self
    }

    /// Its names for peers.
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

    /// The memory at `offset`, as the adapter names it.
    pub fn piece(&self, offset: usize, bytes: usize) -> Piece {
        self.registered.piece(offset, bytes)
    }

    /// Copies there.
    pub fn write(&self, offset: usize, source: &[u8]) {
        self.check(offset, source.len());
        // SAFETY: inside; whoever has these bytes has them alone, and nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.start.add(offset).as_ptr(), source.len()) };
    }

    /// Copies from there, what the adapter brought.
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        self.check(offset, into.len());
        // The completion was seen by a function that the compiler does not know.
        // SAFETY: inside; whoever has these bytes has them alone, and nothing is under way there.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(offset).as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Where the byte at `offset` is.
    pub fn start(&self, offset: usize) -> NonNull<u8> {
        self.check(offset, 0);
        // SAFETY: inside.
        unsafe { self.start.add(offset) }
    }

    /// A word that peers change.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a word of its buffer");
        // SAFETY: inside and aligned, alive as long as `self`; whoever reads it as a word does so by atomics only.
        unsafe { AtomicU64::from_ptr(self.start.add(offset).as_ptr().cast()) }
    }

    #[inline]
    fn check(&self, offset: usize, bytes: usize) {
        assert!(offset <= self.bytes() && bytes <= self.bytes() - offset, "a piece of its buffer");
    }
}

fn not_registered(error: &VerbsError) {
    tracing::warn!(%error, "a further rail does not reach memory of the library's own");
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
