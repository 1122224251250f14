//! Handles on bytes, which protocol code passes on without access to their contents.

use crate::blocks::Forget;
use crate::copy;
use crate::memory::View;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, SeqCst};
use std::sync::atomic::{AtomicU64, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use transom_channel::wire::WireMemory;

/// A handle on bytes in a cell of the inbox, in a ring, or in a buffer of the program.
///
/// # Examples
/// ```
/// use transom_shm_loopback::messages::Bytes;
/// let buffer = Bytes::owned(vec![1_u8, 2, 3].into_boxed_slice());
/// assert_eq!(buffer.len(), 3);
/// assert_eq!(buffer.into_owner::<Box<[u8]>>().as_deref(), Some(&[1_u8, 2, 3][..]));
/// ```
#[derive(Debug)]
pub struct Bytes(pub(super) Kind);

#[derive(Debug)]
pub(super) enum Kind {
    /// Cell `number` of the inbox; its bytes start at offset `at` of the inbox.
    Cell { number: u32, at: usize, inbox: Part },
    /// A ring that one peer writes to; `ring` keeps the memory mapped.
    Ring { start: NonNull<u8>, len: usize, ring: Box<Ring> },
    /// A buffer. `owner` keeps it alive; `None` if the caller lends it.
    Here { start: NonNull<u8>, len: usize, writable: bool, owner: Option<Box<dyn Owner>> },
}

#[derive(Debug)]
pub(super) struct Ring {
    pub memory: Part,
    pub _fd: Option<OwnedFd>,
    pub _listed: Forget,
}

/// Part of a shared block.
#[derive(Clone)]
pub(super) struct Part(pub View);

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} shared bytes", self.0.len())
    }
}

impl std::fmt::Debug for dyn Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an owner")
    }
}

// SAFETY: the bytes of `Here` belong to the owner, which is `Send`, or are lent for the lifetime of the handle, and no
// other code modifies them. The other kinds are shared memory, which any thread may use.
unsafe impl Send for Bytes {}

/// An owner of bytes whose address does not change when the owner is moved.
///
/// # Safety
/// `bytes` returns the same address and length until the owner is dropped, also after it was moved. No other code
/// modifies the bytes, and none reads them if they are `writable`. The bytes are initialised; if they are writable,
/// every value is valid. The memory that `lasting` describes contains these bytes, and is not freed or moved before its
/// place was cleared.
pub unsafe trait Owner: Any + Send {
    /// Address and length of the bytes, and whether they may be written.
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool);

    /// The long-lived memory that contains the bytes, if it is sent from repeatedly.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

/// Long-lived memory that messages are sent from repeatedly, and that is not freed while they are in flight.
#[derive(Debug, Clone)]
pub struct Lasting {
    /// First byte.
    pub start: NonNull<u8>,
    /// Length in bytes.
    pub len: usize,
    /// Cache for the wire's registration of this memory.
    pub place: Arc<WireCache>,
}

/// A cache for what a wire derives from memory, such as a registration. The owner of the memory must
/// [clear](Self::clear) it before the memory is freed.
#[derive(Default)]
pub struct WireCache(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

impl std::fmt::Debug for WireCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a slot for provider data")
    }
}

impl WireCache {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Any + Send + Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `kept` in place of the previous value.
    pub fn keep<K: Any + Send + Sync>(&self, kept: Arc<K>) {
        *self.lock() = Some(kept);
    }

    /// The stored value, if it has type `K`.
    pub fn kept<K: Any + Send + Sync>(&self) -> Option<Arc<K>> {
        self.lock().clone()?.downcast().ok()
    }

    /// Drops the stored value.
    pub fn clear(&self) {
        let gone = self.lock().take();
        drop(gone); // while nothing is locked
    }
}

// SAFETY: the heap memory of a boxed slice does not move with the box.
unsafe impl Owner for Box<[u8]> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (NonNull::from(&mut **self).cast(), self.len(), true)
    }
}

// Not inlined: otherwise every caller would spill the panic's arguments to memory.
#[cold]
#[inline(never)]
fn outside(at: usize, length: usize, len: usize) -> ! {
    panic!("{length} bytes at {at} of {len}, or not aligned")
}

impl Bytes {
    /// A handle that owns its buffer; [`into_owner`](Self::into_owner) returns the owner.
    pub fn owned<O: Owner>(owner: O) -> Bytes {
        let mut owner = Box::new(owner);
        // Called after the move into the box: moving a box later would invalidate the pointer.
        let (start, len, writable) = owner.bytes();
        Bytes(Kind::Here { start, len, writable, owner: Some(owner) })
    }

    /// A handle on bytes that the caller lends, read-only or writable.
    ///
    /// # Safety
    /// For the lifetime of the handle, the bytes are valid and initialised, no other code modifies them, and no other
    /// code reads them if they are `writable`.
    #[inline]
    pub unsafe fn lent(start: NonNull<u8>, len: usize, writable: bool) -> Bytes {
        Bytes(Kind::Here { start, len, writable, owner: None })
    }

