//! Bytes that the machines of messages pass on, and never see.

use crate::blocks::Forget;
use crate::copy;
use crate::memory::View;
use std::any::Any;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle on bytes: of a cell of the inbox, of a ring, or of a buffer of the program's.
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
    /// Of this number, in the inbox; so many bytes at this place there.
    Cell { number: u32, at: usize, inbox: Part },
    /// Memory that one peer writes to: where it is, and what keeps it there.
    Ring { start: NonNull<u8>, len: usize, ring: Box<Ring> },
    /// A buffer. Who owns it is kept, unless it is lent.
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

// SAFETY: the bytes of `Here` are the owner's, which is `Send`, or lent for as long as the handle lives, and nobody else
// changes them; the others are shared memory, which any thread may use.
unsafe impl Send for Bytes {}

/// What can own bytes at a place that stays the same when the owner is moved.
///
/// # Safety
/// `bytes` gives the same place and length until the owner is dropped, also after it was moved. Nobody else changes the
/// bytes, and nobody reads them if they are `writable`. They are initialised, and may have any value if they are writable.
/// The memory that `lasting` tells of holds these bytes, and is not freed or moved before its place was cleared.
pub unsafe trait Owner: Any + Send {
    /// Where they begin, how many they are, and whether they may be written.
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool);

    /// If the bytes are part of memory that is sent again and again: that memory.
    fn lasting(&self) -> Option<Lasting> {
        None
    }
}

/// Memory that outlives the messages that are sent from it, and that the program does not free meanwhile.
#[derive(Debug, Clone)]
pub struct Lasting {
    /// Where it begins.
    pub start: NonNull<u8>,
    /// How many bytes it is.
    pub len: usize,
    /// Where what a wire makes of it is kept.
    pub place: Arc<Place>,
}

/// Where a wire keeps what it has made of memory, a registration, until that memory goes: whoever owns it [clears](Self::clear) the
/// place before.
#[derive(Default)]
pub struct Place(Mutex<Option<Arc<dyn Any + Send + Sync>>>);

impl std::fmt::Debug for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a place beside memory")
    }
}

impl Place {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Any + Send + Sync>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps something, instead of what was kept before.
    pub fn keep<K: Any + Send + Sync>(&self, kept: Arc<K>) {
        *self.lock() = Some(kept);
    }

    /// What is kept, if it is of this type.
    pub fn kept<K: Any + Send + Sync>(&self) -> Option<Arc<K>> {
        self.lock().clone()?.downcast().ok()
    }

    /// Keeps it no longer.
    pub fn clear(&self) {
        let gone = self.lock().take();
        drop(gone); // while nothing is locked
    }
}

// SAFETY: the heap memory of a vector does not move with it.
unsafe impl Owner for Box<[u8]> {
    fn bytes(&mut self) -> (NonNull<u8>, usize, bool) {
        (NonNull::from(&mut **self).cast(), self.len(), true)
    }
}

// Not inlined: what it tells would be kept in memory for it.
#[cold]
#[inline(never)]
fn outside(at: usize, length: usize, len: usize) -> ! {
    panic!("{length} bytes at {at} of {len}, or not aligned")
}

impl Bytes {
    /// Those of an owner, which is kept and given back by [`into_owner`](Self::into_owner).
    pub fn owned<O: Owner>(owner: O) -> Bytes {
        let mut owner = Box::new(owner);
        // Taken where it will stay: a box that is moved afterwards would forbid to use the place.
        let (start, len, writable) = owner.bytes();
        Bytes(Kind::Here { start, len, writable, owner: Some(owner) })
    }

    /// Bytes that the caller lends: to be read only, or written as well.
    ///
    /// # Safety
    /// As long as the handle lives they are valid; nobody else changes them, and nobody else reads them if they are
    /// `writable`. They are initialised.
    #[inline]
    pub unsafe fn lent(start: NonNull<u8>, len: usize, writable: bool) -> Bytes {
        Bytes(Kind::Here { start, len, writable, owner: None })
    }