    /// The same bytes, which are only read from now on: those of a message to send.
    #[inline]
    pub fn read_only(mut self) -> Bytes {
        if let Kind::Here { writable, .. } = &mut self.0 {
            *writable = false;
        }
        self
    }

    /// Returns the owner, if it has type `O`.
    pub fn into_owner<O: Owner>(self) -> Option<O> {
        match self.0 {
            Kind::Here { owner: Some(owner), .. } => {
                let owner: Box<dyn Any> = owner;
                owner.downcast().ok().map(|owner| *owner)
            }
            _ => None,
        }
    }

    /// Address of the bytes of a buffer; `None` for cells and rings.
    pub fn start(&self) -> Option<NonNull<u8>> {
        match &self.0 {
            Kind::Here { start, .. } => Some(*start),
            _ => None,
        }
    }

    /// The long-lived memory that contains the bytes, if it is sent from repeatedly.
    pub fn lasting(&self) -> Option<Lasting> {
        match &self.0 {
            Kind::Here { owner: Some(owner), .. } => owner.lasting(),
            _ => None,
        }
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Cell { inbox, at, .. } => inbox.0.len().saturating_sub(*at),
            Kind::Ring { len, .. } | Kind::Here { len, .. } => *len,
        }
    }

    /// True if the bytes may be written.
    pub fn is_writable(&self) -> bool {
        matches!(self.0, Kind::Here { writable: true, .. })
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Address of `length` bytes at offset `at`, and whether they are in memory that ranks share.
    ///
    /// # Panics
    /// If the range is out of bounds; callers check ranges beforehand.
    #[inline(always)]
    fn place(&self, at: usize, length: usize) -> (*mut u8, bool) {
        let inside = |start: NonNull<u8>, len: usize| {
            if at.checked_add(length).is_none_or(|end| end > len) {
                outside(at, length, len);
            }
            start.as_ptr().wrapping_add(at)
        };
        match &self.0 {
            Kind::Ring { start, len, .. } => (inside(*start, *len), true),
            Kind::Here { start, len, .. } => (inside(*start, *len), false),
            Kind::Cell { inbox, at: base, .. } => (inbox.0.address(base + at, length).expect("within its cell"), true),
        }
    }

    /// Copies bytes of a buffer to shared memory.
    ///
    /// # Safety
    /// `to` must be valid for writes of `length` bytes of shared memory.
    #[inline(always)]
    pub(super) unsafe fn write_to(&self, at: usize, length: usize, to: *mut u8) {
        let (from, shared) = self.place(at, length);
        assert!(!shared, "a source is a buffer");
        // SAFETY: the source is within an initialised buffer that is not modified meanwhile; the target is valid by the
        // caller's contract.
        unsafe { copy::to_shared(to, std::slice::from_raw_parts(from, length)) };
    }

    /// Address of bytes that only the caller writes.
    #[inline(always)]
    pub(super) fn writable(&self, at: usize, length: usize) -> *mut u8 {
        assert!(matches!(self.0, Kind::Here { writable: true, .. }), "a target is a writable buffer");
        self.place(at, length).0
    }
}

impl WireMemory for Bytes {
    #[inline(always)]
    fn read(&self, at: usize, into: &mut [u8]) {
        match self.place(at, into.len()) {
            // SAFETY: within shared memory, which is accessed only by atomics and `copy`.
            (from, true) => unsafe {
                if let Ok(head) = into.try_into() {
                    copy::from_shared_32(from, head)
                } else if into.len() == 8 {
                    copy::from_shared(from, &mut into[..8])
                } else {
                    copy::from_shared(from, into)
                }
            },
            // SAFETY: within a buffer that is not modified meanwhile; a slice of another owner does not overlap it.
            (from, false) => unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) },
        }
    }

    #[inline(always)]
    fn copy(&self, at: usize, length: usize, to: &Bytes, to_at: usize) {
        let to = to.writable(to_at, length);
        match self.place(at, length) {
            // SAFETY: the source is within shared memory; the target is within a buffer that only this engine accesses.
            (from, true) => unsafe { copy::from_shared(from, std::slice::from_raw_parts_mut(to, length)) },
            // SAFETY: both ranges are within buffers that no other code modifies.
            (from, false) => unsafe { std::ptr::copy(from, to, length) },
        }
    }

    #[inline(always)]
    fn word(&self, at: usize) -> u64 {
        let (place, shared) = self.place(at, 8);
        let place = place.cast::<u64>();
        if !place.is_aligned() {
            outside(at, 8, self.len());
        }
        if shared {
            // SAFETY: within shared memory that this handle keeps, and aligned; accessed only by atomics and `copy`.
            return unsafe { AtomicU64::from_ptr(place) }.load(SeqCst);
        }
        // SAFETY: within a buffer that this handle keeps, and aligned. No thread modifies it during this call; an adapter
        // may, for which the read is volatile.
        let word = unsafe { place.read_volatile() };
        fence(Acquire);
        word
    }

    #[inline(always)]
    fn prefetch(&self, at: usize) {
        if let Kind::Ring { start, .. } = &self.0 {
            copy::prefetch::<false>(start.as_ptr().wrapping_add(at));
        }
    }
}