    /// The owner, if it is of this type.
    pub fn into_owner<O: Owner>(self) -> Option<O> {
        match self.0 {
            Kind::Here { owner: Some(owner), .. } => {
                let owner: Box<dyn Any> = owner;
                owner.downcast().ok().map(|owner| *owner)
            }
            _ => None,
        }
    }

    /// Where the bytes of a buffer are.
    pub fn start(&self) -> Option<NonNull<u8>> {
        match &self.0 {
            Kind::Here { start, .. } => Some(*start),
            _ => None,
        }
    }

    /// The memory that they are part of, if that is sent again and again.
    pub fn lasting(&self) -> Option<Lasting> {
        match &self.0 {
            Kind::Here { owner: Some(owner), .. } => owner.lasting(),
            _ => None,
        }
    }

    /// How many bytes.
    #[inline]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Cell { inbox, at, .. } => inbox.0.len().saturating_sub(*at),
            Kind::Ring { len, .. } | Kind::Here { len, .. } => *len,
        }
    }

    /// Whether they may be written.
    pub fn is_writable(&self) -> bool {
        matches!(self.0, Kind::Here { writable: true, .. })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where `length` bytes from `at` on are, and whether they are memory that ranks share.
    ///
    /// # Panics
    /// If they are not within: who names a place has checked it.
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

    /// The word there.
    ///
    /// # Panics
    /// If it is not within a ring, or not aligned.
    #[inline(always)]
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        let (place, true) = self.place(at, 8) else { panic!("only rings have words") };
        let place = place.cast::<u64>();
        if !place.is_aligned() {
            outside(at, 8, self.len());
        }
        // SAFETY: within shared memory, which this handle keeps, and aligned; it is only accessed by atomics and `copy`.
        unsafe { AtomicU64::from_ptr(place) }
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If they are not within.
    #[inline(always)]
    pub fn read(&self, at: usize, into: &mut [u8]) {
        match self.place(at, into.len()) {
            // SAFETY: within shared memory, which is only accessed by atomics and `copy`.
            (from, true) => unsafe {
                if let Ok(head) = into.try_into() {
                    copy::from_shared_32(from, head)
                } else if into.len() == 8 {
                    copy::from_shared(from, &mut into[..8])
                } else {
                    copy::from_shared(from, into)
                }
            },
            // SAFETY: within a buffer that nobody changes meanwhile; a slice of another owner does not overlap it.
            (from, false) => unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) },
        }
    }

    /// Copies bytes to shared memory.
    ///
    /// # Safety
    /// `to` is valid for writes of `length` bytes of shared memory.
    #[inline(always)]
    pub(super) unsafe fn write_to(&self, at: usize, length: usize, to: *mut u8) {
        let (from, shared) = self.place(at, length);
        assert!(!shared, "what is sent is a buffer");
        // SAFETY: the source is within an initialised buffer that nobody changes meanwhile; the target by the caller's word.
        unsafe { copy::to_shared(to, std::slice::from_raw_parts(from, length)) };
    }

    /// The bytes, to be written by nobody but the caller.
    #[inline(always)]
    pub(super) fn writable(&self, at: usize, length: usize) -> *mut u8 {
        assert!(matches!(self.0, Kind::Here { writable: true, .. }), "what is received is written to a buffer");
        self.place(at, length).0
    }

    /// Copies bytes from one to another.
    ///
    /// # Panics
    /// If they are not within, or `to` is not to be written.
    #[inline(always)]
    pub fn copy(&self, at: usize, length: usize, to: &Bytes, to_at: usize) {
        let to = to.writable(to_at, length);
        match self.place(at, length) {
            // SAFETY: the source is within shared memory; the target within a buffer that only this engine writes to, and
            // nobody reads.
            (from, true) => unsafe { copy::from_shared(from, std::slice::from_raw_parts_mut(to, length)) },
            // SAFETY: both within buffers that nobody else changes.
            (from, false) => unsafe { std::ptr::copy(from, to, length) },
        }
    }
}
